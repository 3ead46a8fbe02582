//! The command line.
//!
//! | command | does |
//! |---|---|
//! | `serve` | serves vGPUs to VMMs |
//! | `ctl` | asks something of a daemon that serves |
//! | `demo` | starts a daemon, attaches a guest, renders, checks, measures |
//! | `bench` | measures alone |
//! | `inspect` | says what is in the state of a vGPU |
//! | `sim` | many guests by a virtual clock |
//! | `engine`, `peer` | what daemon and benchmark start by themselves |

pub mod args;
pub mod ctl;
pub mod demo;
pub mod doorbells;
pub mod engines;
pub mod gantt;
pub mod holding;
pub mod inspect;
pub mod measuring;
pub mod migration;
pub mod qmp;
pub mod replug;
pub mod scheduling;
pub mod serve;
pub mod simulate;
pub mod size;
pub mod table;
pub mod tdr;
pub mod vgpu;
pub mod vram;
