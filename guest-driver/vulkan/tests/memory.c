/* Device memory. */
#include "program.h"

/* Where no room is left in the window (256 MiB) for memory that the CPU is to see, it is guest RAM. */
static void window(struct device *device) {
    enum { COUNT = 3 };
    const VkDeviceSize bytes = 96 << 20, end = 4096;
    VkPhysicalDeviceMemoryProperties there;
    vkGetPhysicalDeviceMemoryProperties(device->physical, &there);
    NEED(there.memoryTypes[1].propertyFlags & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
    NEED(there.memoryTypes[1].propertyFlags & VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT);
    NEED(there.memoryHeaps[0].size > COUNT * bytes);
    VkDeviceMemory memory[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        VkMemoryAllocateInfo allocate = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO, NULL, bytes, 1};
        OK(vkAllocateMemory(device->device, &allocate, NULL, &memory[i]));
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        VkBufferCreateInfo info = {VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
        info.size = bytes;
        info.usage = VK_BUFFER_USAGE_TRANSFER_DST_BIT;
        VkBuffer buffer;
        OK(vkCreateBuffer(device->device, &info, NULL, &buffer));
        OK(vkBindBufferMemory(device->device, buffer, memory[i], 0));
        VkCommandBuffer commands = commands_begin(device);
        vkCmdFillBuffer(commands, buffer, bytes - end, end, 7 + i);
        barrier(commands);
        commands_run(device, commands);
        void *place;
        OK(vkMapMemory(device->device, memory[i], bytes - end, end, 0, &place));
        for (uint32_t word = 0; word < end / 4; word++) NEED(((uint32_t *)place)[word] == 7 + i);
        vkDestroyBuffer(device->device, buffer, NULL);
    }
    for (uint32_t i = 0; i < COUNT; i++) vkFreeMemory(device->device, memory[i], NULL);
}

int main(int argc, char **argv) {
    static const struct test tests[] = {{"window", window}, {NULL, NULL}};
    return run_tests(tests, argc, argv, 0, NULL);
}
