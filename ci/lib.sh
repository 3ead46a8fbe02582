# shellcheck shell=bash
# For ci/test and ci/full to source, in the root of the checkout: stages, their verdicts, and what both of them run.
#
#   stage, counted, tested   run a command, keep what it said for the last lines, try failed tests once more
#   times                    verdict and seconds of each stage, in one line
#   recorded                 keeps test results for `cargo ci conformance`
#   short_stages             everything that ci/test runs
#   sum_up                   the last lines: what failed, and the count of all tests
#
# Nothing is built after a failed set-up or build; otherwise all stages run, so that one run tells all that is wrong.

# What a next build could take up again is as large as the build itself, and here nothing is changed in between; the fuzz
# targets' own setting, for who works on them, gives way.
export CARGO_INCREMENTAL=0

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
results=$scratch/results
touch "$results" "$scratch/remarks"
failed_stages=()
all_stages=()

room_of_memory() { awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo; }
room_on_disk() { df --output=avail --block-size=1M . | tail -n 1 | tr -d ' '; }

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
            grep -a -E -A 4 '^error|FAIL' "$scratch/stage" | tail -n 30 || tail -n 10 "$scratch/stage"
        } >>"$scratch/remarks"
    fi
    printf '== %s: %s, %d s\n' "$name" "$verdict" $((SECONDS - started))
    all_stages+=("$name $verdict $((SECONDS - started)) s")
    [ "$verdict" = ok ]
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

# Runs tests as `counted` does. Some of them have real timeouts of 50 to 300 ms, and on a machine that stands
# still for so long a healthy engine looks hung: up to three that failed are run once more, each by itself.
# One that passes then counts as passed, and the last lines name it with what it said when it failed.
tested() {
    local log=$scratch/tests name verdict=0
    counted "$@" || verdict=$?
    [ "$verdict" -ne 0 ] || return 0
    cp "$scratch/log" "$log"
    # The list at the end of a test binary: indented names between "failures:" and its result.
    awk '/^failures:$/ { names = "" } /^    [^ ]+$/ { names = names $1 "\n" }
         /^test result: FAILED/ { printf "%s", names } /^test result: / { names = "" }' "$log" >"$scratch/names"
    local failed targets
    failed=$(wc -l <"$scratch/names")
    targets=$(sed -n 's/^error: \([0-9]*\) targets\? failed:$/\1/p' "$log")
    while read -r name; do
        printf '%s failed:\n' "$name"
        awk -v head="---- $name stdout ----" '$0 == head { on = 1; next } /^(---- |failures:|stack backtrace:)/ { on = 0 } on' "$log" |
            grep -v '^\[' | head -n 12
    done <"$scratch/names" >>"$scratch/remarks"
    # A binary that died, or a name that this does not understand, is not explained by the list.
    [ "$failed" -eq "$(awk '/^test result: FAILED/ { n += $6 } END { print n + 0 }' "$log")" ] &&
        [ "$(grep -c '^test result: FAILED' "$log")" = "$targets" ] && [ "$failed" -le 3 ] || return "$verdict"
    verdict=0
    while read -r name; do
        printf '\n-- once more, by itself: %s\n' "$name"
        if "$@" -- --exact "$name" </dev/null 2>&1 | tee "$scratch/log" && grep -q '^test result: ok\. [1-9]' "$scratch/log"; then
            printf '%s passed by itself\n' "$name" >>"$scratch/remarks"
            printf 'test result: 1 passed; -1 failed;\n' >>"$results"
        else
            verdict=1
        fi
    done <"$scratch/names"
    return "$verdict"
}

# Runs cargo with what its test binaries say kept as results for `cargo ci conformance`; the first argument names the mode.
recorded() {
    local mode=$1 triple
    shift
    triple=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
    env "CARGO_TARGET_${triple}_RUNNER=$PWD/ci/record" CAMPANILE_TEST_MODE="$mode" \
        CAMPANILE_TEST_RESULTS="$target/conformance/results" "$@"
}

loom() {
    RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 CARGO_TARGET_DIR=$target/loom \
        counted recorded loom cargo test --package campanile-protocol --release --lib loom || return
    # A filter that no test matches any more passes, and must not.
    grep -q '^test result: ok\. [1-9]' "$scratch/log" || { echo "no loom test ran"; return 1; }
}

# What ci/test runs. Fails, after the last lines, where nothing could be built.
short_stages() {
    stage setup ci/setup || { sum_up || true; exit 1; }
    # shellcheck source=/dev/null
    . .cache/vulkan/env

    stage build cargo build --workspace --all-targets || { sum_up || true; exit 1; }
    stage checks cargo ci all || true
    cargo ci results
    stage test tested recorded default cargo test --workspace --no-fail-fast || true
    stage loom loom || true
    stage conformance cargo ci conformance --strict || true
}

sum_up() {
    printf '\n'
    cat "$scratch/remarks"
    if [ ${#failed_stages[@]} -gt 0 ]; then printf 'FAILED stages: %s\n' "${failed_stages[*]}"; fi
    awk '{
            for (i = 2; i <= NF; i++) {
                if ($i == "passed;") passed += $(i - 1)
                if ($i == "failed;") failed += $(i - 1)
            }
        }
        END { printf "%d passed, %d failed\n", passed, failed }' "$results"
    [ ${#failed_stages[@]} -eq 0 ]
}
