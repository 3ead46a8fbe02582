/* How long an image takes: bytes of a buffer become texels, which are sampled into another image, and that becomes bytes. Prints the median, least
   and most of ROUNDS (3) rounds to standard error. Also for other drivers. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <time.h>

#include "images.h"
#include "shaders/shaders.h"

enum { SIDE = 1024, MOST = 1000 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static int compared(const void *left, const void *right) {
    double difference = *(const double *)left - *(const double *)right;
    return difference < 0 ? -1 : difference > 0;
}

/* A buffer of a word for each texel. */
static struct buffer large(struct device *device) {
    struct buffer buffer;
    VkBufferCreateInfo info = {VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
    info.size = SIDE * SIDE * 4;
    info.usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
    OK(vkCreateBuffer(device->device, &info, NULL, &buffer.buffer));
    VkMemoryRequirements wanted;
    vkGetBufferMemoryRequirements(device->device, buffer.buffer, &wanted);
    VkPhysicalDeviceMemoryProperties there;
    vkGetPhysicalDeviceMemoryProperties(device->physical, &there);
    VkMemoryAllocateInfo allocate = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
    allocate.allocationSize = wanted.size;
    for (uint32_t type = 0; type < there.memoryTypeCount; type++)
        if (wanted.memoryTypeBits >> type & 1 && there.memoryTypes[type].propertyFlags & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT)
            allocate.memoryTypeIndex = type;
    OK(vkAllocateMemory(device->device, &allocate, NULL, &buffer.memory));
    OK(vkBindBufferMemory(device->device, buffer.buffer, buffer.memory, 0));
    OK(vkMapMemory(device->device, buffer.memory, 0, VK_WHOLE_SIZE, 0, (void **)&buffer.words));
    return buffer;
}

static void measured(struct device *device, const char *name, uint32_t left, uint32_t width) {
    VkShaderStageFlags compute = VK_SHADER_STAGE_COMPUTE_BIT;
    VkDescriptorType both = VK_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER;
    const VkDescriptorSetLayoutBinding first[] = {{0, both, 1, compute, NULL},
                                                  {1, VK_DESCRIPTOR_TYPE_STORAGE_IMAGE, 1, compute, NULL}};
    const VkDescriptorSetLayoutBinding second[] = {{0, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, compute, NULL}};
    struct bound bound = bound_new(device, speed_words, sizeof speed_words, first, 2, second, 1);
    VkExtent3D extent = {SIDE, SIDE, 1}, part = {width, SIDE, 1};
    struct image image = image_new(device, VK_IMAGE_VIEW_TYPE_2D, VK_FORMAT_R8G8B8A8_UNORM, extent, 1, 1, SAMPLED);
    struct image shown = image_new(device, VK_IMAGE_VIEW_TYPE_2D, VK_FORMAT_R8G8B8A8_UNORM, extent, 1, 1, STORAGE);
    struct buffer from = large(device), to = large(device), unused = buffer_new(device, VK_BUFFER_USAGE_STORAGE_BUFFER_BIT);
    VkSamplerCreateInfo info = {VK_STRUCTURE_TYPE_SAMPLER_CREATE_INFO};
    info.magFilter = info.minFilter = VK_FILTER_LINEAR;
    VkSampler sampler;
    OK(vkCreateSampler(device->device, &info, NULL, &sampler));
    bind_image(device, bound.sets[0], 0, 0, both, image.view, sampler);
    bind_image(device, bound.sets[0], 1, 0, VK_DESCRIPTOR_TYPE_STORAGE_IMAGE, shown.view, VK_NULL_HANDLE);
    bind_buffer(device, bound.sets[1], 0, unused.buffer);
    VkBufferImageCopy region = {0, 0, 0, {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, 1}, {(int32_t)left, 0, 0}, part};
    const char *wished = getenv("ROUNDS");
    int rounds = wished ? atoi(wished) : 3;
    NEED(rounds > 0 && rounds <= MOST);
    static double times[3][MOST];
    static const char *const steps[3] = {"upload", "sample", "read back"};
    for (int round = -1; round < rounds; round++) {
        for (uint32_t i = 0; i < width * SIDE; i++) from.words[i] = i * 2654435761u + (uint32_t)round;
        for (int step = 0; step < 3; step++) {
            VkCommandBuffer commands = commands_begin(device);
            if (round < 0 && step == 0) {
                made_general(commands, &image);
                made_general(commands, &shown);
            }
            if (step == 0) load(commands, &from, &image, region);
            if (step == 1) {
                vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, bound.pipeline);
                vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, bound.layout, 0, 2, bound.sets, 0, NULL);
                vkCmdDispatch(commands, SIDE / 16, SIDE / 16, 1);
            }
            if (step == 2) store(commands, &shown, &to, region);
            barrier(commands);
            double started = now();
            commands_run(device, commands);
            if (round >= 0) times[step][round] = now() - started;
        }
        for (uint32_t i = 0; i < width * SIDE; i++) NEED(to.words[i] == from.words[i]);
    }
    for (int step = 0; step < 3; step++) {
        qsort(times[step], (size_t)rounds, sizeof times[step][0], compared);
        fprintf(stderr, "%s, %s: %.3f ms (%.3f to %.3f)\n", name, steps[step], times[step][rounds / 2], times[step][0], times[step][rounds - 1]);
    }
    image_free(device, &image);
    image_free(device, &shown);
    buffer_free(device, &from);
    buffer_free(device, &to);
    buffer_free(device, &unused);
    vkDestroySampler(device->device, sampler, NULL);
    bound_free(device, &bound);
}

/* All columns: rows lie behind each other on both sides. */
static void wide(struct device *device) { measured(device, "wide", 0, SIDE); }

/* All columns but one: rows lie apart in the image. */
static void narrow(struct device *device) { measured(device, "narrow", 1, SIDE - 1); }

int main(int argc, char **argv) {
    static const struct test tests[] = {{"wide", wide}, {"narrow", narrow}, {NULL, NULL}};
    return run_tests(tests, argc, argv, 0, NULL);
}
