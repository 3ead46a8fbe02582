//! The first serial port: lines out.

use core::fmt;

use crate::ports;

const DATA: u16 = 0x3f8;
const LINE_STATUS: u16 = 0x3fd;
/// In [`LINE_STATUS`]: there is room for a byte to send.
const ROOM: u8 = 0x20;
/// Looks for room, which a port without a reader may never have.
const LOOKS: u32 = 10_000;

/// The port as a place to write text to.
pub(crate) struct Serial;

impl fmt::Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            let has_room = (0..LOOKS).any(|_| ports::read8(LINE_STATUS) & ROOM != 0);
            if has_room {
                ports::write8(DATA, byte);
            }
        }
        Ok(())
    }
}

/// Says a line.
macro_rules! say {
    ($($words:tt)*) => {{
        use core::fmt::Write;
        // The port never says no.
        let _ = writeln!($crate::serial::Serial, $($words)*);
    }};
}

pub(crate) use say;
