//! What the VMM's command line for the kernel says: words like `words=256`.

use crate::memory::Memory;

/// In the PVH start info: what it begins with, and where the address of the command line is.
const MAGIC: u32 = 0x336e_c578;
const COMMAND_LINE: u64 = 24;
/// Bytes of a command line that are read.
const LONGEST: usize = 512;

/// How the guest works.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    /// 32-bit words of a frame, a multiple of 64.
    pub(crate) words: u64,
    /// Acknowledges VHOST_F_LOG_ALL (bit 26), which cloud-hypervisor shows to its guests: where it is acknowledged, migrations over
    /// unix and tcp go on working after the first one.
    pub(crate) log: bool,
    /// Each so-manieth frame goes through the daemon, in a submission that is answered when the work is done.
    pub(crate) kernel_mode_every: u64,
    /// MiB of this machine's memory that the GPU fills, one a frame, so that there is much to move; 0 for none, or 64 to 192.
    pub(crate) ballast: u64,
    /// Each so-manieth frame the device's configuration is read; 0 for never. cloud-hypervisor's processor thread ends when the daemon
    /// is gone just then.
    pub(crate) config_every: u64,
    /// Each so-manieth frame the device is reset; 0 for never.
    pub(crate) reset_every: u64,
    /// After so many frames the machine reboots; 0 for never.
    pub(crate) reboot_after: u64,
    /// After so many frames it is switched off; 0 for never.
    pub(crate) frames: u64,
}

impl Options {
    /// Reads the command line out of the PVH start info.
    pub(crate) fn read(start_info: u64) -> Self {
        let mut options = Self {
            words: 256,
            log: false,
            kernel_mode_every: 8,
            ballast: 0,
            config_every: 0,
            reset_every: 0,
            reboot_after: 0,
            frames: 0,
        };
        let info = Memory::at(start_info, 56);
        if start_info == 0 || info.read32(0) != MAGIC || info.read64(COMMAND_LINE) == 0 {
            return options;
        }
        let line = Memory::at(info.read64(COMMAND_LINE), LONGEST as u64);
        let mut bytes = [0; LONGEST];
        line.read(0, &mut bytes);
        let length = bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
        let text = core::str::from_utf8(&bytes[..length]).unwrap_or("");
        for (name, value) in text.split_ascii_whitespace().filter_map(|word| word.split_once('=')) {
            let Ok(value) = value.parse::<u64>() else { continue };
            match name {
                "words" => options.words = value.clamp(64, 1 << 16).next_multiple_of(64),
                "log" => options.log = value != 0,
                "kernel-every" => options.kernel_mode_every = value.max(1),
                "ballast" if value > 0 => options.ballast = value.clamp(64, 192),
                "config-every" => options.config_every = value,
                "reset-every" => options.reset_every = value,
                "reboot-after" => options.reboot_after = value,
                "frames" => options.frames = value,
                _ => {}
            }
        }
        options
    }
}
