//! Detach and attach: processes that outlive the device that they used, because it leaves the VM and returns (DDI of the
//! hot-plug of GPUs).

pub mod absences;
pub mod attach;
pub mod detach;
pub mod detached;
