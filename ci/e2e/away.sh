# shellcheck shell=bash
# A GPU that QEMU does not migrate is taken away from its VM, and given back, here or where the VM is then: for
# ci/e2e-qemu-migrate to source. The guest renders all the time, and does not know.

# A daemon whose vGPU has the front gpu.
#   serve_gpu NAME [VRAM]
serve_gpu() {
    # shellcheck disable=SC2086 # words
    daemon_start_as "$1" ${CAMPANILE_SERVE:-} --control "$scratch/$1.control" \
        --vgpu "name=gpu,socket=$scratch/$1.sock,vram=${2:-128M}" ||
        { fail "the daemon $1 starts" "$(cat "$scratch/$1.log")"; return 1; }
}

# Boots a machine with a root port, and the GPU of a daemon in it, if one is named. Further arguments are QEMU's.
#   vm_start_replug NAME DAEMON|none [ARGUMENT…]
vm_start_replug() {
    local name=$1 daemon=$2 device=()
    shift 2
    [ "$daemon" = none ] || device=(-chardev "socket,id=gpu0-socket,path=$scratch/$daemon.sock"
        -device "vhost-user-test-device-pci,id=gpu0,bus=rp0,chardev=gpu0-socket,$device_settings")
    vm_launch "$name" on -device pcie-root-port,id=rp0,chassis=1,slot=1,pref64-reserve=512M "${device[@]}" \
        -qmp "unix:$scratch/$name.qmp,server=on,wait=off" "$@"
}

# Boots machine m0 on a daemon's GPU, and has it render, a program of the C interface fill a buffer, and a Vulkan program square.
#   begin_replug DAEMON
begin_replug() {
    frames_begin
    vm_start_replug m0 "$1"
    vm_ready m0 || { fail "the machine boots" "$(cat "$scratch/m0/qemu" "$scratch/m0/console")"; return 1; }
    animate m0 --words "$words" || { fail "the guest renders" "$output"; return 1; }
    frames_more 5 60 || { fail "the guest renders" "$(cat "$frames")"; return 1; }
    guest m0 20 'rm -f done; (steady done; echo "ended $?") >steady 2>&1 </dev/null & echo begun' ||
        { fail "a program in C begins" "$output"; return 1; }
    # It works before the GPU goes: one that begins without a GPU finds none.
    guest m0 20 '(vulkan-squares --until done --tell; echo "ended $?") >vulkan 2>&1 </dev/null & echo begun' &&
        guest m0 60 'until grep -q "^round\|^ended" vulkan; do usleep 20000; done; head -n 1 vulkan; grep -q ^round vulkan' ||
        { fail "a Vulkan program begins" "$output"; return 1; }
}

# Ends what a machine's guest does, all of which has to be right.
#   finish_replug NAME
finish_replug() {
    finish "every frame is right" "$1"
    guest "$1" 20 'touch done'
    saw_a_pause "a program of the C interface saw a pause, and nothing else" "$1" steady
    saw_a_pause "and so did a Vulkan program" "$1" vulkan
}

# A program, which was told to end, has said in this file that all was right.
#   saw_a_pause CLAIM NAME FILE
saw_a_pause() {
    if guest "$2" 60 "until grep -q ^ended $3; do usleep 20000; done; tail -n 3 $3; grep -q '^ended 0' $3"; then
        pass "$1 ($(tail -n 2 <<<"$output" | head -n 1))"
    else
        fail "$1" "$output"
    fi
}

# What `campanile migrate` came to.
#   replugged CLAIM NAME MARK
replugged() {
    local claim=$1 name=$2 mark=$3
    if ! frames_more 10 60; then
        fail "$claim" "no frames; $(tail -n 1 "$frames"); $(tail -n 3 "$scratch/$name/console"); $(cat "$scratch/steps")"
        return 1
    fi
    if [ -n "$(frames_wrong)" ]; then
        fail "$claim" "$(frames_wrong)"
        return 1
    fi
    pass "$claim ($(tr '\n' ';' <"$scratch/steps" | sed 's/;$//; s/;/; /g'); longest time from frame to frame $(frames_gaps $((mark + 1))))"
}

# Takes the device away from m0, and gives it back.
#   take_and_give CLAIM FROM TO [ARGUMENT…]
take_and_give() {
    local claim=$1 from=$2 to=$3
    shift 3
    "$campanile" migrate --control "$scratch/$from.control" --vgpu gpu --target-control "$scratch/$to.control" \
        --qmp-source "$scratch/m0.qmp" --file "$scratch/away" "$@" >"$scratch/steps" 2>&1 ||
        { fail "$claim" "$(cat "$scratch/steps"); $(tail -n 3 "$scratch/m0/console")"; return 1; }
}

# What m0's kernel has left behind would be said here.
kernel_is_content() {
    guest m0 10 'dmesg | grep -E "WARNING|BUG|not clean" || echo nothing' || true
    if [ "$output" = nothing ]; then
        pass "and the guest's kernel has nothing to complain of"
    else
        fail "and the guest's kernel has nothing to complain of" "$output"
    fi
}

# The device is taken away and given back, three times, by two daemons; the VM stays.
replug() {
    local from=a to hop=1 claim mark
    serve_gpu a && serve_gpu b && begin_replug a || return
    for to in a b a; do
        claim="the GPU is taken away from a running guest, and given back by the daemon $to, time $hop"
        mark=$(wc -l <"$frames")
        take_and_give "$claim" "$from" "$to" && replugged "$claim" m0 "$mark" || return
        from=$to hop=$((hop + 1))
    done
    finish_replug m0
    kernel_is_content
}

# The vGPU does not fit into the daemon that is to have it, and the VM stays.
replug_too_small() {
    local claim="where the GPU does not fit into the other daemon, it is given back where it was" mark
    serve_gpu a && serve_gpu b 64M && begin_replug a || return
    mark=$(wc -l <"$frames")
    if "$campanile" migrate --control "$scratch/a.control" --vgpu gpu --target-control "$scratch/b.control" \
        --qmp-source "$scratch/m0.qmp" --file "$scratch/away" >"$scratch/steps" 2>&1; then
        fail "$claim" "it moved: $(cat "$scratch/steps")"
        return
    fi
    replugged "$claim" m0 "$mark" && finish_replug m0
}

# Both daemons die while the vGPU lies in its file: the one that it has left, and the one that is to have it.
replug_deaths() {
    local claim="a vGPU in its file outlives the daemon that it has left, and the one that is to have it" mark
    serve_gpu a && serve_gpu b && begin_replug a || return
    mark=$(wc -l <"$frames")
    "$campanile" ctl --control "$scratch/a.control" detach --vgpu gpu "$scratch/away" >"$scratch/steps" 2>&1 ||
        { fail "$claim" "$(cat "$scratch/steps")"; return; }
    daemon_stop a KILL
    qmp_ask m0 device_del '{"id":"gpu0"}' || { fail "$claim" "$answer"; return; }
    until_holds 60 "qmp_ask m0 chardev-remove '{\"id\":\"gpu0-socket\"}'" || { fail "$claim" "$answer"; return; }
    attach_away && daemon_stop b KILL && serve_gpu b && attach_away || { fail "$claim" "$(cat "$scratch/steps")"; return; }
    plug_b || { fail "$claim" "$answer"; return; }
    replugged "$claim" m0 "$mark" && finish_replug m0
}

# The next VM of the daemon b begins as the vGPU in the file.
attach_away() {
    "$campanile" ctl --control "$scratch/b.control" attach --vgpu gpu "$scratch/away" >"$scratch/steps" 2>&1
}

# Plugs the device of the daemon b into m0 by hand.
plug_b() {
    local socket="{\"server\":false,\"addr\":{\"type\":\"unix\",\"data\":{\"path\":\"$scratch/b.sock\"}}}"
    local device='"driver":"vhost-user-test-device-pci","id":"gpu0","bus":"rp0","chardev":"gpu0-socket"'
    qmp_ask m0 chardev-add "{\"id\":\"gpu0-socket\",\"backend\":{\"type\":\"socket\",\"data\":$socket}}" &&
        qmp_ask m0 device_add "{$device,\"virtio-id\":16,\"num_vqs\":2,\"config_size\":16,\"vq_size\":256}"
}

# Programs begin as the device goes: it is theirs, or there is none for the moment.
replug_begins() {
    local from=a to=b hop claim="programs begin while their GPU is taken away"
    # Again where there was none.
    local program='while steady done >out$n 2>&1; code=$?; grep -q ^open: out$n; do cat out$n >>none; done; cat out$n; echo "ended $code"'
    serve_gpu a && serve_gpu b && vm_start_replug m0 a
    vm_ready m0 || { fail "the machine boots" "$(cat "$scratch/m0/qemu" "$scratch/m0/console")"; return; }
    for hop in 1 2 3 4 5 6; do
        guest m0 20 "rm -f done; for n in 1 2 3; do ($program) >steady\$n 2>&1 </dev/null & done; echo begun" ||
            { fail "$claim" "$output"; return; }
        take_and_give "$claim" "$from" "$to" || return
        grep -q 'lost \[\]' "$scratch/steps" || { fail "$claim" "$(cat "$scratch/steps")"; return; }
        guest m0 60 'touch done; until [ "$(cat steady? | grep -c ^ended)" = 3 ]; do usleep 20000; done; cat steady?'
        [ "$(grep -c '^ended 0' <<<"$output")" = 3 ] || { fail "$claim" "$output"; return; }
        read -r from to <<<"$to $from"
    done
    guest m0 10 'cat none 2>/dev/null | wc -l' || true
    pass "$claim ($hop times; found none, and tried again: $output)"
}

# A machine with a GPU, and a program that uses it.
#   begin_steady CLAIM [look]
begin_steady() {
    serve_gpu a && vm_start_replug m0 a
    vm_ready m0 || { fail "the machine boots" "$(cat "$scratch/m0/qemu" "$scratch/m0/console")"; return 1; }
    guest m0 20 "rm -f done begun; (steady done begun ${2:-}; echo \"ended \$?\") >steady 2>&1 </dev/null & until [ -e begun ]; do usleep 20000; done" ||
        { fail "$1" "$output"; return 1; }
}

# It ends by itself, as it finds that its device is lost.
#   steady_is_lost CLAIM
steady_is_lost() {
    guest m0 60 'until grep -q ^ended steady; do usleep 20000; done; cat steady' || true
    if grep -Eq 'device is (lost|gone)' <<<"$output" && grep -q '^ended 1' <<<"$output"; then
        pass "$1 ($(head -n 1 <<<"$output"))"
    else
        fail "$1" "$output"
    fi
}

# A program has no time to let go of it.
replug_loses() {
    local claim="a program that has to let go of its GPU at once loses the device, and nothing else"
    begin_steady "$claim" && take_and_give "$claim" a a --limit 0 || return
    steady_is_lost "$claim"
    kernel_is_content
}

# Nobody has told the daemon, nor a program that makes system calls, nor one that looks at memory alone.
unplugged() {
    local how claim
    for how in '' look; do
        claim="a program whose GPU is unplugged without a word loses the device, and nothing else${how:+, where it only looks at memory}"
        begin_steady "$claim" $how || return
        qmp_ask m0 device_del '{"id":"gpu0"}' || { fail "$claim" "$answer"; return; }
        steady_is_lost "$claim"
        vm_kill m0
        daemon_stop a
    done
}

# QEMU cannot plug the device in there: the port has another name. It stays in its file until a guest has it.
replug_misnamed() {
    local claim="where the other QEMU cannot plug the GPU in, it stays in its file" mark
    serve_gpu a && serve_gpu b && begin_replug a || return
    mark=$(wc -l <"$frames")
    if "$campanile" migrate --control "$scratch/a.control" --vgpu gpu --target-control "$scratch/b.control" --bus rp7 \
        --qmp-source "$scratch/m0.qmp" --file "$scratch/away" >"$scratch/steps" 2>&1; then
        fail "$claim" "it moved: $(cat "$scratch/steps")"
        return
    fi
    [ -s "$scratch/away" ] || { fail "$claim" "the file is gone; $(cat "$scratch/steps")"; return; }
    # The daemon sees a moment later that QEMU has hung up.
    until_holds 20 attach_away && plug_b || { fail "$claim" "$answer $(cat "$scratch/steps")"; return; }
    replugged "$claim" m0 "$mark" && finish_replug m0
}

# The VM moves with it, to another QEMU and another daemon, and back.
replug_moves() {
    local hop=0 from=a to=b claim mark
    serve_gpu a && serve_gpu b && begin_replug a || return
    while [ "$hop" -lt "${replug_hops:-2}" ]; do
        claim="a running guest with the front gpu moves to another QEMU and the daemon $to"
        mark=$(wc -l <"$frames")
        vm_start_replug "m$((hop + 1))" none -incoming defer
        qmp_ask "m$((hop + 1))" query-status
        "$campanile" migrate --control "$scratch/$from.control" --vgpu gpu --target-control "$scratch/$to.control" \
            --qmp-source "$scratch/m$hop.qmp" --qmp-target "$scratch/m$((hop + 1)).qmp" --uri "$by_unix" \
            --file "$scratch/away" >"$scratch/steps" 2>&1 ||
            { fail "$claim" "$(cat "$scratch/steps"); $(tail -n 1 "$scratch/m$hop/qemu") $(tail -n 1 "$scratch/m$((hop + 1))/qemu")"; return; }
        vm_kill "m$hop"
        hop=$((hop + 1))
        replugged "$claim" "m$hop" "$mark" || return
        read -r from to <<<"$to $from"
    done
    finish_replug "m$hop"
}

# The VM does not move: nobody is there. The device is given back where it was.
replug_fails() {
    local claim="where the VM cannot move, its GPU is given back where it was" mark
    serve_gpu a && serve_gpu b && begin_replug a || return
    vm_start_replug m1 none -incoming defer
    qmp_ask m1 query-status
    mark=$(wc -l <"$frames")
    if "$campanile" migrate --control "$scratch/a.control" --vgpu gpu --target-control "$scratch/b.control" \
        --qmp-source "$scratch/m0.qmp" --qmp-target "$scratch/m1.qmp" --uri "unix:$scratch/nowhere/mig.sock" \
        --file "$scratch/away" >"$scratch/steps" 2>&1; then
        fail "$claim" "it moved: $(cat "$scratch/steps")"
        return
    fi
    replugged "$claim" m0 "$mark" && finish_replug m0
}
