/* What kernels sample: prints it, for samplers of all kinds, so that it can be compared with what another driver samples. */
#include "images.h"
#include "shaders/shaders.h"

enum { PLAIN, VOLUME, CUBE, LINES, LAYERS, NUMBERS, IMAGES };

static const struct {
    VkImageViewType type;
    VkFormat format;
    VkExtent3D extent;
    uint32_t levels, layers;
} kinds[IMAGES] = {
    {VK_IMAGE_VIEW_TYPE_2D, VK_FORMAT_R32G32B32A32_SFLOAT, {7, 5, 1}, 3, 1},
    {VK_IMAGE_VIEW_TYPE_3D, VK_FORMAT_R32G32B32A32_SFLOAT, {4, 5, 3}, 2, 1},
    {VK_IMAGE_VIEW_TYPE_CUBE, VK_FORMAT_R32_SFLOAT, {4, 4, 1}, 3, 6},
    {VK_IMAGE_VIEW_TYPE_1D_ARRAY, VK_FORMAT_R32_SFLOAT, {9, 1, 1}, 4, 3},
    {VK_IMAGE_VIEW_TYPE_2D_ARRAY, VK_FORMAT_R32G32_SFLOAT, {3, 6, 1}, 2, 4},
    {VK_IMAGE_VIEW_TYPE_2D, VK_FORMAT_R32G32B32A32_UINT, {6, 4, 1}, 2, 1},
};

/* Bytes and words of a texel. */
static uint32_t parts_of(VkFormat format) {
    return format == VK_FORMAT_R32_SFLOAT ? 1 : format == VK_FORMAT_R32G32_SFLOAT ? 2 : 4;
}

/* Fills all levels of an image with numbers that are far from each other and small. */
static void filled(VkCommandBuffer commands, struct buffer *from, struct image *image, int kind) {
    uint32_t at = 0, parts = parts_of(image->format);
    for (uint32_t level = 0; level < image->levels; level++) {
        VkExtent3D extent = kinds[kind].extent;
        extent.width = extent.width >> level ? extent.width >> level : 1;
        extent.height = extent.height >> level ? extent.height >> level : 1;
        extent.depth = extent.depth >> level ? extent.depth >> level : 1;
        load(commands, from, image, region_of(at * 4, level, 0, image->layers, extent));
        uint32_t words = extent.width * extent.height * extent.depth * image->layers * parts;
        for (uint32_t end = at + words; at < end; at++) {
            uint32_t number = (at * 37 + 11 * level) % 101;
            float value = (float)number / 8;
            if (image->format == VK_FORMAT_R32G32B32A32_UINT) from->words[at] = number;
            else memcpy(&from->words[at], &value, 4);
        }
    }
    NEED(at <= WORDS);
}

static VkSampler sampler_of(struct device *device, VkFilter filter, VkSamplerMipmapMode levels, VkSamplerAddressMode mode,
                            VkBorderColor border) {
    VkSamplerCreateInfo info = {VK_STRUCTURE_TYPE_SAMPLER_CREATE_INFO};
    info.magFilter = filter;
    info.minFilter = levels == VK_SAMPLER_MIPMAP_MODE_LINEAR ? filter : VK_FILTER_NEAREST;
    info.mipmapMode = levels;
    info.addressModeU = info.addressModeV = info.addressModeW = mode;
    info.borderColor = border;
    info.mipLodBias = 0.25f;
    info.minLod = 0.1f;
    info.maxLod = 1.7f;
    VkSampler sampler;
    OK(vkCreateSampler(device->device, &info, NULL, &sampler));
    return sampler;
}

static void sampled(struct device *device) {
    VkShaderStageFlags compute = VK_SHADER_STAGE_COMPUTE_BIT;
    VkDescriptorType both = VK_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER;
    /* One of the two lone samplers is always the same. */
    VkSampler fixed[2];
    for (int i = 0; i < 2; i++)
        fixed[i] = sampler_of(device, VK_FILTER_LINEAR, VK_SAMPLER_MIPMAP_MODE_NEAREST,
                              i ? VK_SAMPLER_ADDRESS_MODE_REPEAT : VK_SAMPLER_ADDRESS_MODE_MIRRORED_REPEAT, 0);
    const VkDescriptorSetLayoutBinding first[] = {
        {0, both, 1, compute, NULL}, {1, both, 1, compute, NULL}, {2, both, 1, compute, NULL}, {3, both, 1, compute, NULL},
        {4, VK_DESCRIPTOR_TYPE_SAMPLED_IMAGE, 1, compute, NULL}, {5, VK_DESCRIPTOR_TYPE_SAMPLER, 2, compute, fixed},
        {6, both, 1, compute, NULL},
    };
    const VkDescriptorSetLayoutBinding second[] = {{0, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, compute, NULL}};
    struct bound bound = bound_new(device, sampling_words, sizeof sampling_words, first, 7, second, 1);
    struct image images[IMAGES];
    struct buffer from[IMAGES], found = buffer_new(device, VK_BUFFER_USAGE_STORAGE_BUFFER_BIT);
    VkCommandBuffer commands = commands_begin(device);
    for (int i = 0; i < IMAGES; i++) {
        images[i] = image_new(device, kinds[i].type, kinds[i].format, kinds[i].extent, kinds[i].levels, kinds[i].layers, SAMPLED);
        from[i] = buffer_new(device, 0);
        made_general(commands, &images[i]);
        filled(commands, &from[i], &images[i], i);
    }
    barrier(commands);
    commands_run(device, commands);
    bind_buffer(device, bound.sets[1], 0, found.buffer);
    bind_image(device, bound.sets[0], 4, 0, VK_DESCRIPTOR_TYPE_SAMPLED_IMAGE, images[LAYERS].view, VK_NULL_HANDLE);
    for (uint32_t kind = 0; kind < 16; kind++) {
        VkSampler samplers[2];
        VkBorderColor white = kind & 8 ? VK_BORDER_COLOR_FLOAT_OPAQUE_WHITE : VK_BORDER_COLOR_FLOAT_OPAQUE_BLACK;
        VkSamplerAddressMode mode = (VkSamplerAddressMode)(kind >> 2);
        for (int i = 0; i < 2; i++)
            samplers[i] = sampler_of(device, i || !(kind & 1) ? VK_FILTER_NEAREST : VK_FILTER_LINEAR,
                                     i || !(kind & 2) ? VK_SAMPLER_MIPMAP_MODE_NEAREST : VK_SAMPLER_MIPMAP_MODE_LINEAR, mode,
                                     i ? VK_BORDER_COLOR_INT_OPAQUE_WHITE : white);
        for (uint32_t i = PLAIN; i <= LINES; i++) bind_image(device, bound.sets[0], i, 0, both, images[i].view, samplers[0]);
        bind_image(device, bound.sets[0], 6, 0, both, images[NUMBERS].view, samplers[1]);
        memset(found.words, 0, WORDS * 4);
        commands = commands_begin(device);
        vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, bound.pipeline);
        vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, bound.layout, 0, 2, bound.sets, 0, NULL);
        vkCmdDispatch(commands, 1, 1, 1);
        barrier(commands);
        commands_run(device, commands);
        for (uint32_t i = 0; i < 988; i++) {
            float value;
            memcpy(&value, &found.words[i], 4);
            printf("%u.%u.%u.%u %.4f\n", kind, i / 76, i / 4 % 19, i % 4, value);
        }
        for (int i = 0; i < 2; i++) vkDestroySampler(device->device, samplers[i], NULL);
    }
    for (int i = 0; i < IMAGES; i++) {
        image_free(device, &images[i]);
        buffer_free(device, &from[i]);
    }
    for (int i = 0; i < 2; i++) vkDestroySampler(device->device, fixed[i], NULL);
    buffer_free(device, &found);
    bound_free(device, &bound);
}

int main(int argc, char **argv) {
    static const struct test tests[] = {{"sampled", sampled}, {NULL, NULL}};
    return run_tests(tests, argc, argv, 0, NULL);
}
