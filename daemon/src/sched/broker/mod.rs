//! One schedule for the daemons of a host: a process of its own, the broker, gives the engines of all of them their turns.
//!
//! ```text
//!   daemon of VM A ── Member ──┐                               ┌─▶ Supervisor ── grant words ──▶ engines of A
//!   daemon of VM B ── Member ──┴─ packets, descriptors ─▶ Broker                            └──▶ engines of B
//! ```
//!
//! | file | is |
//! |---|---|
//! | `message` | what daemons and the broker say to each other |
//! | `line` | the socket between them: one message a packet, descriptors beside it |
//! | `evidence` | what the broker believes of a descriptor, before it maps or signals it |
//! | `devices` | which devices of which daemons are the same one |
//! | `member` | the daemon's side: a [`Schedule`](super::schedule::Schedule) over the line |
//! | `serve`, `server` | the broker's side: its thread, and daemons that come and go with their engines |
//! | `settling` | the time after its start, in which daemons of a broker before come back |
//! | `daemon` | what it has of a daemon, and of engines whose daemon has gone |
//! | `seat` | one engine of a daemon, as the broker has it |
//!
//! The broker is in no path of work: it shares an engine's block and eventfds with the daemon that started it, and gives and
//! takes turns over them as a supervisor of that daemon would. Messages say which engines there are; none is sent for a turn.
//!
//! *A daemon that ends* takes its engines with it. Each leaves the schedule when its process has ended, or at the latest a timeout
//! later: a daemon that lies about processes can hold up others no longer.
//!
//! *A broker that ends* leaves all as it was: an engine that has its node runs on, one that wants it waits. Daemons try to connect
//! until there is a broker again, and say what engines they have; what each has of its node is in its grant word. The next broker
//! gives no turns before all are back that were there, since one that is not may have a node.

mod daemon;
pub mod devices;
mod evidence;
pub mod line;
pub mod member;
pub mod message;
mod seat;
pub mod serve;
mod server;
mod settling;
#[cfg(test)]
mod tests;
