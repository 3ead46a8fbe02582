# shellcheck shell=bash
# A daemon that is killed under a running guest, and the one that its keeper starts then, for ci/e2e-qemu-migrate to source:
# `campanile serve --respawn`, and `--workers`.

# How often, twice each.
readonly kills=${CAMPANILE_KILLS:-3}
# When that was done, in seconds of this shell.
killed_at=()

# Whether the checkpoint of a process holds: the word behind magic and version, how many bytes hold, is not 0. Asking the daemon would have it written anew.
checkpoint_holds() {
    local fd
    for fd in "/proc/$1/fd"/*; do
        if [[ $(readlink "$fd") == *campanile-checkpoint* ]]; then
            [ "$(od -An -tu8 -j16 -N8 "$fd")" -gt 0 ] || return 1
            return 0
        fi
    done
    return 1
}

# Has a daemon be killed, and followed by another, under a program that has a device; one that is to hold it, when a checkpoint has it.
#   killed_under CLAIM [hold]
killed_under() {
    local before
    guest m0 30 "rm -f go done begun steady; (steady done begun ${2:-}; echo \"ended \$?\") >steady 2>&1 </dev/null & until [ -e begun ] || grep -q ^ended steady; do usleep 20000; done; cat steady; [ -e begun ]" ||
        { fail "$1: a program gets a device" "$output; $(tail -n 3 "$scratch/a.log")"; return 1; }
    # A keeper gives up a daemon that is killed more than 5 times within 10 s.
    while [ ${#killed_at[@]} -ge 5 ] && ((SECONDS - killed_at[-5] <= 11)); do sleep 1; done
    killed_at+=("$SECONDS")
    before=$(serving a)
    [ -z "${2:-}" ] || until_holds 20 "checkpoint_holds $before" || { fail "$1: a checkpoint holds" "$(tail -n 5 "$scratch/a.log")"; return 1; }
    kill -KILL "$before"
    until_holds 60 "serves_other a $before" || { fail "$1: a daemon serves again" "$(tail -n 5 "$scratch/a.log")"; return 1; }
    guest m0 60 'touch go done; until grep -q ^ended steady; do usleep 20000; done; cat steady' || true
}

# Kills daemons under a program that asks nothing of its device, which goes on, and under one that waits for its doorbell's work: it goes on, or learns
# that its device is lost, and the next one has a new one, in the same machine.
#   killed_often FRONT
killed_often() {
    local front=$1 time claim
    for ((time = 1; time <= kills; time++)); do
        claim="$front: time $time: a program that asks nothing when its daemon is killed goes on with what it has"
        killed_under "$claim" hold || return 1
        grep -q '^ended 0' <<<"$output" && pass "$claim" || { fail "$claim" "$output; $(tail -n 5 "$scratch/a.log")"; return 1; }
        claim="$front: time $time: a program at work when its daemon is killed goes on, or learns that its device is lost"
        killed_under "$claim" || return 1
        if grep -q '^ended 0' <<<"$output" || { grep -Eq 'device is (lost|gone)' <<<"$output" && grep -q '^ended 1' <<<"$output"; }; then
            pass "$claim ($(head -n 1 <<<"$output"))"
        else
            fail "$claim" "$output"
            return 1
        fi
    done
    guest m0 30 'rm -f done begun; (steady done begun; echo "ended $?") >steady 2>&1 </dev/null & until [ -e begun ] || grep -q ^ended steady; do usleep 20000; done; touch done; until grep -q ^ended steady; do usleep 20000; done; cat steady; grep -q "^ended 0" steady' &&
        pass "$front: and a program that begins after $kills daemons were killed works in the same machine" ||
        fail "$front: and a program that begins after $kills daemons were killed works in the same machine" "$output; $(tail -n 5 "$scratch/a.log")"
    guest m0 60 'campanile-guest selftest' &&
        pass "$front: and its self-test passes" || fail "$front: and its self-test passes" "$output"
}

killed_gpu() {
    CAMPANILE_SERVE="${CAMPANILE_SERVE:-} --respawn" serve_gpu a && vm_start_replug m0 a
    vm_ready m0 || { fail "the machine boots" "$(cat "$scratch/m0/qemu" "$scratch/m0/console")"; return 1; }
    killed_often gpu && kernel_is_content
}

# A worker is killed as a daemon is; and then what has started it, under a program that goes on.
#   workers_killed FRONT COMMAND…      the command starts what has workers, again
workers_killed() {
    local front="workers, $1" server=workers before
    shift
    vm_ready m0 || { fail "the machine boots" "$(cat "$scratch/m0/qemu" "$scratch/m0/console")"; return 1; }
    killed_often "$front" || return 1
    guest m0 30 'rm -f done begun; (steady done begun; echo "ended $?") >steady 2>&1 </dev/null & until [ -e begun ] || grep -q ^ended steady; do usleep 20000; done; [ -e begun ]' ||
        { fail "$front: a program gets a device" "$output"; return 1; }
    before=$(serving a)
    daemon_stop a KILL
    "$@" && until_holds 20 '[ -n "$(serving a)" ]'
    local claim="$front: what has started them is killed, and the next one finds the worker, whose program goes on"
    if [ "$(serving a)" = "$before" ] &&
        guest m0 30 'touch done; until grep -q ^ended steady; do usleep 20000; done; cat steady; grep -q "^ended 0" steady'; then
        pass "$claim"
    else
        fail "$claim" "process $before, now $(serving a); $output; $(tail -n 5 "$scratch/a.log")"
    fi
}

killed_workers() {
    local CAMPANILE_SERVE="${CAMPANILE_SERVE:-} --workers $scratch/workers"
    serve_gpu a && vm_start_replug m0 a
    workers_killed gpu serve_gpu a && kernel_is_content
}

# What has a worker for a vGPU on the fs front.
serve_worker_fs() {
    daemon_start_as a --workers "$scratch/workers" --control "$scratch/a.control" \
        --vgpu "name=gpu,front=fs,socket=$scratch/a.sock,vram=128M" || { fail "a daemon with workers starts" "$(cat "$scratch/a.log")"; return 1; }
}

killed_workers_fs() {
    serve_worker_fs && vm_start_fs m0 "$scratch/a.sock"
    workers_killed fs serve_worker_fs
}

killed_fs() {
    CAMPANILE_SERVE="${CAMPANILE_SERVE:-} --respawn" serve a a
    vm_start_fs m0 "$scratch/a.sock"
    vm_ready m0 || { fail "the machine boots" "$(cat "$scratch/m0/qemu" "$scratch/m0/console")"; return 1; }
    killed_often fs
}
