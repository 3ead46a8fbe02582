//! `campanile serve --workers DIR`: a daemon of its own for each vGPU, a *worker*, and this process, which starts them and is where the
//! operator asks.
//!
//! ```text
//!   operator, scraper, browser ──▶ switchboard ──desk: a connection for each answer──▶ control socket of each worker
//!                                     │ orders: a vGPU comes, goes
//!                                     ▼
//!                                  supervisor ──spawn──▶ campanile schedule                  turns between the workers
//!                                     │ ──────spawn──▶ keeper of a ──spawn──▶ worker a ──▶ its engines
//!                                     └───────spawn──▶ keeper of b ──spawn──▶ worker b ──▶ its engines
//! ```
//!
//! A guest that breaks its worker is alone in there with its own VM. This process has copies of the descriptors that a VM needs, for a keeper that follows a killed one, and no more: when it is killed,
//! workers go on, and the next one finds them by the locks of their keepers ([`folder::Folder`]). Workers are daemons like any other,
//! with the same configuration, narrowed to one vGPU ([`crate::cli`]).

pub mod board;
pub mod desk;
pub mod folder;
mod found;
pub mod merge;
pub mod notify;
pub mod orders;
pub mod plan;
pub mod process;
pub mod scrape;
pub mod serve;
pub mod service;
pub mod supervisor;
pub mod switchboard;
mod worker;
