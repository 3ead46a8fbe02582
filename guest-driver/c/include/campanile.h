/*
 * Campanile: the guest driver's interface for C.
 *
 *   campanile_device_open ──────────────────▶ campanile_buffer_create, campanile_kernel_create_wgsl
 *     │                                             campanile_local_buffer_create: memory that the CPU does not see
 *     └─ campanile_context_create ─▶ campanile_user_queue_create     ring ─▶ doorbell ─▶ engine ─▶ fence point
 *                                 └▶ campanile_kernel_queue_create   the daemon schedules ─▶ ticket
 *
 * Results   A call returns a campanile_result, and gives what it makes through its last pointers, which it touches on
 *           CAMPANILE_OK only, unless it says otherwise. campanile_last_error says what went wrong, for each thread its own.
 * NULL      A NULL where the call does not allow one is CAMPANILE_INVALID_ARGUMENT; …_destroy(NULL) does nothing.
 * Handles   Whatever a call gives as a pointer to a handle is the caller's, to be destroyed once with the destroy of
 *           its kind, in any order. Using a handle after that, or destroying it twice, is undefined, and so are
 *           pointers to anything but what the call asks for, and two pointers of one call to the same place.
 * Threads   Every handle may be used by any thread, and different handles at the same time. One and the same handle
 *           may be used by several threads at once where all of them pass it as a pointer to const; any other use of
 *           a handle (a pointer without const: submitting to it, adding to it, destroying it) must be alone with it.
 *           So devices, contexts, kernels, buffers and fence points are shared freely, and a queue or a command
 *           buffer belongs to one thread at a time. Copies by campanile_buffer_read and _write are not ordered with
 *           other accesses to the same bytes.
 * fork      A child must not use what its parent opened.
 * Blocking  Calls that talk to the daemon (open, create, destroy, connect, a queue's submission when something is
 *           full) block until it has answered. The others say so, or are loads and stores.
 *
 * No call ends the process. "Safety:" lists what a call has to believe of its pointers.
 */

#ifndef CAMPANILE_H
#define CAMPANILE_H

/* Generated from guest-driver/c/src: UPDATE_HEADER=1 cargo test -p campanile-guest-driver-c --test header */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * The most nodes that a device has.
 */
#define CAMPANILE_MAX_NODES 8

/**
 * Number of the node that runs kernels, and everything else.
 */
#define CAMPANILE_NODE_COMPUTE 0

/**
 * Number of the node that copies, fills, signals and waits.
 */
#define CAMPANILE_NODE_COPY 1

/**
 * `campanile_node_info.kind`: runs kernels, and everything else.
 */
#define CAMPANILE_NODE_KIND_COMPUTE 1

/**
 * `campanile_node_info.kind`: copies, fills, signals and waits.
 */
#define CAMPANILE_NODE_KIND_COPY 2

/**
 * Bit of `campanile_node_info.flags`: the node takes work. Without it, a context there is refused, with the reason.
 */
#define CAMPANILE_NODE_AVAILABLE 1

/**
 * Bit of `campanile_node_info.flags`: the node has user-mode queues.
 */
#define CAMPANILE_NODE_USER_MODE_SUBMISSION 2

/**
 * Bit of `campanile_node_info.flags`: a fence point is reached only after the packets are no longer used.
 */
#define CAMPANILE_NODE_BUFFER_RELEASE 4

/**
 * Bit of `campanile_node_info.flags`: all user-mode queues of a process share one doorbell on the node.
 */
#define CAMPANILE_NODE_GLOBAL_DOORBELL 8

/**
 * Bit of `campanile_node_info.flags`: each submission to a user-mode queue of the node sends a message, since no
 * engine polls.
 */
#define CAMPANILE_NODE_NOTIFY 16

/**
 * Scheduling band: runs when nothing else has work.
 */
#define CAMPANILE_BAND_IDLE 0

/**
 * Scheduling band: where contexts begin.
 */
#define CAMPANILE_BAND_NORMAL 1

/**
 * Scheduling band: what a user looks at. The operator grants it.
 */
#define CAMPANILE_BAND_FOCUS 2

/**
 * Scheduling band: before all others, higher levels first. The operator grants it.
 */
#define CAMPANILE_BAND_REALTIME 3

/**
 * Priority class of a process: its contexts are in the idle band.
 */
#define CAMPANILE_CLASS_IDLE 0

/**
 * Priority class of a process: half the weight of others.
 */
#define CAMPANILE_CLASS_BELOW_NORMAL 1

/**
 * Priority class of a process: where processes begin.
 */
#define CAMPANILE_CLASS_NORMAL 2

/**
 * Priority class of a process: twice the weight of others.
 */
#define CAMPANILE_CLASS_ABOVE_NORMAL 3

/**
 * Priority class of a process: four times the weight of others.
 */
#define CAMPANILE_CLASS_HIGH 4

/**
 * Priority class of a process: its contexts are in the realtime band at level 0. The operator grants it.
 */
#define CAMPANILE_CLASS_REALTIME 5

/**
 * Memory of a buffer: video memory, which the CPU sees through the aperture.
 */
#define CAMPANILE_MEMORY_VRAM 0

/**
 * Memory of a buffer: the VM's own, which the GPU reads and writes in place.
 */
#define CAMPANILE_MEMORY_GUEST 1

/**
 * As a length: from the offset to the end of the buffer.
 */
#define CAMPANILE_WHOLE 18446744073709551615ull

/**
 * The least of priorities: evicted before all others.
 */
#define CAMPANILE_PRIORITY_MINIMUM 671088640

/**
 * Evicted before others.
 */
#define CAMPANILE_PRIORITY_LOW 1342177280

/**
 * What a buffer begins with.
 */
#define CAMPANILE_PRIORITY_NORMAL 2013265920

/**
 * Evicted after others.
 */
#define CAMPANILE_PRIORITY_HIGH 2684354560

/**
 * The highest: evicted after all others.
 */
#define CAMPANILE_PRIORITY_MAXIMUM 3355443200

/**
 * As a timeout: however long it takes.
 */
#define CAMPANILE_NO_TIMEOUT 18446744073709551615ull

/**
 * Status of a doorbell: rings are delivered.
 */
#define CAMPANILE_DOORBELL_CONNECTED 0

/**
 * Status of a doorbell: rings are delivered when the daemon is told of them, too, which a submission does.
 */
#define CAMPANILE_DOORBELL_CONNECTED_NOTIFY 1

/**
 * Status of a doorbell: not delivered now; the next submission connects it again.
 */
#define CAMPANILE_DOORBELL_RETRY 2

/**
 * Status of a doorbell: never again, the queue is dead.
 */
#define CAMPANILE_DOORBELL_ABORT 3

/**
 * How a call ended. Of anything but `CAMPANILE_OK`, `campanile_last_error` has the words.
 */
typedef enum campanile_result {
    /**
     * Done.
     */
    CAMPANILE_OK = 0,
    /**
     * The time was over first. What was waited for goes on.
     */
    CAMPANILE_TIMEOUT = 1,
    /**
     * A NULL where there must be something, or a value or range that breaks a rule. Nothing was changed.
     */
    CAMPANILE_INVALID_ARGUMENT = 2,
    /**
     * This device, node or library does not have that.
     */
    CAMPANILE_NOT_SUPPORTED = 3,
    /**
     * Memory, addresses, or another of the documented limits is used up.
     */
    CAMPANILE_OUT_OF_RESOURCES = 4,
    /**
     * There is no device: no daemon answers there, or it is no Campanile.
     */
    CAMPANILE_NO_DEVICE = 5,
    /**
     * The daemon hung up, or the device was reset. Destroy everything and open the device again.
     */
    CAMPANILE_DISCONNECTED = 6,
    /**
     * The device is in error. Destroy everything made from it and open it again.
     */
    CAMPANILE_DEVICE_LOST = 7,
    /**
     * Daemon and library do not speak the same version of the protocol.
     */
    CAMPANILE_VERSION_MISMATCH = 8,
    /**
     * The kernel was refused; the message says why.
     */
    CAMPANILE_KERNEL_REFUSED = 9,
    /**
     * The system or the daemon refused something for another reason, or answered nonsense.
     */
    CAMPANILE_FAILED = 10,
    /**
     * A defect of this library. Destroy the objects of the call, and report it.
     */
    CAMPANILE_INTERNAL = 11,
} campanile_result;

/**
 * A buffer, mapped for the CPU and for the GPU.
 */
typedef struct campanile_buffer campanile_buffer;

/**
 * Packets, to be submitted any number of times.
 */
typedef struct campanile_commands campanile_commands;

/**
 * A context on a node.
 */
typedef struct campanile_context campanile_context;

/**
 * An open device.
 */
typedef struct campanile_device campanile_device;

/**
 * A point that a user-mode queue will reach.
 */
typedef struct campanile_fence_point campanile_fence_point;

/**
 * A compiled kernel, warm.
 */
typedef struct campanile_kernel campanile_kernel;

/**
 * A queue that is fed through the daemon.
 */
typedef struct campanile_kernel_queue campanile_kernel_queue;

/**
 * Video memory that only the GPU sees: filled and read by copies.
 */
typedef struct campanile_local_buffer campanile_local_buffer;

/**
 * A queue that the engine fetches from by itself.
 */
typedef struct campanile_user_queue campanile_user_queue;

/**
 * What a node can do.
 */
typedef struct campanile_node_info {
    /**
     * A `CAMPANILE_NODE_KIND_…`, or a later one.
     */
    uint32_t kind;
    /**
     * `CAMPANILE_NODE_AVAILABLE` and the other bits.
     */
    uint32_t flags;
    /**
     * Physical doorbells, which the queues of the VM share; 1 for each process with `CAMPANILE_NODE_GLOBAL_DOORBELL`.
     */
    uint32_t physical_doorbells;
    /**
     * The most buffers that one user-mode queue may have in flight; 0 where there is no limit.
     */
    uint32_t max_in_flight;
    /**
     * Engines that have this node.
     */
    uint32_t engines;
} campanile_node_info;

/**
 * What a device can do.
 */
typedef struct campanile_device_info {
    /**
     * Version of the protocol that the daemon speaks: major * 65536 + minor.
     */
    uint32_t protocol_version;
    /**
     * Entries of `nodes` that count.
     */
    uint32_t node_count;
    /**
     * Bytes of video memory of the VM.
     */
    uint64_t vram_bytes;
    /**
     * Bytes of it that the VM's CPUs can see at one time.
     */
    uint64_t aperture_bytes;
    /**
     * The most bytes of packets in one submission.
     */
    uint32_t max_commands_bytes;
    /**
     * The most bytes of one message to the daemon; a kernel's source has to fit in, with its entry's name.
     */
    uint32_t max_control_bytes;
    /**
     * What each node can do; the index is the number for `campanile_context_create`.
     */
    struct campanile_node_info nodes[CAMPANILE_MAX_NODES];
} campanile_device_info;

/**
 * How a context is scheduled. Times in nanoseconds, at most one second, counted in units of 100; a time that is 0 means
 * its default.
 */
typedef struct campanile_scheduling {
    /**
     * A `CAMPANILE_BAND_…`.
     */
    uint32_t band;
    /**
     * Level in the realtime band, 0 to 31; else 0.
     */
    uint32_t realtime_level;
    /**
     * Orders the contexts of one process, -7 to 7, higher first.
     */
    int32_t in_process_priority;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * How long it runs on while others wait.
     */
    uint64_t quantum;
    /**
     * How long the running context may go on when this one, of the same priority, wakes.
     */
    uint64_t grace_same;
    /**
     * The same against lower priority.
     */
    uint64_t grace_lower;
} campanile_scheduling;

/**
 * Bytes that a kernel sees as one of its bindings. `campanile_buffer_bind` fills it in.
 */
typedef struct campanile_binding {
    /**
     * GPU virtual address, a multiple of 256.
     */
    uint64_t va;
    /**
     * Bytes, a multiple of 4.
     */
    uint64_t length;
    /**
     * The kernel's binding number within `set`, 0 to 63.
     */
    uint32_t slot;
    /**
     * The kernel's descriptor set, a `@group` in WGSL, 0 to 7. `campanile_buffer_bind` stores 0.
     */
    uint16_t set;
    /**
     * Which buffer of a binding that is an array of them. `campanile_buffer_bind` stores 0.
     */
    uint16_t element;
} campanile_binding;

/**
 * How the memory of a VM stands, in bytes. Its budget is `committed` and `available` together.
 */
typedef struct campanile_memory_info {
    /**
     * What the VM can always have.
     */
    uint64_t guaranteed;
    /**
     * What it can have at the most.
     */
    uint64_t limit;
    /**
     * What it has allocated.
     */
    uint64_t committed;
    /**
     * What it could allocate besides, as things are.
     */
    uint64_t available;
    /**
     * Of it allocated, and in host memory for the time being.
     */
    uint64_t evicted;
    /**
     * Of it held where it is by `campanile_device_make_resident`.
     */
    uint64_t held;
    /**
     * The memory that the CPU does not see: all of it.
     */
    uint64_t local;
    /**
     * What is free there.
     */
    uint64_t local_free;
    /**
     * The memory that the CPU sees: all of it.
     */
    uint64_t visible;
    /**
     * What is free there.
     */
    uint64_t visible_free;
    /**
     * How often buffers were evicted so far.
     */
    uint64_t evictions;
    /**
     * How often buffers were brought back.
     */
    uint64_t restores;
} campanile_memory_info;

/**
 * What is known of a kernel.
 */
typedef struct campanile_kernel_info {
    /**
     * Its name in packets.
     */
    uint64_t handle;
    /**
     * Threads of a group in x, y, z.
     */
    uint32_t workgroup[3];
    /**
     * Bytes of constants that a dispatch must carry.
     */
    uint32_t constant_bytes;
} campanile_kernel_info;

/**
 * What a dispatch runs, and on what. Fields that are left 0 mean "none".
 */
typedef struct campanile_dispatch {
    /**
     * The kernel.
     */
    const struct campanile_kernel *kernel;
    /**
     * Its buffers, at most 64, one for each binding of the kernel and for each element of one that is an array.
     */
    const struct campanile_binding *bindings;
    /**
     * How many.
     */
    size_t binding_count;
    /**
     * Its constants.
     */
    const void *constants;
    /**
     * Bytes of them, a multiple of 4, at most 256: as many as `campanile_kernel_info` says.
     */
    size_t constant_bytes;
} campanile_dispatch;

/**
 * How a user-mode queue is made. A field that is 0 means its default.
 */
typedef struct campanile_user_queue_options {
    /**
     * Entries of the ring, a power of two from 2 to 65,536; by default 256.
     */
    uint32_t entries;
    /**
     * Where ring and packets lie, a `CAMPANILE_MEMORY_…`; by default video memory.
     */
    uint32_t memory;
    /**
     * Bytes for the packets of submissions under way; by default 262,144.
     */
    uint64_t arena_bytes;
} campanile_user_queue_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * What went wrong in the last call of this thread that failed, as UTF-8, with the name of that call; "" where none
 * has. Valid until the next failing call of this thread, and never to be freed.
 */
const char *campanile_last_error(void);

/**
 * Opens a device inside of a VM, over the render node at `path` ("/dev/dri/renderD128"), or over the file `gpu` on
 * virtiofs. Where `path` is NULL, over the first render node that is a Campanile's, and where there is none, over the
 * first such file. `CAMPANILE_NO_DEVICE`, with the reason, where it is none, or no device behind it answers.
 *
 * Safety: `path` is NULL or a string; `device` is NULL or room for a pointer.
 */
enum campanile_result campanile_device_open(const char *path,
                                            struct campanile_device **device);

#if defined(CAMPANILE_LOOPBACK)
/**
 * Opens a device without a VM: this process plays VMM and guest on the daemon's `socket`. `name` is for the daemon's
 * log, and may be NULL. All devices of this process on one socket are in one VM, whose first one connects it; while
 * another process has the socket, that waits up to 30 s. For tests: only a library that was built with the feature
 * `loopback` has it, and a program says so with the macro `CAMPANILE_LOOPBACK`.
 *
 * Safety: `socket` is NULL or a string, and so is `name`; `device` is NULL or room for a pointer.
 */
enum campanile_result campanile_device_open_loopback(const char *socket,
                                                     const char *name,
                                                     struct campanile_device **device);
#endif

/**
 * Gives a device back; NULL is nothing. What was made from it goes on, and holds the device open until it is
 * destroyed, too.
 */
void campanile_device_close(struct campanile_device *device);

/**
 * What the device can do, as it was when it was opened. Does not block.
 */
enum campanile_result campanile_device_get_info(const struct campanile_device *device,
                                                struct campanile_device_info *info);

/**
 * `CAMPANILE_OK` while the device works, `CAMPANILE_DEVICE_LOST` when it is in error. `status` may be NULL; there
 * goes the word of the device page: 0 it was unplugged, 1 active, 2 its engine was lost, 3 the driver failed under a kernel, 4 it was
 * ended, 6 a bad packet or ring entry, 7 an address that is not mapped. Does not block.
 */
enum campanile_result campanile_device_check(const struct campanile_device *device,
                                             uint64_t *status);

/**
 * How many commands went to the daemon so far: of the whole VM in loopback, elsewhere of this process. User-mode
 * submission does not move it. Does not block.
 */
enum campanile_result campanile_device_get_control_commands(const struct campanile_device *device,
                                                            uint64_t *count);

/**
 * Makes a context on `node`, a `CAMPANILE_NODE_…`. `CAMPANILE_NOT_SUPPORTED`, with the reason, where the node is
 * not available.
 */
enum campanile_result campanile_context_create(const struct campanile_device *device,
                                               uint32_t node_ordinal,
                                               struct campanile_context **context);

/**
 * Gives a context back; NULL is nothing. Its queues go on.
 */
void campanile_context_destroy(struct campanile_context *context);

/**
 * Suspends a context: when this returns, nothing of it is on the GPU, and nothing will be until it is resumed. Its queues
 * take work as before, and keep it. How often it was suspended so far is in `count`, which may be NULL.
 */
enum campanile_result campanile_context_suspend(const struct campanile_context *context,
                                                uint64_t *count);

/**
 * Lets a context run again, with what its queues got meanwhile.
 */
enum campanile_result campanile_context_resume(const struct campanile_context *context);

/**
 * Has a context scheduled so from the next scheduling decision on. `CAMPANILE_NOT_SUPPORTED`, with the reason, for a band that
 * the operator has not granted.
 */
enum campanile_result campanile_context_set_scheduling(const struct campanile_context *context,
                                                       const struct campanile_scheduling *scheduling);

/**
 * Sets the priority class of this process, a `CAMPANILE_CLASS_…`: for its contexts whose band was never set.
 * `CAMPANILE_NOT_SUPPORTED`, with the reason, for one that the operator has not granted.
 */
enum campanile_result campanile_device_set_process_class(const struct campanile_device *device,
                                                         uint32_t process_class);

/**
 * Makes a buffer of at least `size` bytes, zeroed, in `memory_kind`, a `CAMPANILE_MEMORY_…`.
 * `CAMPANILE_OUT_OF_RESOURCES` where that memory, the aperture or the address space is full.
 */
enum campanile_result campanile_buffer_create(const struct campanile_device *device,
                                              uint32_t memory_kind,
                                              uint64_t size,
                                              struct campanile_buffer **buffer);

/**
 * Frees a buffer; NULL is nothing. Pointers into it are dead from here on; work that still uses it faults, and the
 * device is lost.
 */
void campanile_buffer_destroy(struct campanile_buffer *buffer);

/**
 * Bytes of the buffer, a multiple of 4096; 0 for NULL.
 */
uint64_t campanile_buffer_size(const struct campanile_buffer *buffer);

/**
 * GPU virtual address of the first byte, never 0; 0 for NULL.
 */
uint64_t campanile_buffer_va(const struct campanile_buffer *buffer);

/**
 * The number of the buffer's virtio-gpu resource, never 0; 0 for NULL.
 */
uint32_t campanile_buffer_resource_id(const struct campanile_buffer *buffer);

/**
 * Where the CPU sees the bytes `offset` to `offset + length`: they may be read and written there at any time until
 * the buffer is destroyed, and there is nothing to unmap. Device and CPU see each other's stores in the order of
 * fences: read results after a wait said `CAMPANILE_OK`. `CAMPANILE_NOT_SUPPORTED` where the bytes are not in one
 * piece for the CPU; a range within one page of 4096 bytes always is.
 */
enum campanile_result campanile_buffer_map(const struct campanile_buffer *buffer,
                                           uint64_t offset,
                                           uint64_t length,
                                           void **pointer);

/**
 * Copies `size` bytes out, from `offset` on. On failure `bytes` may have been overwritten.
 *
 * Safety: `bytes` is NULL, or room for `size` bytes that nothing else uses meanwhile.
 */
enum campanile_result campanile_buffer_read(const struct campanile_buffer *buffer,
                                            uint64_t offset,
                                            void *bytes,
                                            size_t size);

/**
 * Copies `size` bytes in, from `offset` on.
 *
 * Safety: `bytes` is NULL, or `size` bytes lie there that are not changed meanwhile.
 */
enum campanile_result campanile_buffer_write(const struct campanile_buffer *buffer,
                                             uint64_t offset,
                                             const void *bytes,
                                             size_t size);

/**
 * The bytes `offset` (a multiple of 256) to `offset + length` (a multiple of 4) as binding number `slot` of a kernel.
 * `length` may be `CAMPANILE_WHOLE`. Does not block.
 */
enum campanile_result campanile_buffer_bind(const struct campanile_buffer *buffer,
                                            uint32_t slot,
                                            uint64_t offset,
                                            uint64_t length,
                                            struct campanile_binding *binding);

/**
 * Makes a buffer of at least `size` bytes, zeroed, that the CPU does not see. Where memory is short it lies in host
 * memory for a while, and comes back, contents preserved, when the GPU needs it. `CAMPANILE_OUT_OF_RESOURCES` where the
 * VM's quota, or what the host gives to all, is used up.
 */
enum campanile_result campanile_local_buffer_create(const struct campanile_device *device,
                                                    uint64_t size,
                                                    struct campanile_local_buffer **buffer);

/**
 * Frees a buffer; NULL is nothing. Work that still uses it faults, and the device is lost.
 */
void campanile_local_buffer_destroy(struct campanile_local_buffer *buffer);

/**
 * Bytes of the buffer, a multiple of 4096; 0 for NULL.
 */
uint64_t campanile_local_buffer_size(const struct campanile_local_buffer *buffer);

/**
 * GPU virtual address of the first byte, never 0; 0 for NULL.
 */
uint64_t campanile_local_buffer_va(const struct campanile_local_buffer *buffer);

/**
 * All of the buffer as binding number `slot` of a kernel. Does not block.
 */
enum campanile_result campanile_local_buffer_bind(const struct campanile_local_buffer *buffer,
                                                  uint32_t slot,
                                                  struct campanile_binding *binding);

/**
 * Has `count` buffers, 1 to 1024, brought to where the GPU reaches them, and held there until `campanile_device_evict`
 * is called for each as often. Where there is no room, and none can be made, waits until others let go, or, where
 * `may_wait` is false, says `CAMPANILE_OUT_OF_RESOURCES`, as it does where they never fit.
 *
 * Safety: `buffers` is NULL, or `count` pointers to buffers lie there.
 */
enum campanile_result campanile_device_make_resident(const struct campanile_device *device,
                                                     const struct campanile_local_buffer *const *buffers,
                                                     size_t count,
                                                     bool may_wait);

/**
 * Lets go of `count` buffers, 1 to 1024, that were made resident. They are moved out when others need the room, or at
 * once where `now` is true.
 *
 * Safety: `buffers` is NULL, or `count` pointers to buffers lie there.
 */
enum campanile_result campanile_device_evict(const struct campanile_device *device,
                                             const struct campanile_local_buffer *const *buffers,
                                             size_t count,
                                             bool now);

/**
 * Sets how late `count` buffers, 1 to 1024, are evicted: `CAMPANILE_PRIORITY_MINIMUM` to `…_MAXIMUM`. A hint.
 *
 * Safety: `buffers` is NULL, or `count` pointers to buffers lie there.
 */
enum campanile_result campanile_device_set_priority(const struct campanile_device *device,
                                                    const struct campanile_local_buffer *const *buffers,
                                                    size_t count,
                                                    uint32_t priority);

/**
 * Bytes of video memory that the VM can have as things are, what it has included; 0 for NULL. Costs a load: the daemon
 * stores it when other VMs have taken or given back a good part of what all share.
 */
uint64_t campanile_device_budget(const struct campanile_device *device);

/**
 * Asks how the memory of the VM stands.
 */
enum campanile_result campanile_device_get_memory_info(const struct campanile_device *device,
                                                       struct campanile_memory_info *info);

/**
 * Compiles WGSL text; returns when the kernel is ready to run. `entry` names the entry point where there are several,
 * and may be NULL. `CAMPANILE_KERNEL_REFUSED`, with the reason, for one that is wrong or passes a limit.
 *
 * Safety: `text` is NULL or a string, and so is `entry`; `kernel` is NULL or room for a pointer.
 */
enum campanile_result campanile_kernel_create_wgsl(const struct campanile_device *device,
                                                   const char *text,
                                                   const char *entry,
                                                   struct campanile_kernel **kernel);

/**
 * Compiles `size` bytes of SPIR-V; otherwise as `campanile_kernel_create_wgsl`.
 *
 * Safety: `words` is NULL or points to `size` bytes; `entry` is NULL or a string; `kernel` is NULL or room for a pointer.
 */
enum campanile_result campanile_kernel_create_spirv(const struct campanile_device *device,
                                                    const void *words,
                                                    size_t size,
                                                    const char *entry,
                                                    struct campanile_kernel **kernel);

/**
 * Frees a kernel; NULL is nothing. Wait for the work that uses it first.
 */
void campanile_kernel_destroy(struct campanile_kernel *kernel);

/**
 * What is known of a kernel. Does not block.
 */
enum campanile_result campanile_kernel_get_info(const struct campanile_kernel *kernel,
                                                struct campanile_kernel_info *info);

/**
 * Makes an empty command buffer. Submitted like that, it does nothing but reach its fence point. Does not block, and
 * needs no device.
 */
enum campanile_result campanile_commands_create(struct campanile_commands **commands);

/**
 * Makes a command buffer of packets that were made elsewhere. They are copied, and not checked: the engine does that.
 *
 * Safety: `packets` is NULL or points to `size` bytes; `commands` is NULL or room for a pointer.
 */
enum campanile_result campanile_commands_create_from_packets(const void *packets,
                                                             size_t size,
                                                             struct campanile_commands **commands);

/**
 * Frees a command buffer; NULL is nothing. What was submitted was a copy.
 */
void campanile_commands_destroy(struct campanile_commands *commands);

/**
 * The packets and how many bytes they are; each of `packets` and `size` may be NULL. The pointer is valid until the
 * command buffer is changed or destroyed.
 */
enum campanile_result campanile_commands_get_packets(const struct campanile_commands *commands,
                                                     const void **packets,
                                                     size_t *size);

/**
 * Removes all packets.
 */
enum campanile_result campanile_commands_clear(struct campanile_commands *commands);

/**
 * Copies `size` bytes between GPU addresses; the ranges may not overlap.
 */
enum campanile_result campanile_commands_copy(struct campanile_commands *commands,
                                              uint64_t source_va,
                                              uint64_t target_va,
                                              uint64_t size);

/**
 * Fills `size` bytes, a multiple of 4, with `value`.
 */
enum campanile_result campanile_commands_fill(struct campanile_commands *commands,
                                              uint64_t target_va,
                                              uint64_t size,
                                              uint32_t value);

/**
 * Runs a kernel over `x` * `y` * `z` thread groups.
 *
 * Safety: `dispatch` is NULL, or its pointers are NULL or to as many items as it says.
 */
enum campanile_result campanile_commands_dispatch(struct campanile_commands *commands,
                                                  const struct campanile_dispatch *dispatch,
                                                  uint32_t x,
                                                  uint32_t y,
                                                  uint32_t z);

/**
 * Runs a kernel over the grid that is found at `groups_va` (three 32-bit words: x, y, z) when its turn comes.
 *
 * Safety: `dispatch` is NULL, or its pointers are NULL or to as many items as it says.
 */
enum campanile_result campanile_commands_dispatch_indirect(struct campanile_commands *commands,
                                                           const struct campanile_dispatch *dispatch,
                                                           uint64_t groups_va);

/**
 * What follows sees all that came before.
 */
enum campanile_result campanile_commands_barrier(struct campanile_commands *commands);

/**
 * Stores `value` at the 64-bit word at `va` after all that came before.
 */
enum campanile_result campanile_commands_signal(struct campanile_commands *commands,
                                                uint64_t va,
                                                uint64_t value);

/**
 * Goes on once the 64-bit word at `va` is `value` or more; meanwhile other queues run.
 */
enum campanile_result campanile_commands_wait(struct campanile_commands *commands,
                                              uint64_t va,
                                              uint64_t value);

/**
 * Stores the host's monotonic nanoseconds at the 64-bit word at `va`.
 */
enum campanile_result campanile_commands_timestamp(struct campanile_commands *commands, uint64_t va);

/**
 * Does nothing.
 */
enum campanile_result campanile_commands_nop(struct campanile_commands *commands);

/**
 * Gives a fence point back; NULL is nothing. What it stands for goes on.
 */
void campanile_fence_point_destroy(struct campanile_fence_point *point);

/**
 * How many submissions of its queue have come when it is reached; 0 for NULL.
 */
uint64_t campanile_fence_point_value(const struct campanile_fence_point *point);

/**
 * Whether it is reached: one load from memory. A lost device never reaches it, see `campanile_device_check`.
 */
enum campanile_result campanile_fence_point_poll(const struct campanile_fence_point *point, bool *reached);

/**
 * Polls until it is reached, and keeps a CPU busy meanwhile: the shortest wait. `CAMPANILE_DEVICE_LOST` or
 * `CAMPANILE_DISCONNECTED` where it never will be.
 */
enum campanile_result campanile_fence_point_spin(const struct campanile_fence_point *point);

/**
 * Waits until it is reached: polls for 50 µs and then sleeps. `timeout_ns` is in nanoseconds, or
 * `CAMPANILE_NO_TIMEOUT`; 0 only looks. `CAMPANILE_TIMEOUT` when the time was over first; `CAMPANILE_DEVICE_LOST` or
 * `CAMPANILE_DISCONNECTED` where it never will be reached.
 */
enum campanile_result campanile_fence_point_wait(const struct campanile_fence_point *point,
                                                 uint64_t timeout_ns);

/**
 * Makes a queue that is fed through its doorbell, without the daemon. `options` may be NULL for the defaults.
 */
enum campanile_result campanile_user_queue_create(const struct campanile_context *context,
                                                  const struct campanile_user_queue_options *queue_options,
                                                  struct campanile_user_queue **queue);

/**
 * Ends a queue; NULL is nothing. Waits up to 10 s for what was submitted.
 */
void campanile_user_queue_destroy(struct campanile_user_queue *queue);

/**
 * Submits a copy of `commands` by stores alone, unless the doorbell must be connected first. Waits only when the ring
 * or the room for packets is full. `point` may be NULL; there goes the point that is reached when the work is done.
 */
enum campanile_result campanile_user_queue_submit(struct campanile_user_queue *queue,
                                                  const struct campanile_commands *commands,
                                                  struct campanile_fence_point **point);

/**
 * As `campanile_user_queue_submit`, with `length` bytes of packets that lie in GPU memory, at `va`, already. They must
 * stay there until the point is reached.
 */
enum campanile_result campanile_user_queue_submit_at(struct campanile_user_queue *queue,
                                                     uint64_t va,
                                                     uint32_t length,
                                                     struct campanile_fence_point **point);

/**
 * The point that the last submission will reach; reached already where there was none. Does not block.
 */
enum campanile_result campanile_user_queue_last(const struct campanile_user_queue *queue,
                                                struct campanile_fence_point **point);

/**
 * Connects the doorbell now. A submission does so by itself where it is needed.
 */
enum campanile_result campanile_user_queue_connect(struct campanile_user_queue *queue);

/**
 * How often the doorbell was connected; 0 for NULL.
 */
uint64_t campanile_user_queue_reconnects(const struct campanile_user_queue *queue);

/**
 * The doorbell's status now, a `CAMPANILE_DOORBELL_…`. Does not block.
 */
enum campanile_result campanile_user_queue_get_doorbell(const struct campanile_user_queue *queue,
                                                        uint64_t *status);

/**
 * The memory of the ring, for programs that look at it themselves: the read pointer is the 64-bit word at byte 64,
 * entries begin at byte 4096. Each of `pointer`, `va` and `size` may be NULL. The pointer is valid until the queue is
 * destroyed.
 */
enum campanile_result campanile_user_queue_get_ring(const struct campanile_user_queue *queue,
                                                    void **pointer,
                                                    uint64_t *va,
                                                    uint64_t *size);

/**
 * Makes a queue that is fed through the daemon: always there, also where user-mode submission is not.
 */
enum campanile_result campanile_kernel_queue_create(const struct campanile_context *context,
                                                    struct campanile_kernel_queue **queue);

/**
 * Ends a queue; NULL is nothing. Waits for what was submitted.
 */
void campanile_kernel_queue_destroy(struct campanile_kernel_queue *queue);

/**
 * Submits a copy of `commands`. Waits for an earlier submission only when eight are under way. `ticket` may be NULL;
 * there goes the submission's number in this queue, from 1 on.
 */
enum campanile_result campanile_kernel_queue_submit(struct campanile_kernel_queue *queue,
                                                    const struct campanile_commands *commands,
                                                    uint64_t *ticket);

/**
 * Whether the submission `ticket` is done. Does not block.
 */
enum campanile_result campanile_kernel_queue_poll(const struct campanile_kernel_queue *queue,
                                                  uint64_t ticket,
                                                  bool *done);

/**
 * Waits until the submission `ticket` is done. `timeout_ns` is in nanoseconds, or `CAMPANILE_NO_TIMEOUT`, and counts
 * anew for each submission that is before it. `CAMPANILE_TIMEOUT` when the time was over first;
 * `CAMPANILE_DEVICE_LOST` when the packets broke a rule; another failure when the daemon refused them.
 */
enum campanile_result campanile_kernel_queue_wait(struct campanile_kernel_queue *queue,
                                                  uint64_t ticket,
                                                  uint64_t timeout_ns);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* CAMPANILE_H */
