//! The objects of guest processes: devices, contexts, queues, doorbells, kernels; what each is charged for; and the types that
//! all rooms share. The bottom of a session: it calls no other room.
//!
//! ```text
//!   Objects ─▶ Process ─▶ Device ─▶ contexts, queues, doorbells, kernels, open fences (tables by handle)
//!      │          ├─ purse ─▶ budget of the VM
//!      │          └─ timelines: fences behind work that is not done ──┐
//!      ├─ due ◀────────────────────────────────────────────────────────┘
//!      └─ spans: of buffers that have not ended
//! ```

pub mod budget;
pub mod changing;
pub mod class;
pub mod device_page;
pub mod doorbell_state;
pub mod holds;
pub mod ids;
pub mod kernel_board;
pub mod kernel_source;
pub mod mapping;
pub mod message;
pub mod paging_queue;
pub mod process;
pub mod processes;
pub mod recent;
pub mod refusal;
pub mod save_area;
pub mod spans;
pub mod table;
pub mod timeline;
pub mod waits;
