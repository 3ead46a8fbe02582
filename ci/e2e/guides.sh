# shellcheck shell=bash
# Commands of the guides as they stand there, with a VM: for ci/e2e-qemu (guide_gpu, guide_fs), ci/e2e-qemu-migrate (guide_moves) and
# ci/e2e-cloud-hypervisor to source.
# On the host they run in this shell, where `campanile` is the daemon under test, `…` of QEMU's command line stands for what all machines
# have, and these folders are others:
#
#   /run/campanile, /run    $scratch/run
#   /backup, /shared, /var/lib/campanile, and files without a folder    $scratch/files
#
# and other-host is this one, at another port.
# In the guest a block is one line of commands, each of which has to succeed.

# shellcheck source=ci/blocks.sh
. ci/blocks.sh

# Options of the daemon that a guide leaves out.
guide_options=()
readonly guide_port=44952 guide_other_port=44953

# A daemon that serves is a background job of a block; its log is $scratch/guide.log.
campanile() {
    if [ "$1" != serve ]; then
        guide_serves && "$campanile" "$@"
        return
    fi
    local options=() option
    for option; do
        if [ "$option" = … ]; then options+=("${guide_options[@]}"); else options+=("$option"); fi
    done
    echo "$BASHPID" >"$scratch/guide.pid"
    exec "$campanile" "${options[@]}" >"$scratch/guide.log" 2>&1 </dev/null
}

# Waits until the daemon of a block serves.
guide_serves() {
    until_holds 60 "grep -q serving '$scratch/guide.log' 2>/dev/null" || return
    daemon_pids[guide]=$(cat "$scratch/guide.pid")
}

# The machine `guide`, once the daemon serves.
qemu-system-x86_64() {
    local arguments=() argument
    for argument; do [ "$argument" = … ] || arguments+=("$argument"); done
    guide_serves || return
    if [[ "${arguments[*]}" != *memory-backend=m* ]]; then
        arguments+=(-object memory-backend-memfd,id=m,size=4G,share=on -machine q35,memory-backend=m)
    fi
    vm_run guide -smp "$vm_cpus" -m 4G "${arguments[@]}"
}

# Runs blocks on the host, until a command fails.
#   guide_host PAGE run=WHERE [NUMBER]
guide_host() {
    local text lines line verdict=0
    text=$(blocks "$@") || return
    text=${text//\/run\/campanile/$scratch/run} text=${text// \/run\// $scratch/run/} text=${text//unix:\/run\//unix:$scratch/run/}
    text=${text//\/var\/lib\/campanile/$scratch/files} text=${text//file:\/\/\/backup/file:\/\/$scratch/files/backup}
    text=${text// \/backup\// $scratch/files/} text=${text// \/shared\// $scratch/files/}
    text=${text//0.0.0.0:4700/127.0.0.1:$guide_port} text=${text//other-host:4700/localhost:$guide_other_port}
    # A line that ends in \ goes on.
    mapfile -t lines <<<"${text//\\$'\n'/}"
    cd "$scratch/files" || return
    for line in "${lines[@]}"; do
        eval "$line" || { verdict=$?; break; }
    done >"$scratch/guide.out" 2>&1
    cd "$OLDPWD" && return "$verdict"
}

guide_begins() {
    rm -rf "$scratch"/{run,files,guide.log}
    mkdir "$scratch"/{run,files}
}

# Boots the machine of a page.
#   guide_boots PAGE run=WHERE [NUMBER]
guide_boots() {
    local claim="$1: a machine boots on the daemon, with the command lines that stand there"
    guide_begins
    [ -z "$guide_first" ] || "$guide_first" || { fail "$claim" "$(cat "$scratch/guide.out")"; return 1; }
    if guide_host "$@" && vm_ready guide; then pass "$claim"; return; fi
    fail "$claim" "$(cat "$scratch/guide.out" "$scratch/guide/qemu" "$scratch/guide/console" 2>/dev/null)"
    return 1
}

# What a page's commands do in the guest of the machine.
#   guide_guest PAGE run=guest PATTERN
guide_guest() {
    local line
    line=$(blocks "$1" "$2" | awk 'NF { sub(/ +# .*/, ""); printf "%s%s", n++ ? " && " : "", $0 }')
    claim_guest guide "$1: what it has for guests runs in the guest" "$3" 120 "cd /tmp && $line"
}

guide_over() {
    vm_kill guide
    daemon_stop guide
}

readme_serves() { guide_host README.md run; }

guide_gpu() {
    local guide_first=readme_serves
    guide_boots README.md run=vm || { guide_over; return; }
    guide_guest docs/book/install.md run=guest '^video memory  512 MiB'
    guest guide 10 'cd /tmp && cp /bin/squares .'
    guide_guest docs/book/guest-programs.md run=guest '^1024 squares are right'
    guest guide 10 'cd /tmp && cp /bin/vulkan-squares squares'
    guide_guest docs/book/vulkan.md run=guest '^20 rounds of 1024 squares are right'
    guide_over

    guide_first=
    guide_boots docs/book/qemu.md run=vm || { guide_over; return; }
    guest guide 10 'cd /tmp && cp /squares.wgsl kernel.wgsl'
    guide_guest docs/book/qemu.md run=guest '^buffer 0: 0 1 4 9 16 25 36'
    guide_over
}

guide_fs() {
    local guide_first= claim
    guide_boots docs/book/fs-front.md run=vm || { guide_over; return; }
    # Its init has mounted it already, where machines of other checks have it.
    guest guide 10 'umount /gpu'
    guide_guest docs/book/fs-front.md run=guest 'aperture /sys/bus/pci/devices/.*resource2_wc'
    claim="docs/book/serving.md: the operator resets a node of a vGPU with a VM"
    # There is something to reset while something runs.
    if guest guide 30 'sh /guest/busy' && CAMPANILE_CONTROL=$scratch/run/control guide_host docs/book/serving.md run=vm; then
        pass "$claim ($(tail -n 1 "$scratch/guide.out"))"
    else
        fail "$claim" "$output; $(cat "$scratch/guide.out")"
    fi
    guide_over
}

# Certificates of an authority of their own, for this host, as the guide calls them.
guide_certificates() {
    (cd "$scratch/files" &&
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=authority -keyout ca.key -out ca.pem &&
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost -keyout host.key -out host.csr &&
        openssl x509 -req -in host.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out host.pem \
            -extfile <(printf 'subjectAltName=DNS:localhost,IP:127.0.0.1')) >"$scratch/openssl.log" 2>&1
}

# A snapshot, and a move with a VMM that migrates the device.
guide_moves_fs() {
    local page=docs/book/migration.md claim files=$scratch/files guide_options
    guide_options=(--vgpu "name=a,front=fs,socket=$scratch/run/a.sock,vram=128M")
    guide_begins
    claim="$page: a daemon takes guests over TLS, and has them go"
    guide_certificates || { fail "$claim" "$(cat "$scratch/openssl.log")"; return; }
    daemon_start_as b --migrate-listen "tls:127.0.0.1:$guide_other_port" --migrate-to "tls:localhost:$guide_port" --migrate-cert "$files/host.pem" \
        --migrate-key "$files/host.key" --migrate-ca "$files/ca.pem" --vgpu "name=a,front=fs,socket=$scratch/b.sock,vram=128M" ||
        { fail "$claim" "$(cat "$scratch/b.log")"; return; }
    guide_host docs/book/migration.md run=move 1 && guide_serves || { fail "$claim" "$(cat "$scratch/guide.out" "$scratch/guide.log")"; return; }
    frames_begin
    vm_start_fs m0 "$scratch/run/a.sock"
    vm_ready m0 && animate m0 --words "$words" && frames_more 5 60 || { fail "$claim" "the guest does not render: $output"; return; }
    guide_host docs/book/migration.md run=move 2 && [ -s "$files/a.snap" ] || { fail "$claim" "$(cat "$scratch/guide.out")"; return; }
    machine_moves "$claim" m0 m1 "$scratch/b.sock" "$by_unix" && finish "$page: and every frame is right" m1
}

# A GPU that is taken away while the VM moves, and again while it stays.
guide_moves_gpu() {
    local page=docs/book/migration.md claim guide_options=()
    claim="$page: a GPU that QEMU does not migrate moves with its VM, and back while that stays"
    guide_begins
    daemon_start_as other --control "$scratch/run/other.ctl" --vgpu "name=a,socket=$scratch/run/other.sock,vram=128M" ||
        { fail "$claim" "$(cat "$scratch/other.log")"; return; }
    campanile serve --control "$scratch/run/ctl" --vgpu "name=a,socket=$scratch/run/a.sock,vram=128M" &
    frames_begin
    guide_host docs/book/migration.md run=move 5 && vm_ready guide && animate guide --words "$words" && frames_more 5 60 ||
        { fail "$claim" "$(cat "$scratch/guide.out" "$scratch/guide/qemu"); ${output:-}"; return; }
    vm_run m1 -smp "$vm_cpus" -m 4G -object memory-backend-memfd,id=m,size=4G,share=on -machine q35,memory-backend=m \
        -device pcie-root-port,id=rp0,chassis=1,slot=1,pref64-reserve=512M -qmp "unix:$scratch/run/vm-new.qmp,server=on,wait=off" -incoming defer
    qmp_ask m1 query-status
    guide_host docs/book/migration.md run=move 3 || { fail "$claim" "$(cat "$scratch/guide.out")"; return; }
    vm_kill guide
    frames_more 10 60 && guide_host docs/book/migration.md run=move 4 && frames_more 10 60 || { fail "$claim" "$(cat "$scratch/guide.out")"; return; }
    pass "$claim"
    finish "$page: and every frame is right" m1
}

guide_moves() {
    guide_moves_fs
    all_over
    guide_moves_gpu
    if [ -e "$scratch/guide/pid" ]; then vm_kill guide; fi
}
