//! Why a daemon does not come up.

use std::io;
use std::path::Path;
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
    /// Turns cannot be given, or are not given by the broker that is named.
    #[error("schedule {}", path.display())]
    Schedule {
        /// Its socket.
        path: PathBuf,
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

impl HostError {
    /// What to do where the daemon may make no socket there: what it may was settled when it started.
    pub(super) fn hint(&self, socket: &Path) -> String {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(found) = cause {
            if let Some(io) = found.downcast_ref::<io::Error>()
                && matches!(io.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
            {
                let folder = socket.parent().unwrap_or(Path::new(""));
                let user = rustix::process::geteuid().as_raw();
                return format!(
                    "; the daemon serves as user {user}, which makes no files in {}: give it that folder (owner, or ReadWritePaths= of \
                     its unit), or name a socket in another",
                    folder.display()
                );
            }
            cause = found.source();
        }
        String::new()
    }
}
