# shellcheck shell=bash
# A daemon that is replaced by another under running guests, for ci/e2e-qemu-migrate to source: `campanile ctl upgrade`.

# How often in a row.
readonly upgrades=${CAMPANILE_UPGRADES:-3}

# Has a successor go on with a daemon's guests, and says how it went.
#   upgraded CLAIM DAEMON
upgraded() {
    local claim=$1 name=$2 mark said pid before=${daemon_pids[$2]}
    mark=$(wc -l <"$frames")
    said=$("$campanile" ctl --control "$scratch/$name.control" --json upgrade 2>&1 | tr -d ' \n')
    pid=$(sed -n 's/.*"pid":\([0-9]*\).*/\1/p' <<<"$said")
    [ -n "$pid" ] || { fail "$claim" "$said; $(tail -n 3 "$scratch/$name.log")"; return 1; }
    daemon_pids[$name]=$pid
    wait "$before" 2>/dev/null || true
    if ! grep -q '"lost":\[\]' <<<"$said"; then
        fail "$claim" "$said"
        return 1
    fi
    if ! frames_more 10 60 || [ -n "$(frames_wrong)" ]; then
        fail "$claim" "$(frames_wrong) $(tail -n 1 "$frames"); $(tail -n 3 "$scratch/$name.log")"
        return 1
    fi
    echo "$(sed -n 's/.*"stood_still_ms":\([0-9]*\).*/\1/p' <<<"$said") $(frames_gaps $((mark + 1)))" | tr -d , >>"$scratch/stalls"
}

# The same as often as it is to be, with what the guests saw of it.
#   upgraded_often CLAIM DAEMON
upgraded_often() {
    local claim=$1 name=$2 time
    : >"$scratch/stalls"
    for ((time = 1; time <= upgrades; time++)); do
        upgraded "$claim, time $time" "$name" || return 1
    done
    pass "$claim, $upgrades times in a row ($(awk '{ if ($1 > stood) stood = $1; if ($2 > gap) gap = $2; median = $5 }
        END { printf "stood still at most %d ms; longest time from frame to frame %.1f ms, median %.1f ms", stood, gap, median }' "$scratch/stalls"))"
}

# On the fs front; and the machine moves to another daemon afterwards.
upgrades_fs() {
    serve a b && serve b a && begin a || return
    upgraded_often "fs: a daemon is replaced under a running guest" a || return
    machine_moves "fs: and the machine then moves" m0 m1 "$scratch/b.sock" "$by_unix" || return
    upgraded_often "fs: and there, too" b || return
    finish "fs: every frame of all that is right, none is lost, doubled or out of order" m1
}

# On the gpu front, with a Vulkan program and one of the C interface beside.
upgrades_gpu() {
    local program
    serve_gpu a && begin_replug a || return
    upgraded_often "gpu: a daemon is replaced under a running guest" a || return
    finish "gpu: every frame is right, none is lost, doubled or out of order" m0
    guest m0 20 'touch done'
    for program in steady vulkan; do
        if guest m0 60 "until grep -q ^ended $program; do usleep 20000; done; tail -n 3 $program; grep -q '^ended 0' $program"; then
            pass "gpu: and a program beside it saw nothing of it ($program)"
        else
            fail "gpu: and a program beside it saw nothing of it ($program)" "$output"
        fi
    done
    kernel_is_content
}
