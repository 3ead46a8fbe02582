# shellcheck shell=bash
# The commands of the guides, for scripts to source that run them. A block is marked with where it runs:
#
#   ```sh run            by the tests `guides` of the daemon, beside daemons of their own
#   ```sh run=vm         on the host of a VM: ci/e2e/guide-checks.sh    ```sh run=guest     in its guest
#   ```sh run=move       beside two daemons and a VM that moves: ci/e2e/guide-moves.sh
#   ```sh run=checkout   in a checkout, with what it builds: ci/guides
#   ```sh run=debian     in a clean Debian with the packages: ci/packages
#   ```sh run=libvirt    beside a libvirtd: ci/libvirt
#   ```sh run=cloud-hypervisor   on the host of one: ci/e2e/cloud-hypervisor-guide.sh
#   ```sh run=ci         scripts of this folder, by their names
#   ```sh needs=WHAT     nowhere: what it takes is on no machine that tests run on
#
# `cargo nextest run --test guides` sees to it that the script of a mark runs each page that has it.

# Prints the blocks of a page that have a mark, or one of them, from 1. Fails where there is none.
#   blocks PAGE run=WHERE [NUMBER]
blocks() {
    awk -v mark="$2" -v wanted="${3:-0}" '
        /^```/ { if (is_open) { is_open = 0; next } is_open = 1; is_shown = $2 == mark && (++count == wanted || !wanted); found += is_shown; next }
        is_open && is_shown
        END { if (!found) { print "blocks: error: there is no block " mark " in " FILENAME >"/dev/stderr"; exit 1 } }' "$1"
}
