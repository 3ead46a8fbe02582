//! What makes, changes and removes vGPUs while the daemon serves, as the control socket needs it.

use std::fmt;
use std::path::Path;

use serde_json::Value;

/// Whether a vGPU is removed that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removal {
    /// Only one that no VM has, and to which nothing migrates.
    Unused,
    /// In any case.
    Forced,
}

/// Why nothing was changed, in the operator's words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Objected(pub String);

/// The vGPUs of a daemon, to be changed. Each answer says what came of it.
pub trait Estate: fmt::Debug + Send + Sync {
    /// Makes a vGPU, as `serve --vgpu` is told one.
    ///
    /// # Errors
    /// It cannot be. Nothing was changed.
    fn add(&self, spec: &str) -> Result<Value, Objected>;

    /// Removes a vGPU, with all that it has.
    ///
    /// # Errors
    /// There is none, or it is in use.
    fn remove(&self, name: &str, removal: Removal) -> Result<Value, Objected>;

    /// Sets keys of a vGPU, each `key=value`.
    ///
    /// # Errors
    /// It is wrong, or cannot change while the vGPU is there. Nothing was changed.
    fn set(&self, name: &str, values: &[String]) -> Result<Value, Objected>;

    /// Reads the configuration again, and changes what can be changed.
    ///
    /// # Errors
    /// It is wrong. Nothing was changed.
    fn reload(&self) -> Result<Value, Objected>;

    /// Hands all vGPUs over to a daemon that is started for that: `binary`, or the file that this one was started from.
    ///
    /// # Errors
    /// It does not start, or cannot go on with them. They go on here.
    fn upgrade(&self, binary: Option<&Path>) -> Result<Value, Objected>;

    /// Takes no VM that the daemon does not have, and begins to move away those that it has, where there is a place for them; or takes
    /// all again.
    ///
    /// # Errors
    /// The vGPUs of this daemon do not change.
    fn drain(&self, is_drained: bool) -> Result<Value, Objected>;

    /// Whether VMs that the daemon does not have are turned away.
    fn is_drained(&self) -> bool;

    /// The operator has the answer of what was asked before.
    fn answered(&self);
}
