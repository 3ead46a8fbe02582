//! `campanile bench gpu`: the same kernels and copies on the same device, through Campanile and by its bare driver.
//!
//! ```text
//!   measurement ─┬─ through   guest ▶ daemon ▶ engine ▶ driver     video memory of a vGPU
//!    (rounds,    ├─ native    this process ▶ driver               memory of the device's own
//!     in turn)   └─ native    this process ▶ driver               imported host memory
//!
//!   moves ───────┬─ host in this process ▶ engine, copy process ▶ driver   local memory of a vGPU, the device's own
//!                └─ native               this process ▶ driver           both
//! ```

pub mod figures;
pub mod measurement;
pub mod moves;
mod native;
mod through;
mod work;
