/*
 * Squares numbers on the GPU and checks each of them. A Vulkan program like any other: it knows nothing of Campanile,
 * and Vulkan's loader finds the driver.
 *
 *   squares                 one round, in memory that the CPU need not see, and copied from there
 *   squares --loops N       N rounds, each of other numbers
 *   squares --until FILE    rounds until FILE is there
 *           --visible       in memory that the CPU sees
 *           --tell          and says so after each
 *           --poll          and asks whether a round is done until it is: on Campanile no message to the host
 *
 *   cc squares.c -o squares -lvulkan
 *   glslangValidator -V --vn squares_spirv -o squares.spirv.h squares.comp      after a change of the kernel
 */
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vulkan/vulkan.h>

#include "squares.spirv.h"

#define COUNT 1024u
#define GROUP 64u
#define BYTES (COUNT * sizeof(uint32_t))
#define SECOND 1000000000ull

static VkPhysicalDevice physical;
static VkDevice device;
static VkQueue queue;
static VkCommandBuffer commands;
static VkFence fence;
static VkPipelineLayout layout;
static VkPipeline pipeline;
static VkDescriptorSet set;
/* What the kernel writes, and the copy that the CPU sees, unless it sees the first. */
static VkBuffer squares, copy;
static const uint32_t *seen;

/* Ends the program unless a call succeeds. */
#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        VkResult result = (call);                                                                                      \
        if (result != VK_SUCCESS)                                                                                      \
            give_up(#call, result);                                                                                    \
    } while (0)

static void give_up(const char *call, VkResult result) {
    fprintf(stderr, "squares: VkResult %d of %s\n", result, call);
    exit(1);
}

static void open_device(void) {
    const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                           .apiVersion = VK_API_VERSION_1_2};
    const VkInstanceCreateInfo wanted = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                         .pApplicationInfo = &application};
    VkInstance instance;
    MUST(vkCreateInstance(&wanted, NULL, &instance));

    uint32_t count = 1;
    if (vkEnumeratePhysicalDevices(instance, &count, &physical) < VK_SUCCESS || count == 0) {
        fprintf(stderr, "squares: there is no Vulkan device\n");
        exit(1);
    }
    VkPhysicalDeviceProperties properties;
    vkGetPhysicalDeviceProperties(physical, &properties);
    printf("on %s\n", properties.deviceName);

    VkQueueFamilyProperties families[16];
    uint32_t family = 0, family_count = 16;
    vkGetPhysicalDeviceQueueFamilyProperties(physical, &family_count, families);
    while (family < family_count && !(families[family].queueFlags & VK_QUEUE_COMPUTE_BIT))
        family++;
    if (family == family_count)
        give_up("vkGetPhysicalDeviceQueueFamilyProperties", VK_ERROR_FEATURE_NOT_PRESENT);

    const float priority = 1;
    const VkDeviceQueueCreateInfo queues = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                            .queueFamilyIndex = family,
                                            .queueCount = 1,
                                            .pQueuePriorities = &priority};
    const VkDeviceCreateInfo opened = {
        .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .queueCreateInfoCount = 1, .pQueueCreateInfos = &queues};
    MUST(vkCreateDevice(physical, &opened, NULL, &device));
    vkGetDeviceQueue(device, family, 0, &queue);

    const VkCommandPoolCreateInfo pooled = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                            .flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT,
                                            .queueFamilyIndex = family};
    VkCommandPool pool;
    MUST(vkCreateCommandPool(device, &pooled, NULL, &pool));
    const VkCommandBufferAllocateInfo one = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                             .commandPool = pool,
                                             .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                             .commandBufferCount = 1};
    MUST(vkAllocateCommandBuffers(device, &one, &commands));
    const VkFenceCreateInfo unsignalled = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    MUST(vkCreateFence(device, &unsignalled, NULL, &fence));
}

/* Makes a buffer of BYTES, in the first memory that it may be in and that is as wanted. */
static VkDeviceMemory make_buffer(VkBufferUsageFlags usage, VkMemoryPropertyFlags wanted, VkBuffer *buffer) {
    const VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = BYTES, .usage = usage};
    MUST(vkCreateBuffer(device, &info, NULL, buffer));
    VkMemoryRequirements needed;
    vkGetBufferMemoryRequirements(device, *buffer, &needed);
    VkPhysicalDeviceMemoryProperties there;
    vkGetPhysicalDeviceMemoryProperties(physical, &there);
    uint32_t type = 0;
    while (type < there.memoryTypeCount &&
           (!(needed.memoryTypeBits & 1u << type) || (there.memoryTypes[type].propertyFlags & wanted) != wanted))
        type++;
    const VkMemoryAllocateInfo part = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, .allocationSize = needed.size, .memoryTypeIndex = type};
    VkDeviceMemory memory;
    MUST(type < there.memoryTypeCount ? vkAllocateMemory(device, &part, NULL, &memory) : VK_ERROR_FEATURE_NOT_PRESENT);
    MUST(vkBindBufferMemory(device, *buffer, memory, 0));
    return memory;
}

static void make_buffers(int kernel_writes_visible) {
    const VkMemoryPropertyFlags visible = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    const VkBufferUsageFlags written = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT;
    VkDeviceMemory memory =
        make_buffer(written, kernel_writes_visible ? visible : VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, &squares);
    if (!kernel_writes_visible)
        memory = make_buffer(VK_BUFFER_USAGE_TRANSFER_DST_BIT, visible, &copy);
    void *mapped;
    MUST(vkMapMemory(device, memory, 0, VK_WHOLE_SIZE, 0, &mapped));
    seen = mapped;
}

static void make_pipeline(void) {
    const VkDescriptorSetLayoutBinding binding = {.descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                                  .descriptorCount = 1,
                                                  .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT};
    const VkDescriptorSetLayoutCreateInfo bindings = {
        .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO, .bindingCount = 1, .pBindings = &binding};
    VkDescriptorSetLayout set_layout;
    MUST(vkCreateDescriptorSetLayout(device, &bindings, NULL, &set_layout));
    const VkPushConstantRange constants = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .size = sizeof(uint32_t)};
    const VkPipelineLayoutCreateInfo interface = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                                  .setLayoutCount = 1,
                                                  .pSetLayouts = &set_layout,
                                                  .pushConstantRangeCount = 1,
                                                  .pPushConstantRanges = &constants};
    MUST(vkCreatePipelineLayout(device, &interface, NULL, &layout));

    const VkShaderModuleCreateInfo code = {
        .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = sizeof squares_spirv, .pCode = squares_spirv};
    VkComputePipelineCreateInfo kernel = {.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
                                          .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                                                    .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                                                    .pName = "main"},
                                          .layout = layout};
    MUST(vkCreateShaderModule(device, &code, NULL, &kernel.stage.module));
    MUST(vkCreateComputePipelines(device, VK_NULL_HANDLE, 1, &kernel, NULL, &pipeline));

    const VkDescriptorPoolSize size = {.type = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, .descriptorCount = 1};
    const VkDescriptorPoolCreateInfo pooled = {
        .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, .maxSets = 1, .poolSizeCount = 1, .pPoolSizes = &size};
    VkDescriptorPool pool;
    MUST(vkCreateDescriptorPool(device, &pooled, NULL, &pool));
    const VkDescriptorSetAllocateInfo one = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO,
                                             .descriptorPool = pool,
                                             .descriptorSetCount = 1,
                                             .pSetLayouts = &set_layout};
    MUST(vkAllocateDescriptorSets(device, &one, &set));
    const VkDescriptorBufferInfo whole = {.buffer = squares, .range = VK_WHOLE_SIZE};
    const VkWriteDescriptorSet write = {.sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET,
                                        .dstSet = set,
                                        .descriptorCount = 1,
                                        .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                        .pBufferInfo = &whole};
    vkUpdateDescriptorSets(device, 1, &write, 0, NULL);
}

/* What was written before is seen by what comes after. */
static void barrier(VkPipelineStageFlags from, VkAccessFlags written, VkPipelineStageFlags to, VkAccessFlags read) {
    const VkMemoryBarrier all = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER, .srcAccessMask = written, .dstAccessMask = read};
    vkCmdPipelineBarrier(commands, from, to, 0, 1, &all, 0, NULL, 0, NULL);
}

/* Until all that was submitted is done. */
static void finish(int poll) {
    while (poll) {
        VkResult result = vkGetFenceStatus(device, fence);
        if (result == VK_SUCCESS)
            break;
        if (result != VK_NOT_READY)
            give_up("vkGetFenceStatus", result);
        sched_yield();
    }
    MUST(vkWaitForFences(device, 1, &fence, VK_TRUE, 60 * SECOND));
    MUST(vkResetFences(device, 1, &fence));
}

static void square(uint32_t first) {
    const VkCommandBufferBeginInfo begun = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                            .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT};
    MUST(vkBeginCommandBuffer(commands, &begun));
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1, &set, 0, NULL);
    vkCmdPushConstants(commands, layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof first, &first);
    vkCmdDispatch(commands, COUNT / GROUP, 1, 1);
    if (copy) {
        barrier(VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT, VK_PIPELINE_STAGE_TRANSFER_BIT,
                VK_ACCESS_TRANSFER_READ_BIT);
        const VkBufferCopy whole = {.size = BYTES};
        vkCmdCopyBuffer(commands, squares, copy, 1, &whole);
    }
    barrier(VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
            VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT, VK_PIPELINE_STAGE_HOST_BIT,
            VK_ACCESS_HOST_READ_BIT);
    MUST(vkEndCommandBuffer(commands));

    const VkSubmitInfo work = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &commands};
    MUST(vkQueueSubmit(queue, 1, &work, fence));
}

static void check(uint32_t first) {
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t number = first + i;
        if (seen[i] != number * number) {
            fprintf(stderr, "squares: %" PRIu32 " squared came out as %" PRIu32 "\n", number, seen[i]);
            exit(1);
        }
    }
}

int main(int argc, char **argv) {
    unsigned long loops = 1;
    const char *until = NULL;
    int tell = 0, poll = 0, visible = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--tell"))
            tell = 1;
        else if (!strcmp(argv[i], "--visible"))
            visible = 1;
        else if (!strcmp(argv[i], "--poll"))
            poll = 1;
        else if (!strcmp(argv[i], "--loops") && i + 1 < argc)
            loops = strtoul(argv[++i], NULL, 10);
        else if (!strcmp(argv[i], "--until") && i + 1 < argc)
            until = argv[++i];
        else
            return 2;
    }
    /* Whoever reads from a pipe gets each line at once. */
    setvbuf(stdout, NULL, _IOLBF, 0);
    open_device();
    make_buffers(visible);
    make_pipeline();

    unsigned long round = 0;
    for (; until ? access(until, F_OK) != 0 : round < loops; round++) {
        uint32_t first = (uint32_t)round * COUNT;
        square(first);
        finish(poll);
        check(first);
        if (tell)
            printf("round %lu is right\n", round);
    }
    printf("%lu rounds of %u squares are right\n", round, COUNT);
    /* What is left is the process's, and goes with it. */
    return 0;
}
