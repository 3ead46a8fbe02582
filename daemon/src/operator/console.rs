//! What carries out the operator's commands: a daemon, or what has started one for each vGPU.

use std::fmt;
use std::io;

use serde_json::Value;

use super::estate::Objected;
use super::verb::Verb;
use crate::vgpu::control::orders::OrderError;

/// The version of what is asked and answered. Fields may be added to answers; what is there keeps its name and its meaning within a
/// version.
pub const API: u32 = 1;

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum HandlerError {
    /// No such vGPU.
    #[error("there is no vGPU {name}; there are: {known}")]
    NoSuchVgpu {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// The vGPU did not do it.
    #[error("vGPU {name}: {source}")]
    Command {
        /// Which.
        name: String,
        /// Why.
        source: OrderError,
    },
    /// There is nothing that makes vGPUs.
    #[error("the vGPUs of this daemon do not change")]
    NoEstate,
    /// Nothing was changed, and why.
    #[error(transparent)]
    Objected(#[from] Objected),
    /// The daemon cannot tell how it is confined.
    #[error("reading what confines the daemon from /proc: {0}")]
    Status(#[source] io::Error),
}

/// Carries out commands.
pub trait Console: fmt::Debug + Send + Sync {
    /// Carries one out; what came of it.
    ///
    /// # Errors
    /// There is no such vGPU, or it refuses.
    fn serve(&self, verb: &Verb) -> Result<Value, HandlerError>;

    /// The operator has the answer of what was served before.
    fn answered(&self);
}
