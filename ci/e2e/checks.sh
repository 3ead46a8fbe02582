# shellcheck shell=bash
# What ci/e2e-qemu tries. Every function prints PASS or FAIL lines and leaves machine and daemon as the next one
# expects them: the daemon serves vGPUs a and b (64 MiB each), machine a runs on the first.

# Says whether a command in guest $1 succeeded and printed a line like $3.
#   claim_guest NAME CLAIM PATTERN SECONDS COMMAND
claim_guest() {
    if guest "$1" "$4" "$5" && grep -q -- "$3" <<<"$output"; then pass "$2"; else fail "$2" "$output"; fi
}

boot() {
    local begun=${EPOCHREALTIME/./} claim="boot to first result takes less than 10 s"
    vm_start a "$scratch/a.sock"
    vm_ready a || { fail "the guest boots" "$(cat "$scratch/a/qemu" "$scratch/a/console")"; return 1; }
    if guest a 30 "campanile-guest run /squares.wgsl --groups 1 --buffer 0:bytes=256,show=u32" &&
        grep -q '^buffer 0: 0 1 4 9 16 25' <<<"$output"; then
        local took=$(((${EPOCHREALTIME/./} - begun) / 1000))
        if [ "$took" -lt 10000 ]; then pass "$claim ($took ms)"; else fail "$claim" "$took ms"; fi
    else
        fail "$claim" "$output"
    fi
}

driver() {
    claim_guest a "the stock driver binds: card0 and renderD128, capset 24, a window of 32 MiB" card0,renderD128,24,0x2000000 10 \
        "dmesg >log; echo \$(ls /dev/dri | tr '\n' ',')\$(sed -n 's/.*cap set 0: id \([0-9]*\).*/\1/p' log),\$(sed -n 's/.*memory window: .* +\(0x[0-9a-f]*\)/\1/p' log)"
}

all_checks() {
    daemon_start --vgpu "name=a,socket=$scratch/a.sock,vram=64M" --vgpu "name=b,socket=$scratch/b.sock,vram=64M" ||
        { fail "the daemon starts" "$(cat "$scratch/daemon.log")"; return; }
    boot || return
    driver
}
