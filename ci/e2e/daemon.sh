# shellcheck shell=bash
# Daemons under test, for ci/e2e-qemu and ci/e2e-qemu-migrate to source. The log of one is $scratch/NAME.log.

declare -A daemon_pids
daemon_pid=

# Starts a daemon with these arguments of `campanile serve`, and waits until it listens.
#   daemon_start_as NAME ARGUMENT…
daemon_start_as() {
    local log=$scratch/$1.log name=$1
    shift
    : >"$log"
    RUST_LOG=${CAMPANILE_LOG:-info,campanile_daemon=debug} "$campanile" serve "$@" >"$log" 2>&1 </dev/null &
    daemon_pid=$!
    daemon_pids[$name]=$daemon_pid
    until_holds 60 "grep -q 'serving' '$log' || ! kill -0 $daemon_pid" && kill -0 "$daemon_pid" 2>/dev/null
}

# The same, of the one that is called `daemon`.
daemon_start() { daemon_start_as daemon "$@"; }

# Ends all daemons.
daemons_stop() {
    local name
    for name in "${!daemon_pids[@]}"; do daemon_stop "$name"; done
    # Workers outlive what was killed.
    pkill -KILL -f -- "$scratch/workers" || true
}

# Ends a daemon; with a second argument by that signal.
daemon_stop() {
    local name=${1:-daemon}
    local pid=${daemon_pids[$name]:-}
    [ -n "$pid" ] || return 0
    kill "-${2:-TERM}" "$pid" 2>/dev/null || true
    # A successor is no child of this shell.
    wait "$pid" 2>/dev/null || until_holds 20 "! kill -0 $pid 2>/dev/null" || true
    unset "daemon_pids[$name]"
}

# Remembers where the log ends, for `log_has` to look from there on.
log_mark() { log_start=$(($(wc -l <"$scratch/daemon.log") + 1)); }

# Whether the log has a line like this since the mark.
log_has() { tail -n "+$log_start" "$scratch/daemon.log" | grep -q -- "$1"; }

# How many lines like this it has since then.
log_count() { tail -n "+$log_start" "$scratch/daemon.log" | grep -c -- "$1" || true; }

# The daemon's engine processes.
engines() { pgrep -c -P "$daemon_pid" || true; }

# The process that serves, which its keeper may have started: the daemon, or the first of `workers`.
server=daemon

#   serving DAEMON
serving() {
    "$campanile" ctl --control "$scratch/$1.control" --json status 2>/dev/null |
        sed -n "/^  \"$server\":/,\$ s/.*\"pid\": *\([0-9]*\).*/\1/p" | head -n 1
}

# Whether another process serves than that one.
#   serves_other DAEMON PID
serves_other() {
    local now
    now=$(serving "$1")
    [ -n "$now" ] && [ "$now" != "$2" ]
}
