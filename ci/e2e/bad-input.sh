# shellcheck shell=bash
# Mistakes in starting daemon, VMM and guest, for ci/e2e-qemu to source: each must be diagnosed in one line that says
# what to change, by QEMU, the daemon's log, or the guest's tool.

# Says whether a file gets a line like PATTERN, and shows it.
#   claim_line CLAIM FILE PATTERN SECONDS
claim_line() {
    local found
    if until_holds "$4" "tail -n +$log_start '$2' | grep -q -- '$3'"; then
        found=$(tail -n "+$log_start" "$2" | grep -m 1 -- "$3" | sed 's/^.*qemu-system-x86_64: //; s/^\[[^]]*\] //' | cut -c1-200)
        pass "$1: $found"
    else
        fail "$1" "$(tail -n 2 "$2")"
    fi
}

# A machine with a wrong command line, of which a line is expected somewhere.
#   wrong_machine CLAIM FILE PATTERN DEVICE-SETTINGS [SHARE]
wrong_machine() {
    log_start=1
    [ "$2" != "$scratch/daemon.log" ] || log_mark
    vm_start wrong "$scratch/b.sock" "$4" "${5:-on}"
    claim_line "$1" "$2" "$3" 30
    vm_kill wrong
}

wrong_command_lines() {
    local log=$scratch/daemon.log
    wrong_machine "config_size=24" "$log" 'set config_size=16' virtio-id=16,num_vqs=2,config_size=24,vq_size=256
    wrong_machine "config_size=8" "$log" 'set config_size=16' virtio-id=16,num_vqs=2,config_size=8,vq_size=256
    wrong_machine "num_vqs=1" "$log" 'set num_vqs=2' virtio-id=16,num_vqs=1,config_size=16,vq_size=256
    wrong_machine "num_vqs=3" "$log" 'set num_vqs=2' virtio-id=16,num_vqs=3,config_size=16,vq_size=256
    wrong_machine "share=off" "$scratch/wrong/qemu" 'share=on' virtio-id=16,num_vqs=2,config_size=16,vq_size=256 off
    vm_start wrong "$scratch/b.sock" virtio-id=41,num_vqs=2,config_size=16,vq_size=256
    if vm_ready wrong; then
        guest wrong 10 "campanile-guest info" || true
        if grep -q "virtio-id=16" <<<"$output"; then
            pass "virtio-id=41: $output"
        else
            fail "virtio-id=41" "$output"
        fi
    else
        fail "virtio-id=41" "$(tail -n 1 "$scratch/wrong/console")"
    fi
    vm_kill wrong
}

other_version() {
    guest a 10 "campanile-guest --claim-protocol 2 bench --quick" || true
    if grep -q 'install the program that came with the daemon' <<<"$output"; then
        pass "a guest with another protocol version: $output"
    else
        fail "a guest with another protocol version" "$output"
    fi
}

bad_input() {
    wrong_command_lines

    log_start=1
    vm_start wrong "$scratch/nobody.sock"
    claim_line "a daemon that is started after QEMU" "$scratch/wrong/qemu" 'Failed to connect' 10
    vm_kill wrong

    # The daemon dies under machine a, and leaves its socket files behind.
    local claim="a daemon that ends before QEMU"
    kill -KILL "$daemon_pid"
    wait "$daemon_pid" 2>/dev/null
    guest a 30 "campanile-guest info" || true
    if grep -q 'the daemon on the host has ended' <<<"$output" && vm_runs a; then
        pass "$claim: $output"
    else
        fail "$claim" "$output; $(tail -n 1 "$scratch/a/qemu")"
    fi
    vm_kill a
    log_start=1
    vm_start wrong "$scratch/a.sock"
    claim_line "a stale socket, seen by QEMU" "$scratch/wrong/qemu" 'Connection refused' 10
    vm_kill wrong
    if daemon_start "${daemon_settings[@]}" --no-window --vgpu "name=a,socket=$scratch/a.sock,vram=64M" \
        --vgpu "name=b,socket=$scratch/b.sock,vram=64M"; then
        claim_line "a stale socket, seen by the daemon" "$scratch/daemon.log" 'no daemon serves this socket; replaced' 5
    else
        fail "a stale socket, seen by the daemon" "$(tail -n 1 "$scratch/daemon.log")"
    fi
}

# A VMM that can show no window, as QEMU 10.2: the daemon runs with --no-window here.
without_window() {
    local claim="without a window the guest's buffers lie in its own memory, with the same API"
    boot a "$scratch/a.sock" || return
    guest a 30 "campanile-guest info" || true
    grep -q '0 MiB of it visible' <<<"$output" || { fail "$claim" "$output"; return; }
    if guest a 60 "campanile-guest selftest"; then
        pass "$claim ($(grep -c '^ok' <<<"$output") checks of the suite)"
    else
        fail "$claim" "$(grep -v '^ok' <<<"$output")"
    fi
    picture a "and the picture is the same"
    vulkan_program a "without a window: "
    vm_kill a
}
