# shellcheck shell=bash
# One daemon without a window, one machine, and the self-test over and over: what is lost once in a hundred runs is seen
# nowhere else. For ci/e2e-qemu and ci/soak to source; CAMPANILE_SELFTESTS says how many.

# About three minutes of them, at 0.9 s each.
readonly selftests=${CAMPANILE_SELFTESTS:-200}

repeated_selftests() {
    local claim="without a window a machine runs the self-test $selftests times, and none loses its device" run
    local begun=$SECONDS
    daemon_stop
    daemon_start "${daemon_settings[@]}" --no-window --vgpu "name=a,socket=$scratch/a.sock,vram=64M" ||
        { fail "$claim" "$(tail -n 1 "$scratch/daemon.log")"; return; }
    boot a "$scratch/a.sock" || return
    for ((run = 1; run <= selftests; run++)); do
        guest a 120 "campanile-guest selftest" || {
            fail "$claim" "run $run: $(grep -v '^ok' <<<"$output"); $(grep -i 'fault\|lost' "$scratch/daemon.log" | tail -n 3)"
            break
        }
    done
    vm_kill a
    [ "$run" -le "$selftests" ] || pass "$claim ($((SECONDS - begun)) s)"
}
