//! The engine processes of one vGPU: when they start and end, what is sent to them and what waits for their answers.
//!
//! [`slot`] is all that is kept of one engine, [`lifecycle`] starts and stops it, [`outbox`] holds messages until its
//! channel takes them ([`sending`]), [`kernels`] are compiled by it, what its driver made of them stays ([`kept_code`]), and [`pending`] is what a [`barrier`] of it has to pass first.

pub mod barrier;
pub mod device_moves;
pub mod kept_code;
pub mod kernel_requests;
pub mod kernels;
pub mod lifecycle;
mod moving;
pub mod outbox;
pub mod pending;
pub mod pending_kernel;
pub mod room;
pub mod sending;
pub mod slot;
pub mod suspending;
pub mod suspends;
pub mod wakeup;
