//! The command line of the daemon; that of measurements is in `campanile-bench`.
//!
//! | command | does |
//! |---|---|
//! | `serve` | serves vGPUs to VMMs; or starts a process for each that does (`--workers`) |
//! | `schedule` | gives turns on the GPUs of the host to several daemons |
//! | `config` | says whether files of a configuration are right, and what they can hold |
//! | `ctl` | asks something of a daemon that serves |
//! | `check-gpu` | says of every Vulkan device whether it can serve, and measures it |
//! | `inspect` | says what is in the state of a vGPU |
//! | `engine` | what the daemon starts by itself |

pub mod args;
mod asking;
pub mod check_gpu;
pub mod config;
pub mod configured;
pub mod ctl;
pub mod doorbells;
mod drain;
pub mod engines;
pub mod exit;
pub mod gantt;
pub mod holding;
pub mod inspect;
pub mod log_format;
pub mod log_level;
pub mod migration;
mod narrowed;
pub mod options;
mod output;
mod perfetto;
pub mod processes;
pub mod qmp;
mod reload;
pub mod replug;
pub mod schedule;
pub mod scheduling;
pub mod serve;
pub mod table;
pub mod tdr;
mod trace;
pub mod vram;
pub mod vulkan_environment;
mod workers;
