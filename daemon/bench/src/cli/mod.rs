//! The command line of what measures.
//!
//! | command | does |
//! |---|---|
//! | `demo` | starts a daemon, attaches a guest, renders, checks, measures |
//! | `bench` | measures alone |
//! | `sim` | many guests by a virtual clock |
//! | `peer` | what the benchmark starts by itself |

pub mod args;
pub mod command;
pub mod demo;
pub mod simulate;
