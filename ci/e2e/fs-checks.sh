# shellcheck shell=bash
# What ci/e2e-qemu tries on the fs front: machine f has a virtio-fs device, and its init has mounted it. The daemon serves the
# vGPU f beside those of ci/e2e/checks.sh.

# All of them, in their order.
readonly fs_checks=(fs_boot fs_info fs_conformance fs_vulkan fs_picture fs_two_processes fs_children fs_unmapped fs_killed_process
    fs_without_io_uring fs_bench fs_reset fs_power_off fs_lockdown fs_aperture fs_restart)

# Runs a command in a guest as somebody without privileges.
readonly somebody_runs='start-stop-daemon -S -c somebody -x'
readonly as_somebody="$somebody_runs /bin/campanile-guest --"

fs_boot() {
    log_mark
    vm_start_fs f "$scratch/f.sock"
    vm_ready f || { fail "a machine with a virtio-fs device boots" "$(cat "$scratch/f/qemu" "$scratch/f/console")"; return 1; }
    claim_guest f "fs: the stock virtiofs driver shows one file" '^gpu crw-rw-rw-\|^gpu -rw-rw-rw-' 10 \
        'ls -l /gpu | tail -n +2 | while read -r mode links user group size month day time name; do echo "$name $mode"; done'
}

fs_info() {
    claim_guest f "fs: info names the file" '^device  *.*/gpu/gpu, no aperture' 30 'campanile-guest info'
    claim_guest f "fs: somebody without any privilege computes" "$squares_result" 30 "$as_somebody ${squares#* }"
}

fs_conformance() { conformance_of f "the conformance suite passes on the fs transport" "$as_somebody"; }

fs_vulkan() {
    vulkan_summary f "fs: "
    vulkan_program f "fs: " "$somebody_runs /bin/vulkan-squares --"
}

fs_picture() { picture f "fs: the guest's Mandelbrot picture equals the host's, byte for byte"; }

fs_two_processes() {
    claim_guest f "fs: two guest processes with queues of their own at the same time are both right" '^both right' 60 \
        'sh /guest/two-processes'
}

# A child has its parent's pages, which the GPU writes to, and its files: it is nobody of its own to the daemon.
fs_children() {
    log_mark
    claim_guest f "fs: children after fork write, unmap, run another program, are killed: their parent works on, and is right" \
        '^the parent.s results are right' 60 "$somebody_runs /bin/misuse -- fork"
    local claim="fs: and they were one session, which ends with the last"
    if until_holds 10 "[ \$(log_count 'f: session [0-9]* closed') -eq 1 ]" && [ "$(log_count 'f: session [0-9]* opened')" -eq 1 ]; then
        pass "$claim"
    else
        fail "$claim" "$(tail -n 3 "$scratch/daemon.log")"
    fi
}

fs_unmapped() {
    log_mark
    guest f 5 'rm -f one; campanile-guest burn --seconds 4 >one 2>&1 & echo begun'
    guest f 60 "misuse unmap; echo ended with \$?"
    local claim="fs: a process that unmaps what the GPU has dies over it, and is the only one"
    if grep -q '^the GPU still writes' <<<"$output" && grep -q '^ended with 139' <<<"$output" &&
        until_holds 10 "[ \$(log_count 'f: session [0-9]* closed') -ge 1 ]"; then
        pass "$claim ($(grep '^unmapped' <<<"$output"))"
    else
        fail "$claim" "$output"
    fi
    claim_guest f "fs: the process beside it computes on" '^burnt .* 0 wrong' 60 \
        'until grep -q -E "burnt|campanile-guest:" one 2>/dev/null; do usleep 20000; done; cat one'
    until_holds 10 "[ \$(log_count 'f: session [0-9]* closed') -eq 2 ]" || fail "fs: both sessions end" "$(tail -n 3 "$scratch/daemon.log")"
}

fs_killed_process() { kill_one f session "fs: "; }

# io_uring is switched off on many machines.
fs_without_io_uring() {
    guest f 10 'echo 2 >/proc/sys/kernel/io_uring_disabled'
    claim_guest f "fs: without io_uring helper processes hold the reads, and results are right" "$squares_result" 30 \
        "$as_somebody ${squares#* }"
    claim_guest f "fs: none of them is left afterwards" '^none$' 20 \
        'n=0; while ps | grep -q "[c]ampanile-guest"; do n=$((n + 1)); [ $n -lt 200 ] || { ps; exit 1; }; usleep 50000; done; echo none'
    fs_killed_process
    guest f 10 'echo 0 >/proc/sys/kernel/io_uring_disabled'
}

fs_bench() { faster f "fs: user mode is at least 5 times faster than kernel mode" bench-fs.json; }

fs_reset() {
    local claim="fs: system_reset at work frees everything, and the next boot works"
    guest f 30 'sh /guest/busy' || true
    qmp f system_reset
    vm_ready f || { fail "$claim" "$(tail -n 1 "$scratch/f/qemu" "$scratch/f/console")"; return; }
    claim_guest f "$claim" "$squares_result" 30 "$squares"
}

fs_power_off() {
    local claim="fs: a machine powers off while processes hold pages, which one of them has unmapped"
    guest f 30 'sh /guest/busy' || true
    guest f 30 'misuse hold >held 2>&1 & until grep -q "^the GPU still writes" held; do usleep 20000; done' || fail "$claim" "$output"
    vm_runs f || { fail "$claim" "it has ended already"; return; }
    log_mark
    guest f 5 'poweroff -f' || true
    if vm_ended f 20; then pass "$claim"; else fail "$claim" "$(tail -n 1 "$scratch/f/console")"; vm_kill f; fi
    claim_log "fs: and its vGPU is let go of" 'f.sock: the front-end has hung up' 20
}

# As with Secure Boot: no BAR can be mapped, and none is needed.
fs_lockdown() {
    vm_append=lockdown=integrity
    vm_start_fs f "$scratch/f.sock"
    vm_append=
    vm_ready f || { fail "fs: a machine under lockdown boots" "$(cat "$scratch/f/qemu" "$scratch/f/console")"; return; }
    claim_guest f "fs: the kernel is locked down" '\[integrity\]' 10 \
        'mount -t securityfs security /sys/kernel/security; cat /sys/kernel/security/lockdown'
    claim_guest f "fs: and somebody without any privilege computes" "$squares_result" 30 "$as_somebody ${squares#* }"
    vm_kill f
}

fs_aperture() {
    vm_start_fs g "$scratch/g.sock" -object memory-backend-memfd,id=vram,size=32M,share=on -device ivshmem-plain,memdev=vram,master=on
    vm_ready g || { fail "fs: a machine with an aperture boots" "$(cat "$scratch/g/qemu" "$scratch/g/console")"; return; }
    claim_guest g "fs: somebody may have the aperture, without any other privilege" 'aperture /sys/bus/pci/devices/.*resource2_wc' 30 \
        "for device in /sys/bus/pci/devices/*; do [ \"\$(cat \$device/device)\" != 0x1110 ] || chmod 666 \$device/resource2_wc; done; $as_somebody info"
    conformance_of g "the conformance suite passes on the fs transport with an aperture" "$as_somebody"
    vulkan_program g "fs with an aperture: " "$somebody_runs /bin/vulkan-squares --"
    vm_kill g
}

# QEMU does not connect anew: what a daemon had is gone with it, whoever asks for it waits in the guest's kernel, and the machine
# has to begin anew with the next daemon.
fs_restart() {
    local claim="fs: a daemon that is killed under a guest takes its GPU, and not the guest"
    [ ! -e "$scratch/f/pid" ] || vm_kill f
    vm_start_fs f "$scratch/f.sock"
    vm_ready f || { fail "fs: a machine boots" "$(cat "$scratch/f/qemu" "$scratch/f/console")"; return; }
    guest f 30 'sh /guest/busy' || true
    daemon_stop daemon KILL
    if guest f 10 'echo here' && [ "$output" = here ]; then pass "$claim"; else fail "$claim" "$output"; fi
    serve_all || { fail "fs: the daemon starts again" "$(cat "$scratch/daemon.log")"; return; }
    vm_kill f
    vm_start_fs f "$scratch/f.sock"
    claim="fs: and the machine computes when it was started again"
    vm_ready f || { fail "$claim" "$(cat "$scratch/f/qemu" "$scratch/f/console")"; return; }
    claim_guest f "$claim" "$squares_result" 30 "$squares"
    vm_kill f
}
