//! A VM that moves to another daemon while its guest runs, in the message order of real VMMs.
//!
//! ```text
//!                 source's connection                              target's connection
//!   QEMU    log ▶ │ SET_LOG_BASE, LOG_ALL, SET_VRING_ADDR(LOG)     │ init: features, CALL, RESET_DEVICE
//!           passes│ nothing; the log is read                       │
//!           ───── virtual CPUs stand still ─────                   │
//!           stop  │ ENABLE 0, GET_VRING_BASE; last pages of RAM    │
//!           save  │ SET_DEVICE_STATE_FD(SAVE), CHECK               │
//!           load  │                                                │ SET_DEVICE_STATE_FD(LOAD), CHECK
//!           start │                                                │ SET_FEATURES, memory, NUM BASE ADDR KICK, ENABLE, CALL
//!           ───── the window shows the target's memory at the same addresses; virtual CPUs go on ─────
//!           end   │ closes                                         │
//! ```
//!
//! cloud-hypervisor closes the source's connection before it opens the target's, begins there without questions
//! (`Opening::AsBefore`), and swaps the log with each pass.
//!
//! What fails before the target's rings run leaves the guest on the source: the target's connection is closed, and the
//! source starts again as QEMU has it (`Failure` in [`error`]). Guest RAM can move to new memory meanwhile
//! ([`options::Ram`]): page by page, and at the end only what the device's log and the CPU's write tracking name, so
//! that a page missing from the log is a page that the guest sees old.

mod arrival;
mod cpu_writes;
mod departure;
mod device_state;
pub mod error;
mod move_vm;
pub mod options;
mod ram_copy;
pub mod saved;
