# shellcheck shell=bash
# What ci/e2e-qemu tries of Vulkan programs: Debian's vulkaninfo, and ours, both over Debian's Vulkan loader, which finds the driver by
# its manifest. Machine a runs on the vGPU a, as ci/e2e/checks.sh has it.

# All that machine a takes, in their order.
readonly vulkan_checks=(vulkan_info vulkan_numbers vulkan_squares vulkan_no_messages vulkan_nobody vulkan_nothing)

# The example in a machine: its kernel writes to memory that the CPU does not see, and to memory that it sees.
#   vulkan_program NAME PREFIX [PROGRAM…]
vulkan_program() {
    local name=$1 prefix=$2 right='^20 rounds of 1024 squares are right'
    shift 2
    claim_guest "$name" "${prefix}a Vulkan program runs over Debian's loader, and its squares are right" "$right" 60 \
        "${*:-vulkan-squares} --loops 20"
    claim_guest "$name" "${prefix}and where its kernel writes to memory that the CPU sees" "$right" 60 \
        "${*:-vulkan-squares} --loops 20 --visible"
}

# What vulkaninfo says of a machine.
#   vulkan_summary NAME PREFIX
vulkan_summary() {
    local claim="${2}vulkaninfo shows the device"
    if guest "$1" 30 'vulkaninfo --summary' && grep -q 'driverName *= Campanile' <<<"$output" &&
        grep -q 'deviceName *= Campanile (' <<<"$output" && ! grep -q '^GPU1' <<<"$output"; then
        pass "$claim ($(sed -n 's/^ *deviceName *= //p' <<<"$output"), Vulkan $(sed -n 's/^ *apiVersion *= \([0-9.]*\).*/\1/p' <<<"$output"))"
    else
        fail "$claim" "$output"
    fi
}

vulkan_info() { vulkan_summary a ""; }

# A number of vulkaninfo's in `output`.
vulkan_number() { sed -n "s/^[[:space:]]*$1 *= \([0-9]*\).*/\1/p" <<<"$output" | head -n 1; }

vulkan_numbers() {
    local claim="and the numbers of campanile-guest info" what expected=()
    guest a 30 "vulkaninfo | grep -E '$(printf '%s|' maxComputeWorkGroupInvocations maxComputeSharedMemorySize maxPushConstantsSize subgroupSize)deviceName|memoryHeaps|[[:space:]]size'" ||
        { fail "$claim" "$output"; return; }
    expected=("^video memory  $(($(vulkan_number size) >> 20)) MiB"
        "^kernels on  *$(sed -n 's/.*deviceName *= Campanile (\(.*\))$/\1/p' <<<"$output"), driver "
        ", $(vulkan_number maxComputeWorkGroupInvocations) invocations, $(($(vulkan_number maxComputeSharedMemorySize) >> 10)) KiB of memory; "
        " $(vulkan_number maxPushConstantsSize) bytes of constants$"
        "^features  *subgroups of $(vulkan_number subgroupSize);")
    guest a 30 'campanile-guest info' || { fail "$claim" "$output"; return; }
    for what in "${expected[@]}"; do
        grep -q -- "$what" <<<"$output" || { fail "$claim" "there is no '$what' in $output"; return; }
    done
    pass "$claim"
}

vulkan_squares() { vulkan_program a ""; }

vulkan_no_messages() { no_messages_of "no control-queue message while a Vulkan program works that polls its fences" vulkan-squares --until stop --tell --poll; }

# Whoever has no device is told that there is none.
#   vulkan_none CLAIM BEFORE PROGRAM AFTER
vulkan_none() {
    guest a 30 "$2; $3; echo ended with \$?; $4"
    if grep -q '^squares: there is no Vulkan device' <<<"$output" && grep -q '^ended with 1$' <<<"$output"; then
        pass "$1"
    else
        fail "$1" "$output"
    fi
}

vulkan_nobody() {
    local program='start-stop-daemon -S -c somebody -x /bin/vulkan-squares'
    vulkan_none "a Vulkan program of a user who may not open the render node finds no device" 'chmod 600 /dev/dri/renderD128' \
        "$program" 'chmod 666 /dev/dri/renderD128'
    vulkan_program a "as one who may: " "$program --"
}

vulkan_nothing() {
    vulkan_none "nor does one where there is none" 'mv /dev/dri /dev/away' vulkan-squares 'mv /dev/away /dev/dri'
    # Its own way to say so is an error; a signal would be ours.
    guest a 30 'mv /dev/dri /dev/away; vulkaninfo --summary; echo ended with $?; mv /dev/away /dev/dri'
    local claim="and vulkaninfo goes on without one"
    if grep -q '^ended with [01]$' <<<"$output"; then pass "$claim"; else fail "$claim" "$output"; fi
}
