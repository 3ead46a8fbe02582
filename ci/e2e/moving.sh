# shellcheck shell=bash
# Machines that move, for ci/e2e-qemu-migrate to source: a machine is one QEMU at a time, and its guest writes what it renders
# to one FIFO, whichever QEMU it runs in. Each line gets this host's time, which goes on while the guest stands still.

frames=
stamper=

# Begins to take down what guests render: $scratch/frames has lines "TIME LINE", TIME in microseconds.
frames_begin() {
    local descriptor
    frames=$scratch/frames
    : >"$frames"
    rm -f "$scratch/frames.fifo"
    mkfifo "$scratch/frames.fifo"
    # Opened for both ways: there is always somebody who reads, and never an end.
    exec {descriptor}<>"$scratch/frames.fifo"
    (while IFS= read -r line; do printf '%s %s\n' "${EPOCHREALTIME/./}" "${line%$'\r'}"; done <&"$descriptor" >>"$frames") &
    stamper=$!
    vm_data=$scratch/frames.fifo
}

frames_end() { [ -z "$stamper" ] || kill "$stamper" 2>/dev/null || true; }

# How many frames were right so far.
frames_count() { grep -c ' frame ' "$frames" || true; }

# Waits until so many more are.
#   frames_more NUMBER SECONDS
frames_more() {
    local wanted=$(($(frames_count) + $1))
    until_holds "$2" "[ \$(frames_count) -ge $wanted ]"
}

# Says what is wrong with the frames so far, if something is: each number once, in order, none left out.
frames_wrong() {
    awk '$2 == "frame" { if ($3 != n) { print "frame " $3 " instead of " n; exit } n++; next }
         $2 == "LOST" || $2 ~ /^WRONG/ || /(campanile-guest|squares):/ { sub(/^[0-9]* /, ""); print; exit }' "$frames"
}

# The longest time between two frames since line $1 of the list, and the median one, in ms.
frames_gaps() {
    tail -n "+$1" "$frames" | awk '$2 == "frame" { if (last) print ($1 - last) / 1000; last = $1 }' | sort -n |
        awk '{ gap[NR] = $1 } END { printf "%.1f ms, median %.1f ms\n", gap[NR], gap[int((NR + 1) / 2)] }'
}

# Starts the animation in a machine's guest.
#   animate NAME [ARGUMENT…]
animate() {
    local name=$1
    shift
    guest "$name" 20 "rm -f stop; (campanile-guest animate --tell --until stop $*; echo \"ended \$?\") >/dev/ttyS2 2>&1 & echo begun"
}

# The same with a Vulkan program: a frame is 8 of its rounds.
#   animate_vulkan NAME
animate_vulkan() { guest "$1" 20 'sh /guest/rounds >/dev/ttyS2 2>&1 & echo begun'; }

# Ends it, and waits for its last words; `summary` has them.
#   animation_ends NAME SECONDS
animation_ends() {
    guest "$1" 20 'touch stop' || { summary=$output; return 1; }
    until_holds "$2" "grep -q ' ended ' '$frames'" || { summary="it does not end; $(tail -n 1 "$frames")"; return 1; }
    summary=$(tail -n 2 "$frames" | sed 's/^[0-9]* //')
    grep -q ' ended 0$' "$frames"
}

# Has a field of the last answer of QEMU's.
answer_field() { sed -n "s/.*\"$1\": \"*\([^\",}]*\).*/\1/p" <<<"$answer"; }

# Sets a capability of a machine's migration.
#   migration_capability NAME CAPABILITY true|false
migration_capability() {
    qmp_ask "$1" migrate-set-capabilities "{\"capabilities\":[{\"capability\":\"$2\",\"state\":$3}]}"
}

# Waits until a migration has come to an end; `answer` says which. What QEMU says on the way goes to $scratch/samples.
#   migration_ends NAME SECONDS
migration_ends() {
    local end=$((SECONDS + $2))
    : >"$scratch/samples"
    while [ "$SECONDS" -lt "$end" ]; do
        qmp_ask "$1" query-migrate || return 1
        echo "${EPOCHREALTIME/./} $(answer_field status) $(answer_field dirty-sync-count) $(answer_field remaining)" >>"$scratch/samples"
        case $(answer_field status) in
            completed) return 0 ;;
            failed | cancelled) return 1 ;;
        esac
        read -r -t 0.1 <> <(:) || true
    done
    answer="no end in $2 s: $answer"
    return 1
}

# Starts a QEMU that waits for a machine, on a vGPU's socket.
#   machine_waits NAME SOCKET URI [ARGUMENT…]
machine_waits() {
    local name=$1 socket=$2 uri=$3
    shift 3
    vm_start_fs "$name" "$socket" -incoming defer "$@"
    migration_capability "$name" return-path true && qmp_ask "$name" migrate-incoming "{\"uri\":\"$uri\"}"
}

# Sends a machine off.
#   machine_goes NAME URI
machine_goes() {
    migration_capability "$1" return-path true && qmp_ask "$1" migrate "{\"uri\":\"$2\"}"
}

# Moves a running machine to another daemon's socket, ends the QEMU that it came from, and says how it went. Further arguments are
# the new QEMU's.
#   machine_moves CLAIM FROM TO SOCKET URI [ARGUMENT…]
machine_moves() {
    local claim=$1 from=$2 to=$3 socket=$4 uri=$5 mark downtime status gaps
    shift 5
    mark=$(wc -l <"$frames")
    machine_waits "$to" "$socket" "$uri" "$@" || { fail "$claim" "$to does not wait: $answer; $(tail -n 1 "$scratch/$to/qemu")"; return 1; }
    machine_goes "$from" "$uri" || { fail "$claim" "$from does not go: $answer"; return 1; }
    migration_ends "$from" 120 || { fail "$claim" "$answer; $(tail -n 1 "$scratch/$from/qemu") $(tail -n 1 "$scratch/$to/qemu")"; return 1; }
    downtime=$(answer_field downtime)
    vm_kill "$from"
    qmp_ask "$to" query-status
    status=$(answer_field status)
    if ! frames_more 10 60; then
        fail "$claim" "no frames on the target, which is $status; $(tail -n 1 "$frames")"
        return 1
    fi
    if [ -n "$(frames_wrong)" ]; then
        fail "$claim" "$(frames_wrong)"
        return 1
    fi
    gaps=$(frames_gaps $((mark + 1)))
    echo "$downtime ${gaps%% *}" >>"$scratch/pauses"
    pass "$claim (QEMU says $downtime ms; longest time from frame to frame $gaps)"
}
