// Takes all of two CPUs for a while, by two processes, and then shared memory, which no rlimit counts, up to so much that a limit of its
// cgroup must have ended it. It stands where the dynamic loader was: the kernel starts it in place of the next engine, without
// arguments, a C library, or files. Where nothing ends it, it ends by itself, with status 99.
#include <linux/mman.h>
#include <sys/syscall.h>
#include <time.h>

#define MIB (1L << 20)
#define MOST (192 * MIB)
#define PAGE 4096
#define SECONDS 2
#define SIGCHLD_FLAG 17
#define READ_WRITE 3

static long call(long number, long a, long b, long c, long d, long e, long f) {
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static long seconds(void) {
    struct timespec now;
    call(SYS_clock_gettime, CLOCK_MONOTONIC, (long)&now, 0, 0, 0, 0);
    return now.tv_sec;
}

void _start(void) {
    // Without a stack of its own: as `fork`.
    long child = call(SYS_clone, SIGCHLD_FLAG, 0, 0, 0, 0, 0);
    for (long begun = seconds(); seconds() - begun <= SECONDS;) {
    }
    if (child == 0) call(SYS_exit_group, 0, 0, 0, 0, 0, 0);
    call(SYS_wait4, child, 0, 0, 0, 0, 0);
    volatile char *memory = (volatile char *)call(SYS_mmap, 0, MOST, READ_WRITE,
                                                  MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if ((long)memory > 0)
        for (long at = 0; at < MOST; at += PAGE) memory[at] = 1;
    call(SYS_exit_group, 99, 0, 0, 0, 0, 0);
}
