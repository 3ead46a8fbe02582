#include "program.h"

#include "shaders/shaders.h"

struct device device_open(uint32_t extension_count, const char *const *extensions) {
    struct device device;
    VkApplicationInfo application = {VK_STRUCTURE_TYPE_APPLICATION_INFO};
    application.apiVersion = VK_API_VERSION_1_2;
    VkInstanceCreateInfo instance = {VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO};
    instance.pApplicationInfo = &application;
    OK(vkCreateInstance(&instance, NULL, &device.instance));
    uint32_t count = 1;
    OK(vkEnumeratePhysicalDevices(device.instance, &count, &device.physical));
    NEED(count == 1);
    float priority = 1;
    VkDeviceQueueCreateInfo queue = {VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO};
    queue.queueCount = 1;
    queue.pQueuePriorities = &priority;
    VkPhysicalDeviceVulkan12Features features = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
    features.timelineSemaphore = features.hostQueryReset = VK_TRUE;
    features.uniformBufferStandardLayout = features.scalarBlockLayout = VK_TRUE;
    VkPhysicalDeviceVulkan12Features known = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
    VkPhysicalDeviceFeatures2 all = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, &known};
    vkGetPhysicalDeviceFeatures2(device.physical, &all);
    features.runtimeDescriptorArray = known.runtimeDescriptorArray;
    features.shaderStorageImageArrayNonUniformIndexing = known.shaderStorageImageArrayNonUniformIndexing;
    VkPhysicalDeviceFeatures core = {0};
    VkPhysicalDeviceFeatures there;
    vkGetPhysicalDeviceFeatures(device.physical, &there);
    core.shaderStorageBufferArrayDynamicIndexing = VK_TRUE;
    core.shaderSampledImageArrayDynamicIndexing = there.shaderSampledImageArrayDynamicIndexing;
    core.shaderStorageImageArrayDynamicIndexing = there.shaderStorageImageArrayDynamicIndexing;
    core.shaderStorageImageExtendedFormats = there.shaderStorageImageExtendedFormats;
    core.shaderStorageImageWriteWithoutFormat = there.shaderStorageImageWriteWithoutFormat;
    /* Features of the extensions that have some. */
    VkPhysicalDevicePrivateDataFeaturesEXT words = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PRIVATE_DATA_FEATURES_EXT};
    VkPhysicalDevicePipelineCreationCacheControlFeaturesEXT caches = {
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_CREATION_CACHE_CONTROL_FEATURES_EXT, &words};
    VkPhysicalDeviceInlineUniformBlockFeaturesEXT blocks = {
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_INLINE_UNIFORM_BLOCK_FEATURES_EXT};
    for (uint32_t i = 0; i < extension_count; i++) {
        words.privateData |= strcmp(extensions[i], "VK_EXT_private_data") == 0;
        blocks.inlineUniformBlock |= strcmp(extensions[i], "VK_EXT_inline_uniform_block") == 0;
        caches.pipelineCreationCacheControl |= strcmp(extensions[i], "VK_EXT_pipeline_creation_cache_control") == 0;
    }
    if (blocks.inlineUniformBlock) words.pNext = &blocks;
    if (words.privateData || caches.pipelineCreationCacheControl) features.pNext = &caches;
    VkDeviceCreateInfo info = {VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO};
    info.pNext = &features;
    info.pEnabledFeatures = &core;
    info.queueCreateInfoCount = 1;
    info.pQueueCreateInfos = &queue;
    info.enabledExtensionCount = extension_count;
    info.ppEnabledExtensionNames = extensions;
    OK(vkCreateDevice(device.physical, &info, NULL, &device.device));
    vkGetDeviceQueue(device.device, 0, 0, &device.queue);
    VkCommandPoolCreateInfo pool = {VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
    pool.flags = VK_COMMAND_POOL_CREATE_RESET_COMMAND_BUFFER_BIT;
    OK(vkCreateCommandPool(device.device, &pool, NULL, &device.pool));
    return device;
}

void device_close(struct device *device) {
    vkDestroyCommandPool(device->device, device->pool, NULL);
    vkDestroyDevice(device->device, NULL);
    vkDestroyInstance(device->instance, NULL);
}

struct buffer buffer_new(struct device *device, VkBufferUsageFlags usage) {
    struct buffer buffer;
    VkBufferCreateInfo info = {VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
    info.size = WORDS * sizeof(uint32_t);
    info.usage = usage | VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT;
    OK(vkCreateBuffer(device->device, &info, NULL, &buffer.buffer));
    VkMemoryRequirements wanted;
    vkGetBufferMemoryRequirements(device->device, buffer.buffer, &wanted);
    VkPhysicalDeviceMemoryProperties there;
    vkGetPhysicalDeviceMemoryProperties(device->physical, &there);
    VkMemoryPropertyFlags visible = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    uint32_t type = 0;
    while (type < there.memoryTypeCount && !((wanted.memoryTypeBits >> type & 1) &&
                                             (there.memoryTypes[type].propertyFlags & visible) == visible))
        type++;
    NEED(type < there.memoryTypeCount);
    VkMemoryAllocateInfo allocate = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
    allocate.allocationSize = wanted.size;
    allocate.memoryTypeIndex = type;
    VkMemoryAllocateFlagsInfo flags = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO};
    flags.flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT;
    if (usage & VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT) allocate.pNext = &flags;
    OK(vkAllocateMemory(device->device, &allocate, NULL, &buffer.memory));
    OK(vkBindBufferMemory(device->device, buffer.buffer, buffer.memory, 0));
    void *place;
    OK(vkMapMemory(device->device, buffer.memory, 0, VK_WHOLE_SIZE, 0, &place));
    buffer.words = place;
    return buffer;
}

void buffer_free(struct device *device, struct buffer *buffer) {
    vkDestroyBuffer(device->device, buffer->buffer, NULL);
    vkFreeMemory(device->device, buffer->memory, NULL);
}

VkShaderModule module_new(struct device *device, const uint32_t *words, size_t bytes) {
    VkShaderModuleCreateInfo info = {VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO};
    info.codeSize = bytes;
    info.pCode = words;
    VkShaderModule module;
    OK(vkCreateShaderModule(device->device, &info, NULL, &module));
    return module;
}

VkPipeline adder_pipeline(struct device *device, VkPipelineLayout layout, const uint32_t *words, size_t bytes) {
    uint32_t values[2] = {64, 3};
    VkSpecializationMapEntry entries[2] = {{1, 4, 4}, {0, 0, 4}};
    VkSpecializationInfo constants = {2, entries, sizeof values, values};
    VkComputePipelineCreateInfo info = {VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
    info.flags = VK_PIPELINE_CREATE_DISPATCH_BASE_BIT;
    info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
    info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
    info.stage.module = module_new(device, words, bytes);
    info.stage.pName = "main";
    info.stage.pSpecializationInfo = &constants;
    info.layout = layout;
    VkPipeline pipeline;
    OK(vkCreateComputePipelines(device->device, VK_NULL_HANDLE, 1, &info, NULL, &pipeline));
    /* The pipeline keeps what it needs. */
    vkDestroyShaderModule(device->device, info.stage.module, NULL);
    return pipeline;
}

struct adder adder_new(struct device *device) {
    struct adder adder;
    adder.to = buffer_new(device, VK_BUFFER_USAGE_STORAGE_BUFFER_BIT);
    adder.from = buffer_new(device, VK_BUFFER_USAGE_STORAGE_BUFFER_BIT);
    for (uint32_t i = 0; i < WORDS; i++) adder.to.words[i] = 0, adder.from.words[i] = i;
    VkDescriptorSetLayoutBinding bindings[2] = {
        {0, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, NULL},
        {1, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, NULL},
    };
    VkDescriptorSetLayoutCreateInfo set = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO};
    set.bindingCount = 2;
    set.pBindings = bindings;
    OK(vkCreateDescriptorSetLayout(device->device, &set, NULL, &adder.set_layout));
    VkPushConstantRange range = {VK_SHADER_STAGE_COMPUTE_BIT, 0, 8};
    VkPipelineLayoutCreateInfo layout = {VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO};
    layout.setLayoutCount = 1;
    layout.pSetLayouts = &adder.set_layout;
    layout.pushConstantRangeCount = 1;
    layout.pPushConstantRanges = &range;
    OK(vkCreatePipelineLayout(device->device, &layout, NULL, &adder.layout));
    adder.pipeline = adder_pipeline(device, adder.layout, add_words, sizeof add_words);
    VkDescriptorPoolSize size = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 2};
    VkDescriptorPoolCreateInfo pool = {VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO};
    pool.maxSets = pool.poolSizeCount = 1;
    pool.pPoolSizes = &size;
    OK(vkCreateDescriptorPool(device->device, &pool, NULL, &adder.pool));
    VkDescriptorSetAllocateInfo allocate = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO};
    allocate.descriptorPool = adder.pool;
    allocate.descriptorSetCount = 1;
    allocate.pSetLayouts = &adder.set_layout;
    OK(vkAllocateDescriptorSets(device->device, &allocate, &adder.set));
    /* One write for both: it goes on in the next binding. */
    VkDescriptorBufferInfo buffers[2] = {{adder.to.buffer, 0, VK_WHOLE_SIZE}, {adder.from.buffer, 0, VK_WHOLE_SIZE}};
    VkWriteDescriptorSet write = {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET};
    write.dstSet = adder.set;
    write.descriptorCount = 2;
    write.descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
    write.pBufferInfo = buffers;
    vkUpdateDescriptorSets(device->device, 1, &write, 0, NULL);
    return adder;
}

void adder_free(struct device *device, struct adder *adder) {
    vkDestroyDescriptorPool(device->device, adder->pool, NULL);
    vkDestroyPipeline(device->device, adder->pipeline, NULL);
    vkDestroyPipelineLayout(device->device, adder->layout, NULL);
    vkDestroyDescriptorSetLayout(device->device, adder->set_layout, NULL);
    buffer_free(device, &adder->to);
    buffer_free(device, &adder->from);
}

void adder_record(struct adder *adder, VkCommandBuffer commands, uint32_t addend) {
    uint32_t constants[2] = {addend, WORDS};
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, adder->pipeline);
    vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, adder->layout, 0, 1, &adder->set, 0, NULL);
    vkCmdPushConstants(commands, adder->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof constants, constants);
    vkCmdDispatch(commands, (WORDS + 63) / 64, 1, 1);
    barrier(commands);
}

int adder_holds(struct adder *adder, uint32_t times, uint32_t sum) {
    for (uint32_t i = 0; i < WORDS; i++) {
        if (adder->to.words[i] != i * 3 * times + sum) {
            fprintf(stderr, "word %u is %u, not %u\n", i, adder->to.words[i], i * 3 * times + sum);
            return 0;
        }
    }
    return 1;
}

VkCommandBuffer commands_begin(struct device *device) {
    VkCommandBufferAllocateInfo allocate = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO};
    allocate.commandPool = device->pool;
    allocate.commandBufferCount = 1;
    VkCommandBuffer commands;
    OK(vkAllocateCommandBuffers(device->device, &allocate, &commands));
    VkCommandBufferBeginInfo begin = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    begin.flags = VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT;
    OK(vkBeginCommandBuffer(commands, &begin));
    return commands;
}

void barrier(VkCommandBuffer commands) {
    VkMemoryBarrier all = {VK_STRUCTURE_TYPE_MEMORY_BARRIER};
    all.srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT;
    all.dstAccessMask = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT;
    vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, 0, 1, &all,
                         0, NULL, 0, NULL);
}

void submit(struct device *device, VkCommandBuffer commands, VkFence fence) {
    VkSubmitInfo info = {VK_STRUCTURE_TYPE_SUBMIT_INFO};
    info.commandBufferCount = 1;
    info.pCommandBuffers = &commands;
    OK(vkQueueSubmit(device->queue, 1, &info, fence));
}

void commands_run(struct device *device, VkCommandBuffer commands) {
    OK(vkEndCommandBuffer(commands));
    VkFence fence = fence_new(device);
    submit(device, commands, fence);
    OK(vkWaitForFences(device->device, 1, &fence, VK_TRUE, NEVER));
    vkDestroyFence(device->device, fence, NULL);
    vkFreeCommandBuffers(device->device, device->pool, 1, &commands);
}

VkFence fence_new(struct device *device) {
    VkFenceCreateInfo info = {VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    VkFence fence;
    OK(vkCreateFence(device->device, &info, NULL, &fence));
    return fence;
}

int run_tests(const struct test *tests, int argc, char **argv, uint32_t extension_count, const char *const *extensions) {
    NEED(argc == 2);
    for (; tests->name; tests++) {
        if (strcmp(tests->name, argv[1]) == 0) {
            struct device device = device_open(extension_count, extensions);
            tests->run(&device);
            OK(vkDeviceWaitIdle(device.device));
            device_close(&device);
            printf("%s: ok\n", argv[1]);
            return 0;
        }
    }
    fprintf(stderr, "there is no test %s\n", argv[1]);
    return 2;
}
