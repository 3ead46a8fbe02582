# shellcheck shell=bash
# Machines of cloud-hypervisor, for ci/e2e-cloud-hypervisor to source. A machine has a folder in $scratch:
#
#   serial   what the guest said      vmm   what cloud-hypervisor said
#   api      its API socket           pid   its process
#
# The guest is ci/bare-guest: one that needs no operating system, since a KVM that only emulates boots none in a lifetime. It says a
# line for each frame that it has checked, with numbers that rise by one. A machine that moves leaves half a line here, and goes on with the
# other half there: its story is what all of its machines said, one behind the other.

# What the guest's GPU is, as the README has it, by the daemon's front.
declare -rA devices=([gpu]='device_type=16,queue_sizes=[256,256]' [fs]='device_type=26,queue_sizes=[1024,1024]')
front=gpu

# What cloud-hypervisor loads first, and further arguments of it.
preload=
vmm_arguments=()

# Starts a cloud-hypervisor with these arguments, and waits for its API.
#   ch_launch NAME ARGUMENT…
ch_launch() {
    local folder=$scratch/$1
    shift
    rm -rf "$folder"
    mkdir "$folder"
    LD_PRELOAD=$preload "$CLOUD_HYPERVISOR" --api-socket "$folder/api" "${vmm_arguments[@]}" "$@" \
        >"$folder/serial" 2>"$folder/vmm" </dev/null &
    echo $! >"$folder/pid"
    until_holds 20 "[ -S '$folder/api' ]"
}

# Boots the guest on a vGPU's socket, with these words of its command line.
#   ch_start NAME SOCKET [WORD…]
ch_start() {
    local name=$1 socket=$2
    shift 2
    ch_launch "$name" --cpus boot=1 --memory size=256M,shared=on --kernel "$bare_guest" --cmdline "$*" \
        --generic-vhost-user "socket=$socket,${devices[$front]}" --serial tty --console off
}

# Asks a machine's cloud-hypervisor for something; `answer` is what it says.
#   ch NAME VERB [ARGUMENT…]
ch() {
    local name=$1
    shift
    answer=$("$ch_remote" --api-socket "$scratch/$name/api" "$@" 2>&1)
}

# What the machines of a story said, in order: the files of `story`, which may end in a copy of one.
story=()
tell() { cat "${story[@]}"; }

# Begins a story with a machine, and goes on with another.
story_begin() { story=("$scratch/$1/serial"); }
story_goes_on() { story+=("$scratch/$1/serial"); }

# How many frames were right so far.
frames_count() { tell | grep -c '^frame ' || true; }

# Waits until so many more are.
#   frames_more NUMBER SECONDS
frames_more() {
    local wanted=$(($(frames_count) + $1))
    until_holds "$2" "[ \$(frames_count) -ge $wanted ]"
}

# Says what is wrong with the story, if something is: numbers rise by one, nothing is wrong. Losses are, but for those that are
# `expected`.
losses=refused
frames_wrong() {
    tell | awk -v losses="$losses" '
        # One that is rebooted from outside may have been in the midst of a line.
        /machine / { n = 0; next }
        $1 == "frame" && NF == 11 { if ($2 != n) { print "frame " $2 " instead of " n; exit } n++; next }
        $1 == "WRONG" || $1 == "ended" && $2 != 0 || $1 == "LOST" && losses != "expected" { print; exit }'
}

# The longest time between two frames of the story by the host's clock, and the median one, from frame $1 on.
frames_gaps() {
    tell | awk -v first="$1" '$1 == "frame" && NF == 11 && $2 >= first { if (last) print ($11 - last) / 1000; last = $11 }' | sort -n |
        awk '{ gap[NR] = $1 } END { printf "longest time from frame to frame %.0f ms, median %.0f ms", gap[NR], gap[int((NR + 1) / 2)] }'
}

# Says whether so many more frames come, all of them right.
#   claim_frames CLAIM NUMBER [SECONDS]
claim_frames() {
    if frames_more "$2" "${3:-60}" && [ -z "$(frames_wrong)" ]; then
        pass "$1"
    else
        fail "$1" "$(frames_wrong) $(tell | tail -n 1); $(tail -n 2 "$(dirname "${story[-1]}")/vmm")"
        return 1
    fi
}

# Whether snapshots, and so migrations, are possible here; `preload` is set where they need it. `why_not` says why they are not.
can_save() {
    local folder=$scratch/probe
    serve a && ch_start m0 "$scratch/a.sock" || { why_not="the machine does not boot"; return 1; }
    story_begin m0
    frames_more 2 60 && ch m0 pause || { why_not="the machine does not pause: $answer"; return 1; }
    rm -rf "$folder"
    mkdir "$folder"
    if ch m0 snapshot "file://$folder"; then return 0; fi
    why_not=$(grep -m 1 '^ *[0-9]*: .*vCPU state' <<<"$answer" || tail -n 1 <<<"$answer")
    [[ $answer == *GetNestedState* && -z $preload ]] || return 1
    all_over
    cc -shared -fPIC -O2 -o "$scratch/no-nested-state.so" ci/e2e/no-nested-state.c 2>"$scratch/cc.log" ||
        { why_not+="; ci/e2e/no-nested-state.c does not compile"; return 1; }
    printf 'NOTE cloud-hypervisor cannot save a processor here (%s): from here on it runs with ci/e2e/no-nested-state.c\n' "$why_not"
    preload=$scratch/no-nested-state.so
    can_save
}
