# shellcheck shell=bash
# The daemon under test, for ci/e2e-qemu to source. Its log is $scratch/daemon.log.

daemon_pid=

# Starts a daemon with these arguments of `campanile serve`, and waits until it listens.
daemon_start() {
    : >"$scratch/daemon.log"
    RUST_LOG=info,campanile_daemon=debug "$campanile" serve "$@" >"$scratch/daemon.log" 2>&1 </dev/null &
    daemon_pid=$!
    until_holds 60 "grep -q 'serving' '$scratch/daemon.log' || ! kill -0 $daemon_pid" &&
        kill -0 "$daemon_pid" 2>/dev/null
}

daemon_stop() {
    [ -n "$daemon_pid" ] || return 0
    kill -TERM "$daemon_pid" 2>/dev/null || true
    wait "$daemon_pid" 2>/dev/null || true
    daemon_pid=
}

# Remembers where the log ends, for `log_has` to look from there on.
log_mark() { log_start=$(($(wc -l <"$scratch/daemon.log") + 1)); }

# Whether the log has a line like this since the mark.
log_has() { tail -n "+$log_start" "$scratch/daemon.log" | grep -q -- "$1"; }

# How many lines like this it has since then.
log_count() { tail -n "+$log_start" "$scratch/daemon.log" | grep -c -- "$1" || true; }

# The daemon's engine processes.
engines() { pgrep -c -P "$daemon_pid" || true; }
