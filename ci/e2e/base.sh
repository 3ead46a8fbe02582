# shellcheck shell=bash
# What ci/e2e-qemu, ci/e2e-qemu-migrate and ci/e2e-cloud-hypervisor share: verdicts, what is built, what is in the guest. The caller has
# `script`, `die` and `keep`. With CAMPANILE_BIN, the daemon is the one in that folder.

readonly triple=x86_64-unknown-linux-gnu
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
readonly target tools=$PWD/.cache/vm
readonly qemu=$tools/qemu campanile=${CAMPANILE_BIN:-$target/release}/campanile guest_tool=$target/$triple/release/campanile-guest
scratch=$(mktemp -d "${TMPDIR:-/tmp}/campanile-e2e.XXXXXX")
readonly scratch

readonly bare_triple=x86_64-unknown-none
readonly bare_guest=$target/bare-guest/$bare_triple/release/campanile-bare-guest

failures=0
skip() { printf 'SKIP %s: %s\n' "$1" "$(printf '%s' "$2" | tr '\n' ';' | cut -c1-400)"; }
pass() { printf 'PASS %s\n' "$1"; }
fail() {
    printf 'FAIL %s: %s\n' "$1" "$(printf '%s' "$2" | tr '\n' ';' | cut -c1-400)"
    failures=$((failures + 1))
}

# Waits until a condition (a line of shell) holds, at most so many seconds. It is looked at 20 times a second.
until_holds() {
    local end=$((SECONDS + $1))
    until eval "$2"; do
        [ "$SECONDS" -lt "$end" ] || return 1
        read -r -t 0.05 <> <(:) || true
    done
}

end() {
    local name
    for name in "$scratch"/*/pid; do
        [ ! -e "$name" ] || vm_kill "$(basename "$(dirname "$name")")"
    done
    daemons_stop
    if [ "$keep" = yes ]; then echo "$script: logs are in $scratch" >&2; else rm -rf "$scratch"; fi
}
trap end EXIT

# The machine, and the daemon.
build_host() {
    ci/setup || die "this machine could not be set up"
    # shellcheck source=/dev/null
    . .cache/vulkan/env
    [ -n "${CAMPANILE_BIN:-}" ] || cargo build --release --bin campanile || die "the daemon does not build"
}

# The guest without an operating system.
build_bare_guest() {
    [ -d "$(rustc --print target-libdir --target $bare_triple)" ] || rustup target add $bare_triple ||
        die "Rust's target $bare_triple is missing"
    (cd ci/bare-guest && env -u RUSTFLAGS CARGO_TARGET_DIR="$target/bare-guest" cargo build --release --locked) ||
        die "the bare guest does not build"
}

build() {
    build_host
    ci/vm-tools || die "there is no QEMU to test with"
    # Static, so that it runs in any guest. --target keeps the flag from build scripts and macros.
    RUSTFLAGS="${RUSTFLAGS:-} -C target-feature=+crt-static" \
        cargo build --release --package campanile-guest --bin campanile-guest --target $triple ||
        die "campanile-guest does not build"
}

# Programs in C that run in guests: the example, one that does what no program should, one that never stops.
build_c_programs() {
    local source
    cargo build --release --package campanile-guest-driver-c --lib || die "the C interface does not build"
    guest-driver/c/install "$scratch/prefix" --from "$target/release" >/dev/null || die "the C interface is not installed"
    for source in guest-driver/c/examples/squares.c ci/e2e/guest/{misuse,steady}.c; do
        PKG_CONFIG_PATH=$scratch/prefix/lib/pkgconfig sh -c \
            'cc -static "$1" -o "$2" $(pkg-config --static --cflags --libs campanile)' \
            -- "$source" "$scratch/$(basename "$source" .c)" 2>"$scratch/cc.log" ||
            die "$source does not build: $(cat "$scratch/cc.log")"
    done
}

# The Vulkan driver, installed for a guest, and its example, a program that is linked with Vulkan's loader alone.
build_vulkan_programs() {
    cargo build --release --package campanile-vulkan --lib || die "the Vulkan driver does not build"
    DESTDIR=$scratch/vulkan guest-driver/vulkan/install /usr/local --from "$target/release" >/dev/null ||
        die "the Vulkan driver is not installed"
    cc guest-driver/vulkan/examples/squares.c -o "$scratch/vulkan-squares" -lvulkan 2>"$scratch/cc.log" ||
        die "guest-driver/vulkan/examples/squares.c does not build: $(cat "$scratch/cc.log")"
}

# Debian's libraries where Debian has them, and what build_vulkan_programs made.
add_vulkan_programs() {
    local tree=$1
    mkdir -p "$tree"/{lib64,usr/lib/x86_64-linux-gnu}
    cp "$tools"/vulkan/bin/* "$scratch/vulkan-squares" "$tree/bin/"
    cp "$tools"/vulkan/lib/*.so* "$tree/usr/lib/x86_64-linux-gnu/"
    mv "$tree"/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 "$tree/lib64/"
    cp -r "$scratch/vulkan/usr" "$tree/"
    strip "$tree/bin/vulkan-squares" "$tree/usr/local/lib/libvulkan_campanile.so" || die "the Vulkan driver is not stripped"
}

make_initramfs() {
    local tree=$scratch/tree
    mkdir -p "$tree"/{bin,modules}
    cp ci/e2e/init "$tree/init"
    cp "$tools/busybox" "$tree/bin/"
    cp "$tools"/modules/*.ko "$tree/modules/"
    cp "$guest_tool" "$tree/bin/"
    [ ! -e "$scratch/steady" ] || cp "$scratch"/{squares,misuse,steady} "$tree/bin/"
    [ ! -e "$scratch/vulkan-squares" ] || add_vulkan_programs "$tree"
    strip "$tree"/bin/{campanile-guest,squares,misuse,steady} 2>/dev/null || true
    cp -r ci/e2e/*.wgsl ci/e2e/guest "$tree/"
    pack_initramfs "$tree" "$scratch/initramfs"
}

# An initramfs with all that is in a folder; a kernel takes several, one behind the other, as one file.
#   pack_initramfs FOLDER FILE
pack_initramfs() {
    (cd "$1" && find . | "$tools/busybox" cpio -o -H newc -R 0:0 >"$2" 2>/dev/null) || die "the initramfs could not be made"
}

