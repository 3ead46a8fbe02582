//! Why a daemon does not come up.

use std::io;
use std::path::PathBuf;

use crate::confine::error::ConfineError;
use crate::migration::error::MigrationError;

/// Why a daemon did not come up.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Two vGPUs with one name or socket, or none at all.
    #[error("{0}")]
    Options(String),
    /// A vGPU could not be set up.
    #[error("vGPU {name}")]
    Vgpu {
        /// Which.
        name: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A socket of the operator's could not be set up.
    #[error("{name} socket")]
    Control {
        /// Which of them.
        name: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Metrics cannot be served.
    #[error("metrics")]
    Metrics(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The web page cannot be served.
    #[error("web page")]
    Web(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The state directory cannot be used.
    #[error("state directory {}", path.display())]
    StateDirectory {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Nothing can come here from other daemons, or go there.
    #[error("migration")]
    Migration(#[from] MigrationError),
    /// The daemon's threads cannot be confined.
    #[error("confining the daemon")]
    Confine(#[from] ConfineError),
    /// It was to go on with what another daemon serves, and cannot.
    #[error("upgrade: {0}")]
    Upgrade(String),
    /// The daemon itself could not be set up.
    #[error("starting the daemon")]
    System(#[from] io::Error),
}
