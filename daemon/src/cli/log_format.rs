//! How lines of log look.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use clap::ValueEnum;

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// A JSON object a line: time, level, target, thread, message.
    Json,
}

static IS_JSON: AtomicBool = AtomicBool::new(false);

impl LogFormat {
    /// From now on.
    pub fn set(self) {
        IS_JSON.store(self == Self::Json, Ordering::Relaxed);
    }

    /// As it was set last.
    pub fn current() -> Self {
        if IS_JSON.load(Ordering::Relaxed) { Self::Json } else { Self::Text }
    }
}
