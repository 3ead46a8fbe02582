# shellcheck shell=bash
# Virtual machines for ci/e2e-qemu to source. A machine has a folder in $scratch:
#
#   console        what the guest's kernel said           qemu     what QEMU said
#   data           what the guest sent with `send`        pid      QEMU's process
#   commands.in, commands.out   FIFOs: the guest's init   qmp.in, qmp.out   FIFOs: QEMU's monitor
#
# Nothing here waits without a limit, and nothing sleeps for a fixed time instead of waiting.

# The device, as the README has it.
readonly device_settings=virtio-id=16,num_vqs=2,config_size=16,vq_size=256
# The other one. Each parked read takes a place of the queue.
readonly fs_settings=tag=gpu,num-request-queues=1,queue-size=1024

# Memory and CPUs of a machine, what it boots into, and where the third serial port goes other than to the file `data`.
vm_memory=512M
vm_cpus=2
vm_initramfs=
# Further words of the kernel's command line.
vm_append=
vm_data=

# The machine's descriptors of these FIFOs, opened for reading and writing so that opening never blocks.
declare -A commands_in commands_out qmp_in qmp_out

# Boots a machine on a vGPU's socket, as a virtio-gpu device. Further arguments replace the device's settings and the
# memory's.
#   vm_start NAME SOCKET [DEVICE-SETTINGS [SHARE]]
vm_start() {
    vm_launch "$1" "${4:-on}" -chardev "socket,id=c,path=$2" \
        -device "vhost-user-test-device-pci,chardev=c,${3:-$device_settings}"
}

# Boots a machine on a vGPU's socket, as a virtio-fs device; on none it has no GPU. Further arguments are QEMU's.
#   vm_start_fs NAME SOCKET|none [ARGUMENT…]
vm_start_fs() {
    local name=$1 socket=$2
    shift 2
    if [ "$socket" = none ]; then
        vm_launch "$name" on "$@"
        return
    fi
    vm_launch "$name" on -chardev "socket,id=c,path=$socket" -device "vhost-user-fs-pci,chardev=c,$fs_settings" "$@"
}

# Boots a machine with these arguments of QEMU's beside those that all machines have.
#   vm_launch NAME SHARE ARGUMENT…
vm_launch() {
    local name=$1 share=$2
    shift 2
    vm_run "$name" -smp "$vm_cpus" -m "$vm_memory" -object "memory-backend-memfd,id=m,size=$vm_memory,share=$share" \
        -machine q35,memory-backend=m "$@"
}

# The same, of which the arguments have memory, CPUs and machine type, too.
#   vm_run NAME ARGUMENT…
vm_run() {
    local name=$1
    local folder=$scratch/$name fifo descriptor
    shift
    rm -rf "$folder"
    mkdir "$folder"
    for fifo in commands.in commands.out qmp.in qmp.out; do mkfifo "$folder/$fifo"; done
    exec {descriptor}<>"$folder/commands.in"
    commands_in[$name]=$descriptor
    exec {descriptor}<>"$folder/commands.out"
    commands_out[$name]=$descriptor
    exec {descriptor}<>"$folder/qmp.in"
    qmp_in[$name]=$descriptor
    exec {descriptor}<>"$folder/qmp.out"
    qmp_out[$name]=$descriptor
    "$qemu" -name "$name" -accel tcg,thread=multi -cpu max -display none -nodefaults \
        "$@" \
        -kernel "$tools/vmlinuz" -initrd "${vm_initramfs:-$scratch/initramfs}" -append "console=ttyS0 quiet panic=-1 $vm_append" \
        -serial "file:$folder/console" \
        -chardev "pipe,id=commands,path=$folder/commands" -serial chardev:commands \
        -serial "file:${vm_data:-$folder/data}" \
        -chardev "pipe,id=qmp,path=$folder/qmp" -mon chardev=qmp,mode=control \
        >"$folder/qemu" 2>&1 </dev/null &
    echo $! >"$folder/pid"
    echo '{"execute":"qmp_capabilities"}' >&"${qmp_in[$name]}"
}

# Whether QEMU runs.
vm_runs() { kill -0 "$(cat "$scratch/$1/pid")" 2>/dev/null; }

# Reads the guest's lines until one fits a pattern, at most so many seconds; prints the lines before it, and sets
# `line` to it.
#   vm_expect NAME SECONDS PATTERN
vm_expect() {
    local name=$1 end=$((SECONDS + $2)) pattern=$3 part begun=
    while [ "$SECONDS" -lt "$end" ]; do
        # A read that times out may have got the beginning of a line.
        if IFS= read -r -t 1 part <&"${commands_out[$name]}"; then
            line=$begun$part
            begun=
            # shellcheck disable=SC2053 # a pattern
            if [[ $line == $pattern ]]; then return 0; fi
            printf '%s\n' "$line"
            continue
        fi
        begun+=$part
        if ! vm_runs "$name"; then
            echo "QEMU has ended: $(tail -n 1 "$scratch/$name/qemu")"
            return 1
        fi
    done
    echo "no '$pattern' in $2 s; the console ends with: $(tail -n 1 "$scratch/$name/console")"
    return 1
}

# Waits until the guest's init takes commands.
vm_ready() { vm_expect "$1" 120 'ready *' >/dev/null; }

tag=0
# Sends a command to the guest, with its length: a serial port that nobody reads in time loses what it is sent, and the
# guest runs nothing of a line that is not whole. Sent again until the guest says that it has it.
#   vm_send NAME TAG COMMAND
vm_send() {
    local name=$1 tag=$2 command=$3 attempt line
    for attempt in 1 2 3 4 5; do
        # From the second one on after a line's end, should that have been lost too.
        if [ "$attempt" -gt 1 ]; then echo >&"${commands_in[$name]}"; fi
        printf '%s %s %s\n' "$tag" "${#command}" "$command" >&"${commands_in[$name]}"
        vm_expect "$name" 10 "@($tag has|garbled)*" >"$scratch/$name/sent" || { vm_runs "$name" || return 1; continue; }
        if [[ $line == "$tag has" ]]; then return 0; fi
    done
    echo "the guest never got the whole of: $command"
    return 1
}

# Runs a command in the guest; its output is in `output`, its status this function's.
#   guest NAME SECONDS COMMAND
guest() {
    local name=$1 seconds=$2 command=$3 line status
    tag=$((tag + 1))
    vm_send "$name" "t$tag" "$command" >"$scratch/$name/output" || {
        output=$(cat "$scratch/$name/output" "$scratch/$name/sent")
        return 124
    }
    # Not in a subshell: `line` has the status.
    vm_expect "$name" "$seconds" "t$tag done *" >"$scratch/$name/output" || {
        output=$(cat "$scratch/$name/output")
        return 124
    }
    output=$(sed "s/^t$tag| //" "$scratch/$name/output")
    status=${line##* }
    return "$status"
}

# Tells QEMU something over QMP.
qmp() { printf '{"execute":"%s"}\n' "$2" >&"${qmp_in[$1]}"; }

qmp_number=0
# Asks QEMU something over QMP; `answer` is what it says. Fails where that is an error.
#   qmp_ask NAME COMMAND [ARGUMENTS]
qmp_ask() {
    local name=$1 end=$((SECONDS + 30)) part begun=
    qmp_number=$((qmp_number + 1))
    printf '{"execute":"%s","arguments":%s,"id":%s}\n' "$2" "${3:-"{}"}" "$qmp_number" >&"${qmp_in[$name]}"
    while [ "$SECONDS" -lt "$end" ]; do
        if ! IFS= read -r -t 1 part <&"${qmp_out[$name]}"; then
            begun+=$part
            vm_runs "$name" || { answer="QEMU has ended: $(tail -n 1 "$scratch/$name/qemu")"; return 1; }
            continue
        fi
        answer=${begun}${part%$'\r'}
        begun=
        case $answer in
            *"\"id\": $qmp_number"*"\"error\""* | *"\"error\""*"\"id\": $qmp_number"*) return 1 ;;
            *"\"id\": $qmp_number"*) return 0 ;;
        esac
    done
    answer="QEMU does not answer to $2"
    return 1
}

# Ends a machine at once, and waits for its end.
vm_kill() {
    local pid
    pid=$(cat "$scratch/$1/pid")
    # One that has ended may have left its number to a stranger.
    if jobs -rp | grep -qx "$pid"; then kill -KILL "$pid" 2>/dev/null || true; fi
    wait "$pid" 2>/dev/null || true
}

# Waits until QEMU ends by itself, at most so many seconds.
vm_ended() { until_holds "$2" "! vm_runs $1"; }

# Says whether a command in a guest succeeded and printed a line like PATTERN.
#   claim_guest NAME CLAIM PATTERN SECONDS COMMAND
claim_guest() {
    if guest "$1" "$4" "$5" && grep -q -- "$3" <<<"$output"; then pass "$2"; else fail "$2" "$output"; fi
}
