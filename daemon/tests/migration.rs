//! Migration from daemon to daemon, with a memory that tests write to: no VMM and no engine.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test stops here")]

#[path = "migration/brownout.rs"]
mod brownout;
#[path = "migration/costly.rs"]
mod costly;
#[path = "migration/faults.rs"]
mod faults;
#[path = "migration/files.rs"]
mod files;
#[path = "migration/memory.rs"]
mod memory;
#[path = "migration/order.rs"]
mod order;
#[path = "migration/pair.rs"]
mod pair;
#[path = "migration/proxy.rs"]
mod proxy;
#[path = "migration/refusals.rs"]
mod refusals;
#[path = "migration/strangers.rs"]
mod strangers;
#[path = "migration/tls.rs"]
mod tls;
