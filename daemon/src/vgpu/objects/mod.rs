//! The objects of guest processes: devices, contexts, queues, doorbells, kernels; what each is charged for, and what it
//! did lately.

pub mod budget;
pub mod changing;
pub mod class;
pub mod device_page;
pub mod doorbell_state;
pub mod holds;
pub mod ids;
pub mod kernel_source;
pub mod mapping;
pub mod message;
pub mod paging_queue;
pub mod process;
pub mod processes;
pub mod recent;
pub mod refusal;
pub mod save_area;
pub mod table;
pub mod timeline;
pub mod waits;
