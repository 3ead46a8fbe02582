/* What devices say for the engines of some programs, and for no others. */
#include "program.h"

static struct device open_for(const char *engine) {
    struct device device;
    VkApplicationInfo application = {VK_STRUCTURE_TYPE_APPLICATION_INFO};
    application.pEngineName = engine;
    application.apiVersion = VK_API_VERSION_1_3;
    VkInstanceCreateInfo instance = {VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO};
    instance.pApplicationInfo = &application;
    OK(vkCreateInstance(&instance, NULL, &device.instance));
    uint32_t count = 1;
    OK(vkEnumeratePhysicalDevices(device.instance, &count, &device.physical));
    NEED(count == 1);
    return device;
}

/* Gives the device a queue, if these can be had. */
static VkResult start(struct device *device, const void *features, const char *extension) {
    float priority = 1;
    VkDeviceQueueCreateInfo queue = {VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO};
    queue.queueCount = 1;
    queue.pQueuePriorities = &priority;
    VkDeviceCreateInfo info = {VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, features};
    info.queueCreateInfoCount = 1;
    info.pQueueCreateInfos = &queue;
    info.enabledExtensionCount = extension != NULL;
    info.ppEnabledExtensionNames = &extension;
    VkResult result = vkCreateDevice(device->physical, &info, NULL, &device->device);
    if (result != VK_SUCCESS) return result;
    vkGetDeviceQueue(device->device, 0, 0, &device->queue);
    VkCommandPoolCreateInfo pool = {VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
    OK(vkCreateCommandPool(device->device, &pool, NULL, &device->pool));
    return VK_SUCCESS;
}

static VkFormatFeatureFlags features_of(struct device *device, VkFormat format) {
    VkFormatProperties properties;
    vkGetPhysicalDeviceFormatProperties(device->physical, format, &properties);
    return properties.optimalTilingFeatures;
}

/* Whether all that WebGPU's implementations look for is there, or none of it. */
static void looks_like_graphics(struct device *device, int is_there) {
    uint32_t count = 1;
    VkQueueFamilyProperties family;
    vkGetPhysicalDeviceQueueFamilyProperties(device->physical, &count, &family);
    NEED(!(family.queueFlags & VK_QUEUE_GRAPHICS_BIT) == !is_there);
    VkPhysicalDeviceFeatures features;
    vkGetPhysicalDeviceFeatures(device->physical, &features);
    NEED(features.textureCompressionBC == (VkBool32)is_there && features.fragmentStoresAndAtomics == (VkBool32)is_there);
    VkPhysicalDeviceVulkan11Properties subgroups = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES};
    VkPhysicalDeviceDriverProperties driver = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES, &subgroups};
    VkPhysicalDeviceVulkan12Properties same = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES, &driver};
    VkPhysicalDeviceProperties2 properties = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, &same};
    vkGetPhysicalDeviceProperties2(device->physical, &properties);
    NEED(driver.conformanceVersion.major == is_there && same.conformanceVersion.major == is_there);
    NEED(!(subgroups.subgroupSupportedStages & VK_SHADER_STAGE_FRAGMENT_BIT) == !is_there);
    VkPhysicalDeviceLimits limits = properties.properties.limits;
    NEED((limits.maxImageDimension2D >= 8192 && limits.maxColorAttachments >= 8) == is_there);
    NEED((features_of(device, VK_FORMAT_D32_SFLOAT_S8_UINT) != 0) == is_there);
    /* Kernels of both read and write it; nothing draws to it. */
    VkFormatFeatureFlags colour = features_of(device, VK_FORMAT_R8G8B8A8_UNORM);
    NEED((colour & VK_FORMAT_FEATURE_STORAGE_IMAGE_BIT) && !(colour & VK_FORMAT_FEATURE_COLOR_ATTACHMENT_BIT));
}

static void graphics(void) {
    struct device other = open_for("some engine");
    looks_like_graphics(&other, 0);
    RESULT(start(&other, NULL, "VK_KHR_swapchain"), VK_ERROR_EXTENSION_NOT_PRESENT);
    vkDestroyInstance(other.instance, NULL);

    struct device device = open_for("wgpu-hal");
    looks_like_graphics(&device, 1);
    OK(start(&device, NULL, "VK_KHR_swapchain"));
    /* Every command of this version is there, those that draw as well; they fail. */
    NEED(vkGetDeviceProcAddr(device.device, "vkCmdBeginRendering"));
    VkCommandBuffer commands = commands_begin(&device);
    vkCmdDraw(commands, 3, 1, 0, 0);
    RESULT(vkEndCommandBuffer(commands), VK_ERROR_UNKNOWN);
    vkDestroyRenderPass(device.device, VK_NULL_HANDLE, NULL);
    struct adder adder = adder_new(&device);
    commands = commands_begin(&device);
    adder_record(&adder, commands, 1);
    barrier(commands);
    commands_run(&device, commands);
    NEED(adder_holds(&adder, 1, 1));
    adder_free(&device, &adder);
    device_close(&device);
}

static void addresses(void) {
    VkPhysicalDeviceVulkan12Features wanted = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES};
    VkPhysicalDeviceFeatures2 features = {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, &wanted};
    struct device other = open_for(NULL);
    vkGetPhysicalDeviceFeatures2(other.physical, &features);
    NEED(!wanted.bufferDeviceAddress);
    wanted.bufferDeviceAddress = VK_TRUE;
    RESULT(start(&other, &features, NULL), VK_ERROR_FEATURE_NOT_PRESENT);
    vkDestroyInstance(other.instance, NULL);

    struct device device = open_for("IREE");
    vkGetPhysicalDeviceFeatures2(device.physical, &features);
    NEED(wanted.bufferDeviceAddress);
    OK(start(&device, &features, NULL));
    struct buffer first = buffer_new(&device, VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT);
    struct buffer second = buffer_new(&device, VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT);
    VkBufferDeviceAddressInfo info = {VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO, NULL, first.buffer};
    VkDeviceAddress address = vkGetBufferDeviceAddress(device.device, &info);
    info.buffer = second.buffer;
    NEED(address != 0 && vkGetBufferDeviceAddress(device.device, &info) != address);
    buffer_free(&device, &first);
    buffer_free(&device, &second);
    device_close(&device);
}

int main(int argc, char **argv) {
    NEED(argc == 2);
    if (strcmp(argv[1], "graphics") == 0) graphics();
    else if (strcmp(argv[1], "addresses") == 0) addresses();
    else return 2;
    printf("%s: ok\n", argv[1]);
    return 0;
}
