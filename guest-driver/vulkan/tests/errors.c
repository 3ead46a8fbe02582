/* What goes wrong, and what is left after it. */
#include "program.h"

#include "shaders/shaders.h"

/* A module that is none is refused, by a result; the device goes on. */
static void modules(struct device *device) {
    struct adder adder = adder_new(device);
    uint32_t words[sizeof add_words / 4];
    VkComputePipelineCreateInfo infos[2] = {{VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO},
                                            {VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO}};
    for (uint32_t broken = 0; broken < 3; broken++) {
        memcpy(words, add_words, sizeof words);
        /* Cut short, an opcode that there is not, an entry point of another name. */
        if (broken == 1) words[sizeof words / 4 - 1] = 0x0001ffff;
        for (int i = 0; i < 2; i++) {
            infos[i].stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
            infos[i].stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
            infos[i].stage.pName = i == 0 && broken == 2 ? "other" : "main";
            infos[i].layout = adder.layout;
        }
        infos[0].stage.module = module_new(device, words, broken == 0 ? sizeof words - 40 : sizeof words);
        infos[1].stage.module = module_new(device, add_words, sizeof add_words);
        VkPipeline pipelines[2] = {(VkPipeline)1, (VkPipeline)1};
        RESULT(vkCreateComputePipelines(device->device, VK_NULL_HANDLE, 2, infos, NULL, pipelines), VK_ERROR_UNKNOWN);
        NEED(pipelines[0] == VK_NULL_HANDLE && pipelines[1] != VK_NULL_HANDLE);
        vkDestroyPipeline(device->device, pipelines[1], NULL);
        for (int i = 0; i < 2; i++) vkDestroyShaderModule(device->device, infos[i].stage.module, NULL);
    }
    VkCommandBuffer commands = commands_begin(device);
    adder_record(&adder, commands, 9);
    commands_run(device, commands);
    NEED(adder_holds(&adder, 1, 9));
    adder_free(device, &adder);
}

/* Features and extensions that there are not are refused, and so is memory that there is not. */
static void absences(struct device *device) {
    float priority = 1;
    VkDeviceQueueCreateInfo queue = {VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO};
    queue.queueCount = 1;
    queue.pQueuePriorities = &priority;
    VkDeviceCreateInfo info = {VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO};
    info.queueCreateInfoCount = 1;
    info.pQueueCreateInfos = &queue;
    VkPhysicalDeviceFeatures core = {0};
    core.geometryShader = VK_TRUE;
    info.pEnabledFeatures = &core;
    VkDevice other;
    RESULT(vkCreateDevice(device->physical, &info, NULL, &other), VK_ERROR_FEATURE_NOT_PRESENT);
    info.pEnabledFeatures = NULL;
    VkPhysicalDeviceVulkan12Features newer = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
    newer.bufferDeviceAddress = VK_TRUE;
    info.pNext = &newer;
    RESULT(vkCreateDevice(device->physical, &info, NULL, &other), VK_ERROR_FEATURE_NOT_PRESENT);
    info.pNext = NULL;
    const char *unknown = "VK_KHR_swapchain";
    info.enabledExtensionCount = 1;
    info.ppEnabledExtensionNames = &unknown;
    RESULT(vkCreateDevice(device->physical, &info, NULL, &other), VK_ERROR_EXTENSION_NOT_PRESENT);
    VkPhysicalDeviceMemoryProperties memory;
    vkGetPhysicalDeviceMemoryProperties(device->physical, &memory);
    for (uint32_t type = 0; type < memory.memoryTypeCount; type++) {
        VkMemoryAllocateInfo allocate = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
        allocate.memoryTypeIndex = type;
        /* All of it: some is in use. */
        allocate.allocationSize = memory.memoryHeaps[memory.memoryTypes[type].heapIndex].size;
        VkDeviceMemory none;
        RESULT(vkAllocateMemory(device->device, &allocate, NULL, &none), VK_ERROR_OUT_OF_DEVICE_MEMORY);
        allocate.allocationSize = 12345;
        OK(vkAllocateMemory(device->device, &allocate, NULL, &none));
        vkFreeMemory(device->device, none, NULL);
    }
}

/* A kernel that never ends is the end of its device: all that waits hears of it, and another device works. */
static void lost(struct device *device) {
    struct adder adder = adder_new(device);
    VkComputePipelineCreateInfo info = {VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
    info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
    info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
    info.stage.module = module_new(device, hang_words, sizeof hang_words);
    info.stage.pName = "main";
    info.layout = adder.layout;
    VkPipeline hang;
    OK(vkCreateComputePipelines(device->device, VK_NULL_HANDLE, 1, &info, NULL, &hang));
    VkCommandBuffer commands = commands_begin(device);
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, hang);
    vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, adder.layout, 0, 1, &adder.set, 0, NULL);
    vkCmdDispatch(commands, 1, 1, 1);
    OK(vkEndCommandBuffer(commands));
    VkFence fence = fence_new(device);
    submit(device, commands, fence);
    RESULT(vkWaitForFences(device->device, 1, &fence, VK_TRUE, NEVER), VK_ERROR_DEVICE_LOST);
    RESULT(vkQueueWaitIdle(device->queue), VK_ERROR_DEVICE_LOST);
    RESULT(vkDeviceWaitIdle(device->device), VK_ERROR_DEVICE_LOST);
    VkSubmitInfo again = {VK_STRUCTURE_TYPE_SUBMIT_INFO};
    again.commandBufferCount = 1;
    again.pCommandBuffers = &commands;
    RESULT(vkQueueSubmit(device->queue, 1, &again, VK_NULL_HANDLE), VK_ERROR_DEVICE_LOST);
    vkDestroyFence(device->device, fence, NULL);
    vkDestroyPipeline(device->device, hang, NULL);
    vkDestroyShaderModule(device->device, info.stage.module, NULL);
    adder_free(device, &adder);
    device_close(device);
    *device = device_open(0, NULL);
    adder = adder_new(device);
    commands = commands_begin(device);
    adder_record(&adder, commands, 4);
    commands_run(device, commands);
    NEED(adder_holds(&adder, 1, 4));
    adder_free(device, &adder);
}

/* Memory that is freed under work: that work is the end of its device, and of no other. */
static void freed(struct device *device) {
    struct adder adder = adder_new(device);
    struct device other = device_open(0, NULL);
    struct adder others = adder_new(&other);
    VkCommandBuffer commands = commands_begin(device);
    adder_record(&adder, commands, 1);
    OK(vkEndCommandBuffer(commands));
    vkFreeMemory(device->device, adder.from.memory, NULL);
    VkSubmitInfo info = {VK_STRUCTURE_TYPE_SUBMIT_INFO};
    info.commandBufferCount = 1;
    info.pCommandBuffers = &commands;
    /* It may have faulted before this returns. */
    VkResult submitted = vkQueueSubmit(device->queue, 1, &info, VK_NULL_HANDLE);
    NEED(submitted == VK_SUCCESS || submitted == VK_ERROR_DEVICE_LOST);
    RESULT(vkQueueWaitIdle(device->queue), VK_ERROR_DEVICE_LOST);
    device_close(device);
    commands = commands_begin(&other);
    adder_record(&others, commands, 6);
    commands_run(&other, commands);
    NEED(adder_holds(&others, 1, 6));
    adder_free(&other, &others);
    *device = other;
}

/* A command buffer that is submitted again while it is pending runs again; one that is recorded anew meanwhile, which no program may do,
 * is at worst the end of its device. */
static void pending(struct device *device) {
    struct adder adder = adder_new(device);
    VkCommandBufferAllocateInfo allocate = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO};
    allocate.commandPool = device->pool;
    allocate.commandBufferCount = 1;
    VkCommandBuffer commands;
    OK(vkAllocateCommandBuffers(device->device, &allocate, &commands));
    VkCommandBufferBeginInfo begin = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    OK(vkBeginCommandBuffer(commands, &begin));
    for (int i = 0; i < 20; i++) adder_record(&adder, commands, 1);
    OK(vkEndCommandBuffer(commands));
    for (int i = 0; i < 30; i++) submit(device, commands, VK_NULL_HANDLE);
    OK(vkQueueWaitIdle(device->queue));
    NEED(adder_holds(&adder, 600, 600));
    for (int i = 0; i < 30; i++) {
        VkSubmitInfo info = {VK_STRUCTURE_TYPE_SUBMIT_INFO};
        info.commandBufferCount = 1;
        info.pCommandBuffers = &commands;
        VkResult result = vkQueueSubmit(device->queue, 1, &info, VK_NULL_HANDLE);
        NEED(result == VK_SUCCESS || result == VK_ERROR_DEVICE_LOST);
        result = vkBeginCommandBuffer(commands, &begin);
        for (int n = 0; n <= i; n++) adder_record(&adder, commands, 1);
        NEED(result == VK_SUCCESS && vkEndCommandBuffer(commands) == VK_SUCCESS);
    }
    VkResult idle = vkQueueWaitIdle(device->queue);
    NEED(idle == VK_SUCCESS || idle == VK_ERROR_DEVICE_LOST);
    adder_free(device, &adder);
    device_close(device);
    *device = device_open(0, NULL);
    adder = adder_new(device);
    commands = commands_begin(device);
    adder_record(&adder, commands, 4);
    commands_run(device, commands);
    NEED(adder_holds(&adder, 1, 4));
    adder_free(device, &adder);
}

/* Video memory in use, bytes. */
static VkDeviceSize used(struct device *device) {
    VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
    VkPhysicalDeviceMemoryProperties2 memory = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2, &budget};
    vkGetPhysicalDeviceMemoryProperties2(device->physical, &memory);
    return budget.heapUsage[0];
}

/* What is made and destroyed many times leaves nothing behind. */
static void churn(struct device *device) {
    VkDeviceSize before = 0;
    for (int round = 0; round < 40; round++) {
        struct adder adder = adder_new(device);
        VkCommandBuffer commands = commands_begin(device);
        adder_record(&adder, commands, 2);
        commands_run(device, commands);
        NEED(adder_holds(&adder, 1, 2));
        adder_free(device, &adder);
        if (round == 8) before = used(device);
    }
    NEED(used(device) <= before);
}

/* Whatever would draw is refused by a result, also where the program had the family say that it draws. */
static void drawing(struct device *device) {
    uint32_t count = 1;
    VkQueueFamilyProperties family;
    vkGetPhysicalDeviceQueueFamilyProperties(device->physical, &count, &family);
    NEED(count == 1 && !(family.queueFlags & VK_QUEUE_GRAPHICS_BIT) == !getenv("CAMPANILE_GRAPHICS_FAMILY"));
    VkPhysicalDeviceFeatures features;
    vkGetPhysicalDeviceFeatures(device->physical, &features);
    NEED(!features.textureCompressionBC == !getenv("CAMPANILE_GRAPHICS_FAMILY"));
    NEED((family.queueFlags & VK_QUEUE_COMPUTE_BIT) && (family.queueFlags & VK_QUEUE_TRANSFER_BIT));
    VkSubpassDescription subpass = {0};
    VkRenderPassCreateInfo pass_info = {VK_STRUCTURE_TYPE_RENDER_PASS_CREATE_INFO};
    pass_info.subpassCount = 1;
    pass_info.pSubpasses = &subpass;
    VkRenderPass pass = (VkRenderPass)1;
    RESULT(vkCreateRenderPass(device->device, &pass_info, NULL, &pass), VK_ERROR_UNKNOWN);
    NEED(pass == VK_NULL_HANDLE);
    VkGraphicsPipelineCreateInfo info = {VK_STRUCTURE_TYPE_GRAPHICS_PIPELINE_CREATE_INFO};
    VkPipeline pipeline = (VkPipeline)1;
    RESULT(vkCreateGraphicsPipelines(device->device, VK_NULL_HANDLE, 1, &info, NULL, &pipeline), VK_ERROR_UNKNOWN);
    NEED(pipeline == VK_NULL_HANDLE);
    VkQueryPoolCreateInfo counts = {VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO};
    counts.queryType = VK_QUERY_TYPE_PIPELINE_STATISTICS;
    counts.queryCount = 1;
    VkQueryPool pool;
    RESULT(vkCreateQueryPool(device->device, &counts, NULL, &pool), VK_ERROR_FEATURE_NOT_PRESENT);
    /* What 1.3 made a part of itself is told in both ways alike. */
    VkPhysicalDeviceVulkan13Properties all = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES};
    VkPhysicalDeviceInlineUniformBlockProperties blocks;
    memset(&blocks, 0xaa, sizeof blocks);
    blocks.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_INLINE_UNIFORM_BLOCK_PROPERTIES;
    blocks.pNext = &all;
    VkPhysicalDeviceProperties2 properties = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, &blocks};
    vkGetPhysicalDeviceProperties2(device->physical, &properties);
    NEED(blocks.maxInlineUniformBlockSize == all.maxInlineUniformBlockSize);
    NEED(blocks.maxDescriptorSetUpdateAfterBindInlineUniformBlocks == all.maxDescriptorSetUpdateAfterBindInlineUniformBlocks);
}

int main(int argc, char **argv) {
    static const struct test tests[] = {{"modules", modules}, {"absences", absences}, {"lost", lost},       {"freed", freed},
                                        {"pending", pending}, {"churn", churn},       {"drawing", drawing}, {NULL, NULL}};
    return run_tests(tests, argc, argv, 0, NULL);
}
