//! The objects of guest processes: devices, contexts, queues, doorbells, kernels; what each is charged for, and what it
//! did lately.

pub mod budget;
pub mod devices;
pub mod history;
pub mod process;
pub mod table;
pub mod timeline;
