//! A daemon is replaced by another, of another binary perhaps, under running VMs: `campanile ctl upgrade`.
//!
//! ```text
//!   predecessor (serves)                                      successor (BINARY serve …, its standard input is the channel)
//!   ────────────────────                                      ─────────────────────────────────────────────────────────────
//!   spawn ──────────────────────────────────────────────────▶ Hello: which formats it reads
//!   Sockets: all at which it listens ───────────────────────▶ configuration, checks, supervisor, engines probed
//!                                                    ◀─────── Prepared
//!   each vGPU: connection parked, device quiesced, saved
//!   Estate, Vgpu × n: state, memories, descriptors ─────────▶ each vGPU: device restored, frozen
//!                                                    ◀─────── Restored
//!   Go  ════════════ from here on the successor's ══════════▶ rings run, devices thaw, control socket is served
//!                                                    ◀─────── Serving
//!   answers the operator, ends
//! ```
//!
//! **Ownership.** Connection, rings and memories are the predecessor's until it has sent `Go`, and the successor's from then on:
//! before that the successor touches neither ring nor engine, after that the predecessor does not. Both have them open.
//!
//! **Failure.** Whatever fails before `Go` (the binary does not start, reads no such format, refuses the configuration, cannot restore
//! a device, is too slow), the successor is killed and waited for, and the predecessor goes on: its guests have seen a pause. After
//! `Go` a connection that cannot be taken up ends, as if the daemon had ended for that VM.
//!
//! The predecessor's side is `host::predecessor`, above the vGPUs that are served, and these are above what is here.

pub(super) mod channel;
pub(super) mod inheritance;
pub(super) mod message;
pub mod successor;
