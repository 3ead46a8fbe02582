//! Native fences: their table ([`table`]), and which waits of CPUs and queues are over ([`native`]). What follows from that
//! for engines and messages is carried out by `control/fences.rs`.

pub mod native;
pub mod table;
