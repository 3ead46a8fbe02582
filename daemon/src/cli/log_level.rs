//! How much is logged.

use std::env;

use clap::ValueEnum;
use log::LevelFilter;

/// The variable with a filter of its own.
pub const FILTER: &str = "RUST_LOG";

/// From what urgency on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// What failed.
    Error,
    /// And what may be wrong.
    Warn,
    /// And what happens.
    Info,
    /// And what is done about each request.
    Debug,
    /// And all there is.
    Trace,
}

impl LogLevel {
    /// From now on, unless the environment has a filter.
    pub fn set(self) {
        if env::var_os(FILTER).is_none() {
            log::set_max_level(match self {
                Self::Error => LevelFilter::Error,
                Self::Warn => LevelFilter::Warn,
                Self::Info => LevelFilter::Info,
                Self::Debug => LevelFilter::Debug,
                Self::Trace => LevelFilter::Trace,
            });
            // Whether spans are made is asked anew.
            tracing::callsite::rebuild_interest_cache();
        }
    }
}
