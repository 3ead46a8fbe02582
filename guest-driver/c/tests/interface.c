/*
 * What the example does not call: every kind of failure, both kinds of queue, both kinds of memory, two devices.
 *
 *   interface SOCKET
 */
#include <campanile.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND 1000000000ull
/* More than the messages that may be unanswered at a time, 32. */
#define MANY 50

/* Ends the program where `holds` does not. */
#define CHECK(holds)                                                                                                   \
    do {                                                                                                               \
        if (!(holds)) {                                                                                                \
            fprintf(stderr, "line %d: %s does not hold; last error: %s\n", __LINE__, #holds, campanile_last_error()); \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define OK(call) CHECK((call) == CAMPANILE_OK)
#define REFUSED(why, call) CHECK((call) == (why) && strlen(campanile_last_error()) > 0)
#define INVALID(call) REFUSED(CAMPANILE_INVALID_ARGUMENT, call)

static void null_is_refused(const char *socket) {
    campanile_device *device = NULL;
    campanile_commands *commands = NULL;
    campanile_dispatch dispatch = {0};
    bool flag;

    INVALID(campanile_device_open(NULL, NULL));
    INVALID(campanile_device_open_loopback(NULL, NULL, &device));
    INVALID(campanile_device_open_loopback(socket, NULL, NULL));
    INVALID(campanile_device_open_loopback(socket, "\xFF", &device));
    CHECK(device == NULL);
    INVALID(campanile_device_get_info(NULL, NULL));
    INVALID(campanile_device_check(NULL, NULL));
    INVALID(campanile_device_get_control_commands(NULL, NULL));
    INVALID(campanile_context_create(NULL, 0, NULL));
    INVALID(campanile_context_suspend(NULL, NULL));
    INVALID(campanile_context_resume(NULL));
    INVALID(campanile_context_set_scheduling(NULL, NULL));
    INVALID(campanile_device_set_process_class(NULL, 0));
    INVALID(campanile_local_buffer_create(NULL, 1, NULL));
    INVALID(campanile_local_buffer_bind(NULL, 0, NULL));
    INVALID(campanile_device_make_resident(NULL, NULL, 0, true));
    INVALID(campanile_device_evict(NULL, NULL, 0, true));
    INVALID(campanile_device_set_priority(NULL, NULL, 0, 0));
    INVALID(campanile_device_get_memory_info(NULL, NULL));
    CHECK(campanile_device_budget(NULL) == 0 && campanile_local_buffer_va(NULL) == 0);
    INVALID(campanile_buffer_create(NULL, 0, 1, NULL));
    INVALID(campanile_buffer_map(NULL, 0, 1, NULL));
    INVALID(campanile_buffer_read(NULL, 0, NULL, 0));
    INVALID(campanile_buffer_write(NULL, 0, NULL, 0));
    INVALID(campanile_buffer_bind(NULL, 0, 0, 1, NULL));
    INVALID(campanile_kernel_create_wgsl(NULL, NULL, NULL, NULL));
    INVALID(campanile_kernel_create_spirv(NULL, NULL, 0, NULL, NULL));
    INVALID(campanile_kernel_get_info(NULL, NULL));
    INVALID(campanile_commands_create(NULL));
    INVALID(campanile_commands_create_from_packets(NULL, 1, &commands));
    INVALID(campanile_commands_get_packets(NULL, NULL, NULL));
    INVALID(campanile_commands_clear(NULL));
    INVALID(campanile_commands_copy(NULL, 0, 0, 0));
    INVALID(campanile_commands_fill(NULL, 0, 0, 0));
    INVALID(campanile_commands_dispatch(NULL, &dispatch, 1, 1, 1));
    INVALID(campanile_commands_dispatch_indirect(NULL, &dispatch, 0));
    INVALID(campanile_commands_barrier(NULL));
    INVALID(campanile_commands_signal(NULL, 0, 0));
    INVALID(campanile_commands_wait(NULL, 0, 0));
    INVALID(campanile_commands_timestamp(NULL, 0));
    INVALID(campanile_commands_nop(NULL));
    INVALID(campanile_fence_point_poll(NULL, &flag));
    INVALID(campanile_fence_point_spin(NULL));
    INVALID(campanile_fence_point_wait(NULL, 0));
    INVALID(campanile_user_queue_create(NULL, NULL, NULL));
    INVALID(campanile_user_queue_submit(NULL, NULL, NULL));
    INVALID(campanile_user_queue_submit_at(NULL, 0, 0, NULL));
    INVALID(campanile_user_queue_last(NULL, NULL));
    INVALID(campanile_user_queue_connect(NULL));
    INVALID(campanile_user_queue_get_doorbell(NULL, NULL));
    INVALID(campanile_user_queue_get_ring(NULL, NULL, NULL, NULL));
    INVALID(campanile_kernel_queue_create(NULL, NULL));
    INVALID(campanile_kernel_queue_submit(NULL, NULL, NULL));
    INVALID(campanile_kernel_queue_poll(NULL, 1, &flag));
    INVALID(campanile_kernel_queue_wait(NULL, 1, 0));
    CHECK(strstr(campanile_last_error(), "campanile_kernel_queue_wait: queue is NULL"));

    OK(campanile_commands_create(&commands));
    INVALID(campanile_commands_dispatch(commands, NULL, 1, 1, 1));
    INVALID(campanile_commands_dispatch(commands, &dispatch, 1, 1, 1));
    CHECK(strstr(campanile_last_error(), "dispatch->kernel is NULL"));
    campanile_commands_destroy(commands);

    campanile_device_close(NULL);
    campanile_context_destroy(NULL);
    campanile_buffer_destroy(NULL);
    campanile_kernel_destroy(NULL);
    campanile_commands_destroy(NULL);
    campanile_fence_point_destroy(NULL);
    campanile_user_queue_destroy(NULL);
    campanile_kernel_queue_destroy(NULL);
    CHECK(campanile_buffer_size(NULL) == 0 && campanile_buffer_va(NULL) == 0);
    CHECK(campanile_buffer_resource_id(NULL) == 0 && campanile_fence_point_value(NULL) == 0);
    CHECK(campanile_user_queue_reconnects(NULL) == 0);
}

static void *words_of_another_thread(void *unused) {
    (void)unused;
    CHECK(strcmp(campanile_last_error(), "") == 0);
    return NULL;
}

static void nobody_and_nothing(void) {
    campanile_device *device = NULL;
    pthread_t thread;
    REFUSED(CAMPANILE_NO_DEVICE, campanile_device_open_loopback("/nowhere/at/all.sock", NULL, &device));
    CHECK(strstr(campanile_last_error(), "/nowhere/at/all.sock"));
    CHECK(device == NULL);
    CHECK(pthread_create(&thread, NULL, words_of_another_thread, NULL) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void buffers(const campanile_device *device) {
    static const uint32_t kinds[] = {CAMPANILE_MEMORY_VRAM, CAMPANILE_MEMORY_GUEST};
    campanile_buffer *buffer = NULL;
    INVALID(campanile_buffer_create(device, 7, 4096, &buffer));
    INVALID(campanile_buffer_create(device, CAMPANILE_MEMORY_VRAM, 0, &buffer));
    REFUSED(CAMPANILE_OUT_OF_RESOURCES, campanile_buffer_create(device, CAMPANILE_MEMORY_VRAM, 1ull << 35, &buffer));
    CHECK(campanile_buffer_create(device, CAMPANILE_MEMORY_VRAM, UINT64_MAX, &buffer) != CAMPANILE_OK);
    CHECK(buffer == NULL);
    for (int i = 0; i < 2; i++) {
        char text[8] = "1234567", back[8] = "";
        void *pointer = NULL;
        campanile_binding binding;
        OK(campanile_buffer_create(device, kinds[i], 5000, &buffer));
        CHECK(campanile_buffer_size(buffer) == 8192);
        CHECK(campanile_buffer_va(buffer) != 0 && campanile_buffer_resource_id(buffer) != 0);
        OK(campanile_buffer_write(buffer, 8000, text, sizeof text));
        OK(campanile_buffer_map(buffer, 0, CAMPANILE_WHOLE, &pointer));
        CHECK(memcmp((char *)pointer + 8000, text, sizeof text) == 0);
        memcpy((char *)pointer + 100, text, sizeof text);
        OK(campanile_buffer_read(buffer, 100, back, sizeof back));
        CHECK(memcmp(back, text, sizeof text) == 0);
        OK(campanile_buffer_bind(buffer, 3, 256, CAMPANILE_WHOLE, &binding));
        CHECK(binding.va == campanile_buffer_va(buffer) + 256 && binding.length == 8192 - 256 && binding.slot == 3);
        OK(campanile_buffer_read(buffer, 0, NULL, 0));
        INVALID(campanile_buffer_read(buffer, 8190, back, sizeof back));
        INVALID(campanile_buffer_read(buffer, 0, NULL, 1));
        INVALID(campanile_buffer_write(buffer, UINT64_MAX, text, sizeof text));
        INVALID(campanile_buffer_write(buffer, 0, text, SIZE_MAX));
        INVALID(campanile_buffer_map(buffer, 4096, 8192, &pointer));
        INVALID(campanile_buffer_map(buffer, UINT64_MAX, CAMPANILE_WHOLE, &pointer));
        INVALID(campanile_buffer_bind(buffer, 0, 0, 8196, &binding));
        campanile_buffer_destroy(buffer);
        buffer = NULL;
    }
}

/* Fills and copies on the copy node, through both kinds of queue. */
static void queues(const campanile_device *device) {
    campanile_context *context = NULL;
    campanile_buffer *buffer = NULL;
    campanile_commands *commands = NULL;
    campanile_user_queue *user = NULL;
    campanile_kernel_queue *kernel = NULL;
    campanile_fence_point *point = NULL, *last = NULL, *many[MANY];
    campanile_user_queue_options options = {.entries = 16, .memory = CAMPANILE_MEMORY_GUEST};
    uint64_t va, word, size, ticket, status = 99;
    const void *packets;
    size_t bytes;
    void *ring = NULL;
    bool done = false;

    INVALID(campanile_context_create(device, 5, &context));
    OK(campanile_context_create(device, CAMPANILE_NODE_COPY, &context));
    OK(campanile_buffer_create(device, CAMPANILE_MEMORY_VRAM, 8192, &buffer));
    va = campanile_buffer_va(buffer);
    OK(campanile_commands_create(&commands));
    OK(campanile_commands_nop(commands));
    OK(campanile_commands_fill(commands, va, 4096, 0x01020304));
    OK(campanile_commands_barrier(commands));
    OK(campanile_commands_copy(commands, va, va + 4096, 64));
    OK(campanile_commands_signal(commands, va + 8000, 17));
    OK(campanile_commands_wait(commands, va + 8000, 17));
    OK(campanile_commands_timestamp(commands, va + 8008));
    OK(campanile_commands_get_packets(commands, &packets, &bytes));
    CHECK(packets != NULL && bytes > 0 && bytes % 8 == 0);

    options.entries = 3;
    INVALID(campanile_user_queue_create(context, &options, &user));
    options.entries = 16;
    options.memory = 9;
    INVALID(campanile_user_queue_create(context, &options, &user));
    options.memory = CAMPANILE_MEMORY_GUEST;
    OK(campanile_user_queue_create(context, &options, &user));
    OK(campanile_user_queue_get_ring(user, &ring, &va, &size));
    CHECK(ring != NULL && va != 0 && size >= 4096 + 16 * 32);
    va = campanile_buffer_va(buffer);
    for (int i = 0; i < 100; i++)
        OK(campanile_user_queue_submit(user, commands, NULL));
    OK(campanile_user_queue_submit(user, commands, &point));
    CHECK(campanile_fence_point_value(point) == 101);
    OK(campanile_fence_point_wait(point, 60 * SECOND));
    OK(campanile_fence_point_spin(point));
    OK(campanile_fence_point_poll(point, &done));
    CHECK(done);
    OK(campanile_user_queue_last(user, &last));
    CHECK(campanile_fence_point_value(last) == 101);
    campanile_fence_point_destroy(point);
    campanile_fence_point_destroy(last);
    OK(campanile_user_queue_get_doorbell(user, &status));
    CHECK(status <= CAMPANILE_DOORBELL_RETRY);
    CHECK(campanile_user_queue_reconnects(user) > 0);
    OK(campanile_buffer_read(buffer, 4096 + 60, &word, 4));
    CHECK((uint32_t)word == 0x01020304);
    OK(campanile_buffer_read(buffer, 8000, &word, 8));
    CHECK(word == 17);
    OK(campanile_buffer_read(buffer, 8008, &word, 8));
    CHECK(word > 0);

    /* A wait that nothing ends times out, and goes on when the CPU ends it. */
    OK(campanile_commands_clear(commands));
    OK(campanile_commands_wait(commands, va + 8016, 1));
    OK(campanile_user_queue_submit(user, commands, &point));
    REFUSED(CAMPANILE_TIMEOUT, campanile_fence_point_wait(point, 0));
    for (int i = 0; i < MANY; i++)
        REFUSED(CAMPANILE_TIMEOUT, campanile_fence_point_wait(point, 1000 * 1000));
    for (int i = 0; i < MANY; i++) {
        OK(campanile_user_queue_last(user, &many[i]));
        REFUSED(CAMPANILE_TIMEOUT, campanile_fence_point_wait(many[i], 1000 * 1000));
    }
    OK(campanile_fence_point_poll(point, &done));
    CHECK(!done);
    word = 1;
    OK(campanile_buffer_write(buffer, 8016, &word, 8));
    OK(campanile_fence_point_wait(point, CAMPANILE_NO_TIMEOUT));
    campanile_fence_point_destroy(point);
    for (int i = 0; i < MANY; i++) {
        OK(campanile_fence_point_wait(many[i], CAMPANILE_NO_TIMEOUT));
        campanile_fence_point_destroy(many[i]);
    }

    /* The same packets, kept in GPU memory, are submitted in place. */
    OK(campanile_commands_clear(commands));
    OK(campanile_commands_signal(commands, va + 8024, 5));
    OK(campanile_commands_get_packets(commands, &packets, &bytes));
    OK(campanile_buffer_write(buffer, 0, packets, bytes));
    OK(campanile_user_queue_submit_at(user, va, (uint32_t)bytes, &point));
    OK(campanile_fence_point_wait(point, 60 * SECOND));
    OK(campanile_buffer_read(buffer, 8024, &word, 8));
    CHECK(word == 5);
    campanile_fence_point_destroy(point);
    OK(campanile_user_queue_connect(user));

    OK(campanile_kernel_queue_create(context, &kernel));
    INVALID(campanile_kernel_queue_wait(kernel, 1, 0));
    OK(campanile_commands_clear(commands));
    OK(campanile_commands_signal(commands, va + 8032, 6));
    for (uint64_t i = 1; i <= 20; i++) {
        OK(campanile_kernel_queue_submit(kernel, commands, &ticket));
        CHECK(ticket == i);
    }
    OK(campanile_kernel_queue_wait(kernel, ticket, 60 * SECOND));
    OK(campanile_kernel_queue_poll(kernel, ticket, &done));
    CHECK(done);
    INVALID(campanile_kernel_queue_poll(kernel, 21, &done));
    INVALID(campanile_kernel_queue_poll(kernel, 0, &done));
    OK(campanile_buffer_read(buffer, 8032, &word, 8));
    CHECK(word == 6);

    /* In an order that frees what others need last, as the header allows. */
    campanile_context_destroy(context);
    campanile_commands_destroy(commands);
    campanile_kernel_queue_destroy(kernel);
    campanile_user_queue_destroy(user);
    campanile_buffer_destroy(buffer);
}

/* More submissions that nobody waits for than the daemon can have unanswered. */
static void many_queues(const campanile_device *device) {
    campanile_context *context = NULL;
    campanile_kernel_queue *queues[MANY / 8];
    campanile_commands *commands = NULL;
    campanile_buffer *buffer = NULL;
    OK(campanile_context_create(device, CAMPANILE_NODE_COPY, &context));
    OK(campanile_commands_create(&commands));
    for (int i = 0; i < MANY / 8; i++) {
        OK(campanile_kernel_queue_create(context, &queues[i]));
        for (int k = 0; k < 8; k++)
            OK(campanile_kernel_queue_submit(queues[i], commands, NULL));
    }
    OK(campanile_buffer_create(device, CAMPANILE_MEMORY_VRAM, 4096, &buffer));
    for (int i = 0; i < MANY / 8; i++) {
        OK(campanile_kernel_queue_wait(queues[i], 8, 60 * SECOND));
        campanile_kernel_queue_destroy(queues[i]);
    }
    campanile_buffer_destroy(buffer);
    campanile_commands_destroy(commands);
    campanile_context_destroy(context);
}

/* More local memory than there is: what is not used lies in host memory, and comes back as it was. */
static void local_buffers(const campanile_device *device) {
    const uint64_t size = 20 << 20;
    campanile_local_buffer *buffers[2] = {NULL, NULL};
    const campanile_local_buffer *list[2], *none[1] = {NULL};
    campanile_context *context = NULL;
    campanile_kernel_queue *queue = NULL;
    campanile_commands *commands = NULL;
    campanile_buffer *seen = NULL;
    campanile_memory_info info;
    campanile_binding binding;
    uint64_t count = 0, suspended = 0;
    uint32_t word = 0;
    REFUSED(CAMPANILE_OUT_OF_RESOURCES, campanile_local_buffer_create(device, 1ull << 35, &buffers[0]));
    OK(campanile_context_create(device, CAMPANILE_NODE_COPY, &context));
    OK(campanile_kernel_queue_create(context, &queue));
    OK(campanile_commands_create(&commands));
    OK(campanile_buffer_create(device, CAMPANILE_MEMORY_VRAM, 4096, &seen));
    for (uint32_t i = 0; i < 2; i++) {
        OK(campanile_local_buffer_create(device, size, &buffers[i]));
        list[i] = buffers[i];
        CHECK(campanile_local_buffer_size(list[i]) == size && campanile_local_buffer_va(list[i]) != 0);
        OK(campanile_commands_fill(commands, campanile_local_buffer_va(list[i]), size, 70 + i));
    }
    OK(campanile_local_buffer_bind(list[0], 4, &binding));
    CHECK(binding.va == campanile_local_buffer_va(list[0]) && binding.length == size && binding.slot == 4);
    OK(campanile_kernel_queue_submit(queue, commands, &count));
    OK(campanile_kernel_queue_wait(queue, count, 60 * SECOND));
    OK(campanile_device_get_memory_info(device, &info));
    CHECK(info.committed >= 2 * size && info.evicted == size && info.evictions >= 1);
    CHECK(campanile_device_budget(device) >= info.committed);

    OK(campanile_device_set_priority(device, list, 2, CAMPANILE_PRIORITY_LOW));
    OK(campanile_device_make_resident(device, list, 1, true));
    OK(campanile_device_get_memory_info(device, &info));
    CHECK(info.held == size);
    REFUSED(CAMPANILE_OUT_OF_RESOURCES, campanile_device_make_resident(device, list + 1, 1, false));
    OK(campanile_device_evict(device, list, 1, true));
    OK(campanile_device_make_resident(device, list + 1, 1, false));
    OK(campanile_device_evict(device, list + 1, 1, false));
    INVALID(campanile_device_make_resident(device, none, 1, true));
    INVALID(campanile_device_make_resident(device, NULL, 1, true));
    CHECK(campanile_device_make_resident(device, list, 0, true) != CAMPANILE_OK);
    CHECK(campanile_device_set_priority(device, list, 1, 1) != CAMPANILE_OK);

    /* What is submitted to a context that is suspended runs when it is resumed. */
    OK(campanile_context_suspend(context, &suspended));
    CHECK(suspended == 1);
    for (uint32_t i = 0; i < 2; i++) {
        OK(campanile_commands_clear(commands));
        OK(campanile_commands_copy(commands, campanile_local_buffer_va(list[i]) + size - 4096, campanile_buffer_va(seen), 4096));
        OK(campanile_kernel_queue_submit(queue, commands, &count));
        if (i == 0)
            OK(campanile_context_resume(context));
        OK(campanile_kernel_queue_wait(queue, count, 60 * SECOND));
        OK(campanile_buffer_read(seen, 4092, &word, sizeof word));
        CHECK(word == 70 + i);
    }
    campanile_local_buffer_destroy(buffers[0]);
    campanile_local_buffer_destroy(buffers[1]);
    campanile_buffer_destroy(seen);
    campanile_commands_destroy(commands);
    campanile_kernel_queue_destroy(queue);
    campanile_context_destroy(context);
}

static void scheduling(const campanile_device *device) {
    campanile_context *context = NULL;
    campanile_scheduling wanted = {0};
    OK(campanile_context_create(device, CAMPANILE_NODE_COPY, &context));
    wanted.band = CAMPANILE_BAND_NORMAL;
    wanted.in_process_priority = -7;
    wanted.quantum = 2000000;
    OK(campanile_context_set_scheduling(context, &wanted));
    wanted.in_process_priority = 8;
    CHECK(campanile_context_set_scheduling(context, &wanted) != CAMPANILE_OK);
    wanted.in_process_priority = 128;
    INVALID(campanile_context_set_scheduling(context, &wanted));
    wanted.in_process_priority = 0;
    wanted.realtime_level = 1;
    INVALID(campanile_context_set_scheduling(context, &wanted));
    wanted.band = CAMPANILE_BAND_REALTIME;
    REFUSED(CAMPANILE_NOT_SUPPORTED, campanile_context_set_scheduling(context, &wanted));
    CHECK(strstr(campanile_last_error(), "campanile_context_set_scheduling") != NULL);
    wanted.realtime_level = 256;
    INVALID(campanile_context_set_scheduling(context, &wanted));
    wanted.band = 4;
    INVALID(campanile_context_set_scheduling(context, &wanted));
    OK(campanile_device_set_process_class(device, CAMPANILE_CLASS_HIGH));
    OK(campanile_device_set_process_class(device, CAMPANILE_CLASS_NORMAL));
    REFUSED(CAMPANILE_NOT_SUPPORTED, campanile_device_set_process_class(device, CAMPANILE_CLASS_REALTIME));
    INVALID(campanile_device_set_process_class(device, 6));
    campanile_context_destroy(context);
}

/* Constants, an entry point chosen by name, a grid from memory. */
static void kernels(const campanile_device *device) {
    static const char text[] =
        "var<immediate> add: u32;\n"
        "@group(0) @binding(2) var<storage, read_write> data: array<u32>;\n"
        "@compute @workgroup_size(4, 2, 1) fn other() { data[0] = 1u; }\n"
        "@compute @workgroup_size(8) fn wanted(@builtin(global_invocation_id) id: vec3<u32>) {\n"
        "    data[id.x] = id.x + add;\n"
        "}\n";
    campanile_kernel *kernel = NULL;
    campanile_kernel_info info;
    campanile_context *context = NULL;
    campanile_user_queue *queue = NULL;
    campanile_buffer *buffer = NULL;
    campanile_commands *commands = NULL;
    campanile_fence_point *point = NULL;
    campanile_binding bindings[17];
    campanile_dispatch dispatch = {0};
    uint32_t add = 1000, groups[3] = {2, 1, 1}, found[16];
    uint64_t status = 0;

    REFUSED(CAMPANILE_KERNEL_REFUSED, campanile_kernel_create_wgsl(device, "not a kernel", NULL, &kernel));
    REFUSED(CAMPANILE_KERNEL_REFUSED, campanile_kernel_create_spirv(device, "abcdefgh", 8, NULL, &kernel));
    REFUSED(CAMPANILE_KERNEL_REFUSED, campanile_kernel_create_wgsl(device, text, "missing", &kernel));
    CHECK(kernel == NULL);
    OK(campanile_kernel_create_wgsl(device, text, "wanted", &kernel));
    OK(campanile_kernel_get_info(kernel, &info));
    CHECK(info.handle != 0 && info.workgroup[0] == 8 && info.workgroup[1] == 1 && info.constant_bytes == 4);

    OK(campanile_context_create(device, CAMPANILE_NODE_COMPUTE, &context));
    OK(campanile_user_queue_create(context, NULL, &queue));
    OK(campanile_buffer_create(device, CAMPANILE_MEMORY_GUEST, 8192, &buffer));
    OK(campanile_buffer_write(buffer, 4096, groups, sizeof groups));
    for (int i = 0; i < 17; i++)
        OK(campanile_buffer_bind(buffer, 2, 0, 64, &bindings[i]));
    OK(campanile_commands_create(&commands));
    dispatch = (campanile_dispatch){kernel, bindings, 1, &add, sizeof add};
    OK(campanile_commands_dispatch_indirect(commands, &dispatch, campanile_buffer_va(buffer) + 4096));
    OK(campanile_user_queue_submit(queue, commands, &point));
    OK(campanile_fence_point_wait(point, 60 * SECOND));
    OK(campanile_buffer_read(buffer, 0, found, sizeof found));
    for (uint32_t i = 0; i < 16; i++)
        CHECK(found[i] == i + 1000);
    campanile_fence_point_destroy(point);

    dispatch.binding_count = 65;
    INVALID(campanile_commands_dispatch(commands, &dispatch, 1, 1, 1));
    dispatch.binding_count = SIZE_MAX;
    INVALID(campanile_commands_dispatch(commands, &dispatch, 1, 1, 1));
    dispatch.binding_count = 1;
    dispatch.constant_bytes = 3;
    INVALID(campanile_commands_dispatch(commands, &dispatch, 1, 1, 1));

    /* An address that is not mapped costs the device. */
    OK(campanile_device_check(device, &status));
    CHECK(status == 1);
    OK(campanile_commands_clear(commands));
    OK(campanile_commands_fill(commands, 1ull << 37, 4096, 1));
    /* The engine may be at it before the submission has seen that its doorbell is connected. */
    point = NULL;
    campanile_result submitted = campanile_user_queue_submit(queue, commands, &point);
    CHECK(submitted == CAMPANILE_OK || submitted == CAMPANILE_DEVICE_LOST);
    if (submitted == CAMPANILE_OK)
        REFUSED(CAMPANILE_DEVICE_LOST, campanile_fence_point_wait(point, 60 * SECOND));
    REFUSED(CAMPANILE_DEVICE_LOST, campanile_device_check(device, &status));
    CHECK(status == 7);
    campanile_fence_point_destroy(point);

    campanile_commands_destroy(commands);
    campanile_buffer_destroy(buffer);
    campanile_user_queue_destroy(queue);
    campanile_context_destroy(context);
    campanile_kernel_destroy(kernel);
}

int main(int argc, char **argv) {
    campanile_device *first = NULL, *second = NULL;
    campanile_device_info info;
    uint64_t commands = 0;
    CHECK(argc == 2);
    CHECK(strcmp(campanile_last_error(), "") == 0);
    null_is_refused(argv[1]);
    nobody_and_nothing();

    OK(campanile_device_open_loopback(argv[1], "first", &first));
    OK(campanile_device_open_loopback(argv[1], NULL, &second));
    OK(campanile_device_get_info(first, &info));
    CHECK(info.node_count == 2 && info.vram_bytes == 64ull << 20);
    CHECK(info.nodes[1].kind == CAMPANILE_NODE_KIND_COPY && info.nodes[1].flags & CAMPANILE_NODE_AVAILABLE);
    OK(campanile_device_get_control_commands(first, &commands));
    CHECK(commands > 0);
    buffers(first);
    queues(first);
    many_queues(first);
    local_buffers(first);
    scheduling(first);
    kernels(second);
    OK(campanile_device_check(first, NULL));
    queues(first);
    campanile_device_close(second);
    campanile_device_close(first);
    /* The VM has gone with its devices; the next one is new. */
    OK(campanile_device_open_loopback(argv[1], NULL, &first));
    queues(first);
    campanile_device_close(first);
    puts("the C interface does what its header says");
    return 0;
}
