//! With what daemons are started that are measured.

use std::ffi::OsString;
use std::time::Duration;

/// The daemons of one profile.
#[derive(Debug)]
pub struct Settings {
    /// Its name.
    pub profile: String,
    /// How long its slices are to take.
    pub slice: Duration,
    /// Their arguments.
    pub arguments: Vec<OsString>,
}
