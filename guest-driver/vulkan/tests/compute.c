/* Dispatches: pipelines, descriptors of all kinds, command buffers of all kinds. */
#include "program.h"

#include "shaders/shaders.h"

/* Specialisation, push constants, and a command buffer that is submitted again and again. */
static void resubmit(struct device *device) {
    struct adder adder = adder_new(device);
    VkCommandBuffer commands = commands_begin(device);
    adder_record(&adder, commands, 5);
    OK(vkEndCommandBuffer(commands));
    for (int i = 0; i < 100; i++) submit(device, commands, VK_NULL_HANDLE);
    OK(vkQueueWaitIdle(device->queue));
    NEED(adder_holds(&adder, 100, 500));
    /* Recorded anew, it does what is recorded now and nothing else. */
    VkCommandBufferBeginInfo begin = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    OK(vkBeginCommandBuffer(commands, &begin));
    adder_record(&adder, commands, 7);
    commands_run(device, commands);
    NEED(adder_holds(&adder, 101, 507));
    adder_free(device, &adder);
}

/* More packets than one ring entry carries. */
static void large(struct device *device) {
    struct adder adder = adder_new(device);
    VkCommandBuffer commands = commands_begin(device);
    for (int i = 0; i < 1500; i++) adder_record(&adder, commands, 1);
    commands_run(device, commands);
    NEED(adder_holds(&adder, 1500, 1500));
    adder_free(device, &adder);
}

static void secondary(struct device *device) {
    struct adder adder = adder_new(device);
    VkCommandBufferAllocateInfo allocate = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO};
    allocate.commandPool = device->pool;
    allocate.level = VK_COMMAND_BUFFER_LEVEL_SECONDARY;
    allocate.commandBufferCount = 2;
    VkCommandBuffer both[2];
    OK(vkAllocateCommandBuffers(device->device, &allocate, both));
    for (uint32_t i = 0; i < 2; i++) {
        VkCommandBufferInheritanceInfo inherited = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_INHERITANCE_INFO};
        VkCommandBufferBeginInfo begin = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
        begin.pInheritanceInfo = &inherited;
        begin.flags = VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT;
        OK(vkBeginCommandBuffer(both[i], &begin));
        adder_record(&adder, both[i], 10 + i);
        OK(vkEndCommandBuffer(both[i]));
    }
    VkCommandBuffer commands = commands_begin(device);
    vkCmdExecuteCommands(commands, 2, both);
    vkCmdExecuteCommands(commands, 1, both);
    commands_run(device, commands);
    NEED(adder_holds(&adder, 3, 10 + 11 + 10));
    adder_free(device, &adder);
}

static void indirect(struct device *device) {
    struct adder adder = adder_new(device);
    struct buffer grid = buffer_new(device, VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT);
    grid.words[4] = (WORDS + 63) / 64, grid.words[5] = 1, grid.words[6] = 1;
    VkCommandBuffer commands = commands_begin(device);
    adder_record(&adder, commands, 1);
    /* What was bound stays bound. */
    vkCmdDispatchIndirect(commands, grid.buffer, 16);
    /* No groups, nothing done. */
    vkCmdDispatch(commands, 0, 1, 1);
    commands_run(device, commands);
    NEED(adder_holds(&adder, 2, 2));
    buffer_free(device, &grid);
    adder_free(device, &adder);
}

/* Groups numbered from 8 on: all words before those of group 8 stay. */
static void based(struct device *device) {
    struct adder adder = adder_new(device);
    VkCommandBuffer commands = commands_begin(device);
    adder_record(&adder, commands, 1);
    vkCmdDispatchBase(commands, 8, 0, 0, 2, 1, 1);
    commands_run(device, commands);
    for (uint32_t i = 0; i < WORDS; i++) {
        uint32_t times = i >= 8 * 64 && i < 10 * 64 ? 2 : 1;
        NEED(adder.to.words[i] == (i * 3 + 1) * times);
    }
    adder_free(device, &adder);
}

/* A pipeline of sets.comp, with bindings 0 and 2 in set 0 and a dynamic uniform buffer in set 1. */
struct sets {
    VkDescriptorSetLayout layouts[2];
    VkPipelineLayout layout;
    VkPipeline pipeline;
    struct buffer to, many[2], scale;
};

static struct sets sets_new(struct device *device, VkDescriptorSetLayoutCreateFlags flags) {
    struct sets sets;
    VkDescriptorSetLayoutBinding first[2] = {
        {2, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 2, VK_SHADER_STAGE_COMPUTE_BIT, NULL},
        {0, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, NULL},
    };
    VkDescriptorSetLayoutBinding second = {3, VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER_DYNAMIC, 1, VK_SHADER_STAGE_COMPUTE_BIT,
                                           NULL};
    VkDescriptorSetLayoutCreateInfo info = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO};
    info.flags = flags;
    info.bindingCount = 2;
    info.pBindings = first;
    OK(vkCreateDescriptorSetLayout(device->device, &info, NULL, &sets.layouts[0]));
    info.flags = 0;
    info.bindingCount = 1;
    info.pBindings = &second;
    OK(vkCreateDescriptorSetLayout(device->device, &info, NULL, &sets.layouts[1]));
    VkPipelineLayoutCreateInfo layout = {VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO};
    layout.setLayoutCount = 2;
    layout.pSetLayouts = sets.layouts;
    OK(vkCreatePipelineLayout(device->device, &layout, NULL, &sets.layout));
    VkComputePipelineCreateInfo pipeline = {VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
    pipeline.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
    pipeline.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
    pipeline.stage.module = module_new(device, sets_words, sizeof sets_words);
    pipeline.stage.pName = "main";
    pipeline.layout = sets.layout;
    OK(vkCreateComputePipelines(device->device, VK_NULL_HANDLE, 1, &pipeline, NULL, &sets.pipeline));
    vkDestroyShaderModule(device->device, pipeline.stage.module, NULL);
    sets.to = buffer_new(device, VK_BUFFER_USAGE_STORAGE_BUFFER_BIT);
    sets.many[0] = buffer_new(device, VK_BUFFER_USAGE_STORAGE_BUFFER_BIT);
    sets.many[1] = buffer_new(device, VK_BUFFER_USAGE_STORAGE_BUFFER_BIT);
    sets.scale = buffer_new(device, VK_BUFFER_USAGE_UNIFORM_BUFFER_BIT);
    for (uint32_t i = 0; i < WORDS; i++) sets.many[0].words[i] = 7 * i, sets.many[1].words[i] = i + 1;
    /* The second of two values: the dynamic offset chooses. */
    sets.scale.words[0] = 1000, sets.scale.words[64] = 4;
    return sets;
}

static VkDescriptorPool pool_of(struct device *device) {
    VkDescriptorPoolSize sizes[2] = {{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 6}, {VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER_DYNAMIC, 1}};
    VkDescriptorPoolCreateInfo info = {VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO};
    info.flags = VK_DESCRIPTOR_POOL_CREATE_FREE_DESCRIPTOR_SET_BIT;
    info.maxSets = 3;
    info.poolSizeCount = 2;
    info.pPoolSizes = sizes;
    VkDescriptorPool pool;
    OK(vkCreateDescriptorPool(device->device, &info, NULL, &pool));
    return pool;
}

static VkDescriptorSet set_of(struct device *device, VkDescriptorPool pool, VkDescriptorSetLayout layout, VkResult wanted) {
    VkDescriptorSetAllocateInfo info = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO};
    info.descriptorPool = pool;
    info.descriptorSetCount = 1;
    info.pSetLayouts = &layout;
    VkDescriptorSet set;
    RESULT(vkAllocateDescriptorSets(device->device, &info, &set), wanted);
    return set;
}

/* Dispatches with what is bound by then, and checks what comes of it. */
static void sets_run(struct device *device, struct sets *sets, VkCommandBuffer commands, VkDescriptorSet uniform) {
    uint32_t offset = 256;
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, sets->pipeline);
    vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, sets->layout, 1, 1, &uniform, 1, &offset);
    vkCmdDispatch(commands, WORDS / 64, 1, 1);
    barrier(commands);
    commands_run(device, commands);
    for (uint32_t i = 0; i < WORDS / 64 * 64; i++) NEED(sets->to.words[i] == 7 * i + (i + 1) * 4);
    NEED(sets->to.words[WORDS / 64 * 64] == 0);
}

static VkDescriptorSet uniform_set(struct device *device, struct sets *sets, VkDescriptorPool pool) {
    VkDescriptorSet set = set_of(device, pool, sets->layouts[1], VK_SUCCESS);
    VkDescriptorBufferInfo buffer = {sets->scale.buffer, 0, 16};
    VkWriteDescriptorSet write = {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET};
    write.dstSet = set;
    write.dstBinding = 3;
    write.descriptorCount = 1;
    write.descriptorType = VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER_DYNAMIC;
    write.pBufferInfo = &buffer;
    vkUpdateDescriptorSets(device->device, 1, &write, 0, NULL);
    return set;
}

static void sets_free(struct device *device, struct sets *sets, VkDescriptorPool pool) {
    vkDestroyDescriptorPool(device->device, pool, NULL);
    vkDestroyPipeline(device->device, sets->pipeline, NULL);
    vkDestroyPipelineLayout(device->device, sets->layout, NULL);
    for (int i = 0; i < 2; i++) {
        vkDestroyDescriptorSetLayout(device->device, sets->layouts[i], NULL);
        buffer_free(device, &sets->many[i]);
    }
    buffer_free(device, &sets->to);
    buffer_free(device, &sets->scale);
}

/* Writes, a copy from one set to another, an array of buffers, a dynamic offset; and a pool that has no more. */
static void descriptors(struct device *device) {
    struct sets sets = sets_new(device, 0);
    VkDescriptorPool pool = pool_of(device);
    VkDescriptorSet source = set_of(device, pool, sets.layouts[0], VK_SUCCESS);
    VkDescriptorSet set = set_of(device, pool, sets.layouts[0], VK_SUCCESS);
    VkDescriptorSet uniform = uniform_set(device, &sets, pool);
    NEED(set_of(device, pool, sets.layouts[0], VK_ERROR_OUT_OF_POOL_MEMORY) == VK_NULL_HANDLE);
    VkDescriptorBufferInfo buffers[3] = {
        {sets.to.buffer, 0, VK_WHOLE_SIZE},
        {sets.many[0].buffer, 0, VK_WHOLE_SIZE},
        {sets.many[1].buffer, 0, VK_WHOLE_SIZE},
    };
    VkWriteDescriptorSet write = {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET};
    write.dstSet = source;
    write.descriptorCount = 3;
    write.descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
    write.pBufferInfo = buffers;
    VkCopyDescriptorSet copies[2] = {
        {VK_STRUCTURE_TYPE_COPY_DESCRIPTOR_SET, NULL, source, 0, 0, set, 0, 0, 1},
        {VK_STRUCTURE_TYPE_COPY_DESCRIPTOR_SET, NULL, source, 2, 0, set, 2, 0, 2},
    };
    vkUpdateDescriptorSets(device->device, 1, &write, 2, copies);
    OK(vkFreeDescriptorSets(device->device, pool, 1, &source));
    VkCommandBuffer commands = commands_begin(device);
    vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, sets.layout, 0, 1, &set, 0, NULL);
    sets_run(device, &sets, commands, uniform);
    sets_free(device, &sets, pool);
}

/* Descriptors in the command buffer: by writes, and by a template. */
static void pushed(struct device *device, int by_template) {
    struct sets sets = sets_new(device, VK_DESCRIPTOR_SET_LAYOUT_CREATE_PUSH_DESCRIPTOR_BIT_KHR);
    VkDescriptorPool pool = pool_of(device);
    VkDescriptorSet uniform = uniform_set(device, &sets, pool);
    struct {
        uint64_t unused;
        VkDescriptorBufferInfo to, many[2];
    } data = {0, {sets.to.buffer, 0, VK_WHOLE_SIZE},
              {{sets.many[0].buffer, 0, VK_WHOLE_SIZE}, {sets.many[1].buffer, 0, VK_WHOLE_SIZE}}};
    VkCommandBuffer commands = commands_begin(device);
    VkDescriptorUpdateTemplate template = VK_NULL_HANDLE;
    if (by_template) {
        VkDescriptorUpdateTemplateEntry entries[2] = {
            {0, 0, 1, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 8, 0},
            {2, 0, 2, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 8 + sizeof data.to, sizeof data.to},
        };
        VkDescriptorUpdateTemplateCreateInfo info = {VK_STRUCTURE_TYPE_DESCRIPTOR_UPDATE_TEMPLATE_CREATE_INFO};
        info.descriptorUpdateEntryCount = 2;
        info.pDescriptorUpdateEntries = entries;
        info.templateType = VK_DESCRIPTOR_UPDATE_TEMPLATE_TYPE_PUSH_DESCRIPTORS_KHR;
        info.pipelineBindPoint = VK_PIPELINE_BIND_POINT_COMPUTE;
        info.pipelineLayout = sets.layout;
        OK(vkCreateDescriptorUpdateTemplate(device->device, &info, NULL, &template));
        PFN_vkCmdPushDescriptorSetWithTemplateKHR push =
            (PFN_vkCmdPushDescriptorSetWithTemplateKHR)vkGetDeviceProcAddr(device->device,
                                                                           "vkCmdPushDescriptorSetWithTemplateKHR");
        push(commands, template, sets.layout, 0, &data);
    } else {
        VkWriteDescriptorSet writes[2] = {{VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET},
                                          {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET}};
        for (int i = 0; i < 2; i++) writes[i].descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
        writes[0].descriptorCount = 1;
        writes[0].pBufferInfo = &data.to;
        writes[1].dstBinding = writes[1].descriptorCount = 2;
        writes[1].pBufferInfo = data.many;
        PFN_vkCmdPushDescriptorSetKHR push =
            (PFN_vkCmdPushDescriptorSetKHR)vkGetDeviceProcAddr(device->device, "vkCmdPushDescriptorSetKHR");
        push(commands, VK_PIPELINE_BIND_POINT_COMPUTE, sets.layout, 0, 2, writes);
    }
    sets_run(device, &sets, commands, uniform);
    vkDestroyDescriptorUpdateTemplate(device->device, template, NULL);
    sets_free(device, &sets, pool);
}

static void push_descriptors(struct device *device) { pushed(device, 0); }
static void push_templates(struct device *device) { pushed(device, 1); }

/* Copies, fills and updates, and the order in which they happen. */
static void transfers(struct device *device) {
    struct buffer a = buffer_new(device, 0), b = buffer_new(device, 0);
    uint32_t update[5] = {11, 12, 13, 14, 15};
    VkCommandBuffer commands = commands_begin(device);
    vkCmdFillBuffer(commands, a.buffer, 0, VK_WHOLE_SIZE, 0xabcdef01);
    barrier(commands);
    vkCmdUpdateBuffer(commands, a.buffer, 40, sizeof update, update);
    /* It was read when it was recorded. */
    memset(update, 0, sizeof update);
    barrier(commands);
    VkBufferCopy regions[2] = {{40, 0, 12}, {48, 400, 9}};
    vkCmdCopyBuffer(commands, a.buffer, b.buffer, 2, regions);
    commands_run(device, commands);
    NEED(a.words[0] == 0xabcdef01 && a.words[WORDS - 1] == 0xabcdef01 && a.words[14] == 15 && a.words[15] == 0xabcdef01);
    NEED(b.words[0] == 11 && b.words[2] == 13 && b.words[3] == 0);
    NEED(b.words[100] == 13 && b.words[101] == 14 && b.words[102] == 15);
    buffer_free(device, &a);
    buffer_free(device, &b);
}

int main(int argc, char **argv) {
    static const struct test tests[] = {
        {"resubmit", resubmit},       {"large", large},
        {"secondary", secondary},     {"indirect", indirect},
        {"based", based},
        {"descriptors", descriptors}, {"push-descriptors", push_descriptors},
        {"push-templates", push_templates}, {"transfers", transfers},
        {NULL, NULL},
    };
    static const char *const extensions[] = {VK_KHR_PUSH_DESCRIPTOR_EXTENSION_NAME};
    return run_tests(tests, argc, argv, 1, extensions);
}
