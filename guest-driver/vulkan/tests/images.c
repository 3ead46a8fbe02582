/* Images: kernels that read and write them, copies, clears, layouts. Also for other drivers: all but "told" holds on any. */
#include "images.h"
#include "shaders/shaders.h"

enum { PLAIN, COUNTS, VOLUME, FIRST, SECOND, LAYERS, LINES, FACES, IMAGES };

static const VkExtent3D extents[IMAGES] = {{13, 7, 1}, {5, 4, 1}, {6, 5, 4}, {8, 8, 1},
                                           {8, 8, 1},  {9, 5, 1}, {9, 1, 1}, {8, 8, 1}};

static VkSampler sampler_new(struct device *device) {
    VkSamplerCreateInfo info = {VK_STRUCTURE_TYPE_SAMPLER_CREATE_INFO};
    VkSampler sampler;
    OK(vkCreateSampler(device->device, &info, NULL, &sampler));
    return sampler;
}

/* What lies in each level of the images that are fetched from: the texel's place, level and image. */
static uint32_t texel_of(uint32_t image, uint32_t level, uint32_t x, uint32_t y) {
    return x | y << 8 | level << 16 | (image + 64) << 24;
}

static struct bound bound_of_images(struct device *device) {
    VkShaderStageFlags compute = VK_SHADER_STAGE_COMPUTE_BIT;
    VkDescriptorType stored = VK_DESCRIPTOR_TYPE_STORAGE_IMAGE, both = VK_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER;
    const VkDescriptorSetLayoutBinding first[] = {
        {0, stored, 1, compute, NULL}, {1, stored, 1, compute, NULL},
        {2, stored, 1, compute, NULL}, {3, both, 2, compute, NULL},
        {4, VK_DESCRIPTOR_TYPE_SAMPLED_IMAGE, 1, compute, NULL}, {5, stored, 1, compute, NULL},
    };
    const VkDescriptorSetLayoutBinding second[] = {{1000, stored, 1, compute, NULL},
                                                   {7, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, compute, NULL}};
    return bound_new(device, images_words, sizeof images_words, first, 6, second, 2);
}

static void kernels(struct device *device) {
    VkDescriptorType stored = VK_DESCRIPTOR_TYPE_STORAGE_IMAGE, both = VK_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER;
    struct bound bound = bound_of_images(device);
    struct image images[IMAGES];
    images[PLAIN] = image_new(device, VK_IMAGE_VIEW_TYPE_2D, VK_FORMAT_R8G8B8A8_UNORM, extents[PLAIN], 1, 1, STORAGE);
    images[COUNTS] = image_new(device, VK_IMAGE_VIEW_TYPE_2D_ARRAY, VK_FORMAT_R32_UINT, extents[COUNTS], 1, 3, STORAGE);
    images[VOLUME] =
        image_new(device, VK_IMAGE_VIEW_TYPE_3D, VK_FORMAT_R32G32B32A32_SFLOAT, extents[VOLUME], 1, 1, STORAGE);
    for (int i = FIRST; i <= SECOND; i++)
        images[i] = image_new(device, VK_IMAGE_VIEW_TYPE_2D, VK_FORMAT_R8G8B8A8_UNORM, extents[i], 4, 1, SAMPLED);
    images[LAYERS] = image_new(device, VK_IMAGE_VIEW_TYPE_2D_ARRAY, VK_FORMAT_R16_UINT, extents[LAYERS], 2, 4, SAMPLED);
    images[LINES] = image_new(device, VK_IMAGE_VIEW_TYPE_1D_ARRAY, VK_FORMAT_R32_SINT, extents[LINES], 1, 3, STORAGE);
    images[FACES] = image_new(device, VK_IMAGE_VIEW_TYPE_CUBE, VK_FORMAT_R16G16B16A16_SFLOAT, extents[FACES], 1, 6, STORAGE);
    /* Levels 1 and up of the second image, red and blue swapped, and no alpha. */
    VkComponentMapping order = {VK_COMPONENT_SWIZZLE_B, VK_COMPONENT_SWIZZLE_IDENTITY, VK_COMPONENT_SWIZZLE_R,
                                VK_COMPONENT_SWIZZLE_ONE};
    VkImageSubresourceRange range = {VK_IMAGE_ASPECT_COLOR_BIT, 1, 3, 0, 1};
    vkDestroyImageView(device->device, images[SECOND].view, NULL);
    images[SECOND].view =
        view_of(device, images[SECOND].image, VK_IMAGE_VIEW_TYPE_2D, VK_FORMAT_R8G8B8A8_UNORM, order, range);
    VkSampler sampler = sampler_new(device);
    struct buffer found = buffer_new(device, VK_BUFFER_USAGE_STORAGE_BUFFER_BIT);
    struct buffer levels = buffer_new(device, 0), shorts = buffer_new(device, 0);
    struct buffer out[IMAGES];
    bind_image(device, bound.sets[0], 0, 0, stored, images[PLAIN].view, VK_NULL_HANDLE);
    bind_image(device, bound.sets[0], 1, 0, stored, images[COUNTS].view, VK_NULL_HANDLE);
    bind_image(device, bound.sets[0], 2, 0, stored, images[VOLUME].view, VK_NULL_HANDLE);
    bind_image(device, bound.sets[0], 3, 0, both, images[FIRST].view, sampler);
    bind_image(device, bound.sets[0], 3, 1, both, images[SECOND].view, sampler);
    bind_image(device, bound.sets[0], 4, 0, VK_DESCRIPTOR_TYPE_SAMPLED_IMAGE, images[LAYERS].view, VK_NULL_HANDLE);
    bind_image(device, bound.sets[0], 5, 0, stored, images[LINES].view, VK_NULL_HANDLE);
    bind_image(device, bound.sets[1], 1000, 0, stored, images[FACES].view, VK_NULL_HANDLE);
    bind_buffer(device, bound.sets[1], 7, found.buffer);

    VkCommandBuffer commands = commands_begin(device);
    VkClearColorValue nothing = {{0}};
    for (int i = 0; i < IMAGES; i++) made_general(commands, &images[i]);
    for (int i = 0; i < IMAGES; i++) clear(commands, &images[i], nothing);
    barrier(commands);
    uint32_t at = 0;
    for (uint32_t i = FIRST; i <= SECOND; i++) {
        for (uint32_t level = 0; level < 4; level++) {
            uint32_t side = 8 >> level;
            VkExtent3D extent = {side, side, 1};
            load(commands, &levels, &images[i], region_of(at * 4, level, 0, 1, extent));
            for (uint32_t place = 0; place < side * side; place++)
                levels.words[at++] = texel_of(i, level, place % side, place / side);
        }
    }
    /* Four layers of 9 × 5 numbers of 16 bits, the third of which is left out. */
    for (uint32_t i = 0; i < 90; i++) shorts.words[i] = (2 * i + 1) | (2 * i + 2) << 16;
    load(commands, &shorts, &images[LAYERS], region_of(0, 0, 0, 2, extents[LAYERS]));
    load(commands, &shorts, &images[LAYERS], region_of(270, 0, 3, 1, extents[LAYERS]));
    barrier(commands);
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, bound.pipeline);
    vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, bound.layout, 0, 2, bound.sets, 0, NULL);
    vkCmdDispatch(commands, 4, 2, 2);
    barrier(commands);
    vkCmdDispatch(commands, 4, 2, 2);
    barrier(commands);
    for (int i = 0; i < IMAGES; i++) {
        out[i] = buffer_new(device, 0);
        store(commands, &images[i], &out[i], region_of(0, 0, 0, images[i].layers, extents[i]));
    }
    barrier(commands);
    commands_run(device, commands);

    for (uint32_t i = 0; i < 13 * 7; i++) NEED(out[PLAIN].words[i] == (i % 13 | i / 13 << 8 | 0xff000000));
    for (uint32_t i = 0; i < 5 * 4 * 3; i++) NEED(out[COUNTS].words[i] == 2 * (i % 5 + 1));
    for (uint32_t i = 0; i < 6 * 5 * 4; i++) {
        float value = 2 * (float)(i % 6 + i / 6 % 5 * 10 + i / 30 * 100);
        for (uint32_t part = 0; part < 4; part++) NEED(memcmp(&out[VOLUME].words[4 * i + part], &value, 4) == 0);
    }
    for (int i = 0; i < 9 * 3; i++) NEED((int)out[LINES].words[i] == 2 * (i % 9 - 7 * (i / 9)));
    for (uint32_t i = 0; i < 8 * 8 * 6; i++) {
        /* Halves of small integers. */
        uint32_t x = i % 8, rest = i / 8 % 8 * 8 + i / 64;
        static const uint32_t small[8] = {0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700};
        NEED((out[FACES].words[2 * i] & 0xffff) == small[x]);
        if (rest < 8) NEED(out[FACES].words[2 * i] >> 16 == small[rest]);
    }
    uint32_t *words = found.words;
    NEED(words[0] == (6 | 5 << 8 | 4 << 16) && words[1] == (5 | 4 << 8 | 3 << 16));
    NEED(words[2] == (2 | 2 << 8 | 3 << 16) && words[3] == (9 | 4 << 16 | 8u << 24) && words[4] == (9 | 3 << 8));
    for (uint32_t level = 0; level < 3; level++) {
        uint32_t one = 1 >> level, second = texel_of(SECOND, level + 1, 2 >> level, 3 >> level);
        NEED(words[8 + level * 2] == texel_of(FIRST, level, one, one));
        NEED(words[9 + level * 2] == ((second & 0xff00) | (second & 0xff) << 16 | (second >> 16 & 0xff) | 0xff000000));
    }
    for (uint32_t layer = 0; layer < 4; layer++) {
        uint32_t from = layer == 3 ? 135 : layer * 45;
        NEED(words[16 + layer] == (layer == 2 ? 0 : from + 2 * 9 + 3 + 1));
    }
    NEED((words[24] & 0xffffff) == 0 && (words[25] & 0xffffff) == 0 && words[26] == 0 && words[27] == 0);
    NEED(words[28] == texel_of(FIRST, 0, 1, 1));
    for (int i = 0; i < IMAGES; i++) {
        image_free(device, &images[i]);
        buffer_free(device, &out[i]);
    }
    buffer_free(device, &found);
    buffer_free(device, &levels);
    buffer_free(device, &shorts);
    vkDestroySampler(device->device, sampler, NULL);
    bound_free(device, &bound);
}

/* The last texels of a large image: only the groups that write them run. */
static void far(struct device *device) {
    VkPhysicalDeviceProperties properties;
    vkGetPhysicalDeviceProperties(device->physical, &properties);
    uint32_t side = properties.limits.maxImageDimension2D < 4096 ? properties.limits.maxImageDimension2D : 4096;
    struct bound bound = bound_of_images(device);
    struct image images[IMAGES];
    VkExtent3D large = {side, side, 1}, small = {4, 4, 1}, one = {4, 1, 1}, deep = {4, 4, 4};
    VkDescriptorType stored = VK_DESCRIPTOR_TYPE_STORAGE_IMAGE, both = VK_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER;
    images[PLAIN] = image_new(device, VK_IMAGE_VIEW_TYPE_2D, VK_FORMAT_R8G8B8A8_UNORM, large, 1, 1, STORAGE);
    images[COUNTS] = image_new(device, VK_IMAGE_VIEW_TYPE_2D_ARRAY, VK_FORMAT_R32_UINT, small, 1, 1, STORAGE);
    images[VOLUME] = image_new(device, VK_IMAGE_VIEW_TYPE_3D, VK_FORMAT_R32G32B32A32_SFLOAT, deep, 1, 1, STORAGE);
    images[FIRST] = image_new(device, VK_IMAGE_VIEW_TYPE_2D, VK_FORMAT_R8G8B8A8_UNORM, small, 1, 1, SAMPLED);
    images[LAYERS] = image_new(device, VK_IMAGE_VIEW_TYPE_2D_ARRAY, VK_FORMAT_R16_UINT, small, 1, 1, SAMPLED);
    images[LINES] = image_new(device, VK_IMAGE_VIEW_TYPE_1D_ARRAY, VK_FORMAT_R32_SINT, one, 1, 1, STORAGE);
    images[FACES] = image_new(device, VK_IMAGE_VIEW_TYPE_CUBE, VK_FORMAT_R16G16B16A16_SFLOAT, small, 1, 6, STORAGE);
    VkSampler sampler = sampler_new(device);
    struct buffer found = buffer_new(device, VK_BUFFER_USAGE_STORAGE_BUFFER_BIT), out = buffer_new(device, 0);
    for (uint32_t i = 0; i < 3; i++) bind_image(device, bound.sets[0], i, 0, stored, images[i].view, VK_NULL_HANDLE);
    for (uint32_t i = 0; i < 2; i++) bind_image(device, bound.sets[0], 3, i, both, images[FIRST].view, sampler);
    bind_image(device, bound.sets[0], 4, 0, VK_DESCRIPTOR_TYPE_SAMPLED_IMAGE, images[LAYERS].view, VK_NULL_HANDLE);
    bind_image(device, bound.sets[0], 5, 0, stored, images[LINES].view, VK_NULL_HANDLE);
    bind_image(device, bound.sets[1], 1000, 0, stored, images[FACES].view, VK_NULL_HANDLE);
    bind_buffer(device, bound.sets[1], 7, found.buffer);
    VkCommandBuffer commands = commands_begin(device);
    for (int i = 0; i < IMAGES; i++)
        if (i != SECOND) made_general(commands, &images[i]);
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, bound.pipeline);
    vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, bound.layout, 0, 2, bound.sets, 0, NULL);
    vkCmdDispatchBase(commands, side / 4 - 1, side / 4 - 1, 0, 1, 1, 1);
    barrier(commands);
    VkBufferImageCopy last = {0, 0, 0, {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, 1}, {(int32_t)side - 4, (int32_t)side - 4, 0}, small};
    store(commands, &images[PLAIN], &out, last);
    barrier(commands);
    commands_run(device, commands);
    /* More than 255 of a colour is all of it. */
    for (int i = 0; i < 16; i++) NEED(out.words[i] == 0xff00ffff);
    for (int i = 0; i < IMAGES; i++)
        if (i != SECOND) image_free(device, &images[i]);
    vkDestroySampler(device->device, sampler, NULL);
    buffer_free(device, &found);
    buffer_free(device, &out);
    bound_free(device, &bound);
}

/* Copies from buffers with rows and slices longer than the image's, between images, and back. */
static void copies(struct device *device) {
    VkExtent3D extent = {11, 6, 1}, volume = {11, 6, 3};
    struct image layered = image_new(device, VK_IMAGE_VIEW_TYPE_2D_ARRAY, VK_FORMAT_R32_UINT, extent, 2, 3, 0);
    struct image deep = image_new(device, VK_IMAGE_VIEW_TYPE_3D, VK_FORMAT_R8G8B8A8_UNORM, volume, 1, 1, 0);
    struct buffer from = buffer_new(device, 0), to = buffer_new(device, 0);
    for (uint32_t i = 0; i < WORDS; i++) from.words[i] = i, to.words[i] = 0x55555555;
    VkCommandBuffer commands = commands_begin(device);
    made_general(commands, &layered);
    made_general(commands, &deep);
    VkClearColorValue seven = {{0}}, colour = {{0.5f, 0, 1, 1}};
    seven.uint32[0] = 7;
    clear(commands, &layered, seven);
    clear(commands, &deep, colour);
    barrier(commands);
    /* Layers 1 and 2, from 3 texels into rows of 13 and slices of 8 rows. */
    VkBufferImageCopy region = {20, 13, 8, {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 2}, {3, 2, 0}, {5, 4, 1}};
    load(commands, &from, &layered, region);
    barrier(commands);
    /* Those become slices 0 and 1 of the volume, further to the left. */
    VkImageCopy between = {{VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 2}, {3, 2, 0}, {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, 1}, {1, 1, 0}, {5, 4, 2}};
    vkCmdCopyImage(commands, layered.image, VK_IMAGE_LAYOUT_GENERAL, deep.image, VK_IMAGE_LAYOUT_GENERAL, 1, &between);
    barrier(commands);
    store(commands, &deep, &to, region_of(4, 0, 0, 1, volume));
    VkBufferImageCopy last = {3200, 0, 0, {VK_IMAGE_ASPECT_COLOR_BIT, 0, 2, 1}, {0, 0, 0}, extent};
    store(commands, &layered, &to, last);
    VkExtent3D half = {5, 3, 1};
    store(commands, &layered, &to, region_of(3500, 1, 1, 1, half));
    barrier(commands);
    commands_run(device, commands);
    NEED(to.words[0] == 0x55555555 && to.words[1 + 198] == 0x55555555);
    for (uint32_t i = 0; i < 198; i++) {
        uint32_t x = i % 11, y = i / 11 % 6, z = i / 66;
        int is_copied = x >= 1 && x < 6 && y >= 1 && y < 5 && z < 2;
        uint32_t texel = 5 + (x - 1) + (y - 1) * 13 + z * 13 * 8;
        /* Half of 255 may be rounded either way. */
        NEED(is_copied ? to.words[1 + i] == texel : to.words[1 + i] == 0xffff0080 || to.words[1 + i] == 0xffff007f);
    }
    for (uint32_t i = 0; i < 66; i++) {
        uint32_t x = i % 11, y = i / 11;
        int is_copied = x >= 3 && x < 8 && y >= 2;
        NEED(to.words[800 + i] == (is_copied ? 5 + (x - 3) + (y - 2) * 13 + 13 * 8 : 7));
    }
    for (uint32_t i = 0; i < 15; i++) NEED(to.words[875 + i] == 7);
    image_free(device, &layered);
    image_free(device, &deep);
    buffer_free(device, &from);
    buffer_free(device, &to);
}

/* Boxes of many rows, of words and of less, which lie apart on both sides. */
static void rows(struct device *device) {
    enum { WIDTH = 5, ROWS = 30, PITCH = 6, HEIGHT = 31 };
    static const struct {
        VkFormat format;
        uint32_t bytes;
    } kinds[] = {{VK_FORMAT_R32_UINT, 4}, {VK_FORMAT_R8G8_UINT, 2}, {VK_FORMAT_R16G16B16A16_UINT, 8}};
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        uint32_t bytes = kinds[kind].bytes;
        VkExtent3D extent = {11, 40, 1}, volume = {9, 37, 2}, box = {WIDTH, ROWS, 1};
        struct image layered = image_new(device, VK_IMAGE_VIEW_TYPE_2D_ARRAY, kinds[kind].format, extent, 1, 3, 0);
        struct image deep = image_new(device, VK_IMAGE_VIEW_TYPE_3D, kinds[kind].format, volume, 1, 1, 0);
        struct buffer from = buffer_new(device, 0), to = buffer_new(device, 0);
        unsigned char *source = (unsigned char *)from.words, *found = (unsigned char *)to.words;
        for (uint32_t i = 0; i < WORDS * 4; i++) source[i] = (unsigned char)(i * 7 + i / 256), found[i] = 0x55;
        VkCommandBuffer commands = commands_begin(device);
        made_general(commands, &layered);
        made_general(commands, &deep);
        VkClearColorValue nothing = {{0}};
        clear(commands, &deep, nothing);
        barrier(commands);
        /* Layers 1 and 2, from rows as long as the box; then slices 0 and 1, and rows that are longer. */
        VkBufferImageCopy region = {8, 0, 0, {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, bytes == 8 ? 1 : 2}, {3, 7, 0}, box};
        load(commands, &from, &layered, region);
        barrier(commands);
        VkImageCopy between = {{VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, region.imageSubresource.layerCount}, {3, 7, 0},
                               {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, 1}, {1, 2, 0}, {WIDTH, ROWS, region.imageSubresource.layerCount}};
        vkCmdCopyImage(commands, layered.image, VK_IMAGE_LAYOUT_GENERAL, deep.image, VK_IMAGE_LAYOUT_GENERAL, 1, &between);
        barrier(commands);
        VkBufferImageCopy last = {16, PITCH, HEIGHT, {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, 1}, {0, 2, 0},
                                  {PITCH, ROWS, region.imageSubresource.layerCount}};
        store(commands, &deep, &to, last);
        barrier(commands);
        commands_run(device, commands);
        for (uint32_t at = 0; at < WORDS * 4; at++) {
            uint32_t texel = (at - 16) / bytes, x = texel % PITCH, y = texel / PITCH % HEIGHT, z = texel / PITCH / HEIGHT;
            int is_copied = at >= 16 && y < ROWS && z < region.imageSubresource.layerCount, is_within = x >= 1;
            uint32_t place = 8 + ((z * ROWS + y) * WIDTH + x - 1) * bytes + (at - 16) % bytes;
            NEED(found[at] == (!is_copied ? 0x55 : is_within ? source[place] : 0));
        }
        image_free(device, &layered);
        image_free(device, &deep);
        buffer_free(device, &from);
        buffer_free(device, &to);
    }
}

/* Colours of texels that are more than a word, and less. */
static void clears(struct device *device) {
    VkExtent3D extent = {9, 5, 1};
    static const struct {
        VkFormat format;
        VkClearColorValue colour;
        uint32_t bytes;
        uint32_t words[4];
    } colours[] = {
        {VK_FORMAT_R32G32B32A32_UINT, {.uint32 = {1, 2, 3, 4}}, 16, {1, 2, 3, 4}},
        {VK_FORMAT_R16G16_SFLOAT, {{1, -2, 0, 0}}, 4, {0xc0003c00}},
        {VK_FORMAT_R8_UINT, {.uint32 = {9, 0, 0, 0}}, 1, {0x09}},
        {VK_FORMAT_R8G8_SNORM, {{1, -1, 0, 0}}, 2, {0x817f}},
        {VK_FORMAT_A2B10G10R10_UNORM_PACK32, {{1, 0, 1, 0}}, 4, {0x3ff003ff}},
        {VK_FORMAT_R8G8B8A8_SRGB, {{1, 0.5f, 0.002f, 0}}, 4, {0x0007bcff}},
        {VK_FORMAT_B8G8R8A8_SRGB, {{1, 0.5f, 0.002f, 1}}, 4, {0xffffbc07}},
    };
    for (size_t i = 0; i < sizeof colours / sizeof *colours; i++) {
        struct image image = image_new(device, VK_IMAGE_VIEW_TYPE_2D, colours[i].format, extent, 2, 2, 0);
        struct buffer to = buffer_new(device, 0);
        memset(to.words, 0x55, WORDS * 4);
        VkCommandBuffer commands = commands_begin(device);
        made_general(commands, &image);
        VkClearColorValue nothing = {{0}};
        clear(commands, &image, nothing);
        barrier(commands);
        /* Layer 1 of level 0 alone. */
        VkImageSubresourceRange range = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 1, 1, VK_REMAINING_ARRAY_LAYERS};
        vkCmdClearColorImage(commands, image.image, VK_IMAGE_LAYOUT_GENERAL, &colours[i].colour, 1, &range);
        barrier(commands);
        store(commands, &image, &to, region_of(0, 0, 0, 2, extent));
        VkExtent3D half = {4, 2, 1};
        store(commands, &image, &to, region_of(2000, 1, 1, 1, half));
        barrier(commands);
        commands_run(device, commands);
        uint32_t bytes = colours[i].bytes;
        const unsigned char *found = (const unsigned char *)to.words, *wanted = (const unsigned char *)colours[i].words;
        for (uint32_t at = 0; at < 45 * bytes; at++) {
            NEED(found[at] == 0);
            NEED(found[45 * bytes + at] == wanted[at % bytes]);
        }
        for (uint32_t at = 0; at < 8 * bytes; at++) NEED(found[2000 + at] == 0);
        image_free(device, &image);
        buffer_free(device, &to);
    }
}

/* Kernels write and read formats that not every device has, whether they name them or not. */
static void formats_of(struct device *device, VkFormat kind) {
    VkPhysicalDeviceFeatures features;
    vkGetPhysicalDeviceFeatures(device->physical, &features);
    NEED(features.shaderStorageImageExtendedFormats);
    enum { KINDS = 5, SIDE = 16 };
    const VkFormat kinds[KINDS] = {VK_FORMAT_R8_UNORM, VK_FORMAT_R16G16_UNORM, VK_FORMAT_R16_UINT, VK_FORMAT_R16_UNORM, kind};
    VkShaderStageFlags compute = VK_SHADER_STAGE_COMPUTE_BIT;
    VkDescriptorType stored = VK_DESCRIPTOR_TYPE_STORAGE_IMAGE;
    VkDescriptorSetLayoutBinding first[KINDS];
    for (uint32_t i = 0; i < KINDS; i++) first[i] = (VkDescriptorSetLayoutBinding){i, stored, 1, compute, NULL};
    const VkDescriptorSetLayoutBinding second[] = {{0, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, compute, NULL}};
    struct bound bound = bound_new(device, formats_words, sizeof formats_words, first, KINDS, second, 1);
    struct buffer found = buffer_new(device, VK_BUFFER_USAGE_STORAGE_BUFFER_BIT), to = buffer_new(device, 0);
    bind_buffer(device, bound.sets[1], 0, found.buffer);
    VkExtent3D extent = {SIDE, 1, 1};
    struct image images[KINDS];
    VkCommandBuffer commands = commands_begin(device);
    for (uint32_t i = 0; i < KINDS; i++) {
        images[i] = image_new(device, VK_IMAGE_VIEW_TYPE_2D, kinds[i], extent, 1, 1, VK_IMAGE_USAGE_STORAGE_BIT);
        bind_image(device, bound.sets[0], i, 0, stored, images[i].view, VK_NULL_HANDLE);
        made_general(commands, &images[i]);
    }
    barrier(commands);
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, bound.pipeline);
    vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, bound.layout, 0, 2, bound.sets, 0, NULL);
    vkCmdDispatch(commands, 1, 1, 1);
    barrier(commands);
    for (uint32_t i = 0; i < KINDS; i++) store(commands, &images[i], &to, region_of(i * 256, 0, 0, 1, extent));
    barrier(commands);
    if (kind == VK_FORMAT_B8G8R8A8_UNORM) {
        RESULT(vkEndCommandBuffer(commands), VK_ERROR_UNKNOWN);
        OK(vkDeviceWaitIdle(device->device));
        return;
    }
    commands_run(device, commands);
    const unsigned char *bytes = (const unsigned char *)to.words;
    const uint16_t *halves = (const uint16_t *)to.words;
    const float *read = (const float *)found.words;
    for (uint32_t i = 0; i < SIDE; i++) {
        uint32_t part = i * 4369;
        uint32_t shown = kind == VK_FORMAT_R8G8B8A8_UNORM ? 4 * i : i;
        NEED(bytes[i] == i * 17 && bytes[1024 + shown] == i * 17);
        NEED(halves[128 + 2 * i] == part && halves[129 + 2 * i] == 65535 - part);
        NEED(halves[256 + i] == part && halves[384 + i] == part);
        float wanted[4] = {i / 15.0f, i / 15.0f, 1 - i / 15.0f, (float)part};
        for (int at = 0; at < 4; at++) NEED(read[i * 4 + at] - wanted[at] < 0.0001f && wanted[at] - read[i * 4 + at] < 0.0001f);
    }
    for (uint32_t i = 0; i < KINDS; i++) image_free(device, &images[i]);
    buffer_free(device, &found);
    buffer_free(device, &to);
    bound_free(device, &bound);
}

static void formats(struct device *device) {
    formats_of(device, VK_FORMAT_R8G8B8A8_UNORM);
}

/* A view of a format that kernels cannot write is none to write to: the command buffer has failed, and the device is there. */
static void unwritable(struct device *device) {
    formats_of(device, VK_FORMAT_B8G8R8A8_UNORM);
}

/* Where the view has another format than the kernel names, devices go by the view, and programs rely on it. */
static void other_formats(struct device *device) {
    formats_of(device, VK_FORMAT_R8_UNORM);
}

/* Colours of sRGB are read as the light that they stand for, before any filter, and views of another format show what is stored. */
static void srgb(struct device *device) {
    static const unsigned char stored[8] = {0, 10, 11, 64, 128, 188, 255, 128};
    static const float light[8] = {0, 0.003035f, 0.003347f, 0.051269f, 0.215861f, 0.502886f, 1, 0.215861f};
    static const VkFormat formats[2][2] = {{VK_FORMAT_R8G8B8A8_SRGB, VK_FORMAT_R8G8B8A8_UNORM},
                                           {VK_FORMAT_B8G8R8A8_SRGB, VK_FORMAT_B8G8R8A8_UNORM}};
    VkShaderStageFlags compute = VK_SHADER_STAGE_COMPUTE_BIT;
    VkDescriptorType both = VK_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER;
    const VkDescriptorSetLayoutBinding first[] = {{0, both, 1, compute, NULL}, {1, both, 1, compute, NULL}};
    const VkDescriptorSetLayoutBinding second[] = {{0, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, compute, NULL}};
    struct bound bound = bound_new(device, srgb_words, sizeof srgb_words, first, 2, second, 1);
    VkSamplerCreateInfo info = {VK_STRUCTURE_TYPE_SAMPLER_CREATE_INFO};
    info.magFilter = info.minFilter = VK_FILTER_LINEAR;
    info.addressModeU = info.addressModeV = VK_SAMPLER_ADDRESS_MODE_REPEAT;
    VkSampler sampler;
    OK(vkCreateSampler(device->device, &info, NULL, &sampler));
    struct buffer found = buffer_new(device, VK_BUFFER_USAGE_STORAGE_BUFFER_BIT), from = buffer_new(device, 0);
    bind_buffer(device, bound.sets[1], 0, found.buffer);
    for (int kind = 0; kind < 2; kind++) {
        VkExtent3D extent = {8, 1, 1};
        struct image image = image_new(device, VK_IMAGE_VIEW_TYPE_2D, formats[kind][0], extent, 1, 1, SAMPLED);
        VkComponentMapping same = {0};
        VkImageView as_stored = view_of(device, image.image, VK_IMAGE_VIEW_TYPE_2D, formats[kind][1], same, whole(1, 1));
        bind_image(device, bound.sets[0], 0, 0, both, image.view, sampler);
        bind_image(device, bound.sets[0], 1, 0, both, as_stored, sampler);
        for (uint32_t i = 0; i < 8; i++)
            from.words[i] = stored[i] | stored[(i + 1) % 8] << 8 | stored[(i + 2) % 8] << 16 | (uint32_t)stored[i] << 24;
        VkCommandBuffer commands = commands_begin(device);
        made_general(commands, &image);
        load(commands, &from, &image, region_of(0, 0, 0, 1, extent));
        barrier(commands);
        vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, bound.pipeline);
        vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, bound.layout, 0, 2, bound.sets, 0, NULL);
        vkCmdDispatch(commands, 1, 1, 1);
        barrier(commands);
        commands_run(device, commands);
        const float *values = (const float *)found.words;
        for (uint32_t i = 0; i < 8; i++) {
            for (uint32_t part = 0; part < 4; part++) {
                uint32_t at = part == 3 ? i : (i + (kind ? 2 - part : part)) % 8, next = (at + 1) % 8;
                float plain = stored[at] / 255.0f, beside = stored[next] / 255.0f;
                float wanted[3] = {part == 3 ? plain : light[at], plain,
                                   part == 3 ? (plain + beside) / 2 : (light[at] + light[next]) / 2};
                for (uint32_t way = 0; way < 3; way++) {
                    float off = values[(i * 4 + way) * 4 + part] - wanted[way], most = way == 2 ? 0.003f : 0.001f;
                    NEED(off < most && off > -most);
                }
                /* Green of the two texels, twice: the upper row is the lower one. */
                float off = values[(i * 4 + 3) * 4 + part] - light[(i + 1 + (part == 1 || part == 2)) % 8];
                NEED(off < 0.003f && off > -0.003f);
            }
        }
        vkDestroyImageView(device->device, as_stored, NULL);
        image_free(device, &image);
    }
    vkDestroySampler(device->device, sampler, NULL);
    buffer_free(device, &found);
    buffer_free(device, &from);
    bound_free(device, &bound);
}

static void arrays_of(struct device *device, const uint32_t *chosen, const uint32_t *meant) {
    enum { FROM = 4, COUNTED = 3, WRITTEN = 2 };
    VkShaderStageFlags compute = VK_SHADER_STAGE_COMPUTE_BIT;
    VkDescriptorType both = VK_DESCRIPTOR_TYPE_COMBINED_IMAGE_SAMPLER, stored = VK_DESCRIPTOR_TYPE_STORAGE_IMAGE;
    const VkDescriptorSetLayoutBinding first[] = {
        {0, both, 3, compute, NULL}, {1, VK_DESCRIPTOR_TYPE_SAMPLED_IMAGE, FROM, compute, NULL},
        {2, VK_DESCRIPTOR_TYPE_SAMPLER, 2, compute, NULL}, {3, stored, COUNTED, compute, NULL},
        {4, stored, WRITTEN, compute, NULL}, {5, both, 1, compute, NULL}};
    const VkDescriptorSetLayoutBinding second[] = {{0, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, compute, NULL}};
    struct bound bound = bound_new(device, arrays_words, sizeof arrays_words, first, 6, second, 1);
    struct buffer found = buffer_new(device, VK_BUFFER_USAGE_STORAGE_BUFFER_BIT), levels = buffer_new(device, 0), out = buffer_new(device, 0);
    struct image from[FROM], counts[COUNTED], written[WRITTEN], numbers;
    VkExtent3D line = {4, 1, 1}, three = {4, 3, 1};
    bind_buffer(device, bound.sets[1], 0, found.buffer);
    VkCommandBuffer commands = commands_begin(device);
    VkSampler samplers[2];
    for (int i = 0; i < 2; i++) {
        VkSamplerCreateInfo info = {VK_STRUCTURE_TYPE_SAMPLER_CREATE_INFO};
        info.magFilter = info.minFilter = i ? VK_FILTER_LINEAR : VK_FILTER_NEAREST;
        OK(vkCreateSampler(device->device, &info, NULL, &samplers[i]));
        bind_image(device, bound.sets[0], 2, (uint32_t)i, VK_DESCRIPTOR_TYPE_SAMPLER, VK_NULL_HANDLE, samplers[i]);
    }
    for (uint32_t i = 0; i < FROM; i++) {
        VkExtent3D extent = {4, 1 + i, 1};
        from[i] = image_new(device, VK_IMAGE_VIEW_TYPE_2D, VK_FORMAT_R32_SFLOAT, extent, 1, 1, SAMPLED);
        made_general(commands, &from[i]);
        for (uint32_t at = 0; at < 4; at++)
            for (uint32_t row = 0; row <= i; row++) ((float *)levels.words)[i * 16 + row * 4 + at] = (float)(i * 100 + at);
        load(commands, &levels, &from[i], region_of(i * 64, 0, 0, 1, extent));
        bind_image(device, bound.sets[0], 1, i, VK_DESCRIPTOR_TYPE_SAMPLED_IMAGE, from[i].view, VK_NULL_HANDLE);
        if (i < 3) bind_image(device, bound.sets[0], 0, i, both, from[i].view, samplers[1]);
    }
    VkClearColorValue value = {{0}};
    for (uint32_t i = 0; i < COUNTED; i++) {
        counts[i] = image_new(device, VK_IMAGE_VIEW_TYPE_2D, VK_FORMAT_R32_UINT, three, 1, 1, STORAGE);
        made_general(commands, &counts[i]);
        value.uint32[0] = 5 + (i == 1);
        clear(commands, &counts[i], value);
        bind_image(device, bound.sets[0], 3, i, stored, counts[i].view, VK_NULL_HANDLE);
    }
    value.uint32[0] = 0;
    for (uint32_t i = 0; i < WRITTEN; i++) {
        written[i] = image_new(device, VK_IMAGE_VIEW_TYPE_2D, VK_FORMAT_R8G8B8A8_UNORM, three, 1, 1, STORAGE);
        made_general(commands, &written[i]);
        clear(commands, &written[i], value);
        bind_image(device, bound.sets[0], 4, i, stored, written[i].view, VK_NULL_HANDLE);
    }
    numbers = image_new(device, VK_IMAGE_VIEW_TYPE_2D, VK_FORMAT_R32_UINT, line, 1, 1, SAMPLED);
    made_general(commands, &numbers);
    value.uint32[0] = 77;
    clear(commands, &numbers, value);
    bind_image(device, bound.sets[0], 5, 0, both, numbers.view, samplers[0]);
    barrier(commands);
    memcpy(found.words, chosen, 3 * sizeof *chosen);
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, bound.pipeline);
    vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, bound.layout, 0, 2, bound.sets, 0, NULL);
    vkCmdDispatch(commands, 3, 1, 1);
    barrier(commands);
    for (uint32_t i = 0; i < WRITTEN; i++) store(commands, &written[i], &out, region_of(i * 48, 0, 0, 1, three));
    for (uint32_t i = 0; i < COUNTED; i++) store(commands, &counts[i], &out, region_of((WRITTEN + i) * 48, 0, 0, 1, three));
    barrier(commands);
    commands_run(device, commands);
    for (uint32_t group = 0; group < 3; group++) {
        /* Of three, and of four. */
        uint32_t which = meant[group], of_four = chosen[group] < FROM ? which : FROM - 1;
        uint32_t start = which == 1 ? 6 : 5;
        for (uint32_t i = 0; i < 4; i++) {
            const float *values = (const float *)found.words + 16 + (group * 4 + i) * 32;
            uint32_t next = (i + 1) % 4;
            float base = (float)(which * 100), base_of_four = (float)(of_four * 100);
            float half = ((float)i + (float)next) / 2, nearest = (float)next;
            NEED(values[0] == base + half && values[1] == 0 && values[3] == 1);
            NEED(values[4] == base_of_four + (float)i);
            NEED(values[8] == base_of_four + (chosen[group] % 2 ? half : nearest));
            NEED(values[12] == base + (float)i && values[13] == base + (float)next && values[15] == base + (float)i);
            NEED(values[16] == 4 && values[17] == (float)(of_four + 1) && values[18] == (float)(100 + i));
            NEED(values[20] == (float)start && values[21] == (float)(start + 10 + i) && values[22] == 4 && values[23] == 3);
            NEED(values[24] == (float)start && values[25] == 77 && values[26] == (float)start);
            NEED(out.words[(chosen[group] % 2) * 12 + group * 4 + i] == ((chosen[group] & 0xff) | i << 8 | 0xff000000));
            NEED(out.words[(1 - chosen[group] % 2) * 12 + group * 4 + i] == 0);
            const uint32_t *counted = out.words + (WRITTEN + which) * 12;
            NEED(counted[i] == start + 10 + i && counted[4 + i] == (start == 5 ? 1000 + chosen[group] : 6));
            NEED(counted[8 + i] == chosen[group]);
        }
    }
    for (int i = 0; i < FROM; i++) image_free(device, &from[i]);
    for (int i = 0; i < COUNTED; i++) image_free(device, &counts[i]);
    for (int i = 0; i < WRITTEN; i++) image_free(device, &written[i]);
    image_free(device, &numbers);
    for (int i = 0; i < 2; i++) vkDestroySampler(device->device, samplers[i], NULL);
    buffer_free(device, &found);
    buffer_free(device, &levels);
    buffer_free(device, &out);
    bound_free(device, &bound);
}

/* An index at run time chooses among the images of an array, for each that is sampled, fetched, read, written and changed. */
static void arrays(struct device *device) {
    static const uint32_t all[3] = {2, 0, 1};
    arrays_of(device, all, all);
}

/* One beyond the last is the last. */
static void outside(struct device *device) {
    static const uint32_t chosen[3] = {0, 255, 1}, meant[3] = {0, 2, 1};
    arrays_of(device, chosen, meant);
}

/* Arrays without a length are as long as the layout says, and indices into those of images may differ between invocations. */
static void open(struct device *device) {
    enum { TO = 3, FROM = 2 };
    VkShaderStageFlags compute = VK_SHADER_STAGE_COMPUTE_BIT;
    VkDescriptorType stored = VK_DESCRIPTOR_TYPE_STORAGE_IMAGE, buffers = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
    const VkDescriptorSetLayoutBinding first[] = {{0, stored, TO, compute, NULL}, {1, stored, FROM, compute, NULL}};
    const VkDescriptorSetLayoutBinding second[] = {{0, buffers, 2, compute, NULL}};
    struct bound bound = bound_new(device, open_words, sizeof open_words, first, 2, second, 1);
    struct buffer found[2], to = buffer_new(device, 0);
    VkExtent3D extent = {1, 1, 1};
    struct image images[TO + FROM];
    VkCommandBuffer commands = commands_begin(device);
    for (uint32_t i = 0; i < TO + FROM; i++) {
        images[i] = image_new(device, VK_IMAGE_VIEW_TYPE_2D, VK_FORMAT_R32_UINT, extent, 1, 1, VK_IMAGE_USAGE_STORAGE_BIT);
        bind_image(device, bound.sets[0], i >= TO, i % TO, stored, images[i].view, VK_NULL_HANDLE);
        made_general(commands, &images[i]);
        VkClearColorValue colour = {.uint32 = {i >= TO ? 5 + 2 * (i - TO) : 0}};
        clear(commands, &images[i], colour);
    }
    for (uint32_t i = 0; i < 2; i++) {
        found[i] = buffer_new(device, VK_BUFFER_USAGE_STORAGE_BUFFER_BIT);
        memset(found[i].words, 0, 16);
        VkDescriptorBufferInfo range = {found[i].buffer, 0, VK_WHOLE_SIZE};
        VkWriteDescriptorSet write = {VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET};
        write.dstSet = bound.sets[1];
        write.dstArrayElement = i;
        write.descriptorCount = 1;
        write.descriptorType = buffers;
        write.pBufferInfo = &range;
        vkUpdateDescriptorSets(device->device, 1, &write, 0, NULL);
    }
    barrier(commands);
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, bound.pipeline);
    vkCmdBindDescriptorSets(commands, VK_PIPELINE_BIND_POINT_COMPUTE, bound.layout, 0, 2, bound.sets, 0, NULL);
    vkCmdDispatch(commands, 1, 1, 1);
    barrier(commands);
    for (uint32_t i = 0; i < TO; i++) store(commands, &images[i], &to, region_of(i * 4, 0, 0, 1, extent));
    barrier(commands);
    commands_run(device, commands);
    NEED(to.words[0] == 5 && to.words[1] == 7 + 10 && to.words[2] == 5 + 20);
    for (uint32_t i = 0; i < 4; i++) NEED(found[0].words[i] == 0 && found[1].words[i] == 100 + i);
    for (uint32_t i = 0; i < TO + FROM; i++) image_free(device, &images[i]);
    for (uint32_t i = 0; i < 2; i++) buffer_free(device, &found[i]);
    buffer_free(device, &to);
    bound_free(device, &bound);
}

/* What is told of formats: images can be made of those that are good for something, and their layout is what it is said to be. */
static void told(struct device *device) {
    VkPhysicalDeviceLimits limits;
    VkPhysicalDeviceProperties properties;
    vkGetPhysicalDeviceProperties(device->physical, &properties);
    limits = properties.limits;
    uint32_t sampled = 0, storage = 0, atomic = 0;
    for (uint32_t number = 0; number < 185; number++) {
        VkFormat format = (VkFormat)number;
        VkFormatProperties3 all = {VK_STRUCTURE_TYPE_FORMAT_PROPERTIES_3};
        VkFormatProperties2 found = {VK_STRUCTURE_TYPE_FORMAT_PROPERTIES_2, &all};
        vkGetPhysicalDeviceFormatProperties2(device->physical, format, &found);
        VkFormatFeatureFlags good = found.formatProperties.optimalTilingFeatures;
        NEED(good == found.formatProperties.linearTilingFeatures && good == (all.optimalTilingFeatures & 0x7fffffff));
        sampled += !!(good & VK_FORMAT_FEATURE_SAMPLED_IMAGE_BIT);
        storage += !!(good & VK_FORMAT_FEATURE_STORAGE_IMAGE_BIT);
        atomic += !!(good & VK_FORMAT_FEATURE_STORAGE_IMAGE_ATOMIC_BIT);
        VkFormatFeatureFlags blits = VK_FORMAT_FEATURE_BLIT_SRC_BIT | VK_FORMAT_FEATURE_BLIT_DST_BIT;
        NEED(!(good & (VK_FORMAT_FEATURE_COLOR_ATTACHMENT_BIT | blits)));
        VkImageFormatProperties most;
        VkImageUsageFlags usage = VK_IMAGE_USAGE_SAMPLED_BIT | VK_IMAGE_USAGE_TRANSFER_DST_BIT;
        VkResult wanted = good ? VK_SUCCESS : VK_ERROR_FORMAT_NOT_SUPPORTED;
        RESULT(vkGetPhysicalDeviceImageFormatProperties(device->physical, format, VK_IMAGE_TYPE_2D, VK_IMAGE_TILING_OPTIMAL,
                                                        usage, 0, &most), wanted);
        if (good) NEED(most.maxExtent.width == limits.maxImageDimension2D && most.maxArrayLayers >= 256);
        usage |= VK_IMAGE_USAGE_COLOR_ATTACHMENT_BIT;
        RESULT(vkGetPhysicalDeviceImageFormatProperties(device->physical, format, VK_IMAGE_TYPE_2D, VK_IMAGE_TILING_OPTIMAL,
                                                        usage, 0, &most), VK_ERROR_FORMAT_NOT_SUPPORTED);
    }
    VkPhysicalDeviceFeatures features;
    vkGetPhysicalDeviceFeatures(device->physical, &features);
    int is_extended = features.shaderStorageImageExtendedFormats;
    NEED(sampled == (is_extended ? 49 : 43) && storage == (is_extended ? 39 : 16) && atomic == 2);
    /* What no kernel could be bound to is refused, though each side is within its limit. */
    VkImageCreateInfo info = {VK_STRUCTURE_TYPE_IMAGE_CREATE_INFO};
    info.imageType = VK_IMAGE_TYPE_2D;
    info.format = VK_FORMAT_R8_UNORM;
    info.extent = (VkExtent3D){limits.maxImageDimension2D, limits.maxImageDimension2D, 1};
    info.mipLevels = 1;
    info.arrayLayers = 256;
    info.samples = VK_SAMPLE_COUNT_1_BIT;
    info.usage = VK_IMAGE_USAGE_STORAGE_BIT;
    VkImage image;
    RESULT(vkCreateImage(device->device, &info, NULL, &image), VK_ERROR_OUT_OF_DEVICE_MEMORY);
    info.extent = (VkExtent3D){100, 3, 1};
    info.arrayLayers = 1;
    info.tiling = VK_IMAGE_TILING_LINEAR;
    OK(vkCreateImage(device->device, &info, NULL, &image));
    VkImageSubresource part = {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0};
    VkSubresourceLayout layout;
    vkGetImageSubresourceLayout(device->device, image, &part, &layout);
    NEED(layout.offset == 0 && layout.rowPitch == 100 && layout.size >= 300);
    vkDestroyImage(device->device, image, NULL);
}

/* Copies of levels and layers that an image has not are no commands: the command buffer has failed. */
static void beyond(struct device *device) {
    VkExtent3D extent = {4, 4, 1};
    VkImageUsageFlags usage = VK_IMAGE_USAGE_STORAGE_BIT;
    struct image image = image_new(device, VK_IMAGE_VIEW_TYPE_2D, VK_FORMAT_R8G8B8A8_UNORM, extent, 2, 3, usage);
    struct buffer to = buffer_new(device, VK_BUFFER_USAGE_TRANSFER_DST_BIT);
    uint32_t parts[4][3] = {{2, 0, 1}, {UINT32_MAX, 0, 1}, {0, 1, VK_REMAINING_ARRAY_LAYERS}, {0, 2, 2}};
    for (int i = 0; i < 5; i++) {
        VkCommandBuffer commands = commands_begin(device);
        VkBufferImageCopy region = {0, 0, 0, {VK_IMAGE_ASPECT_COLOR_BIT, 0, 0, 3}, {0, 0, 0}, extent};
        if (i < 4) {
            region.imageSubresource.mipLevel = parts[i][0];
            region.imageSubresource.baseArrayLayer = parts[i][1];
            region.imageSubresource.layerCount = parts[i][2];
        }
        vkCmdCopyImageToBuffer(commands, image.image, VK_IMAGE_LAYOUT_GENERAL, to.buffer, 1, &region);
        RESULT(vkEndCommandBuffer(commands), i < 4 ? VK_ERROR_UNKNOWN : VK_SUCCESS);
    }
    image_free(device, &image);
    buffer_free(device, &to);
}

int main(int argc, char **argv) {
    static const struct test tests[] = {
        {"kernels", kernels}, {"far", far}, {"copies", copies}, {"rows", rows}, {"clears", clears}, {"formats", formats}, {"other-formats", other_formats}, {"unwritable", unwritable}, {"srgb", srgb}, {"arrays", arrays}, {"open", open}, {"outside", outside}, {"told", told}, {"beyond", beyond}, {NULL, NULL}};
    return run_tests(tests, argc, argv, 0, NULL);
}
