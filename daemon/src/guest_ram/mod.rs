//! Guest RAM as the front-end shares it, and the log of what is written to it.

pub mod dirty_log;
pub mod mark;
pub mod memory;
pub mod tracking;
