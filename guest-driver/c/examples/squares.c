/*
 * Squares numbers on the GPU, through a user-mode queue, and checks each of them.
 *
 *   squares            inside of a VM, over its render node, or its file on virtiofs
 *   squares PATH       over this one
 *   squares SOCKET     beside a daemon, over the socket of one of its vGPUs: with CAMPANILE_LOOPBACK, for tests
 */
#include <campanile.h>

#include <inttypes.h>
#include <stdio.h>

#define COUNT 1024u
#define GROUP 64u
#define SECOND 1000000000ull

static const char *const source =
    "@group(0) @binding(0) var<storage, read_write> data: array<u32>;\n"
    "@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {\n"
    "    data[id.x] = id.x * id.x;\n"
    "}\n";

/* Everything that the program makes; what is NULL was not made. */
struct objects {
    campanile_device *device;
    campanile_buffer *buffer;
    campanile_kernel *kernel;
    campanile_context *context;
    campanile_user_queue *queue;
    campanile_commands *commands;
    campanile_fence_point *point;
};

/* Goes on while calls succeed; the first that does not ends the function with its result. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        campanile_result result = (call);                                                                              \
        if (result != CAMPANILE_OK)                                                                                    \
            return result;                                                                                             \
    } while (0)

static campanile_result print_nodes(const campanile_device *device) {
    campanile_device_info info;
    TRY(campanile_device_get_info(device, &info));
    printf("protocol %" PRIu32 ".%" PRIu32 ", %" PRIu64 " MiB of video memory\n", info.protocol_version >> 16,
           info.protocol_version & 0xFFFF, info.vram_bytes >> 20);
    for (uint32_t node = 0; node < info.node_count; node++) {
        const campanile_node_info *found = &info.nodes[node];
        const char *kind = found->kind == CAMPANILE_NODE_KIND_COMPUTE ? "compute"
                           : found->kind == CAMPANILE_NODE_KIND_COPY  ? "copy"
                                                                      : "unknown";
        printf("node %" PRIu32 ": %s, %savailable, user-mode queues: %s, %" PRIu32 " doorbells\n", node, kind,
               found->flags & CAMPANILE_NODE_AVAILABLE ? "" : "not ",
               found->flags & CAMPANILE_NODE_USER_MODE_SUBMISSION ? "yes" : "no", found->physical_doorbells);
    }
    return CAMPANILE_OK;
}

static campanile_result run(struct objects *made, const char *path) {
#ifdef CAMPANILE_LOOPBACK
    TRY(path ? campanile_device_open_loopback(path, "squares", &made->device)
             : campanile_device_open(NULL, &made->device));
#else
    TRY(campanile_device_open(path, &made->device));
#endif
    TRY(print_nodes(made->device));

    TRY(campanile_kernel_create_wgsl(made->device, source, NULL, &made->kernel));
    TRY(campanile_buffer_create(made->device, CAMPANILE_MEMORY_VRAM, COUNT * sizeof(uint32_t), &made->buffer));
    TRY(campanile_context_create(made->device, CAMPANILE_NODE_COMPUTE, &made->context));
    TRY(campanile_user_queue_create(made->context, NULL, &made->queue));

    campanile_binding binding;
    TRY(campanile_buffer_bind(made->buffer, 0, 0, CAMPANILE_WHOLE, &binding));
    campanile_dispatch dispatch = {.kernel = made->kernel, .bindings = &binding, .binding_count = 1};
    TRY(campanile_commands_create(&made->commands));
    TRY(campanile_commands_dispatch(made->commands, &dispatch, COUNT / GROUP, 1, 1));

    TRY(campanile_user_queue_submit(made->queue, made->commands, &made->point));
    return campanile_fence_point_wait(made->point, 60 * SECOND);
}

static int check(const struct objects *made) {
    static uint32_t squares[COUNT];
    if (campanile_buffer_read(made->buffer, 0, squares, sizeof squares) != CAMPANILE_OK) {
        fprintf(stderr, "squares: %s\n", campanile_last_error());
        return 1;
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        if (squares[i] != i * i) {
            fprintf(stderr, "squares: %" PRIu32 " squared came out as %" PRIu32 "\n", i, squares[i]);
            return 1;
        }
    }
    printf("%u squares are right; the last is %" PRIu32 "\n", COUNT, squares[COUNT - 1]);
    return 0;
}

int main(int argc, char **argv) {
    struct objects made = {0};
    int failed = 1;
    if (run(&made, argc > 1 ? argv[1] : NULL) == CAMPANILE_OK)
        failed = check(&made);
    else
        fprintf(stderr, "squares: %s\n", campanile_last_error());

    campanile_fence_point_destroy(made.point);
    campanile_commands_destroy(made.commands);
    campanile_user_queue_destroy(made.queue);
    campanile_context_destroy(made.context);
    campanile_kernel_destroy(made.kernel);
    campanile_buffer_destroy(made.buffer);
    campanile_device_close(made.device);
    return failed;
}
