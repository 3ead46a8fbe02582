// A library for cloud-hypervisor to load first, on hosts whose KVM only emulates.
//
// There KVM_GET_NESTED_STATE is EINVAL, and cloud-hypervisor takes no snapshot. A processor that knows no virtualisation has no
// nested state; this says so. All else goes to the kernel as it is.

#define _GNU_SOURCE
#include <errno.h>
#include <linux/kvm.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int ioctl(int descriptor, unsigned long request, ...) {
    va_list arguments;
    va_start(arguments, request);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    long result = syscall(SYS_ioctl, descriptor, request, argument);
    if (result < 0 && errno == EINVAL && request == KVM_GET_NESTED_STATE) {
        struct kvm_nested_state *state = argument;
        state->flags = 0;
        state->format = 0;
        state->size = sizeof(*state);
        return 0;
    }
    return (int)result;
}
