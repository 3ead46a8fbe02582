/* What waits for what: fences, semaphores, events, queries. */
#include "program.h"

static VkSemaphore semaphore_new(struct device *device, VkSemaphoreType kind, uint64_t value) {
    VkSemaphoreTypeCreateInfo type = {VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO};
    type.semaphoreType = kind;
    type.initialValue = value;
    VkSemaphoreCreateInfo info = {VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO};
    info.pNext = &type;
    VkSemaphore semaphore;
    OK(vkCreateSemaphore(device->device, &info, NULL, &semaphore));
    return semaphore;
}

static VkResult semaphore_wait(struct device *device, VkSemaphore semaphore, uint64_t value, uint64_t limit) {
    VkSemaphoreWaitInfo info = {VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO};
    info.semaphoreCount = 1;
    info.pSemaphores = &semaphore;
    info.pValues = &value;
    return vkWaitSemaphores(device->device, &info, limit);
}

/* Submits with one semaphore to wait for and one to signal, either of them or none. */
static void submit_between(struct device *device, VkCommandBuffer commands, VkSemaphore wait, uint64_t wait_value,
                           VkSemaphore signal, uint64_t signal_value, VkFence fence) {
    VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    VkTimelineSemaphoreSubmitInfo values = {VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO};
    VkSubmitInfo info = {VK_STRUCTURE_TYPE_SUBMIT_INFO};
    info.pNext = &values;
    values.waitSemaphoreValueCount = info.waitSemaphoreCount = wait ? 1 : 0;
    values.signalSemaphoreValueCount = info.signalSemaphoreCount = signal ? 1 : 0;
    values.pWaitSemaphoreValues = &wait_value;
    values.pSignalSemaphoreValues = &signal_value;
    info.pWaitSemaphores = &wait;
    info.pWaitDstStageMask = &stage;
    info.pSignalSemaphores = &signal;
    info.commandBufferCount = commands ? 1 : 0;
    info.pCommandBuffers = &commands;
    OK(vkQueueSubmit(device->queue, 1, &info, fence));
}

static void fences(struct device *device) {
    struct adder adder = adder_new(device);
    VkFence both[2] = {fence_new(device), fence_new(device)};
    RESULT(vkGetFenceStatus(device->device, both[0]), VK_NOT_READY);
    RESULT(vkWaitForFences(device->device, 1, both, VK_TRUE, 0), VK_TIMEOUT);
    RESULT(vkWaitForFences(device->device, 2, both, VK_FALSE, 1000), VK_TIMEOUT);
    VkCommandBuffer commands = commands_begin(device);
    adder_record(&adder, commands, 1);
    OK(vkEndCommandBuffer(commands));
    submit(device, commands, both[1]);
    OK(vkWaitForFences(device->device, 2, both, VK_FALSE, NEVER));
    OK(vkGetFenceStatus(device->device, both[1]));
    RESULT(vkGetFenceStatus(device->device, both[0]), VK_NOT_READY);
    NEED(adder_holds(&adder, 1, 1));
    /* Alone, it is signalled behind all that was submitted. */
    submit(device, commands, VK_NULL_HANDLE);
    OK(vkQueueSubmit(device->queue, 0, NULL, both[0]));
    OK(vkWaitForFences(device->device, 2, both, VK_TRUE, NEVER));
    NEED(adder_holds(&adder, 2, 2));
    OK(vkResetFences(device->device, 2, both));
    RESULT(vkGetFenceStatus(device->device, both[1]), VK_NOT_READY);
    VkFenceCreateInfo info = {VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    info.flags = VK_FENCE_CREATE_SIGNALED_BIT;
    VkFence signalled;
    OK(vkCreateFence(device->device, &info, NULL, &signalled));
    OK(vkWaitForFences(device->device, 1, &signalled, VK_TRUE, 0));
    vkDestroyFence(device->device, signalled, NULL);
    for (int i = 0; i < 2; i++) vkDestroyFence(device->device, both[i], NULL);
    adder_free(device, &adder);
}

/* The GPU waits for the CPU, and the CPU for the GPU. */
static void timeline(struct device *device) {
    struct adder adder = adder_new(device);
    VkSemaphore start = semaphore_new(device, VK_SEMAPHORE_TYPE_TIMELINE, 3);
    VkSemaphore end = semaphore_new(device, VK_SEMAPHORE_TYPE_TIMELINE, 0);
    VkCommandBuffer commands = commands_begin(device);
    adder_record(&adder, commands, 2);
    OK(vkEndCommandBuffer(commands));
    submit_between(device, commands, start, 5, end, 10, VK_NULL_HANDLE);
    RESULT(semaphore_wait(device, end, 10, 20000000), VK_TIMEOUT);
    NEED(adder_holds(&adder, 0, 0));
    uint64_t value = 0;
    OK(vkGetSemaphoreCounterValue(device->device, start, &value));
    NEED(value == 3);
    VkSemaphoreSignalInfo info = {VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO};
    info.semaphore = start;
    info.value = 5;
    OK(vkSignalSemaphore(device->device, &info));
    OK(semaphore_wait(device, end, 7, NEVER));
    NEED(adder_holds(&adder, 1, 2));
    OK(vkGetSemaphoreCounterValue(device->device, end, &value));
    NEED(value == 10);
    OK(vkQueueWaitIdle(device->queue));
    vkDestroySemaphore(device->device, start, NULL);
    vkDestroySemaphore(device->device, end, NULL);
    adder_free(device, &adder);
}

/* A binary semaphore, signalled and waited for again and again: the second of each pair sees what the first stored. */
static void binary(struct device *device) {
    struct adder adder = adder_new(device);
    VkSemaphore between = semaphore_new(device, VK_SEMAPHORE_TYPE_BINARY, 0);
    VkCommandBuffer commands = commands_begin(device);
    adder_record(&adder, commands, 1);
    OK(vkEndCommandBuffer(commands));
    VkFence fence = fence_new(device);
    for (int i = 0; i < 20; i++) {
        submit_between(device, commands, VK_NULL_HANDLE, 0, between, 0, VK_NULL_HANDLE);
        submit_between(device, commands, between, 0, VK_NULL_HANDLE, 0, i == 19 ? fence : VK_NULL_HANDLE);
    }
    OK(vkWaitForFences(device->device, 1, &fence, VK_TRUE, NEVER));
    NEED(adder_holds(&adder, 40, 40));
    vkDestroyFence(device->device, fence, NULL);
    vkDestroySemaphore(device->device, between, NULL);
    adder_free(device, &adder);
}

/* An event holds back what is behind it until the CPU sets it; the GPU sets and resets others. */
static void events(struct device *device) {
    struct adder adder = adder_new(device);
    VkEventCreateInfo info = {VK_STRUCTURE_TYPE_EVENT_CREATE_INFO};
    VkEvent gate, passed;
    OK(vkCreateEvent(device->device, &info, NULL, &gate));
    OK(vkCreateEvent(device->device, &info, NULL, &passed));
    VkCommandBuffer commands = commands_begin(device);
    vkCmdWaitEvents(commands, 1, &gate, VK_PIPELINE_STAGE_HOST_BIT, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, 0, NULL, 0, NULL,
                    0, NULL);
    adder_record(&adder, commands, 1);
    vkCmdSetEvent(commands, passed, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT);
    vkCmdResetEvent(commands, gate, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT);
    OK(vkEndCommandBuffer(commands));
    VkFence fence = fence_new(device);
    submit(device, commands, fence);
    RESULT(vkWaitForFences(device->device, 1, &fence, VK_TRUE, 20000000), VK_TIMEOUT);
    RESULT(vkGetEventStatus(device->device, passed), VK_EVENT_RESET);
    NEED(adder_holds(&adder, 0, 0));
    OK(vkSetEvent(device->device, gate));
    OK(vkWaitForFences(device->device, 1, &fence, VK_TRUE, NEVER));
    RESULT(vkGetEventStatus(device->device, passed), VK_EVENT_SET);
    RESULT(vkGetEventStatus(device->device, gate), VK_EVENT_RESET);
    NEED(adder_holds(&adder, 1, 1));
    vkDestroyFence(device->device, fence, NULL);
    vkDestroyEvent(device->device, gate, NULL);
    vkDestroyEvent(device->device, passed, NULL);
    adder_free(device, &adder);
}

static void timestamps(struct device *device) {
    struct adder adder = adder_new(device);
    struct buffer results = buffer_new(device, 0);
    VkQueryPoolCreateInfo info = {VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO};
    info.queryType = VK_QUERY_TYPE_TIMESTAMP;
    info.queryCount = 3;
    VkQueryPool pool;
    OK(vkCreateQueryPool(device->device, &info, NULL, &pool));
    vkResetQueryPool(device->device, pool, 0, 3);
    VkCommandBuffer commands = commands_begin(device);
    vkCmdResetQueryPool(commands, pool, 0, 2);
    vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, pool, 0);
    adder_record(&adder, commands, 1);
    vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, pool, 1);
    vkCmdCopyQueryPoolResults(commands, pool, 0, 2, results.buffer, 16, 16,
                              VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT | VK_QUERY_RESULT_WITH_AVAILABILITY_BIT);
    commands_run(device, commands);
    uint64_t found[3][2] = {{0}};
    VkQueryResultFlags wide = VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WITH_AVAILABILITY_BIT;
    RESULT(vkGetQueryPoolResults(device->device, pool, 0, 3, sizeof found, found, 16, wide), VK_NOT_READY);
    NEED(found[0][1] == 1 && found[1][1] == 1 && found[2][1] == 0 && found[2][0] == 0);
    NEED(found[0][0] > 0 && found[1][0] > found[0][0]);
    NEED(memcmp(results.words + 4, found, 32) == 0);
    uint32_t narrow[2];
    OK(vkGetQueryPoolResults(device->device, pool, 0, 2, sizeof narrow, narrow, 4, VK_QUERY_RESULT_WAIT_BIT));
    NEED(narrow[0] == (uint32_t)found[0][0] && narrow[1] == (uint32_t)found[1][0]);
    vkResetQueryPool(device->device, pool, 1, 1);
    RESULT(vkGetQueryPoolResults(device->device, pool, 1, 1, 8, found, 8, VK_QUERY_RESULT_64_BIT), VK_NOT_READY);
    vkDestroyQueryPool(device->device, pool, NULL);
    /* Every device has pools of occlusion queries; none is ever drawn here. */
    info.queryType = VK_QUERY_TYPE_OCCLUSION;
    OK(vkCreateQueryPool(device->device, &info, NULL, &pool));
    vkResetQueryPool(device->device, pool, 0, 3);
    RESULT(vkGetQueryPoolResults(device->device, pool, 0, 3, sizeof found, found, 16, wide), VK_NOT_READY);
    NEED(found[0][1] == 0 && found[1][1] == 0 && found[2][1] == 0);
    vkDestroyQueryPool(device->device, pool, NULL);
    buffer_free(device, &results);
    adder_free(device, &adder);
}

int main(int argc, char **argv) {
    static const struct test tests[] = {
        {"fences", fences}, {"timeline", timeline},     {"binary", binary},
        {"events", events}, {"timestamps", timestamps}, {NULL, NULL},
    };
    return run_tests(tests, argc, argv, 0, NULL);
}
