//! Native fences: their table, and the waits of CPUs and queues for them.

pub mod native;
pub mod table;
