# shellcheck shell=bash
# One daemon without a window, one machine, and the self-test over and over: what is lost once in a hundred runs is seen
# nowhere else. For ci/e2e-qemu to source; `--selftest N`, or CAMPANILE_SELFTESTS, says how many.

# In the short form, at about a second each where the machine is idle.
selftests=${selftests:-${CAMPANILE_SELFTESTS:-20}}
readonly selftests

repeated_selftests() {
    local claim="without a window a machine runs the self-test $selftests times, and none loses its device"
    local run wrong=0 in_a_row=0 begun=$SECONDS
    daemon_stop
    daemon_start "${daemon_settings[@]}" --no-window --vgpu "name=a,socket=$scratch/a.sock,vram=64M" ||
        { fail "$claim" "$(tail -n 1 "$scratch/daemon.log")"; return; }
    boot a "$scratch/a.sock" || return
    for ((run = 1; run <= selftests && in_a_row < 3; run++)); do
        log_mark
        if guest a 120 "campanile-guest selftest"; then
            in_a_row=0
            continue
        fi
        wrong=$((wrong + 1)) in_a_row=$((in_a_row + 1))
        printf 'FAIL self-test %d: %s; %s\n' "$run" "$(grep -v '^ok' <<<"$output" | tr '\n' ';')" \
            "$(tail -n "+$log_start" "$scratch/daemon.log" | grep -i 'fault\|lost' | tail -n 3 | tr '\n' ';')"
    done
    vm_kill a
    run=$((run - 1))
    printf '%d self-tests were right, %d were not, %d s\n' $((run - wrong)) "$wrong" $((SECONDS - begun))
    if [ "$wrong" -eq 0 ] && [ "$run" -eq "$selftests" ]; then pass "$claim"; else fail "$claim" "$wrong of $run were wrong"; fi
}
