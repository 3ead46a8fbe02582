# shellcheck shell=bash
# The cgroups of engines, as a kernel has them that has all controllers, for ci/e2e-qemu to source: the daemon runs in a machine
# without a GPU, which is the host of two vGPUs; their guests are `campanile-guest --socket`, beside it.
#
# And a worker of `--workers`, in a cgroup that has no memory for it.
#
#   ci/e2e/guest/daemon   delegates a cgroup, and starts the daemon in it    ci/e2e/guest/hog.c   an engine that takes memory
#
# In the machine: a.sock, b.sock, log, control in /tmp; the cgroups below $service.

readonly service=/sys/fs/cgroup/campanile.service loader=/lib64/ld-linux-x86-64.so.2
# More than all that the engines of a vGPU may take, what they start with, and the guests.
readonly cgroup_machine=768M
readonly engine_mib=16 vram_mib=16 engine_cpus=1
# Two nodes, each with a spare.
readonly processes=4

# What the machine has beside what all have: the daemon, its libraries, the hog.
host_initramfs() {
    local tree=$scratch/host-tree library
    mkdir -p "$tree"/{bin,lib64,lib/x86_64-linux-gnu}
    cp "$campanile" "$tree/bin/"
    strip "$tree/bin/campanile" || die "the daemon is not stripped"
    ldd "$campanile" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' >"$scratch/libraries"
    while read -r library; do cp --dereference "$library" "$tree/lib/x86_64-linux-gnu/"; done <"$scratch/libraries"
    cp --dereference "$loader" "$tree/lib64/"
    # `ctl` has a loader of its own, so that it can do without that of engines.
    cp --dereference "$loader" "$tree/bin/loader"
    cc -nostdlib -static -ffreestanding -fno-stack-protector -no-pie -O1 ci/e2e/guest/hog.c -o "$tree/bin/hog" ||
        die "ci/e2e/guest/hog.c does not build"
    pack_initramfs "$tree" "$scratch/host-only"
    cat "$scratch/initramfs" "$scratch/host-only" >"$scratch/host-initramfs"
    rm -rf "$tree" "$scratch/host-only"
}

# Sets `found` to a file of the cgroup of vGPU a or b, in one line.
#   of_vgpu a|b FILE
of_vgpu() {
    guest host 20 "cat $service/campanile-*-vgpu-$1/$2 | tr '\n' ' '; echo" || true
    found=${output% }
}

# How many processes of a vGPU the kernel has ended for want of memory.
kills_of() {
    of_vgpu "$1" memory.events
    found=$(sed -n 's/.*oom_kill \([0-9]*\).*/\1/p' <<<"$found")
}

# Says whether a file of a vGPU's cgroup is this.
#   claim_limit FILE VALUE
claim_limit() {
    of_vgpu a "$1"
    if [ "$found" = "$2" ]; then pass "the cgroup of a vGPU has $1 = $2"; else fail "the cgroup of a vGPU has $1 = $2" "$found"; fi
}

cgroup_limits() {
    local claim="campanile ctl status says that cgroups hold engines" part least most
    guest host 20 "/bin/loader /bin/campanile ctl --control /tmp/control status --json | tr -d ' \n'; echo" || true
    for part in '"limits":"cgroup"' '"memory_by":"cgroupandRLIMIT_DATA"' '"cpu_by":"cgroup"' '"threads_by":["cgroup",' '"why":null'; do
        grep -qF "$part" <<<"$output" || { fail "$claim" "no $part: $output"; return; }
    done
    pass "$claim"
    claim="memory.max is --engine-memory for each process and the video memory"
    least=$(((engine_mib * processes + vram_mib) << 20)) most=$(((engine_mib * (processes + 1) + vram_mib) << 20))
    of_vgpu a memory.max
    if [[ $found =~ ^[0-9]+$ ]] && [ "$found" -ge "$least" ] && [ "$found" -lt "$most" ]; then
        pass "$claim ($found)"
    else
        fail "$claim" "$found"
    fi
    claim_limit memory.swap.max 0
    claim_limit pids.max $((processes * 4096))
    claim_limit cpu.weight 100
    claim_limit cpu.max "$((engine_cpus * 100000)) 100000"
}

# A guest of a vGPU that works for so many seconds, with an engine of its own.
work() { printf 'campanile-guest --socket /tmp/%s.sock bench --steady %s' "$1" "$2"; }

# The next engine is the hog, while the other vGPU's works.
cgroup_hog() {
    local claim output_of_a
    guest host 30 "rm -f b; $(work b 15) >b 2>&1 & until grep -q . b 2>/dev/null; do usleep 20000; done; cat b" || true
    of_vgpu b cgroup.procs
    claim="engines are in the cgroup of their vGPU"
    if [[ $found =~ ^[0-9] ]]; then pass "$claim"; else fail "$claim" "$found; $output"; return; fi
    claim="an engine that takes more than memory.max is ended alone, and its guest is told why"
    guest host 10 "mv $loader /bin/aside; cp /bin/hog $loader" || true
    guest host 60 "$(work a 1); true" || true
    output_of_a=$output
    kills_of a
    if [ "$found" = 1 ] && grep -q "the memory of its vGPU's cgroup was used up (--engine-memory)" <<<"$output_of_a"; then
        pass "$claim"
    else
        fail "$claim" "$output_of_a; oom_kill $found"
    fi
    claim="and two processes that it had ran on --engine-cpus"
    of_vgpu a cpu.stat
    if [[ $found =~ nr_throttled\ [1-9] ]]; then pass "$claim"; else fail "$claim" "$found"; fi
    claim_guest host "and the operator is told why" "WARN .* a: copy engine: .* cgroup was used up" 10 "mv /bin/aside $loader; cat log"
    claim_guest host "its vGPU goes on with the next engine" ' submissions' 60 "$(work a 1)"
    claim="and the other vGPU, at work meanwhile with the same engine, has lost nothing"
    kills_of b
    guest host 60 'until grep -q -E "submissions|campanile-guest:" b; do usleep 20000; done; cat b; grep "b: copy engine" log' || true
    if [ "$found" = 0 ] && grep -q ' submissions' <<<"$output" && [ "$(grep -c 'engine is process' <<<"$output")" = 1 ]; then
        pass "$claim ($(grep submissions <<<"$output"))"
    else
        fail "$claim" "$found were ended; $output"
    fi
}

# The daemon leaves no cgroup behind but its own, which it is in until it has ended, and takes that of an earlier one away.
cgroup_ends() {
    local claim="a daemon that ends has left no cgroup of a vGPU" serve=$1
    guest host 30 "kill \$(pidof campanile); while pidof campanile >/dev/null; do usleep 20000; done; cd $service; ls -d */" || true
    if [[ $output =~ ^campanile-[0-9]+/$ ]]; then pass "$claim"; else fail "$claim" "$output"; fi
    claim_guest host "and its own goes when the next one starts, whatever user that becomes" '^2 of a vGPU, 1 of a daemon$' 60 \
        "$serve --user 1000:1000; ls -d $service/*/ | awk '/-vgpu-/ { vgpus++ } !/-vgpu-/ { own++ } END { print vgpus \" of a vGPU, \" own \" of a daemon\" }'"
    claim_guest host "and that one has engines, too" ' submissions' 60 "$(work a 1)"
}

# Sets `found` to the process that serves vGPU a or b, of a daemon with workers.
worker_of() {
    guest host 20 "/bin/loader /bin/campanile ctl --control /tmp/control status --json | tr -d ' \n'; echo" || true
    found=$(sed -n "s/.*\"pid\":\([0-9]*\)[^}]*\"vgpu\":\"$1\".*/\1/p" <<<"$output")
}

# Whether that is another process than this one.
#   worker_is_other a|b PID
worker_is_other() {
    worker_of "$1"
    [ -n "$found" ] && [ "$found" != "$2" ]
}

# A worker that no memory is left for, in a cgroup that has none, while the other vGPU's guest is at work.
cgroup_worker() {
    local claim="a worker that no memory is left for is ended by the kernel, and followed by another" full=/sys/fs/cgroup/full a b
    guest host 30 "kill \$(pidof campanile); while pidof campanile >/dev/null; do usleep 20000; done" || true
    # A worker says that it serves before what has started it does.
    guest host 60 "$1 --workers /tmp/workers && until [ -S /tmp/control ]; do usleep 20000; done" || { fail "$claim" "$output"; return; }
    worker_of a
    a=$found
    worker_of b
    b=$found
    guest host 30 "rm -f a b; for i in a b; do $(work '$i' 15) >\$i 2>&1 & done; until grep -q . a && grep -q . b; do usleep 20000; done" || true
    # Its guest needs nothing of it meanwhile: what the operator asks does.
    guest host 20 "mkdir $full && echo 0 >$full/memory.max && echo $a >$full/cgroup.procs" || { fail "$claim" "process '$a': $output"; return; }
    until_holds 60 "worker_is_other a $a" || true
    guest host 20 "cat $full/memory.events" || true
    if grep -q '^oom_kill 1' <<<"$output" && worker_is_other a "$a"; then pass "$claim"; else fail "$claim" "process $a, now $found; $output"; fi
    claim_guest host "its guest goes on, or learns that its device is lost" 'lost\| submissions' 60 'until grep -q -E "submissions|campanile-guest:" a; do usleep 20000; done; cat a'
    claim_guest host "and its vGPU goes on" ' submissions' 60 "$(work a 1)"
    claim="and the other vGPU's guest, and its worker, have seen nothing of it"
    guest host 60 'until grep -q -E "submissions|campanile-guest:" b; do usleep 20000; done; cat b' || true
    if grep -q ' submissions' <<<"$output" && ! worker_is_other b "$b"; then pass "$claim"; else fail "$claim" "process $b, now $found; $output"; fi
}

cgroups() {
    # A kernel under a loaded emulator finds that its timer does not work, and stops.
    # The other vGPU's work takes one CPU whole: two processes of the hog run at once only where two more are idle.
    local vm_cpus=4 vm_memory=$cgroup_machine vm_initramfs=$scratch/host-initramfs vm_append=no_timer_check serve
    serve="sh /guest/daemon --engine-memory ${engine_mib}M --engine-cpus $engine_cpus --control /tmp/control"
    serve+=" --vgpu name=a,socket=/tmp/a.sock,vram=${vram_mib}M --vgpu name=b,socket=/tmp/b.sock,vram=${vram_mib}M"
    host_initramfs
    vm_start_fs host none
    if vm_ready host && guest host 60 "$serve"; then
        cgroup_limits
        cgroup_hog
        cgroup_ends "$serve"
        cgroup_worker "${serve/ --engine-cpus $engine_cpus/}"
    else
        fail "a machine with cgroups boots, and the daemon starts in it" "${output:-} $(cat "$scratch/host/qemu" "$scratch/host/console")"
    fi
    vm_kill host
}
