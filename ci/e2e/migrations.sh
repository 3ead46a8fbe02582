# shellcheck shell=bash
# What ci/e2e-qemu-migrate tries. Every function prints PASS or FAIL lines, starts daemons and machines of its own, and ends them.

# Words of a frame: the guest's CPU is emulated, and checks them all.
readonly words=16384
# An aperture: memory that VM and daemon share, and that QEMU migrates.
readonly aperture=(-object memory-backend-memfd,id=vram,size=64M,share=on -device ivshmem-plain,memdev=vram,master=on)
readonly by_unix=unix:$scratch/mig.sock by_tcp=tcp:127.0.0.1:44951

# A daemon that moves its guests to PEER, and takes guests from it.
#   serve NAME PEER [VRAM [VGPU-OPTIONS]]
serve() {
    # shellcheck disable=SC2086 # words
    daemon_start_as "$1" ${CAMPANILE_SERVE:-} --control "$scratch/$1.control" \
        --migrate-listen "unix:$scratch/$1.peer" --migrate-to "unix:$scratch/$2.peer" \
        --vgpu "name=gpu,front=fs,socket=$scratch/$1.sock,vram=${3:-128M}${4:-}" ||
        { fail "the daemon $1 starts" "$(cat "$scratch/$1.log")"; return 1; }
}

# Boots machine m0 on a daemon's socket, with these further arguments of QEMU's, and has it render.
#   begin DAEMON [ARGUMENT…]
begin() {
    local daemon=$1
    shift
    frames_begin
    vm_start_fs m0 "$scratch/$daemon.sock" "$@"
    vm_ready m0 || { fail "the machine boots" "$(cat "$scratch/m0/qemu" "$scratch/m0/console")"; return 1; }
    animate m0 --words "${frame_words:-$words}" || { fail "the guest renders" "$output"; return 1; }
    frames_more 5 60 || { fail "the guest renders" "$(cat "$frames")"; return 1; }
}

# Ends the animation of a machine, and the machine.
#   finish CLAIM NAME
finish() {
    local claim=$1 name=$2
    if animation_ends "$name" 60 && [ -z "$(frames_wrong)" ]; then
        pass "$claim ($(head -n 1 <<<"$summary"))"
    else
        fail "$claim" "$(frames_wrong); $summary"
    fi
}

# Ends whatever a check has left.
all_over() {
    local name
    for name in "$scratch"/m*/pid; do
        [ ! -e "$name" ] || vm_kill "$(basename "$(dirname "$name")")"
    done
    frames_end
    daemons_stop
}

# Medians and largest of the pauses that moves wrote down: what QEMU says, and the longest time from frame to frame.
pauses() {
    local column what
    for column in 1 2; do
        what=$([ $column = 1 ] && echo "QEMU's downtime" || echo 'longest time from frame to frame')
        cut -d' ' -f$column "$scratch/pauses" | sort -n |
            awk -v what="$what" '{ ms[NR] = $1 } END { printf "%s %s ms median, %s ms at the most; ", what, ms[int((NR + 1) / 2)], ms[NR] }'
    done
}

# Says whether frames go on on a machine.
#   goes_on CLAIM NAME
goes_on() {
    if frames_more 10 60 && [ -z "$(frames_wrong)" ]; then
        pass "$1"
    else
        qmp_ask "$2" query-status
        fail "$1" "$(frames_wrong) $answer $(tail -n 1 "$frames")"
        return 1
    fi
}

# A machine sets off to another, which waits at the daemon b.
#   sets_off CLAIM
sets_off() {
    machine_waits m1 "$scratch/b.sock" "$by_unix" && machine_goes m0 "$by_unix" || { fail "$1" "$answer"; return 1; }
}

# The machine does not get there, and its guest goes on where it was.
#   stays CLAIM
stays() {
    if migration_ends m0 120; then
        fail "$1" "it moved: $answer"
        return 1
    fi
    goes_on "$1" m0
}

# It is tried again, as fast as the line is.
#   moves_then CLAIM
moves_then() {
    qmp_ask m0 migrate-set-parameters '{"max-bandwidth":1000000000}' &&
        machine_moves "$1" m0 m1 "$scratch/b.sock" "$by_unix" &&
        finish "and every frame is right" m1
}

# A slow line, so that there are passes to see; the picture goes to $CAMPANILE_PICTURE where that is set.
several_passes() {
    local claim="a guest moves in several passes over a slow line"
    serve a b && serve b a && begin a || return
    qmp_ask m0 migrate-set-parameters '{"max-bandwidth":25000000,"downtime-limit":100}'
    machine_moves "$claim" m0 m1 "$scratch/b.sock" "$by_unix" || return
    if [ "$(awk '$3 > most { most = $3 } END { print most + 0 }' "$scratch/samples")" -lt 2 ]; then
        fail "$claim" "there was one pass only"
    fi
    awk -f ci/e2e/migration-picture.awk "$scratch/samples" "$frames" >"$scratch/migration.svg" || fail "a picture is drawn" "$claim"
    [ -z "${CAMPANILE_PICTURE:-}" ] || cp "$scratch/migration.svg" "$CAMPANILE_PICTURE"
    finish "and every frame is right" m1
}

# What a migration takes by itself: a guest without GPU that counts.
without_gpu() {
    frames_begin
    vm_start_fs m0 none
    vm_ready m0 || { fail "a machine without GPU boots" "$(cat "$scratch/m0/qemu" "$scratch/m0/console")"; return; }
    guest m0 20 '(n=0; while [ ! -e stop ]; do echo frame $n; n=$((n + 1)); usleep 2000; done; echo ended 0) >/dev/ttyS2 2>&1 & echo begun'
    frames_more 20 20 && machine_moves "a guest without GPU moves over a unix socket" m0 m1 none "$by_unix"
}

three_hops() {
    serve a b && serve b a && begin a &&
        machine_moves "a running guest moves over a unix socket, a to b" m0 m1 "$scratch/b.sock" "$by_unix" &&
        machine_moves "and back" m1 m2 "$scratch/a.sock" "$by_unix" &&
        machine_moves "and over tcp, a to b" m2 m3 "$scratch/b.sock" "$by_tcp" &&
        finish "every frame is right, none is lost, doubled or out of order" m3
}

# Linked with Vulkan's loader alone: it cannot know what a move is.
vulkan_moves() {
    serve a b && serve b a || return
    frames_begin
    vm_start_fs m0 "$scratch/a.sock"
    vm_ready m0 || { fail "the machine boots" "$(cat "$scratch/m0/qemu" "$scratch/m0/console")"; return; }
    animate_vulkan m0 && frames_more 5 60 || { fail "a Vulkan program runs" "$output; $(cat "$frames")"; return; }
    machine_moves "a guest with a Vulkan program moves, a to b" m0 m1 "$scratch/b.sock" "$by_unix" &&
        finish "and every square of every round is right" m1
}

with_aperture() {
    serve a b 128M ,aperture=64M && serve b a 128M ,aperture=64M && begin a "${aperture[@]}" || return
    claim_guest m0 "info names the aperture" 'aperture /sys/bus/pci/devices/.*resource2' 30 'campanile-guest info'
    # A copy: start-stop-daemon starts nothing that runs already, and the animation does.
    local somebody='start-stop-daemon -S -c somebody -x /tmp/campanile-guest --'
    guest m0 10 'cp /bin/campanile-guest /tmp/'
    claim_guest m0 "somebody who may not open its file is told so, and does without" 'no aperture: .*permission denied' 30 "$somebody info"
    claim_guest m0 "somebody who may has it, without any other privilege" 'aperture /sys/bus/pci/devices/.*resource2_wc' 30 \
        "for device in /sys/bus/pci/devices/*; do [ \"\$(cat \$device/device)\" != 0x1110 ] || chmod 666 \$device/resource2_wc; done; $somebody info"
    machine_moves "a guest with an aperture moves, a to b" m0 m1 "$scratch/b.sock" "$by_unix" "${aperture[@]}" &&
        machine_moves "and back" m1 m2 "$scratch/a.sock" "$by_unix" "${aperture[@]}" &&
        finish "and every frame is right" m2
}

back_and_forth() {
    local hop from=m0 to socket uri
    serve a b && serve b a && begin a || return
    : >"$scratch/pauses"
    for ((hop = 1; hop <= hops; hop++)); do
        to=m$hop socket=$scratch/b.sock uri=$by_unix
        [ $((hop % 2)) -eq 1 ] || socket=$scratch/a.sock
        [ $((hop % 4)) -lt 2 ] || uri=$by_tcp
        machine_moves "back and forth, move $hop" "$from" "$to" "$socket" "$uri" || return
        rm -rf "${scratch:?}/$from"
        from=$to
    done
    finish "every frame of $hops moves is right, none is lost, doubled or out of order" "$from"
    printf 'pauses of %d moves: %s\n' "$hops" "$(pauses)"
}

cancelled() {
    local claim="a migration that is cancelled leaves the guest where it is"
    serve a b && serve b a && begin a || return
    qmp_ask m0 migrate-set-parameters '{"max-bandwidth":2000000}'
    sets_off "$claim" || return
    # It is under way: pages go, and the daemon logs.
    until_holds 30 "qmp_ask m0 query-migrate && [ \$(answer_field status) = active ]" && frames_more 20 60 ||
        { fail "$claim" "it never was under way: $answer"; return; }
    qmp_ask m0 migrate_cancel || { fail "$claim" "$answer"; return; }
    migration_ends m0 60
    [ "$(answer_field status)" = cancelled ] || { fail "$claim" "$answer"; return; }
    goes_on "$claim" m0 || return
    vm_kill m1
    moves_then "and moves when it is tried again"
}

# The target's vGPU is smaller: it cannot take what the source has.
too_small() {
    local claim="a target whose vGPU is too small refuses, and the guest goes on at the source (return-path)"
    serve a b && serve b a 16M && begin a || return
    sets_off "$claim" || return
    stays "$claim" || return
    vm_kill m1
    daemon_stop b
    serve b a && moves_then "and moves to one that is large enough"
}

# The target's daemon is killed while the machine is on its way.
target_dies() {
    local claim="a target daemon that is killed on the way leaves the guest where it is"
    serve a b && serve b a && begin a || return
    qmp_ask m0 migrate-set-parameters '{"max-bandwidth":20000000}'
    sets_off "$claim" || return
    frames_more 10 60
    daemon_stop b KILL
    stays "$claim" || return
    vm_kill m1
    serve b a && moves_then "and moves when there is one again"
}

# A QEMU is killed while the machine is on its way: the target's first, then the source's.
vmm_dies() {
    local claim="a target QEMU that is killed on the way leaves the guest where it is"
    serve a b && serve b a && begin a || return
    qmp_ask m0 migrate-set-parameters '{"max-bandwidth":20000000}'
    sets_off "$claim" || return
    frames_more 10 60
    vm_kill m1
    stays "$claim" || return
    claim="a source QEMU that is killed on the way leaves two daemons that serve the next machine"
    sets_off "$claim" || return
    frames_more 10 60
    vm_kill m0
    vm_kill m1
    frames_end
    begin b && machine_moves "$claim" m0 m1 "$scratch/a.sock" "$by_unix" && finish "and every frame is right" m1
}

# The guest is reset while it is on its way, and boots on the target.
reset_on_the_way() {
    local claim="a guest that is reset on the way boots, here or there, and computes"
    serve a b && serve b a && begin a || return
    qmp_ask m0 migrate-set-parameters '{"max-bandwidth":50000000}'
    sets_off "$claim" || return
    frames_more 5 60
    qmp_ask m0 system_reset
    qmp_ask m0 migrate-set-parameters '{"max-bandwidth":1000000000}'
    migration_ends m0 120 || { fail "$claim" "$answer"; return; }
    vm_kill m0
    # Its first words may have gone to the source.
    until_holds 60 "guest m1 10 'echo here' && [ \"\$output\" = here ]" || { fail "$claim" "$output"; return; }
    claim_guest m1 "$claim" '^buffer 0: 0 1 4 9 16 25 36' 30 \
        'campanile-guest run /squares.wgsl --groups 1 --buffer 0:bytes=256,show=u32'
}

# The machine goes to a file, its video memory to a side file, and both come back.
saved() {
    local claim="a machine is saved to a file" name before
    mkdir -p "$scratch/sides"
    daemon_start_as a --state-dir "$scratch/sides" --keep-side-files --control "$scratch/a.control" \
        --vgpu "name=gpu,front=fs,socket=$scratch/a.sock,vram=128M" ||
        { fail "the daemon a starts" "$(cat "$scratch/a.log")"; return; }
    begin a || return
    qmp_ask m0 migrate "{\"uri\":\"file:$scratch/saved\"}" && migration_ends m0 120 || { fail "$claim" "$answer"; return; }
    before=$(frames_count)
    vm_kill m0
    pass "$claim ($(($(stat --format %s "$scratch/saved") >> 20)) MiB, side file of $(du -sm "$scratch/sides" | cut -f1) MiB, $before frames)"
    cp "$frames" "$scratch/frames.before"
    for name in m1 m2; do
        cp "$scratch/frames.before" "$frames"
        claim="and restored from it, by $name"
        vm_start_fs "$name" "$scratch/a.sock" -incoming defer
        qmp_ask "$name" migrate-incoming "{\"uri\":\"file:$scratch/saved\"}" || { fail "$claim" "$answer"; return; }
        goes_on "$claim" "$name" || return
        finish "and every frame is right" "$name"
        vm_kill "$name"
    done
}

# What devices write into the guest's own pages is moved because the daemon says so in QEMU's log. Frames of 1 MiB, and two more
# buffers of that size: thousands of pages.
large_frames() {
    local frame_words=262144
    serve a b && serve b a && begin a &&
        machine_moves "a guest with frames of 1 MiB moves" m0 m1 "$scratch/b.sock" "$by_unix" &&
        finish "and every word of every frame is right" m1
}

# The same, but the daemon's entries never reach QEMU's log: whoever checks must see it.
lost_log() {
    local claim="without the log of dirty pages the guest is damaged, and the checks see it" frame_words=262144
    serve a b && serve b a || return
    rm -f "$scratch/lossy.sock"
    "$guest_tool" relay "$scratch/lossy.sock" "$scratch/a.sock" --lose-log 2>"$scratch/relay.log" &
    daemon_pids[relay]=$!
    until_holds 10 "[ -S '$scratch/lossy.sock' ]"
    begin lossy || return
    machine_waits m1 "$scratch/b.sock" "$by_unix" && machine_goes m0 "$by_unix" && migration_ends m0 120 ||
        { fail "$claim" "it does not move: $answer"; return; }
    vm_kill m0
    if frames_more 40 30 && [ -z "$(frames_wrong)" ]; then
        fail "$claim" "40 frames are right"
    else
        pass "$claim ($(frames_wrong); last: $(tail -n 1 "$frames" | cut -d' ' -f2- | cut -c1-100))"
    fi
}

all_checks() {
    local check checks=(without_gpu three_hops vulkan_moves with_aperture back_and_forth several_passes large_frames lost_log cancelled too_small target_dies vmm_dies reset_on_the_way
        saved replug replug_moves replug_fails replug_too_small replug_misnamed replug_deaths replug_begins replug_loses unplugged upgrades_fs upgrades_gpu killed_fs killed_gpu killed_workers killed_workers_fs guide_moves)
    [ "$short" = no ] || checks=(three_hops vulkan_moves upgrades_fs upgrades_gpu killed_fs killed_gpu killed_workers killed_workers_fs replug replug_moves replug_loses unplugged guide_moves)
    [ ${#only[@]} -eq 0 ] || checks=("${only[@]}")
    for check in "${checks[@]}"; do
        "$check"
        all_over
    done
}
