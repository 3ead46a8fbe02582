/*
 * A process that has the GPU fill one buffer, for programs of guests to include.
 */
#include <campanile.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define BYTES (256u << 10)
#define SECOND 1000000000ull

static campanile_device *device;
static campanile_buffer *buffer;
static campanile_context *context;
static campanile_user_queue *queue;
static volatile uint32_t *words;

static void must(campanile_result result, const char *what) {
    if (result == CAMPANILE_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, campanile_last_error());
    exit(1);
}

/* Opens the device; the buffer is in memory of this kind. */
static void set_up(uint32_t memory) {
    void *pointer;
    must(campanile_device_open(NULL, &device), "open");
    must(campanile_buffer_create(device, memory, BYTES, &buffer), "a buffer");
    must(campanile_buffer_map(buffer, 0, BYTES, &pointer), "its address");
    must(campanile_context_create(device, CAMPANILE_NODE_COPY, &context), "a context");
    must(campanile_user_queue_create(context, NULL, &queue), "a queue");
    words = pointer;
}

/* The GPU fills the buffer. */
static void fill(uint32_t value) {
    campanile_commands *commands;
    campanile_fence_point *point;
    must(campanile_commands_create(&commands), "commands");
    must(campanile_commands_fill(commands, campanile_buffer_va(buffer), BYTES, value), "a fill");
    must(campanile_user_queue_submit(queue, commands, &point), "a submission");
    must(campanile_fence_point_wait(point, 60 * SECOND), "a wait");
    campanile_fence_point_destroy(point);
    campanile_commands_destroy(commands);
}

static void check(uint32_t value) {
    for (uint32_t word = 0; word < BYTES / 4; word++) {
        if (words[word] != value) {
            must(campanile_device_check(device, NULL), "the device");
            fprintf(stderr, "word %" PRIu32 " is %" PRIx32 " instead of %" PRIx32 "\n", word, words[word], value);
            exit(1);
        }
    }
}
