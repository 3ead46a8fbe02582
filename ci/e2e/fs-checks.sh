# shellcheck shell=bash
# What ci/e2e-qemu tries on the fs front: machine f has a virtio-fs device, and its init has mounted it. The daemon serves the
# vGPU f beside those of ci/e2e/checks.sh.

# All of them, in their order.
readonly fs_checks=(fs_boot fs_info fs_conformance fs_picture fs_two_processes fs_killed_process fs_without_io_uring fs_bench
    fs_reset fs_power_off fs_lockdown)

# Runs a command in a guest as somebody without privileges.
readonly as_somebody='start-stop-daemon -S -c somebody -x /bin/campanile-guest --'

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

fs_conformance() {
    local claim="the conformance suite passes on the fs transport"
    if guest f 120 "$as_somebody selftest"; then
        pass "$claim ($(grep -c '^ok' <<<"$output") checks)"
    else
        fail "$claim" "$(grep -v '^ok' <<<"$output")"
    fi
}

fs_picture() { picture f "fs: the guest's Mandelbrot picture equals the host's, byte for byte"; }

fs_two_processes() {
    claim_guest f "fs: two guest processes with queues of their own at the same time are both right" '^both right' 60 \
        'sh /guest/two-processes'
}

fs_killed_process() {
    log_mark
    guest f 60 'sh /guest/kill' || fail "fs: two guest processes work until one is killed" "$output"
    local claim="fs: a guest process is killed at work: it ends, and its session with it, while the other works on"
    if guest f 5 'ps | grep -c "[c]ampanile-guest burn$"; true' && [ "$output" = 0 ] &&
        until_holds 4 "[ \$(log_count 'f: session [0-9]* closed') -eq 1 ]" && [ "$(log_count 'f: session [0-9]* opened')" -eq 2 ]; then
        pass "$claim"
    else
        fail "$claim" "$output processes; $(tail -n 3 "$scratch/daemon.log")"
    fi
    claim="fs: and all results of the other are right"
    if guest f 60 'sh /guest/survivor' && grep -q ' 0 wrong words$' <<<"$output" && grep -q '^ended with 0$' <<<"$output"; then
        pass "$claim ($(head -n 1 <<<"$output"))"
    else
        fail "$claim" "$output"
    fi
}

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

fs_bench() {
    local claim="fs: user mode is at least 5 times faster than kernel mode" times
    guest f 60 "campanile-guest bench --quick --json" || { fail "$claim" "$output"; return; }
    echo "$output" >"$scratch/bench-fs.json"
    times=$(sed -n 's/.*"user_mode_faster_by":\([0-9]*\).*/\1/p' <<<"$output")
    local figures
    figures=$(sed -n 's/.*"user_mode_round_trip_ns":{"p50":\([0-9]*\).*"kernel_mode_submit_ns":{"p50":\([0-9]*\).*"kernel_mode_round_trip_ns":{"p50":\([0-9]*\).*/\1 ns against \3 ns; SUBMIT alone \2 ns/p' <<<"$output")
    if [ "${times:-0}" -ge 5 ]; then pass "$claim ($times x: $figures)"; else fail "$claim" "$output"; fi
}

fs_reset() {
    local claim="fs: system_reset at work frees everything, and the next boot works"
    guest f 30 'sh /guest/busy' || true
    qmp f system_reset
    vm_ready f || { fail "$claim" "$(tail -n 1 "$scratch/f/qemu" "$scratch/f/console")"; return; }
    claim_guest f "$claim" "$squares_result" 30 "$squares"
}

fs_power_off() {
    local claim="fs: a machine powers off while processes hold pages"
    guest f 30 'sh /guest/busy' || true
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
