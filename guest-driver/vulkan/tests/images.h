/* What the programs of images share: images, pipelines of two sets, copies. */
#ifndef IMAGES_H
#define IMAGES_H

#include "program.h"

/* An image in memory of its own, and a view of all of it. */
struct image {
    VkImage image;
    VkDeviceMemory memory;
    VkImageView view;
    VkFormat format;
    uint32_t levels, layers;
};

static uint32_t memory_type(struct device *device, uint32_t bits) {
    VkPhysicalDeviceMemoryProperties there;
    vkGetPhysicalDeviceMemoryProperties(device->physical, &there);
    for (uint32_t type = 0; type < there.memoryTypeCount; type++)
        if (bits >> type & 1) return type;
    NEED(0);
    return 0;
}

static VkImageView view_of(struct device *device, VkImage image, VkImageViewType type, VkFormat format,
                           VkComponentMapping order, VkImageSubresourceRange range) {
    VkImageViewCreateInfo info = {VK_STRUCTURE_TYPE_IMAGE_VIEW_CREATE_INFO};
    info.image = image;
    info.viewType = type;
    info.format = format;
    info.components = order;
    info.subresourceRange = range;
    VkImageView view;
    OK(vkCreateImageView(device->device, &info, NULL, &view));
    return view;
}

static VkImageSubresourceRange whole(uint32_t levels, uint32_t layers) {
    VkImageSubresourceRange range = {VK_IMAGE_ASPECT_COLOR_BIT, 0, levels, 0, layers};
    return range;
}

static struct image image_new(struct device *device, VkImageViewType type, VkFormat format, VkExtent3D extent,
                              uint32_t levels, uint32_t layers, VkImageUsageFlags usage) {
    struct image image;
    VkImageCreateInfo info = {VK_STRUCTURE_TYPE_IMAGE_CREATE_INFO};
    info.imageType = extent.depth > 1 ? VK_IMAGE_TYPE_3D : VK_IMAGE_TYPE_2D;
    if (type == VK_IMAGE_VIEW_TYPE_1D || type == VK_IMAGE_VIEW_TYPE_1D_ARRAY) info.imageType = VK_IMAGE_TYPE_1D;
    if (type == VK_IMAGE_VIEW_TYPE_CUBE) info.flags = VK_IMAGE_CREATE_CUBE_COMPATIBLE_BIT;
    /* Of sRGB, to be shown also as it is stored. */
    if (format == VK_FORMAT_R8G8B8A8_SRGB || format == VK_FORMAT_B8G8R8A8_SRGB) info.flags = VK_IMAGE_CREATE_MUTABLE_FORMAT_BIT;
    info.format = format;
    info.extent = extent;
    info.mipLevels = levels;
    info.arrayLayers = layers;
    info.samples = VK_SAMPLE_COUNT_1_BIT;
    info.usage = usage | VK_IMAGE_USAGE_TRANSFER_SRC_BIT | VK_IMAGE_USAGE_TRANSFER_DST_BIT;
    OK(vkCreateImage(device->device, &info, NULL, &image.image));
    VkMemoryRequirements wanted;
    vkGetImageMemoryRequirements(device->device, image.image, &wanted);
    VkMemoryAllocateInfo allocate = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
    allocate.allocationSize = wanted.size;
    allocate.memoryTypeIndex = memory_type(device, wanted.memoryTypeBits);
    OK(vkAllocateMemory(device->device, &allocate, NULL, &image.memory));
    OK(vkBindImageMemory(device->device, image.image, image.memory, 0));
    VkComponentMapping same = {0};
    image.view = VK_NULL_HANDLE;
    if (usage) image.view = view_of(device, image.image, type, format, same, whole(levels, layers));
    image.format = format;
    image.levels = levels;
    image.layers = layers;
    return image;
}

static void image_free(struct device *device, struct image *image) {
    vkDestroyImageView(device->device, image->view, NULL);
    vkDestroyImage(device->device, image->image, NULL);
    vkFreeMemory(device->device, image->memory, NULL);
}

/* All of the image in the layout that everything is done in. */
static void made_general(VkCommandBuffer commands, struct image *image) {
    VkImageMemoryBarrier change = {VK_STRUCTURE_TYPE_IMAGE_MEMORY_BARRIER};
    change.dstAccessMask = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT;
    change.newLayout = VK_IMAGE_LAYOUT_GENERAL;
    change.srcQueueFamilyIndex = change.dstQueueFamilyIndex = VK_QUEUE_FAMILY_IGNORED;
    change.image = image->image;
    change.subresourceRange = whole(image->levels, image->layers);
    vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, 0, 0, NULL,
                         0, NULL, 1, &change);
}

static inline VkBufferImageCopy region_of(VkDeviceSize offset, uint32_t level, uint32_t layer, uint32_t layers, VkExtent3D extent) {
    VkBufferImageCopy region = {offset, 0, 0, {VK_IMAGE_ASPECT_COLOR_BIT, level, layer, layers}, {0, 0, 0}, extent};
    return region;
}

static inline void clear(VkCommandBuffer commands, struct image *image, VkClearColorValue colour) {
    VkImageSubresourceRange all = whole(image->levels, image->layers);
    vkCmdClearColorImage(commands, image->image, VK_IMAGE_LAYOUT_GENERAL, &colour, 1, &all);
}

static inline void load(VkCommandBuffer commands, struct buffer *from, struct image *to, VkBufferImageCopy region) {
    vkCmdCopyBufferToImage(commands, from->buffer, to->image, VK_IMAGE_LAYOUT_GENERAL, 1, &region);
}

static inline void store(VkCommandBuffer commands, struct image *from, struct buffer *to, VkBufferImageCopy region) {
    vkCmdCopyImageToBuffer(commands, from->image, VK_IMAGE_LAYOUT_GENERAL, to->buffer, 1, &region);
}

#define STORAGE VK_IMAGE_USAGE_STORAGE_BIT
#define SAMPLED VK_IMAGE_USAGE_SAMPLED_BIT

/* A pipeline of a shader, of one layout a set, and sets of them. */
struct bound {
    VkDescriptorSetLayout layouts[2];
    VkPipelineLayout layout;
    VkPipeline pipeline;
    VkDescriptorPool pool;
    VkDescriptorSet sets[2];
};

static inline struct bound bound_new(struct device *device, const uint32_t *words, size_t bytes,
                              const VkDescriptorSetLayoutBinding *first, uint32_t first_count,
                              const VkDescriptorSetLayoutBinding *second, uint32_t second_count) {
    struct bound bound;
    const VkDescriptorSetLayoutBinding *bindings[2] = {first, second};
    uint32_t counts[2] = {first_count, second_count}, size_count = 0;
    VkDescriptorPoolSize sizes[16];
    for (int set = 0; set < 2; set++) {
        VkDescriptorSetLayoutCreateInfo info = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO};
        info.bindingCount = counts[set];
        info.pBindings = bindings[set];
        OK(vkCreateDescriptorSetLayout(device->device, &info, NULL, &bound.layouts[set]));
        for (uint32_t i = 0; i < counts[set]; i++)
            sizes[size_count++] = (VkDescriptorPoolSize){bindings[set][i].descriptorType, bindings[set][i].descriptorCount};
    }
    VkPipelineLayoutCreateInfo layout = {VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO};
    layout.setLayoutCount = 2;
    layout.pSetLayouts = bound.layouts;
    OK(vkCreatePipelineLayout(device->device, &layout, NULL, &bound.layout));
    VkComputePipelineCreateInfo pipeline = {VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
    pipeline.flags = VK_PIPELINE_CREATE_DISPATCH_BASE_BIT;
    pipeline.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
    pipeline.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
    pipeline.stage.module = module_new(device, words, bytes);
    pipeline.stage.pName = "main";
    pipeline.layout = bound.layout;
    OK(vkCreateComputePipelines(device->device, VK_NULL_HANDLE, 1, &pipeline, NULL, &bound.pipeline));
    vkDestroyShaderModule(device->device, pipeline.stage.module, NULL);
    VkDescriptorPoolCreateInfo pool = {VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO};
    pool.maxSets = 2;
    pool.poolSizeCount = size_count;
    pool.pPoolSizes = sizes;
    OK(vkCreateDescriptorPool(device->device, &pool, NULL, &bound.pool));
    VkDescriptorSetAllocateInfo allocate = {VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO};
    allocate.descriptorPool = bound.pool;
    allocate.descriptorSetCount = 2;
    allocate.pSetLayouts = bound.layouts;
    OK(vkAllocateDescriptorSets(device->device, &allocate, bound.sets));
    return bound;
}

static inline void bound_free(struct device *device, struct bound *bound) {
    vkDestroyDescriptorPool(device->device, bound->pool, NULL);
    vkDestroyPipeline(device->device, bound->pipeline, NULL);
    vkDestroyPipelineLayout(device->device, bound->layout, NULL);
    for (int set = 0; set < 2; set++) vkDestroyDescriptorSetLayout(device->device, bound->layouts[set], NULL);
}

static inline void bind_image(struct device *device, VkDescriptorSet set, uint32_t binding, uint32_t element,
                       VkDescriptorType type, VkImageView view, VkSampler sampler) {
    VkDescriptorImageInfo image = {sampler, view, VK_IMAGE_LAYOUT_GENERAL};
    VkWriteDescriptorSet write = {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET};
    write.dstSet = set;
    write.dstBinding = binding;
    write.dstArrayElement = element;
    write.descriptorCount = 1;
    write.descriptorType = type;
    write.pImageInfo = &image;
    vkUpdateDescriptorSets(device->device, 1, &write, 0, NULL);
}

static inline void bind_buffer(struct device *device, VkDescriptorSet set, uint32_t binding, VkBuffer buffer) {
    VkDescriptorBufferInfo info = {buffer, 0, VK_WHOLE_SIZE};
    VkWriteDescriptorSet write = {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET};
    write.dstSet = set;
    write.dstBinding = binding;
    write.descriptorCount = 1;
    write.descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
    write.pBufferInfo = &info;
    vkUpdateDescriptorSets(device->device, 1, &write, 0, NULL);
}

#endif
