# shellcheck shell=bash
# What ci/e2e-qemu tries. Every function prints PASS or FAIL lines and leaves machine and daemon as the next one
# expects them: the daemon serves the vGPUs a and b, of 64 MiB each, and machine a runs on the first.

# Engines stay awake for the length of a check, however busy the host is: a sleep would send a message.
readonly daemon_settings=(--doorbells 7 --spin 200000)

# Says whether the daemon's log gets a line like PATTERN since the mark.
#   claim_log CLAIM PATTERN SECONDS
claim_log() {
    if until_holds "$3" "log_has '$2'"; then pass "$1"; else fail "$1" "$(tail -n 3 "$scratch/daemon.log")"; fi
}

# Boots a machine, or says that it does not.
#   boot NAME SOCKET
boot() {
    vm_start "$1" "$2"
    vm_ready "$1" || { fail "machine $1 boots" "$(cat "$scratch/$1/qemu" "$scratch/$1/console")"; return 1; }
}

readonly squares='campanile-guest run /squares.wgsl --groups 1 --buffer 0:bytes=256,show=u32'
readonly squares_result='^buffer 0: 0 1 4 9 16 25 36'

first_result() {
    local claim="a kernel's first result comes after boot" begun=${EPOCHREALTIME/./}
    boot a "$scratch/a.sock" || return 1
    guest a 30 "$squares" && grep -q "$squares_result" <<<"$output" || { fail "$claim" "$output"; return 1; }
    # A figure for whoever reads it, not a limit: how long a boot takes is the host's affair.
    pass "$claim ($(((${EPOCHREALTIME/./} - begun) / 1000)) ms since the machine was started)"
}

driver() {
    claim_guest a "the stock driver binds: card0 and renderD128, capset 24, a window of 32 MiB" \
        'card0,renderD128,24,0x2000000' 10 \
        "dmesg >log; echo \$(ls /dev/dri | tr '\n' ',')\$(sed -n 's/.*cap set 0: id \([0-9]*\).*/\1/p' log),\$(sed -n 's/.*memory window: .* +\(0x[0-9a-f]*\)/\1/p' log)"
}

unprivileged() {
    claim_guest a "a user who may not open the render node is told so" \
        'renderD128: permission denied; add this user to the node.s group' 10 \
        'chmod 600 /dev/dri/renderD128; start-stop-daemon -S -c somebody -x /bin/campanile-guest -- info; true'
    claim_guest a "and one who may needs no other privilege" "$squares_result" 30 \
        "chmod 666 /dev/dri/renderD128; start-stop-daemon -S -c somebody -x /bin/campanile-guest -- ${squares#* }"
}

info() {
    local claim="info agrees with the daemon: memory, nodes, doorbells, protocol" node=available
    log_start=1
    log_has 'compute node: ' || node='not available'
    guest a 30 "campanile-guest info"
    if grep -q '^video memory  64 MiB, 32 MiB of it' <<<"$output" &&
        grep -q "^node 0 .*compute, $node.* 7 doorbells" <<<"$output" &&
        grep -q '^node 1 .*copy, available.* 7 doorbells' <<<"$output" &&
        grep -q '^protocol      daemon \([0-9]*\.[0-9]*\), tool \1$' <<<"$output"; then
        pass "$claim"
    else
        fail "$claim" "$output"
    fi
}

# The suite wants a vGPU of its own: some checks count commands.
#   conformance_of NAME CLAIM PROGRAM…
conformance_of() {
    local name=$1 claim=$2
    shift 2
    if guest "$name" 120 "$* selftest"; then
        pass "$claim ($(grep -c '^ok' <<<"$output") checks)"
    else
        fail "$claim" "$(grep -v '^ok' <<<"$output")"
    fi
}

conformance() {
    conformance_of a "the conformance suite passes on the drm transport" campanile-guest
    local claim="and on loopback, on the same daemon"
    if output=$("$guest_tool" --socket "$scratch/b.sock" selftest 2>&1); then
        pass "$claim ($(grep -c '^ok' <<<"$output") checks)"
    else
        fail "$claim" "$(grep -v '^ok' <<<"$output")"
    fi
}

c_example() {
    claim_guest a "the C example, linked statically, runs in the guest" '^1024 squares are right' 30 squares
}

# Has a guest render, and compares its file with the host's.
#   picture NAME CLAIM
picture() {
    local name=$1 claim=$2 bytes
    if [ ! -e "$scratch/host.png" ]; then
        "$guest_tool" --socket "$scratch/b.sock" mandelbrot "$scratch/host.png" >"$scratch/host.out" 2>&1 ||
            { fail "$claim" "on the host: $(cat "$scratch/host.out")"; return; }
    fi
    guest "$name" 60 "campanile-guest mandelbrot m.png && cat m.png >/dev/ttyS2" || { fail "$claim" "$output"; return; }
    bytes=$(stat --format %s "$scratch/host.png")
    until_holds 20 "[ \$(stat --format %s '$scratch/$name/data') -ge $bytes ]" || true
    if cmp "$scratch/host.png" "$scratch/$name/data" >"$scratch/cmp" 2>&1; then
        pass "$claim ($bytes bytes)"
    else
        fail "$claim" "$(cat "$scratch/cmp")"
    fi
}

mandelbrot() { picture a "the guest's Mandelbrot picture equals the host's, byte for byte"; }

two_processes() {
    claim_guest a "two guest processes with queues of their own at the same time are both right" '^both right' 60 \
        'sh /guest/two-processes'
}

trespass() {
    local claim="a process that reaches into another's buffer gets an error or its own data"
    if guest a 60 'sh /guest/trespass' && grep -q '^by its name: refused' <<<"$output" &&
        grep -q 'not mapped: device lost' <<<"$output" && grep -q '^the secret is intact' <<<"$output"; then
        pass "$claim ($(sed -n 's/^by its address.*: /its address shows: /p' <<<"$output"))"
    else
        fail "$claim" "$output"
    fi
}

# Says whether a program of machine a, which ends when it is told to or by itself, submits without a message. Its last line begins
# with how often it did.
#   no_messages_of CLAIM PROGRAM…
no_messages_of() {
    local claim=$1 lines
    shift
    guest a 30 "sh /guest/steady $*" || { fail "$claim" "$output"; return; }
    mapfile -t lines <<<"$output"
    if [ "${#lines[@]}" -eq 5 ] && [ "${lines[0]}" = "${lines[2]}" ] && [ "${lines[1]}" = "${lines[3]}" ] &&
        [ "${lines[4]%% *}" -ge 100 ]; then
        pass "$claim (${lines[4]}; fences of the whole VM before and after: ${lines[0]})"
    else
        fail "$claim" "$output"
    fi
}

no_messages() { no_messages_of "no control-queue message while user-mode work flows" campanile-guest bench --steady 2; }

# Has a machine measure round trips, up to three times where the host was busy: the guest polls, on CPUs that it may have to share.
#   faster MACHINE CLAIM FILE
faster() {
    local name=$1 claim=$2 times=0 figures
    median() { sed -n "s/.*\"$1\":{\"p50\":\([0-9]*\).*/\1/p" <<<"$output"; }
    for _ in 1 2 3; do
        guest "$name" 60 "campanile-guest bench --quick --json" || { fail "$claim" "$output"; return; }
        echo "$output" >"$scratch/$3"
        times=$(sed -n 's/.*"user_mode_faster_by":\([0-9]*\).*/\1/p' <<<"$output")
        figures="$times x: $(median user_mode_round_trip_ns) ns against $(median kernel_mode_round_trip_ns) ns"
        figures+="; submission alone $(median kernel_mode_submit_ns) ns"
        if [ "${times:-0}" -ge 5 ]; then pass "$claim ($figures)"; return; fi
    done
    fail "$claim" "$figures"
}

bench() { faster a "in the guest user mode is at least 5 times faster than kernel mode" bench.json; }

# Two processes of a machine burn, one is killed, and the other works on. The log calls a process of that front WHAT.
#   kill_one MACHINE WHAT [PREFIX]
kill_one() {
    local name=$1 what=$2 prefix=${3:-} claim
    log_mark
    guest "$name" 60 'sh /guest/kill' || fail "${prefix}two guest processes work until one is killed" "$output"
    claim="${prefix}a guest process is killed at work: its $what ends while the other works on"
    if guest "$name" 5 'ps | grep -c "[c]ampanile-guest burn$"; true' && [ "$output" = 0 ] &&
        until_holds 4 "[ \$(log_count '$name: $what [0-9]* closed') -eq 1 ]" &&
        [ "$(log_count "$name: $what [0-9]* opened")" -eq 2 ]; then
        pass "$claim"
    else
        fail "$claim" "$output processes; $(tail -n 3 "$scratch/daemon.log")"
    fi
    claim="${prefix}and all results of the other are right"
    if guest "$name" 60 'sh /guest/survivor' && grep -q ' 0 wrong words$' <<<"$output" && grep -q '^ended with 0$' <<<"$output"; then
        pass "$claim ($(head -n 1 <<<"$output"))"
    else
        fail "$claim" "$output"
    fi
}

killed_process() {
    local before
    guest a 30 "campanile-guest fill" || true
    before=$output
    kill_one a context
    local claim="and the dead one's memory is free again"
    guest a 30 "campanile-guest fill" || true
    if [ "$output" = "$before" ]; then pass "$claim (${before%% then*})"; else fail "$claim" "$before; now $output"; fi
}

reset() {
    local claim="system_reset at work frees everything, and the next boot works" before
    guest a 30 "campanile-guest fill" || true
    before=$output
    guest a 30 'sh /guest/busy' || true
    log_mark
    qmp a system_reset
    vm_ready a || { fail "$claim" "$(tail -n 1 "$scratch/a/qemu" "$scratch/a/console")"; return; }
    log_has 'a: the guest has reset the device' || { fail "$claim" "the daemon did not see the reset"; return; }
    guest a 30 "campanile-guest fill" || true
    [ "$output" = "$before" ] || { fail "$claim" "$before; now $output"; return; }
    claim_guest a "$claim" "$squares_result" 30 "$squares"
}

two_machines() {
    local claim="two machines on one daemon are both right at the same time"
    boot b "$scratch/b.sock" || return
    guest b 5 'rm -f one; campanile-guest burn --seconds 3 >one 2>&1 & echo begun'
    if guest a 30 'campanile-guest burn --seconds 3' && grep -q '^burnt .* 0 wrong' <<<"$output"; then
        claim_guest b "$claim" '^burnt .* 0 wrong' 30 \
            'until grep -q -E "burnt|campanile-guest:" one 2>/dev/null; do usleep 20000; done; cat one'
    else
        fail "$claim" "a: $output"
    fi
    picture b "the second machine's picture is the same"
    log_mark
    guest b 5 'poweroff -f' || true
    claim_log "a machine that powers off lets go of its vGPU" 'b.sock: the front-end has hung up' 20
}

# Asks the daemon's operator interface.
ctl() { "$campanile" ctl --control "$scratch/control" "$@" 2>&1; }

power() {
    local claim="D3 ends the engine processes of a machine, and its next submission wakes it" before
    guest a 30 "$squares" || true
    before=$(engines)
    ctl power --vgpu a d3 >"$scratch/ctl" || { fail "$claim" "$(cat "$scratch/ctl")"; return; }
    # A process that was killed is buried a moment later.
    if until_holds 20 "[ \$(engines) -lt $before ]" && guest a 30 "$squares" && grep -q "$squares_result" <<<"$output"; then
        pass "$claim ($before engine processes, $(engines) after it)"
    else
        fail "$claim" "$(engines) engine processes of $before; $output"
    fi
    claim="a machine that is sent to D3 and back at work computes on"
    guest a 5 'rm -f one; campanile-guest burn --seconds 3 >one 2>&1 & echo begun'
    for _ in 1 2 3 4 5; do
        # The guest may be quick, and have woken it before the operator is told that it slept.
        ctl power --vgpu a d3 >"$scratch/ctl" || grep -q 'a guest has work, and has woken it' "$scratch/ctl" ||
            { fail "$claim" "$(cat "$scratch/ctl")"; return; }
        ctl power --vgpu a d0 >"$scratch/ctl" || { fail "$claim" "$(cat "$scratch/ctl")"; return; }
    done
    claim_guest a "$claim" '^burnt .* 0 wrong' 60 \
        'until grep -q -E "burnt|campanile-guest:" one 2>/dev/null; do usleep 20000; done; cat one'
}

hang() {
    local claim="a guest that hangs the GPU loses its device, and is told why"
    boot b "$scratch/b.sock" || return
    guest b 5 'rm -f one; campanile-guest burn --seconds 8 >one 2>&1 & echo begun'
    guest a 60 'campanile-guest run /spin.wgsl --groups 1 --buffer 0:bytes=256'
    if grep -q 'the device is lost: its work hung the GPU' <<<"$output"; then pass "$claim"; else fail "$claim" "$output"; fi
    claim_guest b "while another machine beside it computes on" '^burnt .* 0 wrong' 60 \
        'until grep -q -E "burnt|campanile-guest:" one 2>/dev/null; do usleep 20000; done; cat one'
    claim_guest a "and the machine itself with its next process" "$squares_result" 30 "$squares"
    guest b 5 'poweroff -f' || true
    vm_ended b 20 || vm_kill b
}

killed_qemu() {
    local claim="kill -9 of QEMU at work: the daemon frees the vGPU" before
    guest a 30 'sh /guest/busy' || true
    before=$(engines)
    log_mark
    vm_kill a
    if until_holds 20 "log_has 'a.sock: the front-end has hung up' && [ \$(engines) -lt $before ]"; then
        pass "$claim ($before engine processes, then $(engines))"
    else
        fail "$claim" "$(engines) engine processes of $before; $(tail -n 2 "$scratch/daemon.log")"
    fi
    boot a "$scratch/a.sock" &&
        claim_guest a "and serves the next machine on that socket" "$squares_result" 30 "$squares"
}

# The daemon with all that machines are tried on.
serve_all() {
    daemon_start "${daemon_settings[@]}" --control "$scratch/control" --vgpu "name=a,socket=$scratch/a.sock,vram=64M" \
        --vgpu "name=b,socket=$scratch/b.sock,vram=64M" --vgpu "name=f,front=fs,socket=$scratch/f.sock,vram=64M" \
        --vgpu "name=g,front=fs,aperture=32M,socket=$scratch/g.sock,vram=64M"
}

all_checks() {
    local check checks
    # With daemons and machines of their own.
    if [[ ${only[*]} =~ ^((repeated_selftests|cgroups|guide_gpu|guide_fs)\ ?)+$ ]]; then
        for check in "${only[@]}"; do "$check"; done
        return
    fi
    serve_all ||
        { fail "the daemon starts" "$(cat "$scratch/daemon.log")"; return; }
    [[ ${only[0]:-} == fs_* ]] || first_result || return
    # The last six start other daemons, of other vGPUs.
    checks=(driver unprivileged info conformance c_example mandelbrot two_processes trespass no_messages "${vulkan_checks[@]}" bench killed_process reset
        two_machines power hang killed_qemu other_version "${fs_checks[@]}" bad_input without_window
        guide_gpu guide_fs repeated_selftests cgroups)
    [ ${#only[@]} -eq 0 ] || checks=("${only[@]}")
    for check in "${checks[@]}"; do "$check"; done
}
