//! A guest of Campanile without an operating system: it is the whole machine's software, and needs a VMM that boots PVH.
//!
//! ```text
//!   boot ─▶ pci ─▶ virtio ─▶ front ─▶ session: device page, kernel, queues ─▶ frame, frame, frame …
//!                    ▲                    ▲                                     │
//!                    │ no answer: reset   └──── LOST: a new session ◀───────────┘ fence does not come, or an error
//! ```
//!
//! Everything that it shares with the GPU lies in its own memory, doorbells included; what no CPU sees lies in video memory. It has one
//! processor, no interrupts, and uses integer instructions alone, so that it runs where KVM emulates every instruction. What it
//! does and sees goes to the first serial port, a line each:
//!
//! | line | means |
//! |---|---|
//! | `machine …` | boots, with these options |
//! | `device …` | the device, its feature bits and configuration |
//! | `session N …` | the N-th session has begun |
//! | `frame N …` | frame N was rendered by the GPU, and each word of it is right. Numbers rise by one as long as the machine runs |
//! | `WRONG …` | it was not; the guest ends |
//! | `LOST …` | the session is lost, or the device does not answer; it begins anew |
//! | `ended …` | the machine is switched off |
//!
//! Its options are words of the kernel's command line: [`options`].

#![no_std]
#![no_main]

mod arena;
mod boot;
mod clock;
mod commands;
mod control;
mod fault;
mod front;
mod fs;
mod gpu;
mod machine;
mod memory;
mod model;
mod options;
mod pci;
mod ports;
mod serial;
mod session;
mod user_queue;
mod virtio;
mod virtqueue;

use core::panic::PanicInfo;

use serial::say;

#[panic_handler]
fn panicked(info: &PanicInfo<'_>) -> ! {
    say!("ended 1: {info}");
    ports::power_off()
}
