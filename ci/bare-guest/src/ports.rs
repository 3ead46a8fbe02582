//! Ports and the processor's own: the only instructions that Rust has no words for.

#![allow(unsafe_code)]

use core::arch::asm;

/// Where cloud-hypervisor takes ACPI sleep states, and what S5 is there.
const CLOUD_HYPERVISOR_SLEEP: (u16, u8) = (0x600, 0x34);
/// QEMU's PM1a control, and S5 there.
const QEMU_SLEEP: (u16, u16) = (0x604, 0x2000);
/// The keyboard controller's reset line.
const RESET: (u16, u8) = (0x64, 0xfe);

/// Reads a byte.
pub(crate) fn read8(port: u16) -> u8 {
    let value;
    // SAFETY: a port is no memory; nothing here depends on what reading it does to a device.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Writes a byte.
pub(crate) fn write8(port: u16, value: u8) {
    // SAFETY: as in `read8`; devices that reach into memory are told where by `virtio` alone, with memory of the arena.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nostack, preserves_flags)) };
}

/// Writes 16 bits.
fn write16(port: u16, value: u16) {
    // SAFETY: as in `write8`.
    unsafe { asm!("out dx, ax", in("dx") port, in("ax") value, options(nostack, preserves_flags)) };
}

/// Reads 32 bits.
pub(crate) fn read32(port: u16) -> u32 {
    let value;
    // SAFETY: as in `read8`.
    unsafe { asm!("in eax, dx", in("dx") port, out("eax") value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Writes 32 bits.
pub(crate) fn write32(port: u16, value: u32) {
    // SAFETY: as in `write8`.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nostack, preserves_flags)) };
}

/// A full fence. Rust's would be MFENCE, which no KVM emulates.
pub(crate) fn full_fence() {
    // SAFETY: adds zero to the top of the stack.
    unsafe { asm!("lock or dword ptr [rsp], 0", options(preserves_flags)) };
}

/// Forgets what the processor remembers of page tables.
pub(crate) fn flush_translations() {
    // SAFETY: the same root as before; tables only ever gain entries.
    unsafe { asm!("mov {0}, cr3", "mov cr3, {0}", out(reg) _, options(nostack, preserves_flags)) };
}

/// Stands still for good: no interrupt comes.
fn halt() -> ! {
    loop {
        // SAFETY: waits.
        unsafe { asm!("hlt", options(nomem, nostack, preserves_flags)) };
    }
}

/// Switches the machine off.
pub(crate) fn power_off() -> ! {
    write8(CLOUD_HYPERVISOR_SLEEP.0, CLOUD_HYPERVISOR_SLEEP.1);
    write16(QEMU_SLEEP.0, QEMU_SLEEP.1);
    halt()
}

/// Resets the machine.
pub(crate) fn reboot() -> ! {
    write8(RESET.0, RESET.1);
    halt()
}
