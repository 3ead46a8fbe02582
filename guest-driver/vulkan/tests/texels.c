/* Texel buffers: descriptors of all kinds, formats, limits. Also for other drivers: all but "formats" holds on any. */
#include "program.h"

#include "shaders/shaders.h"

/* Texels of the views, and invocations, of which the last are beyond all of them. */
#define TEXELS 192u
#define INVOCATIONS 256u
#define NUMBERS 5

/* A pipeline of texels.comp, its buffers, and a view of each but many[1], which has the last. */
struct texels {
    VkDescriptorSetLayout set_layout;
    VkPipelineLayout layout;
    VkPipeline pipeline;
    struct buffer buffers[NUMBERS + 1];
    VkBufferView views[NUMBERS + 1];
};

static const uint32_t numbers[NUMBERS] = {0, 1, 3, 4, 1000};
static const VkDescriptorType types[NUMBERS] = {
    VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER, VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER,
    VK_DESCRIPTOR_TYPE_STORAGE_TEXEL_BUFFER, VK_DESCRIPTOR_TYPE_STORAGE_TEXEL_BUFFER,
    VK_DESCRIPTOR_TYPE_STORAGE_TEXEL_BUFFER,
};
static const uint32_t counts[NUMBERS] = {1, 2, 1, 1, 1};

static VkBufferView view_of(struct device *device, VkBuffer buffer, VkFormat format, VkDeviceSize offset, VkDeviceSize range) {
    VkBufferViewCreateInfo info = {VK_STRUCTURE_TYPE_BUFFER_VIEW_CREATE_INFO};
    info.buffer = buffer;
    info.format = format;
    info.offset = offset;
    info.range = range;
    VkBufferView view;
    OK(vkCreateBufferView(device->device, &info, NULL, &view));
    return view;
}

static struct texels texels_new(struct device *device, VkDescriptorSetLayoutCreateFlags flags) {
    struct texels texels;
    VkDescriptorSetLayoutBinding bindings[NUMBERS];
    for (int i = 0; i < NUMBERS; i++)
        bindings[i] = (VkDescriptorSetLayoutBinding){numbers[i], types[i], counts[i], VK_SHADER_STAGE_COMPUTE_BIT, NULL};
    VkDescriptorSetLayoutCreateInfo info = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO};
    info.flags = flags;
    info.bindingCount = NUMBERS;
    info.pBindings = bindings;
    OK(vkCreateDescriptorSetLayout(device->device, &info, NULL, &texels.set_layout));
    VkPipelineLayoutCreateInfo layout = {VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO};
    layout.setLayoutCount = 1;
    layout.pSetLayouts = &texels.set_layout;
    OK(vkCreatePipelineLayout(device->device, &layout, NULL, &texels.layout));
    VkComputePipelineCreateInfo pipeline = {VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
    pipeline.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
    pipeline.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
    pipeline.stage.module = module_new(device, texels_words, sizeof texels_words);
    pipeline.stage.pName = "main";
    pipeline.layout = texels.layout;
    OK(vkCreateComputePipelines(device->device, VK_NULL_HANDLE, 1, &pipeline, NULL, &texels.pipeline));
    vkDestroyShaderModule(device->device, pipeline.stage.module, NULL);
    VkBufferUsageFlags uniform = VK_BUFFER_USAGE_UNIFORM_TEXEL_BUFFER_BIT;
    static const struct {
        VkFormat format;
        VkDeviceSize offset, range;
    } shown[NUMBERS + 1] = {
        {VK_FORMAT_R32_UINT, 256, TEXELS * 4},
        /* No whole words. */
        {VK_FORMAT_R8_UNORM, 0, 126},
        {VK_FORMAT_R32G32B32A32_SFLOAT, 0, VK_WHOLE_SIZE},
        {VK_FORMAT_R8G8B8A8_UNORM, 512, TEXELS * 4},
        {VK_FORMAT_R32_UINT, 0, 1000},
        {VK_FORMAT_R16_SFLOAT, 256, VK_WHOLE_SIZE},
    };
    for (int i = 0; i < NUMBERS + 1; i++) {
        /* Not every format can be written. */
        int is_written = shown[i].format != VK_FORMAT_R8_UNORM && shown[i].format != VK_FORMAT_R16_SFLOAT;
        texels.buffers[i] = buffer_new(device, is_written ? uniform | VK_BUFFER_USAGE_STORAGE_TEXEL_BUFFER_BIT : uniform);
        memset(texels.buffers[i].words, 0, WORDS * 4);
        VkBuffer buffer = texels.buffers[i].buffer;
        texels.views[i] = view_of(device, buffer, shown[i].format, shown[i].offset, shown[i].range);
    }
    for (uint32_t i = 0; i < WORDS; i++) {
        float value = (float)i;
        memcpy(&texels.buffers[2].words[i], &value, 4);
        texels.buffers[0].words[i] = 3 * i + 1;
        texels.buffers[1].words[i] = 0x33221100;
        /* Two halves of 1.0. */
        texels.buffers[5].words[i] = 0x3c003c00;
    }
    return texels;
}

/* Dispatches with what is bound, and checks what comes of it, which is the same each time but for what adds up. */
static void texels_run(struct device *device, struct texels *texels, VkCommandBuffer commands) {
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, texels->pipeline);
    vkCmdDispatch(commands, INVOCATIONS / 64, 1, 1);
    barrier(commands);
    commands_run(device, commands);
    uint32_t sum = 0, most = 0;
    for (uint32_t i = 0; i < INVOCATIONS; i++) {
        /* What lies beyond a view reads as nothing. */
        uint32_t w = i < TEXELS ? 3 * (i + 64) + 1 : 0;
        float byte = i < 126 ? (float)(i % 4 * 0x11) / 255 : 0;
        float added[4] = {(float)w, byte + 1, TEXELS, TEXELS};
        sum += w;
        if (w > most) most = w;
        for (uint32_t part = 0; part < 4 && i < WORDS / 4; part++) {
            float found, wanted = (float)(i * 4 + part) + added[part];
            memcpy(&found, &texels->buffers[2].words[i * 4 + part], 4);
            NEED(found - wanted < 0.001f && wanted - found < 0.001f);
        }
        NEED(texels->buffers[3].words[128 + i] == (i < TEXELS ? (w & 255) | 0x3300ff00 : 0));
    }
    NEED(texels->buffers[4].words[0] == sum && texels->buffers[4].words[1] == most);
    for (uint32_t i = 2; i < WORDS; i++) NEED(texels->buffers[4].words[i] == 0);
    for (uint32_t i = 0; i < 128; i++) NEED(texels->buffers[3].words[i] == 0);
}

static void texels_free(struct device *device, struct texels *texels, VkDescriptorPool pool) {
    vkDestroyDescriptorPool(device->device, pool, NULL);
    vkDestroyPipeline(device->device, texels->pipeline, NULL);
    vkDestroyPipelineLayout(device->device, texels->layout, NULL);
    vkDestroyDescriptorSetLayout(device->device, texels->set_layout, NULL);
    for (int i = 0; i < NUMBERS + 1; i++) {
        vkDestroyBufferView(device->device, texels->views[i], NULL);
        buffer_free(device, &texels->buffers[i]);
    }
    vkDestroyBufferView(device->device, VK_NULL_HANDLE, NULL);
}

/* The views of binding `at`, in the order of its array. */
static void views_of(struct texels *texels, int at, VkBufferView views[2]) {
    views[0] = texels->views[at];
    views[1] = texels->views[NUMBERS];
}

static void writes_of(struct texels *texels, VkDescriptorSet set, VkBufferView views[NUMBERS][2],
                      VkWriteDescriptorSet writes[NUMBERS]) {
    for (int i = 0; i < NUMBERS; i++) {
        views_of(texels, i, views[i]);
        writes[i] = (VkWriteDescriptorSet){VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET};
        writes[i].dstSet = set;
        writes[i].dstBinding = numbers[i];
        writes[i].descriptorCount = counts[i];
        writes[i].descriptorType = types[i];
        writes[i].pTexelBufferView = views[i];
    }
}

/* Writes, and copies from one set to another, of which one is of an array. */
static void sets(struct device *device) {
    struct texels texels = texels_new(device, 0);
    VkDescriptorPoolSize sizes[2] = {{VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER, 6}, {VK_DESCRIPTOR_TYPE_STORAGE_TEXEL_BUFFER, 6}};
    VkDescriptorPoolCreateInfo info = {VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO};
    info.maxSets = 2;
    info.poolSizeCount = 2;
    info.pPoolSizes = sizes;
    VkDescriptorPool pool;
    OK(vkCreateDescriptorPool(device->device, &info, NULL, &pool));
    VkDescriptorSetLayout layouts[2] = {texels.set_layout, texels.set_layout};
    VkDescriptorSetAllocateInfo allocate = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO};
    allocate.descriptorPool = pool;
    allocate.descriptorSetCount = 2;
    allocate.pSetLayouts = layouts;
    VkDescriptorSet both[2];
    OK(vkAllocateDescriptorSets(device->device, &allocate, both));
    VkBufferView views[NUMBERS][2];
    VkWriteDescriptorSet writes[NUMBERS];
    writes_of(&texels, both[0], views, writes);
    VkCopyDescriptorSet copies[NUMBERS];
    for (int i = 0; i < NUMBERS; i++)
        copies[i] = (VkCopyDescriptorSet){VK_STRUCTURE_TYPE_COPY_DESCRIPTOR_SET, NULL, both[0], numbers[i], 0,
                                          both[1], numbers[i], 0, counts[i]};
    vkUpdateDescriptorSets(device->device, NUMBERS, writes, NUMBERS, copies);
    VkCommandBuffer commands = commands_begin(device);
    vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, texels.layout, 0, 1, &both[1], 0, NULL);
    texels_run(device, &texels, commands);
    texels_free(device, &texels, pool);
}

static void push_descriptors(struct device *device) {
    struct texels texels = texels_new(device, VK_DESCRIPTOR_SET_LAYOUT_CREATE_PUSH_DESCRIPTOR_BIT_KHR);
    VkBufferView views[NUMBERS][2];
    VkWriteDescriptorSet writes[NUMBERS];
    writes_of(&texels, VK_NULL_HANDLE, views, writes);
    VkCommandBuffer commands = commands_begin(device);
    PFN_vkCmdPushDescriptorSetKHR push =
        (PFN_vkCmdPushDescriptorSetKHR)vkGetDeviceProcAddr(device->device, "vkCmdPushDescriptorSetKHR");
    push(commands, VK_PIPELINE_BIND_POINT_COMPUTE, texels.layout, 0, NUMBERS, writes);
    texels_run(device, &texels, commands);
    texels_free(device, &texels, VK_NULL_HANDLE);
}

static void push_templates(struct device *device) {
    struct texels texels = texels_new(device, VK_DESCRIPTOR_SET_LAYOUT_CREATE_PUSH_DESCRIPTOR_BIT_KHR);
    struct {
        uint32_t unused[2];
        VkBufferView views[NUMBERS][2];
    } data;
    VkDescriptorUpdateTemplateEntry entries[NUMBERS];
    for (int i = 0; i < NUMBERS; i++) {
        views_of(&texels, i, data.views[i]);
        size_t offset = (size_t)((char *)data.views[i] - (char *)&data);
        entries[i] = (VkDescriptorUpdateTemplateEntry){numbers[i], 0, counts[i], types[i], offset, sizeof(VkBufferView)};
    }
    VkDescriptorUpdateTemplateCreateInfo info = {VK_STRUCTURE_TYPE_DESCRIPTOR_UPDATE_TEMPLATE_CREATE_INFO};
    info.descriptorUpdateEntryCount = NUMBERS;
    info.pDescriptorUpdateEntries = entries;
    info.templateType = VK_DESCRIPTOR_UPDATE_TEMPLATE_TYPE_PUSH_DESCRIPTORS_KHR;
    info.pipelineBindPoint = VK_PIPELINE_BIND_POINT_COMPUTE;
    info.pipelineLayout = texels.layout;
    VkDescriptorUpdateTemplate template;
    OK(vkCreateDescriptorUpdateTemplate(device->device, &info, NULL, &template));
    VkCommandBuffer commands = commands_begin(device);
    PFN_vkCmdPushDescriptorSetWithTemplateKHR push =
        (PFN_vkCmdPushDescriptorSetWithTemplateKHR)vkGetDeviceProcAddr(device->device, "vkCmdPushDescriptorSetWithTemplateKHR");
    push(commands, template, texels.layout, 0, &data);
    texels_run(device, &texels, commands);
    vkDestroyDescriptorUpdateTemplate(device->device, template, NULL);
    texels_free(device, &texels, VK_NULL_HANDLE);
}

/* Views are made in the formats that are said to be there, and in no others; both ways to ask say the same. */
static void formats(struct device *device) {
    struct buffer buffer = buffer_new(device, VK_BUFFER_USAGE_UNIFORM_TEXEL_BUFFER_BIT);
    VkPhysicalDeviceProperties properties;
    vkGetPhysicalDeviceProperties(device->physical, &properties);
    NEED(properties.limits.minTexelBufferOffsetAlignment == 256 && properties.limits.maxTexelBufferElements >= 65536);
    VkPhysicalDeviceFeatures features;
    vkGetPhysicalDeviceFeatures(device->physical, &features);
    NEED(features.robustBufferAccess);
    uint32_t uniform = 0, storage = 0, atomic = 0;
    for (uint32_t number = 0; number < 200; number++) {
        VkFormat format = (VkFormat)number;
        VkFormatProperties3 all = {VK_STRUCTURE_TYPE_FORMAT_PROPERTIES_3};
        VkFormatProperties2 found = {VK_STRUCTURE_TYPE_FORMAT_PROPERTIES_2, &all};
        vkGetPhysicalDeviceFormatProperties2(device->physical, format, &found);
        VkFormatProperties same;
        vkGetPhysicalDeviceFormatProperties(device->physical, format, &same);
        VkFormatFeatureFlags told = same.bufferFeatures;
        NEED(told == found.formatProperties.bufferFeatures && told == (all.bufferFeatures & 0x7fffffff));
        VkFormatFeatureFlags2 bare =
            VK_FORMAT_FEATURE_2_STORAGE_READ_WITHOUT_FORMAT_BIT | VK_FORMAT_FEATURE_2_STORAGE_WRITE_WITHOUT_FORMAT_BIT;
        int is_storage = !!(told & VK_FORMAT_FEATURE_STORAGE_TEXEL_BUFFER_BIT);
        int is_bare = features.shaderStorageImageReadWithoutFormat && features.shaderStorageImageWriteWithoutFormat;
        NEED((all.bufferFeatures & bare) == (is_storage && is_bare ? bare : 0));
        uniform += !!(told & VK_FORMAT_FEATURE_UNIFORM_TEXEL_BUFFER_BIT);
        storage += is_storage;
        atomic += !!(told & VK_FORMAT_FEATURE_STORAGE_TEXEL_BUFFER_ATOMIC_BIT);
        VkBufferViewCreateInfo info = {VK_STRUCTURE_TYPE_BUFFER_VIEW_CREATE_INFO};
        info.buffer = buffer.buffer;
        info.format = format;
        info.range = VK_WHOLE_SIZE;
        VkBufferView view = VK_NULL_HANDLE;
        RESULT(vkCreateBufferView(device->device, &info, NULL, &view), told ? VK_SUCCESS : VK_ERROR_FORMAT_NOT_SUPPORTED);
        vkDestroyBufferView(device->device, view, NULL);
    }
    /* Those that Vulkan asks of every device, and where it has the others of shaderStorageImageExtendedFormats, these. */
    int is_extended = features.shaderStorageImageExtendedFormats;
    NEED(uniform == (is_extended ? 44 : 38) && storage == (is_extended ? 39 : 16) && atomic == 2);
    buffer_free(device, &buffer);
}

int main(int argc, char **argv) {
    static const struct test tests[] = {{"sets", sets},
                                        {"push-descriptors", push_descriptors},
                                        {"push-templates", push_templates},
                                        {"formats", formats},
                                        {NULL, NULL}};
    static const char *const extensions[] = {VK_KHR_PUSH_DESCRIPTOR_EXTENSION_NAME};
    return run_tests(tests, argc, argv, 1, extensions);
}
