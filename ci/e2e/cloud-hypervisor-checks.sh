# shellcheck shell=bash
# What ci/e2e-cloud-hypervisor tries. Every function prints PASS, FAIL or SKIP lines, starts daemons and machines of its own, and ends them.

# Starts a daemon on a socket of its own, or on a path.
#   serve NAME [ARGUMENT…]
serve() {
    local name=$1 tag=
    shift
    [ "$front" != fs ] || tag=,tag=gpu
    # An engine polls for longer than a frame takes where every instruction is emulated.
    daemon_start_as "$name" --control "$scratch/$name.control" --spin 200000 "$@" \
        --vgpu "name=gpu,front=$front,socket=$scratch/${path:-$name}.sock,vram=${vram:-128M}$tag" ||
        { fail "the daemon $name starts" "$(cat "$scratch/$name.log")"; return 1; }
}

# Boots machine m0 on daemon a, with these words, and waits for some frames.
begin() {
    ch_start m0 "$scratch/a.sock" "$@"
    story_begin m0
    frames_more 10 60 || { fail "the guest boots and works" "$(tell | tail -n 3) $(tail -n 3 "$scratch/m0/vmm")"; return 1; }
}

# Ends whatever a check has left.
all_over() {
    local name
    for name in "$scratch"/m*/pid; do
        [ ! -e "$name" ] || vm_kill "$(basename "$(dirname "$name")")"
    done
    daemons_stop
    losses=refused
}

# A field of the guest's last whole line about a frame, by its name.
last_field() { tell | awk -v name="$1" '$1 == "frame" && NF == 11 { for (i = 1; i < NF; i++) if ($i == name) value = $(i + 1) } END { print value }'; }

boots() {
    serve a && begin frames=300 || return
    claim_frames "a guest boots, and 200 frames are right" 190
    pass "what the guest was shown: $(tell | sed -n 's/^device \(features .*\)/\1/p')"
    if [ "$front" = fs ]; then
        pass "pages that its parked reads register are the GPU's"
    elif grep -q 'no shared memory regions' "$scratch/a.log"; then
        pass "there is no window, the daemon says so, and memory of the guest stands in"
    else
        fail "the daemon says that there is no window" "$(tail -n 2 "$scratch/a.log")"
    fi
    until_holds 60 "! vm_runs m0" || { fail "a guest that is done switches the machine off" "$(tell | tail -n 1)"; return; }
    tell | grep -q '^ended 0' && pass "a guest that is done switches the machine off"
    local connects
    connects=$(last_field connects)
    if [ "$connects" -lt 30 ]; then
        pass "doorbells in the guest's own memory: 300 frames took $connects connects"
    else
        fail "doorbells in the guest's own memory are rung without the daemon" "$connects connects in 300 frames"
    fi
    begin frames=50 && until_holds 60 "! vm_runs m0" &&
        claim_frames "and the next machine on the same socket finds a new device" 0
}

resets() {
    serve a && begin reset-every=25 config-every=5 || return
    claim_frames "a guest resets its device again and again, and works" 90
    [ "$(tell | grep -c '^device is reset')" -ge 3 ] || fail "the device was reset" "$(tell | grep -v '^frame')"
}

reboots() {
    serve a && begin reboot-after=30 || return
    claim_frames "a guest reboots, and works" 60
    [ "$(tell | grep -c '^machine')" -ge 3 ] || fail "the machine has begun anew" "$(tell | grep -v '^frame')"
    all_over
    serve a && begin || return
    ch m0 reboot || { fail "cloud-hypervisor reboots a machine" "$answer"; return; }
    claim_frames "a machine that is rebooted from outside works" 40
}

pauses() {
    local turn claim="a machine that is paused and resumed ten times works, and nothing is lost"
    serve a && begin config-every=3 || return
    for turn in {1..10}; do
        ch m0 pause && ch m0 resume && frames_more 5 30 || { fail "$claim" "turn $turn: $answer $(tell | tail -n 1)"; return; }
    done
    claim_frames "$claim" 20
}

# The daemon goes, by a signal, and comes back.
daemon_dies() {
    local signal=$1 sessions claim="a guest whose daemon is ended by SIG$1 finds a new device, loses its session, and works"
    serve a && begin || return
    losses=expected
    sessions=$(last_field session)
    daemon_stop a "$signal"
    serve a || return
    claim_frames "$claim" 40 120 || return
    tell | grep -q '^LOST' && [ "$(last_field session)" -gt "$sessions" ] || fail "the guest has lost a session" "$(tell | grep -v '^frame')"
    grep -q 'had a device before' "$scratch/a.log" || fail "the daemon knows that this is no new machine" "$(cat "$scratch/a.log")"
}
daemon_is_killed() { daemon_dies KILL; }
daemon_is_ended() { daemon_dies TERM; }

# A worker is killed, and then what has started it.
worker_is_killed() {
    local server=workers sessions before claim="a guest whose worker is killed works, with its session or a new one"
    serve a --workers "$scratch/workers" && begin || return
    losses=expected
    sessions=$(last_field session)
    before=$(serving a)
    kill -KILL "$before"
    until_holds 60 "serves_other a $before" || { fail "$claim" "$(tail -n 5 "$scratch/a.log")"; return; }
    claim_frames "$claim" 40 120 || return
    tell | grep -q '^LOST' || [ "$(last_field session)" = "$sessions" ] || fail "the guest has told why it has another session" "$(tell | grep -v '^frame')"
    sessions=$(last_field session)
    before=$(serving a)
    daemon_stop a KILL
    claim_frames "and works when what has started its worker is killed" 20 || return
    serve a --workers "$scratch/workers" && until_holds 20 '[ -n "$(serving a)" ]'
    claim_frames "and when the next one has found its worker" 20 || return
    [ "$(serving a)" = "$before" ] && [ "$(last_field session)" = "$sessions" ] ||
        fail "it is the same worker, and the same session" "process $before, now $(serving a); session $sessions, now $(last_field session)"
}

# Bytes of the backend's state in a snapshot.
state_bytes() {
    grep -o 'backend_state[\\]*":\[[0-9,]*' "$1/state.json" | tr -cd , | wc -c
}

snapshots() {
    local claim="a machine is saved while it works" name folder=$scratch/saved bytes
    rm -rf "$folder"
    mkdir -p "$scratch/sides" "$folder"
    serve a --state-dir "$scratch/sides" --keep-side-files && begin words=1024 config-every=3 || return
    ch m0 pause && ch m0 snapshot "file://$folder" || { fail "$claim" "$answer"; return; }
    cp "$scratch/m0/serial" "$scratch/saved-serial"
    bytes=$(state_bytes "$folder")
    if [ "$bytes" -gt 0 ] && [ "$bytes" -le $((4 << 20)) ]; then
        pass "$claim; its device's state is $bytes bytes, and a side file of $(du -sm "$scratch/sides" | cut -f1) MiB"
    else
        fail "$claim" "a state of $bytes bytes"
    fi
    ch m0 resume && claim_frames "and goes on afterwards" 20 || { fail "and goes on afterwards" "$answer"; return; }
    vm_kill m0
    for name in m1 m2; do
        ch_launch "$name" --restore "source_url=file://$folder,resume=true"
        story=("$scratch/saved-serial")
        story_goes_on "$name"
        claim_frames "and is restored, by $name: not a frame is missing" 40 || return
        vm_kill "$name"
    done
}

# Passes are made while the guest runs, until what is left takes a millisecond: else all of so small a machine moves in its pause.
readonly live=,downtime_ms=1,timeout_s=30,timeout_strategy=ignore
# And a guest on the gpu front has much to move: cloud-hypervisor leaves out pages that were never touched.
declare -rA ballast=([gpu]=ballast=128 [fs]=)

# Puts another daemon on the path of a: the source keeps its connection. The target connects to the new one.
#   other_daemon NAME [ARGUMENT…]
other_daemon() {
    mv "$scratch/a.sock" "$scratch/a.sock.before.$1"
    path=a serve "$@"
}

# A machine goes from one cloud-hypervisor to the next, and works there until each of the 32 copies that its guest keeps was looked at.
#   moves CLAIM FROM TO URL [ARGUMENT…]
moves() {
    local claim=$1 from=$2 to=$3 url=$4 receiver mark
    shift 4
    mark=$(frames_count)
    rm -f "${url#unix:}"
    ch_launch "$to" || { fail "$claim" "$(cat "$scratch/$to/vmm")"; return 1; }
    "$ch_remote" --api-socket "$scratch/$to/api" receive-migration "receiver_url=$url" >"$scratch/$to/received" 2>&1 &
    receiver=$!
    until_holds 20 "listens '$url'" || { fail "$claim" "the target does not listen: $(cat "$scratch/$to/received")"; return 1; }
    if ! ch "$from" send-migration "destination_url=$url$*"; then
        kill "$receiver" 2>/dev/null
        wait "$receiver" 2>/dev/null
        fail "$claim" "$(tail -n 3 <<<"$answer")"
        return 1
    fi
    wait "$receiver" || { fail "$claim" "$(tail -n 4 "$scratch/$to/received") $(tail -n 3 "$scratch/$from/vmm")"; return 1; }
    until_holds 20 "! vm_runs $from" || { fail "$claim" "the source stays: $(tail -n 2 "$scratch/$from/vmm")"; return 1; }
    story_goes_on "$to"
    if frames_more 40 60 && [ -z "$(frames_wrong)" ]; then
        pass "$claim ($(frames_gaps "$mark"))"
    else
        fail "$claim" "$(frames_wrong) $(tell | tail -n 1); $(tail -n 2 "$scratch/$to/vmm")"
        return 1
    fi
}

# Whether somebody listens at a URL of a migration.
listens() {
    case $1 in
        unix:*) [ -S "${1#unix:}" ] ;;
        tcp:*) grep -qi ":$(printf '%04X' "${1##*:}") 00000000:0000 0A" /proc/net/tcp ;;
    esac
}

# Over each kind of line, within one daemon.
moves_within() {
    mkdir -p "$scratch/sides"
    serve a --state-dir "$scratch/sides" && begin words=1024 config-every=3 log=1 "${ballast[$front]}" || return
    moves "a machine moves over a unix socket, within one daemon" m0 m1 "unix:$scratch/mig1.sock" "$live" &&
        moves "and over tcp" m1 m2 tcp:127.0.0.1:44963 "$live" &&
        moves "and locally" m2 m3 "unix:$scratch/mig3.sock" ,local=on
}

# From one daemon to another, which move the video memory meanwhile.
moves_between() {
    local between=(--migrate-listen "unix:$scratch/b.peer" --migrate-to "unix:$scratch/a.peer")
    serve a --migrate-listen "unix:$scratch/a.peer" --migrate-to "unix:$scratch/b.peer" && begin words=1024 config-every=3 log=1 "${ballast[$front]}" || return
    other_daemon b "${between[@]}" && moves "a machine moves to another daemon over a unix socket" m0 m1 "unix:$scratch/mig1.sock" "$live" || return
    daemon_stop a
    other_daemon a --migrate-listen "unix:$scratch/a.peer" --migrate-to "unix:$scratch/b.peer" &&
        moves "and back over tcp" m1 m2 tcp:127.0.0.1:44964 "$live"
}

# The control: the daemon's entries never reach cloud-hypervisor's log, and whoever checks must see it. A move may be over before the GPU
# writes anything: so it is tried a few times.
lost_log() {
    local claim="without the log of dirty pages the guest is damaged, and its checks see it" said turn signs='^\(WRONG\|LOST\)'
    [ "$front" = gpu ] || { skip "$claim" "its ring has no room to register so much memory"; return; }
    mkdir -p "$scratch/sides"
    cargo build --release --package campanile-guest --bin campanile-guest 2>/dev/null || { skip "$claim" "campanile-guest does not build"; return; }
    for turn in {1..5}; do
        serve a --state-dir "$scratch/sides" || return
        rm -f "$scratch/lossy.sock"
        "$target/release/campanile-guest" relay "$scratch/lossy.sock" "$scratch/a.sock" --lose-log 2>"$scratch/relay.log" &
        daemon_pids[relay]=$!
        until_holds 10 "[ -S '$scratch/lossy.sock' ]"
        ch_start m0 "$scratch/lossy.sock" words=1024 ballast=128
        story_begin m0
        frames_more 40 120 || { fail "$claim" "the guest does not work: $(tell | tail -n 1)"; return; }
        said=$(moves "$claim" m0 m1 "unix:$scratch/mig1.sock" "$live")
        if grep -q "$signs" "$scratch/m1/serial"; then
            pass "$claim, in move $turn ($(grep -m 1 "$signs" "$scratch/m1/serial"))"
            return
        fi
        all_over
    done
    fail "$claim" "$said"
}

# A state that the target cannot use: the source's connection has gone by then, so that the guest must find something at the target.
unusable_state() {
    local claim="a machine whose state a target cannot use finds a new device there, loses its session, and works"
    mkdir -p "$scratch/sides"
    serve a --state-dir "$scratch/sides" && begin words=1024 || return
    losses=expected
    vram=16M other_daemon b --state-dir "$scratch/sides" || return
    moves "$claim" m0 m1 "unix:$scratch/mig1.sock" "$live" || return
    tell | grep -q '^LOST' || fail "the guest has lost a session" "$(tell | grep -v '^frame')"
}

# What cloud-hypervisor itself refuses, as the README says.
second_move() {
    mkdir -p "$scratch/sides"
    serve a --state-dir "$scratch/sides" && begin words=1024 "${ballast[$front]}" || return
    moves "a machine moves whose guest acknowledges nothing of the host's" m0 m1 "unix:$scratch/mig1.sock" "$live" || return
    # It fails, and that is no failure of ours. Not in a subshell, whose machines nobody could end.
    local before=$failures
    if moves "and again over a unix socket" m1 m2 "unix:$scratch/mig2.sock" >"$scratch/said"; then
        pass "and again over a unix socket: cloud-hypervisor's issue 8918 is gone"
        return
    fi
    failures=$before
    claim_frames "and stays where it is when cloud-hypervisor refuses to move it over a unix socket again (its issue 8918)" 40 ||
        { cat "$scratch/said"; return; }
    vm_kill m2
    moves "but goes on locally" m1 m3 "unix:$scratch/mig3.sock" ,local=on
}

# All checks, or those that were asked for, on each front.
all_checks() {
    for front in "${fronts[@]}"; do
        printf 'front %s\n' "$front"
        front_checks
    done
}

front_checks() {
    local check checks=(boots resets reboots pauses daemon_is_killed daemon_is_ended worker_is_killed guide)
    local saving=(snapshots moves_within moves_between second_move lost_log unusable_state guide_saves) is_asked=no
    [ ${#only[@]} -eq 0 ] || checks=("${only[@]}")
    [ ${#only[@]} -gt 0 ] || checks+=("${saving[@]}")
    for check in "${checks[@]}"; do
        if [[ " ${saving[*]} " == *" $check "* && $is_asked = no ]]; then
            is_asked=yes
            if ! can_save; then
                skip "${saving[*]}" "$why_not"
                all_over
                return
            fi
            all_over
        fi
        "$check"
        all_over
    done
}
