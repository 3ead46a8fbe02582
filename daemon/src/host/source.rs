//! Where the configuration of a daemon comes from, when the operator changes it while it serves.

use std::ffi::OsString;
use std::fmt;

use super::options::HostOptions;
use super::options::VgpuOptions;

/// A configuration that was read again.
#[derive(Debug)]
pub struct Wanted {
    /// All of it.
    pub options: HostOptions,
    /// Options of the daemon that are another than they were, and change while it serves.
    pub changed: Vec<String>,
    /// Those that need a restart.
    pub restart: Vec<String>,
}

/// Reads what the operator says. Errors are in the operator's words.
pub trait Source: fmt::Debug + Send + Sync {
    /// A vGPU out of `name=NAME,socket=PATH,…`.
    ///
    /// # Errors
    /// It is none.
    fn parse(&self, spec: &str) -> Result<VgpuOptions, String>;

    /// The same vGPU with other values of some keys, each `key=value`.
    ///
    /// # Errors
    /// A key or a value is none.
    fn change(&self, vgpu: &VgpuOptions, values: &[String]) -> Result<VgpuOptions, String>;

    /// All of the configuration as it is now.
    ///
    /// # Errors
    /// It is wrong, or cannot be read.
    fn read(&self) -> Result<Wanted, String>;

    /// The command line with which this daemon was started.
    fn command_line(&self) -> Vec<OsString>;

    /// Ends this daemon, whose vGPUs a successor has.
    fn end(&self);
}
