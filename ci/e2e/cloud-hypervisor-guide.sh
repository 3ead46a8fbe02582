# shellcheck shell=bash
# The commands of docs/book/cloud-hypervisor.md as they stand there, for ci/e2e-cloud-hypervisor to source; ci/e2e/guides.sh runs a block.

# shellcheck source=ci/e2e/guides.sh
. ci/e2e/guides.sh

# The machine that the next one of a block is.
guide_machine=

# Where a guide leaves out what a guest boots from, it is the bare one. Filters of system calls only log: that of the thread which sends a
# machine lacks newfstatat, by which Debian 12's C library does fstat.
cloud-hypervisor() {
    local arguments=() argument folder=$scratch/$guide_machine
    for argument; do
        if [ "$argument" = … ]; then
            arguments+=(--cpus boot=1 --kernel "$bare_guest" --cmdline words=1024 --serial tty --console off --seccomp log)
        else
            arguments+=("$argument")
        fi
    done
    guide_serves || return
    rm -rf "$folder"
    mkdir "$folder"
    LD_PRELOAD=$preload "$CLOUD_HYPERVISOR" "${arguments[@]}" >"$folder/serial" 2>"$folder/vmm" </dev/null &
    echo $! >"$folder/pid"
}

ch-remote() {
    # The target listens first.
    [ "$3" != send-migration ] || until_holds 20 "[ -S '${4#*unix:}' ]" || return
    "$ch_remote" "$@"
}

# Boots the machine m0 of the guide.
guide_begins_machine() {
    guide_begins
    mkdir "$scratch/files/backup"
    guide_machine=m0
    if [ "$front" = gpu ]; then
        guide_host docs/book/cloud-hypervisor.md run=cloud-hypervisor 1
    else
        guide_host docs/book/cloud-hypervisor.md run=cloud-hypervisor 2
    fi || { fail "docs/book/cloud-hypervisor.md: a machine starts" "$(cat "$scratch/guide.out" "$scratch/guide.log")"; return 1; }
    story_begin m0
}

guide() {
    guide_begins_machine && claim_frames "docs/book/cloud-hypervisor.md: a machine boots on the daemon, with the command lines that stand there" 10
}

guide_saves() {
    local claim="docs/book/cloud-hypervisor.md: a machine is saved, goes on, and is restored"
    guide_begins_machine && frames_more 10 60 && guide_host docs/book/cloud-hypervisor.md run=cloud-hypervisor 3 ||
        { fail "$claim" "$(cat "$scratch/guide.out") $(tail -n 2 "$scratch/m0/vmm")"; return; }
    frames_more 10 60 && [ -z "$(frames_wrong)" ] || { fail "$claim" "$(frames_wrong) $(tell | tail -n 1)"; return; }
    vm_kill m0
    guide_machine=m1
    guide_host docs/book/cloud-hypervisor.md run=cloud-hypervisor 4 || { fail "$claim" "$(cat "$scratch/guide.out")"; return; }
    # What it says begins where the other was saved.
    story_begin m1
    if frames_more 10 60 && ! grep -q '^\(WRONG\|LOST\)' "$scratch/m1/serial"; then
        pass "$claim"
    else
        fail "$claim" "$(tell | tail -n 1) $(tail -n 2 "$scratch/m1/vmm")"
    fi
    all_over

    claim="docs/book/cloud-hypervisor.md: a machine moves"
    guide_begins_machine && frames_more 10 60 || { fail "$claim" "$(tell | tail -n 1)"; return; }
    rm -rf "$scratch/m2"
    mkdir "$scratch/m2"
    LD_PRELOAD=$preload "$CLOUD_HYPERVISOR" --api-socket "$scratch/run/vm-b" >"$scratch/m2/serial" 2>"$scratch/m2/vmm" </dev/null &
    echo $! >"$scratch/m2/pid"
    until_holds 20 "[ -S '$scratch/run/vm-b' ]" && guide_host docs/book/cloud-hypervisor.md run=cloud-hypervisor 5 ||
        { fail "$claim" "$(cat "$scratch/guide.out") $(tail -n 2 "$scratch/m0/vmm")"; return; }
    story_goes_on m2
    claim_frames "$claim" 20
}
