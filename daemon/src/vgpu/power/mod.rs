//! Power and standstill: [`d3`] is the device's own sleep, [`quiesce`] stops everything so that its state can be moved.

pub mod d3;
pub mod freeze;
pub mod quiesce;
