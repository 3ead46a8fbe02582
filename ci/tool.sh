# shellcheck shell=bash
# For scripts in the root of the checkout to source: cargo commands that are not part of Rust.

export PATH=$PWD/.cache/tools/bin:$PATH

# Sees to the command $1 in version $2, which `cargo install` (with what else is said) builds into .cache/tools unless it is there.
# Little is optimised: what these commands spend is the compiler's time, and most machines build them for one run.
tool() {
    local name=$1 version=$2
    shift 2
    cargo install --list --root .cache/tools 2>/dev/null | grep -q -x -F "$name v$version:" && return
    CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=64 \
        CARGO_PROFILE_RELEASE_DEBUG=false cargo install --quiet --locked --root .cache/tools --version "$version" "$name" "$@"
}
