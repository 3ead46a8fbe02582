/* What extensions promise: private data, control of caches, layouts of blocks. */
#include "program.h"

#include "shaders/shaders.h"

#define COMMAND(name) PFN_##name name##_ = (PFN_##name)vkGetDeviceProcAddr(device->device, #name); NEED(name##_)

/* Each object has its word, and one at the place of an old one has none. */
static void private_data(struct device *device) {
    COMMAND(vkCreatePrivateDataSlotEXT);
    COMMAND(vkDestroyPrivateDataSlotEXT);
    COMMAND(vkSetPrivateDataEXT);
    COMMAND(vkGetPrivateDataEXT);
    VkPrivateDataSlotCreateInfoEXT info = {VK_STRUCTURE_TYPE_PRIVATE_DATA_SLOT_CREATE_INFO_EXT};
    VkPrivateDataSlotEXT slots[2];
    for (int i = 0; i < 2; i++) OK(vkCreatePrivateDataSlotEXT_(device->device, &info, NULL, &slots[i]));
    VkFence fences[2] = {fence_new(device), fence_new(device)};
    for (uint64_t i = 0; i < 4; i++)
        OK(vkSetPrivateDataEXT_(device->device, VK_OBJECT_TYPE_FENCE, (uint64_t)fences[i % 2], slots[i / 2], 10 + i));
    uint64_t word;
    for (uint64_t i = 0; i < 4; i++) {
        vkGetPrivateDataEXT_(device->device, VK_OBJECT_TYPE_FENCE, (uint64_t)fences[i % 2], slots[i / 2], &word);
        NEED(word == 10 + i);
    }
    uint64_t old = (uint64_t)fences[0];
    vkDestroyFence(device->device, fences[0], NULL);
    /* One of the next ones lies where it lay. */
    VkFence others[64];
    int is_there = 0;
    for (int i = 0; i < 64; i++) {
        others[i] = fence_new(device);
        is_there |= (uint64_t)others[i] == old;
        vkGetPrivateDataEXT_(device->device, VK_OBJECT_TYPE_FENCE, (uint64_t)others[i], slots[0], &word);
        NEED(word == 0);
    }
    /* But layers have handles of their own. */
    NEED(is_there || getenv("VK_INSTANCE_LAYERS"));
    for (int i = 0; i < 64; i++) vkDestroyFence(device->device, others[i], NULL);
    vkDestroyPrivateDataSlotEXT_(device->device, slots[0], NULL);
    vkGetPrivateDataEXT_(device->device, VK_OBJECT_TYPE_FENCE, (uint64_t)fences[1], slots[1], &word);
    NEED(word == 13);
    vkDestroyPrivateDataSlotEXT_(device->device, slots[1], NULL);
    vkDestroyFence(device->device, fences[1], NULL);
}

/* A pipeline that would have to be compiled is not where the program forbids it; what one took and whether it was there is told. */
static void pipelines(struct device *device) {
    struct adder adder = adder_new(device);
    VkComputePipelineCreateInfo infos[2] = {{VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO},
                                            {VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO}};
    VkPipelineCreationFeedbackEXT feedback[2], of_stage;
    VkPipelineCreationFeedbackCreateInfoEXT asked[2] = {{VK_STRUCTURE_TYPE_PIPELINE_CREATION_FEEDBACK_CREATE_INFO_EXT},
                                                        {VK_STRUCTURE_TYPE_PIPELINE_CREATION_FEEDBACK_CREATE_INFO_EXT}};
    for (int i = 0; i < 2; i++) {
        infos[i].stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
        infos[i].stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
        infos[i].stage.pName = "main";
        infos[i].layout = adder.layout;
        infos[i].pNext = &asked[i];
        asked[i].pPipelineCreationFeedback = &feedback[i];
    }
    asked[1].pipelineStageCreationFeedbackCount = 1;
    asked[1].pPipelineStageCreationFeedbacks = &of_stage;
    infos[0].flags = VK_PIPELINE_CREATE_FAIL_ON_PIPELINE_COMPILE_REQUIRED_BIT_EXT;
    infos[0].stage.module = module_new(device, hang_words, sizeof hang_words);
    infos[1].stage.module = module_new(device, add_words, sizeof add_words);
    VkPipeline made[2], first;
    OK(vkCreateComputePipelines(device->device, VK_NULL_HANDLE, 1, &infos[1], NULL, &first));
    NEED(feedback[1].flags == VK_PIPELINE_CREATION_FEEDBACK_VALID_BIT_EXT);
    RESULT(vkCreateComputePipelines(device->device, VK_NULL_HANDLE, 2, infos, NULL, made), VK_PIPELINE_COMPILE_REQUIRED_EXT);
    NEED(made[0] == VK_NULL_HANDLE && made[1] != VK_NULL_HANDLE);
    VkPipelineCreationFeedbackFlagsEXT hit =
        VK_PIPELINE_CREATION_FEEDBACK_VALID_BIT_EXT | VK_PIPELINE_CREATION_FEEDBACK_APPLICATION_PIPELINE_CACHE_HIT_BIT_EXT;
    NEED(feedback[0].flags == VK_PIPELINE_CREATION_FEEDBACK_VALID_BIT_EXT);
    /* The first one has it. */
    NEED(feedback[1].flags == hit && of_stage.flags == hit && of_stage.duration == feedback[1].duration);
    vkDestroyPipeline(device->device, made[1], NULL);
    infos[0].flags |= VK_PIPELINE_CREATE_EARLY_RETURN_ON_FAILURE_BIT_EXT;
    RESULT(vkCreateComputePipelines(device->device, VK_NULL_HANDLE, 2, infos, NULL, made), VK_PIPELINE_COMPILE_REQUIRED_EXT);
    NEED(made[0] == VK_NULL_HANDLE && made[1] == VK_NULL_HANDLE);
    infos[0].flags = 0;
    OK(vkCreateComputePipelines(device->device, VK_NULL_HANDLE, 2, infos, NULL, made));
    NEED(feedback[0].flags == VK_PIPELINE_CREATION_FEEDBACK_VALID_BIT_EXT && feedback[0].duration > 0);
    vkDestroyPipeline(device->device, first, NULL);
    for (int i = 0; i < 2; i++) {
        vkDestroyPipeline(device->device, made[i], NULL);
        vkDestroyShaderModule(device->device, infos[i].stage.module, NULL);
    }
    adder_free(device, &adder);
}

/* The kernel that the tests of layouts run, over one set. */
struct kernel {
    VkPipelineLayout layout;
    VkShaderModule module;
    VkPipeline pipeline;
};

static struct kernel kernel_new(struct device *device, VkDescriptorSetLayout set_layout) {
    struct kernel kernel;
    VkPipelineLayoutCreateInfo layout_info = {VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO};
    layout_info.setLayoutCount = 1;
    layout_info.pSetLayouts = &set_layout;
    OK(vkCreatePipelineLayout(device->device, &layout_info, NULL, &kernel.layout));
    kernel.module = module_new(device, layouts_words, sizeof layouts_words);
    VkComputePipelineCreateInfo info = {VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
    info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
    info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
    info.stage.module = kernel.module;
    info.stage.pName = "main";
    info.layout = kernel.layout;
    OK(vkCreateComputePipelines(device->device, VK_NULL_HANDLE, 1, &info, NULL, &kernel.pipeline));
    return kernel;
}

static void kernel_run(struct device *device, const struct kernel *kernel, VkDescriptorSet set) {
    VkCommandBuffer commands = commands_begin(device);
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, kernel->pipeline);
    vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, kernel->layout, 0, 1, &set, 0, NULL);
    vkCmdDispatch(commands, 1, 1, 1);
    barrier(commands);
    commands_run(device, commands);
}

static void kernel_free(struct device *device, struct kernel *kernel) {
    vkDestroyPipeline(device->device, kernel->pipeline, NULL);
    vkDestroyShaderModule(device->device, kernel->module, NULL);
    vkDestroyPipelineLayout(device->device, kernel->layout, NULL);
}

/* Uniform blocks with the layout of storage buffers and with scalar layout; and a buffer shorter than its block, which reads as
 * zero behind its end and keeps nothing there; and a binding of a large number. */
static void layouts(struct device *device) {
    struct buffer to = buffer_new(device, VK_BUFFER_USAGE_STORAGE_BUFFER_BIT);
    struct buffer from = buffer_new(device, VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_UNIFORM_BUFFER_BIT);
    for (uint32_t i = 0; i < WORDS; i++) to.words[i] = 0, from.words[i] = 100 + i;
    VkDescriptorType storage = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, uniform = VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER;
    VkDescriptorSetLayoutBinding bindings[4] = {{0, storage, 1, VK_SHADER_STAGE_COMPUTE_BIT},
                                                {1, storage, 1, VK_SHADER_STAGE_COMPUTE_BIT},
                                                {2, uniform, 1, VK_SHADER_STAGE_COMPUTE_BIT},
                                                {1000, uniform, 1, VK_SHADER_STAGE_COMPUTE_BIT}};
    VkDescriptorSetLayoutCreateInfo set_info = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO};
    set_info.bindingCount = 4;
    set_info.pBindings = bindings;
    VkDescriptorSetLayout set_layout;
    OK(vkCreateDescriptorSetLayout(device->device, &set_info, NULL, &set_layout));
    struct kernel kernel = kernel_new(device, set_layout);
    VkDescriptorPoolSize sizes[2] = {{storage, 2}, {uniform, 2}};
    VkDescriptorPoolCreateInfo pool_info = {VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO};
    pool_info.maxSets = 1;
    pool_info.poolSizeCount = 2;
    pool_info.pPoolSizes = sizes;
    VkDescriptorPool pool;
    OK(vkCreateDescriptorPool(device->device, &pool_info, NULL, &pool));
    VkDescriptorSetAllocateInfo allocate = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO};
    allocate.descriptorPool = pool;
    allocate.descriptorSetCount = 1;
    allocate.pSetLayouts = &set_layout;
    VkDescriptorSet set;
    OK(vkAllocateDescriptorSets(device->device, &allocate, &set));
    /* One word of the second one. */
    VkDescriptorBufferInfo buffers[4] = {
        {to.buffer, 0, VK_WHOLE_SIZE}, {from.buffer, 1024, 4}, {from.buffer, 0, 20}, {from.buffer, 256, 24}};
    VkWriteDescriptorSet writes[4] = {{VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET}};
    for (uint32_t i = 0; i < 4; i++) {
        writes[i].sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET;
        writes[i].dstSet = set;
        writes[i].dstBinding = bindings[i].binding;
        writes[i].descriptorCount = 1;
        writes[i].descriptorType = i < 2 ? storage : uniform;
        writes[i].pBufferInfo = &buffers[i];
    }
    vkUpdateDescriptorSets(device->device, 4, writes, 0, NULL);
    kernel_run(device, &kernel, set);
    for (uint32_t i = 0; i < 5; i++) NEED(to.words[i] == 100 + i);
    for (uint32_t i = 5; i < 11; i++) NEED(to.words[i] == 100 + 64 + i - 5);
    NEED(to.words[11] == 100 + 256 && to.words[12] == 0);
    for (uint32_t i = 0; i < WORDS; i++) NEED(from.words[i] == (i == 256 ? 7 : 100 + i));
    vkDestroyDescriptorPool(device->device, pool, NULL);
    kernel_free(device, &kernel);
    vkDestroyDescriptorSetLayout(device->device, set_layout, NULL);
    buffer_free(device, &to);
    buffer_free(device, &from);
}

/* Bytes in a set itself: written in parts, by templates, and copied from another set; each set has its own, and later ones count for later work. */
static void inlined(struct device *device) {
    struct buffer to = buffer_new(device, VK_BUFFER_USAGE_STORAGE_BUFFER_BIT);
    VkDescriptorType storage = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, block = VK_DESCRIPTOR_TYPE_INLINE_UNIFORM_BLOCK_EXT;
    VkDescriptorSetLayoutBinding bindings[4] = {{0, storage, 1, VK_SHADER_STAGE_COMPUTE_BIT},
                                                {1, storage, 1, VK_SHADER_STAGE_COMPUTE_BIT},
                                                {2, block, 20, VK_SHADER_STAGE_COMPUTE_BIT},
                                                {1000, block, 24, VK_SHADER_STAGE_COMPUTE_BIT}};
    VkDescriptorSetLayoutCreateInfo set_info = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO};
    set_info.bindingCount = 4;
    set_info.pBindings = bindings;
    VkDescriptorSetLayoutSupport support = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_SUPPORT};
    vkGetDescriptorSetLayoutSupport(device->device, &set_info, &support);
    NEED(support.supported);
    bindings[3].descriptorCount = 1 << 20;
    vkGetDescriptorSetLayoutSupport(device->device, &set_info, &support);
    NEED(!support.supported);
    bindings[3].descriptorCount = 24;
    VkDescriptorSetLayout layouts[2];
    OK(vkCreateDescriptorSetLayout(device->device, &set_info, NULL, &layouts[0]));
    layouts[1] = layouts[0];
    struct kernel kernel = kernel_new(device, layouts[0]);
    VkDescriptorPoolSize sizes[2] = {{storage, 4}, {block, 2 * (20 + 24)}};
    VkDescriptorPoolInlineUniformBlockCreateInfoEXT blocks = {
        VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_INLINE_UNIFORM_BLOCK_CREATE_INFO_EXT};
    blocks.maxInlineUniformBlockBindings = 4;
    VkDescriptorPoolCreateInfo pool_info = {VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO, &blocks};
    pool_info.maxSets = 2;
    pool_info.poolSizeCount = 2;
    pool_info.pPoolSizes = sizes;
    VkDescriptorPool pool;
    OK(vkCreateDescriptorPool(device->device, &pool_info, NULL, &pool));
    VkDescriptorSetAllocateInfo allocate = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO};
    allocate.descriptorPool = pool;
    allocate.descriptorSetCount = 2;
    allocate.pSetLayouts = layouts;
    VkDescriptorSet sets[2];
    OK(vkAllocateDescriptorSets(device->device, &allocate, sets));
    uint32_t values[12];
    for (uint32_t i = 0; i < 12; i++) values[i] = 50 + i;
    VkWriteDescriptorSetInlineUniformBlockEXT parts[2] = {
        {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET_INLINE_UNIFORM_BLOCK_EXT, NULL, 12, values},
        {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET_INLINE_UNIFORM_BLOCK_EXT, NULL, 8, values + 3}};
    VkDescriptorBufferInfo buffers[2] = {{to.buffer, 0, 2048}, {to.buffer, 2048, 16}};
    VkWriteDescriptorSet writes[4] = {{VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET}};
    for (uint32_t i = 0; i < 4; i++) {
        writes[i].sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET;
        writes[i].dstSet = sets[i < 2];
        writes[i].dstBinding = i < 2 ? i : 2;
        writes[i].descriptorCount = 1;
        writes[i].descriptorType = i < 2 ? storage : block;
        writes[i].pBufferInfo = &buffers[i % 2];
    }
    writes[2].pNext = &parts[0], writes[2].descriptorCount = 12;
    writes[3].pNext = &parts[1], writes[3].descriptorCount = 8, writes[3].dstArrayElement = 12;
    vkUpdateDescriptorSets(device->device, 4, writes, 0, NULL);
    VkDescriptorUpdateTemplateEntry entry = {1000, 0, 24, block, 20, 0};
    VkDescriptorUpdateTemplateCreateInfo template_info = {VK_STRUCTURE_TYPE_DESCRIPTOR_UPDATE_TEMPLATE_CREATE_INFO};
    template_info.descriptorUpdateEntryCount = 1;
    template_info.pDescriptorUpdateEntries = &entry;
    template_info.templateType = VK_DESCRIPTOR_UPDATE_TEMPLATE_TYPE_DESCRIPTOR_SET;
    template_info.descriptorSetLayout = layouts[0];
    VkDescriptorUpdateTemplate template;
    OK(vkCreateDescriptorUpdateTemplate(device->device, &template_info, NULL, &template));
    vkUpdateDescriptorSetWithTemplate(device->device, sets[0], template, values);
    /* The second set has two words of its own, the last of one block and the first of the next, and all others from the first one. */
    VkCopyDescriptorSet copies[2] = {{VK_STRUCTURE_TYPE_COPY_DESCRIPTOR_SET, NULL, sets[0], 2, 0, sets[1], 2, 0, 20},
                                     {VK_STRUCTURE_TYPE_COPY_DESCRIPTOR_SET, NULL, sets[0], 1000, 0, sets[1], 1000, 0, 24}};
    vkUpdateDescriptorSets(device->device, 0, NULL, 2, copies);
    uint32_t others[2] = {7777, 7777};
    parts[0].dataSize = sizeof others, parts[0].pData = others;
    writes[2].dstSet = sets[1], writes[2].descriptorCount = sizeof others, writes[2].dstArrayElement = 16;
    for (int again = 0; again < 2; again++) {
        for (uint32_t i = 0; i < WORDS; i++) to.words[i] = 0;
        kernel_run(device, &kernel, sets[1]);
        for (uint32_t i = 0; i < 11; i++) NEED(to.words[i] == (again && (i == 4 || i == 5) ? 7777 : 50 + i));
        vkUpdateDescriptorSets(device->device, 1, &writes[2], 0, NULL);
    }
    /* The first one is as it was, and is copied a part of. */
    copies[0].srcArrayElement = copies[0].dstArrayElement = 16, copies[0].descriptorCount = 8;
    vkUpdateDescriptorSets(device->device, 0, NULL, 1, copies);
    kernel_run(device, &kernel, sets[1]);
    for (uint32_t i = 0; i < 11; i++) NEED(to.words[i] == 50 + i);
    vkDestroyDescriptorUpdateTemplate(device->device, template, NULL);
    vkDestroyDescriptorPool(device->device, pool, NULL);
    kernel_free(device, &kernel);
    vkDestroyDescriptorSetLayout(device->device, layouts[0], NULL);
    buffer_free(device, &to);
}

/* No tools are in the driver; and what it has of robustness it tells. */
static void told(struct device *device) {
    PFN_vkGetPhysicalDeviceToolPropertiesEXT tools =
        (PFN_vkGetPhysicalDeviceToolPropertiesEXT)vkGetInstanceProcAddr(device->instance, "vkGetPhysicalDeviceToolPropertiesEXT");
    NEED(tools);
    uint32_t count = 9;
    OK(tools(device->physical, &count, NULL));
    NEED(count == 0 || getenv("VK_INSTANCE_LAYERS"));
    VkPhysicalDeviceRobustness2FeaturesEXT robust = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ROBUSTNESS_2_FEATURES_EXT};
    VkPhysicalDeviceFeatures2 features = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, &robust};
    vkGetPhysicalDeviceFeatures2(device->physical, &features);
    NEED(robust.robustBufferAccess2 && !robust.robustImageAccess2 && !robust.nullDescriptor);
    VkPhysicalDeviceRobustness2PropertiesEXT sizes = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ROBUSTNESS_2_PROPERTIES_EXT};
    VkPhysicalDeviceProperties2 properties = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, &sizes};
    vkGetPhysicalDeviceProperties2(device->physical, &properties);
    NEED(sizes.robustStorageBufferAccessSizeAlignment == 4 && sizes.robustUniformBufferAccessSizeAlignment == 256);
    VkPhysicalDeviceInlineUniformBlockPropertiesEXT blocks = {
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_INLINE_UNIFORM_BLOCK_PROPERTIES_EXT};
    VkPhysicalDeviceDriverProperties driver = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES, &blocks};
    VkPhysicalDeviceVulkan12Properties same = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES, &driver};
    properties.pNext = &same;
    vkGetPhysicalDeviceProperties2(device->physical, &properties);
    NEED(blocks.maxInlineUniformBlockSize >= 256 && blocks.maxPerStageDescriptorInlineUniformBlocks >= 4);
    NEED(blocks.maxDescriptorSetInlineUniformBlocks >= 4);
    /* An id that Khronos has given somebody, and no claim to have passed anything. */
    NEED(driver.driverID >= VK_DRIVER_ID_AMD_PROPRIETARY && driver.driverID == same.driverID);
    NEED(strcmp(driver.driverName, "Campanile") == 0 && driver.conformanceVersion.major == 0);
}

/* Memory is neither taken over from other drivers nor given to them, though programs may enable the extension for it. */
static void foreign(struct device *device) {
    VkExternalMemoryHandleTypeFlagBits kind = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT;
    VkPhysicalDeviceExternalBufferInfo of = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO};
    of.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT;
    of.handleType = kind;
    VkExternalBufferProperties good = {VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES};
    vkGetPhysicalDeviceExternalBufferProperties(device->physical, &of, &good);
    NEED(good.externalMemoryProperties.externalMemoryFeatures == 0);
    VkImportMemoryFdInfoKHR from = {VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR};
    from.handleType = kind;
    from.fd = -1;
    VkMemoryAllocateInfo allocate = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, &from};
    allocate.allocationSize = 4096;
    VkDeviceMemory memory;
    RESULT(vkAllocateMemory(device->device, &allocate, NULL, &memory), VK_ERROR_INVALID_EXTERNAL_HANDLE);
    allocate.pNext = NULL;
    OK(vkAllocateMemory(device->device, &allocate, NULL, &memory));
    PFN_vkGetMemoryFdKHR get = (PFN_vkGetMemoryFdKHR)vkGetDeviceProcAddr(device->device, "vkGetMemoryFdKHR");
    PFN_vkGetMemoryFdPropertiesKHR told =
        (PFN_vkGetMemoryFdPropertiesKHR)vkGetDeviceProcAddr(device->device, "vkGetMemoryFdPropertiesKHR");
    NEED(get && told);
    VkMemoryGetFdInfoKHR info = {VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR};
    info.memory = memory;
    info.handleType = kind;
    int fd = 7;
    RESULT(get(device->device, &info, &fd), VK_ERROR_UNKNOWN);
    NEED(fd == -1);
    VkMemoryFdPropertiesKHR types = {VK_STRUCTURE_TYPE_MEMORY_FD_PROPERTIES_KHR};
    types.memoryTypeBits = 7;
    RESULT(told(device->device, kind, 0, &types), VK_ERROR_INVALID_EXTERNAL_HANDLE);
    NEED(types.memoryTypeBits == 0);
    vkFreeMemory(device->device, memory, NULL);
}

static int is_given_out(struct device *device, const char *command) {
    return vkGetDeviceProcAddr(device->device, command) != NULL;
}

/* Commands of versions that the program has not asked for, and of extensions that it has not enabled, are not there. */
static void commands_by_name(struct device *device) {
    NEED(is_given_out(device, "vkGetDeviceProcAddr") && is_given_out(device, "vkCmdDispatch"));
    NEED(is_given_out(device, "vkWaitSemaphores") && is_given_out(device, "vkTrimCommandPool"));
    NEED(is_given_out(device, "vkGetPrivateDataEXT"));
    /* The program has asked for version 1.2. */
    NEED(!is_given_out(device, "vkGetPrivateData") && !is_given_out(device, "vkQueueSubmit2"));
    NEED(!is_given_out(device, "vkQueueSubmit2KHR") && !is_given_out(device, "vkWaitSemaphoresKHR"));
    NEED(!is_given_out(device, "vkCreateInstance") && !is_given_out(device, "vkCreateDevice"));
}

/* With the GPU profile campanile-1 the device is that, whatever is behind it. */
static void named_profile(struct device *device) {
    VkPhysicalDeviceSubgroupProperties subgroups = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES};
    VkPhysicalDeviceIDProperties ids = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES, &subgroups};
    VkPhysicalDeviceProperties2 properties = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, &ids};
    vkGetPhysicalDeviceProperties2(device->physical, &properties);
    NEED(strcmp(properties.properties.deviceName, "Campanile (campanile-1)") == 0);
    NEED(properties.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU);
    NEED(properties.properties.vendorID == 0x1af4 && properties.properties.deviceID == 0x1050);
    NEED(memcmp(properties.properties.pipelineCacheUUID, "campanile-1:drv", VK_UUID_SIZE) == 0);
    NEED(memcmp(ids.driverUUID, "campanile-1:drv", VK_UUID_SIZE) == 0);
    NEED(memcmp(ids.deviceUUID, "campanile-1:gpu", VK_UUID_SIZE) == 0);
    NEED(subgroups.supportedOperations == 0 && subgroups.subgroupSize == 32);
    const VkPhysicalDeviceLimits *limits = &properties.properties.limits;
    NEED(limits->maxStorageBufferRange == 128u << 20 && limits->maxPushConstantsSize == 256);
    NEED(limits->maxPerStageDescriptorStorageBuffers == 16 && limits->maxComputeWorkGroupInvocations == 1024);
    VkPhysicalDeviceShaderAtomicFloatFeaturesEXT floats = {
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_ATOMIC_FLOAT_FEATURES_EXT};
    VkPhysicalDeviceVulkan12Features more = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES, &floats};
    VkPhysicalDeviceFeatures2 features = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, &more};
    vkGetPhysicalDeviceFeatures2(device->physical, &features);
    NEED(more.storageBuffer8BitAccess && more.shaderFloat16 && more.shaderInt8 && features.features.shaderInt64);
    NEED(!features.features.shaderFloat64 && !more.shaderBufferInt64Atomics && !floats.shaderBufferFloat32AtomicAdd);
    uint32_t count = 0;
    OK(vkEnumerateDeviceExtensionProperties(device->physical, NULL, &count, NULL));
    VkExtensionProperties *extensions = malloc(count * sizeof *extensions);
    OK(vkEnumerateDeviceExtensionProperties(device->physical, NULL, &count, extensions));
    for (uint32_t i = 0; i < count; i++) {
        NEED(strcmp(extensions[i].extensionName, "VK_EXT_subgroup_size_control") != 0);
        NEED(strcmp(extensions[i].extensionName, "VK_EXT_shader_atomic_float") != 0);
    }
    free(extensions);
}

/* A module with more names in it than a message takes is the same without them. */
static void debugged(struct device *device) {
    enum { NAMES = 300, NAME = 250 };
    size_t words = sizeof add_words / 4, at = 5;
    uint32_t *named = malloc((words + NAMES * NAME) * 4);
    /* Before the first name that is there. */
    while ((add_words[at] & 0xffff) != 5) at += add_words[at] >> 16;
    memcpy(named, add_words, at * 4);
    for (size_t i = 0; i < NAMES; i++) {
        uint32_t *name = &named[at + i * NAME];
        name[0] = NAME << 16 | 5, name[1] = add_words[at + 1];
        memset(&name[2], 'n', (NAME - 2) * 4 - 1);
        name[NAME - 1] &= 0xffffff;
    }
    memcpy(&named[at + NAMES * NAME], &add_words[at], (words - at) * 4);
    struct adder adder = adder_new(device);
    vkDestroyPipeline(device->device, adder.pipeline, NULL);
    adder.pipeline = adder_pipeline(device, adder.layout, named, (words + NAMES * NAME) * 4);
    VkCommandBuffer commands = commands_begin(device);
    adder_record(&adder, commands, 5);
    commands_run(device, commands);
    NEED(adder_holds(&adder, 1, 5));
    adder_free(device, &adder);
    free(named);
}

/* A module may have ids that are far apart, or a bound that is far from all of them. */
static void sparse(struct device *device) {
    uint32_t words[sizeof add_words / 4];
    memcpy(words, add_words, sizeof words);
    words[3] = 0x3fffff;
    struct adder adder = adder_new(device);
    vkDestroyPipeline(device->device, adder.pipeline, NULL);
    adder.pipeline = adder_pipeline(device, adder.layout, words, sizeof words);
    VkCommandBuffer commands = commands_begin(device);
    adder_record(&adder, commands, 5);
    commands_run(device, commands);
    NEED(adder_holds(&adder, 1, 5));
    adder_free(device, &adder);
}

int main(int argc, char **argv) {
    static const char *const names[] = {"VK_EXT_private_data",    "VK_EXT_pipeline_creation_cache_control",
                                        "VK_EXT_tooling_info",    "VK_EXT_pipeline_creation_feedback",
                                        "VK_EXT_robustness2",     "VK_KHR_zero_initialize_workgroup_memory",
                                        "VK_EXT_inline_uniform_block", "VK_KHR_external_memory_fd"};
    static const struct test tests[] = {
        {"private-data", private_data}, {"pipelines", pipelines}, {"layouts", layouts}, {"told", told},
        {"named-profile", named_profile}, {"debugged", debugged}, {"sparse", sparse},
        {"inline", inlined}, {"commands", commands_by_name}, {"foreign", foreign}, {NULL, NULL}};
    return run_tests(tests, argc, argv, 8, names);
}
