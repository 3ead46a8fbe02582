/* What the Vulkan programs of these tests share: a device, buffers, a pipeline, checks. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vulkan.h>

/* Ends the program where something does not hold. */
#define NEED(what)                                                                \
    do {                                                                          \
        if (!(what)) {                                                            \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #what); \
            exit(1);                                                              \
        }                                                                         \
    } while (0)
#define RESULT(call, wanted)                                                                       \
    do {                                                                                           \
        VkResult result = (call);                                                                  \
        if (result != (wanted)) {                                                                  \
            fprintf(stderr, "%s:%d: %s is %d, not %d\n", __FILE__, __LINE__, #call, result, wanted); \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define OK(call) RESULT(call, VK_SUCCESS)

/* How long anything may take before it counts as never, nanoseconds. */
#define NEVER 60000000000ull
/* Words of each buffer. */
#define WORDS 1000u

/* A device and its queue. */
struct device {
    VkInstance instance;
    VkPhysicalDevice physical;
    VkDevice device;
    VkQueue queue;
    VkCommandPool pool;
};

/* A buffer in memory that the CPU sees. */
struct buffer {
    VkBuffer buffer;
    VkDeviceMemory memory;
    uint32_t *words;
};

/* to[i] += from[i] * 3 + addend, in groups of 64, for add.comp. */
struct adder {
    struct buffer to, from;
    VkDescriptorSetLayout set_layout;
    VkPipelineLayout layout;
    VkPipeline pipeline;
    VkDescriptorPool pool;
    VkDescriptorSet set;
};

/* Opens the first GPU; `extensions` are the device's. */
struct device device_open(uint32_t extension_count, const char *const *extensions);
void device_close(struct device *device);
struct buffer buffer_new(struct device *device, VkBufferUsageFlags usage);
void buffer_free(struct device *device, struct buffer *buffer);
VkShaderModule module_new(struct device *device, const uint32_t *words, size_t bytes);
/* Buffers with from[i] = i and to[i] = 0, and all that a dispatch needs. */
struct adder adder_new(struct device *device);
VkPipeline adder_pipeline(struct device *device, VkPipelineLayout layout, const uint32_t *words, size_t bytes);
void adder_free(struct device *device, struct adder *adder);
/* Binds all of it and dispatches, with what push constants say. */
void adder_record(struct adder *adder, VkCommandBuffer commands, uint32_t addend);
/* Whether to[i] is i * 3 * times + sum for each i. */
int adder_holds(struct adder *adder, uint32_t times, uint32_t sum);
VkCommandBuffer commands_begin(struct device *device);
/* What one dispatch stores is seen by the next, and by the CPU. */
void barrier(VkCommandBuffer commands);
/* Submits, with or without a fence. */
void submit(struct device *device, VkCommandBuffer commands, VkFence fence);
/* Ends what was recorded, submits it, and waits for it. */
void commands_run(struct device *device, VkCommandBuffer commands);
VkFence fence_new(struct device *device);

/* A test and its name. */
struct test {
    const char *name;
    void (*run)(struct device *device);
};
/* Runs the test that the first argument names, on a device of its own. */
int run_tests(const struct test *tests, int argc, char **argv, uint32_t extension_count, const char *const *extensions);

#endif
