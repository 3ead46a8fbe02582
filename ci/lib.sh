# shellcheck shell=bash
# For ci/test and ci/full to source, in the root of the checkout: stages, their verdicts, and what both of them run.
#
#   stage, counted     run a command, keep what it said for the last lines
#   in_time            runs a stage if the whole run still ends in time with it, and ends it where it takes twice its time
#   with               runs a command with Debian's packages that it needs
#   tested             runs tests, keeps their results for `cargo ci conformance`
#   times              verdict and seconds of each stage, in one line
#   make_room          removes what a stage has built, where the disk is short
#   all_but            tests that are not in a list
#   short_stages       everything that ci/test runs, but for the tests of a list
#   sum_up             the last lines: what failed, and the count of all tests
#
# Nothing is built after a failed set-up or build; otherwise all stages run, so that one run tells all that is wrong.

# What a next build could take up again is as large as the build itself, and here nothing is changed in between; the fuzz
# targets' own setting, for who works on them, gives way.
export CARGO_INCREMENTAL=0

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
scratch=$(mktemp -d)
loom=
trap 'if [ -n "$loom" ]; then pkill --parent "$loom" || true; fi; rm -rf "$scratch"' EXIT
results=$scratch/results
touch "$results" "$scratch/remarks"
failed_stages=()
left_out=()
all_stages=()

room_of_memory() { awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo; }
room_on_disk() { df --output=avail --block-size=1M . | tail -n 1 | tr -d ' '; }

# Removes what a stage has built for itself in these folders of the target folder, where the disk has less than 20 GiB left.
make_room() {
    [ "$(room_on_disk)" -ge 20480 ] || rm -rf "${@/#/$target/}"
}

# Runs a stage with its name, time and verdict around it. Where one fails, what it complained of is said again at the end,
# or its last lines, and what room there was.
stage() {
    local name=$1 started=$SECONDS verdict=ok
    shift
    printf '\n== %s\n' "$name"
    "$@" 2>&1 | tee "$scratch/stage" || verdict=FAILED
    if [ "$verdict" != ok ]; then
        failed_stages+=("$name")
        {
            printf -- '-- %s (%s MiB of memory free, %s MiB of disk)\n' "$name" "$(room_of_memory)" "$(room_on_disk)"
            grep -a -E -A 4 '^error|FAIL' "$scratch/stage" | tail -n 30 || tail -n 40 "$scratch/stage"
        } >>"$scratch/remarks"
    fi
    printf '== %s: %s, %d s\n' "$name" "$verdict" $((SECONDS - started))
    all_stages+=("$name $verdict $((SECONDS - started)) s")
    [ "$verdict" = ok ]
}

# The processes that descend from one, and that one.
family() {
    local child
    for child in $(pgrep --parent "$1"); do family "$child"; done
    echo "$1"
}

# Runs a command, and kills it and all that it has begun where it takes longer than so many minutes. What hangs is no more than a stage that fails.
# Only where a shell of its own runs it, as in a pipeline: that one is killed, too.
#   within MINUTES COMMAND…
within() {
    local minutes=$1 own=$BASHPID
    shift
    {
        local watch=$BASHPID ended=0
        timeout "${minutes}m" tail --pid="$own" --follow /dev/null || ended=$?
        if [ "$ended" -eq 124 ]; then
            printf -- '-- killed after %s minutes: %s\n' "$minutes" "$*" >>"$scratch/remarks"
            # shellcheck disable=SC2046
            kill -KILL $(family "$own" | grep -vx "$watch")
        fi
    } >/dev/null 2>&1 </dev/null &
    "$@"
}

# Runs a stage that takes so many minutes at the most, on a slow machine; where all of it would not end in time, says that it is left out, and fails.
# It has twice that time, so that a stage that hangs does not take the others along.
#   in_time MINUTES NAME COMMAND…
in_time() {
    local minutes=$1
    shift
    if [ $((SECONDS / 60 + minutes)) -le "${CAMPANILE_CI_MINUTES:-85}" ]; then
        stage "$1" within $((minutes * 2)) "${@:2}"
        return
    fi
    printf '\n== %s: left out, as it may take %d minutes after %d of %d\n' "$1" "$minutes" $((SECONDS / 60)) "${CAMPANILE_CI_MINUTES:-85}"
    left_out+=("$1")
    return 1
}

# Installs what is missing of these packages, then runs a command; where they cannot be had, the last lines say that it was left out.
#   with PACKAGE,… COMMAND…
with() {
    local packages
    IFS=, read -r -a packages <<<"$1"
    shift
    if ! dpkg --status "${packages[@]}" >/dev/null 2>&1 &&
        ! DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install --yes --no-install-recommends "${packages[@]}" >/dev/null </dev/null; then
        printf 'left out, as apt-get could not install %s: %s\n' "${packages[*]}" "$*" | tee -a "$scratch/remarks"
        return
    fi
    "$@"
}

times() {
    local IFS=,
    printf '%s: %s\n' "$1" "${all_stages[*]}" | sed 's/,/, /g'
}

# Runs a command that ends in test results, and keeps the lines that count them.
counted() {
    local log=$scratch/log verdict=0
    "$@" 2>&1 | tee "$log" || verdict=$?
    grep '^test result: ' "$log" >>"$results" || true
    return "$verdict"
}

# NAME=VALUE, for the tests that `tested` runs; what they are run by.
test_environment=()
nicely=()

# Tests wait for about a third of their time, for processes and time limits.
test_threads=$((($(nproc) * 3 + 1) / 2))

# Nextest's expression for all tests but those of a list.
all_but() { printf 'all()' && sed -n 's/^[a-z].*/ - test(=&)/p' "$1" | tr -d '\n'; }

# Runs tests of the workspace with cargo-nextest, and keeps what it reports for `cargo ci conformance`; the first argument names the mode, one word:
# results of different modes do not stand in for one another. What the array
# test_environment holds is set for nextest alone.
tested() {
    local mode=$1 verdict=0
    shift
    run_tests --workspace --features "$loopback" "$@" || verdict=$?
    recorded "$mode" || verdict=1
    return "$verdict"
}

# Where nextest writes what became of each test.
report=$PWD/target/nextest/ci/junit.xml

run_tests() {
    rm -f "$report"
    env "${test_environment[@]}" "${nicely[@]}" cargo nextest run --profile ci --test-threads "$test_threads" "$@"
}

# Features of the guest's libraries that tests of C and Vulkan programs want: a VM in the program.
loopback=campanile-guest-driver-c/loopback,campanile-vulkan/loopback

# Keeps what the last run of tests has reported; fails where that was none.
recorded() {
    local mode=$1 verdict=0
    [ -f "$report" ] || return 1
    cargo ci record "$mode" "$report" | tee "$scratch/recorded" || verdict=1
    grep ' passed; ' "$scratch/recorded" >>"$results" || verdict=1
    grep -v ' passed; ' "$scratch/recorded" >>"$scratch/remarks" || true
    return "$verdict"
}

# Begins loom's tests, built apart from all else, beside the build, which leaves one of two CPUs idle for its last minutes.
begin_loom() {
    local test_environment=("RUSTFLAGS=--cfg loom" LOOM_MAX_PREEMPTIONS=3 "CARGO_TARGET_DIR=$target/loom")
    local nicely=(nice -n 10) test_threads=1
    {
        local verdict=0
        run_tests --package campanile-protocol --release --lib loom >"$scratch/loom" 2>&1 || verdict=$?
        echo "$verdict" >"$scratch/loom-verdict"
    } &
    loom=$!
}

# Waits for them.
end_loom() {
    local verdict=0
    # A stage is no parent of what was begun outside of it.
    tail --pid="$loom" --follow /dev/null
    cat "$scratch/loom"
    recorded loom || verdict=1
    [ "$(cat "$scratch/loom-verdict")" = 0 ] || verdict=1
    return "$verdict"
}

# What ci/test runs, but for the tests of a list, if there is one. Fails, after the last lines, where nothing could be built.
#   short_stages [LIST]
short_stages() {
    local tests='all()' leave=()
    if [ $# -gt 0 ]; then
        tests=$(all_but "$1")
        leave=(--leave "$1")
    fi
    stage setup ci/setup || { sum_up || true; exit 1; }
    # shellcheck source=/dev/null
    . .cache/vulkan/env
    # shellcheck source=ci/tool.sh
    . ci/tool.sh
    cargo nextest --version >/dev/null 2>&1 || stage nextest tool cargo-nextest 0.9.143 || { sum_up || true; exit 1; }

    begin_loom
    stage build cargo build --workspace --all-targets --features "$loopback" || { sum_up || true; exit 1; }
    # Those tests build nothing then.
    export CAMPANILE_BUILT=1
    stage checks cargo ci all || true
    cargo ci results "${leave[@]}"
    stage loom end_loom || true
    stage test tested default -E "$tests" || true
    # Examples in documentation, which nextest leaves to cargo.
    stage examples counted cargo test --workspace --features "$loopback" --doc || true
    stage conformance cargo ci conformance --strict || true
}

sum_up() {
    printf '\n'
    cat "$scratch/remarks"
    if [ ${#failed_stages[@]} -gt 0 ]; then printf 'FAILED stages: %s\n' "${failed_stages[*]}"; fi
    if [ ${#left_out[@]} -gt 0 ]; then printf 'left out (no time, or no mounts): %s\n' "${left_out[*]}"; fi
    awk '{
            for (i = 2; i <= NF; i++) {
                if ($i == "passed;") passed += $(i - 1)
                if ($i == "failed;") failed += $(i - 1)
            }
        }
        END { printf "%d passed, %d failed\n", passed, failed }' "$results"
    [ ${#failed_stages[@]} -eq 0 ]
}
