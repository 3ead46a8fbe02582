//! Migration on the command line.

use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;

use super::size::parse_size;
use crate::migration::brownout::plan::Goal;
use crate::migration::channel::address::Peer;
use crate::migration::channel::message::MAX_STREAMS;
use crate::migration::channel::tls::Identity;
use crate::migration::settings::Patience;
use crate::migration::settings::Settings;

/// How vGPUs go to other daemons, and come from there.
#[derive(Debug, Clone, Args)]
pub struct MigrationArguments {
    /// Where vGPUs go when their VMM migrates: unix:/PATH, tcp:HOST:PORT or tls:HOST:PORT; else into a file under --state-dir.
    #[arg(long, value_name = "PEER")]
    pub migrate_to: Option<Peer>,
    /// Where other daemons bring theirs.
    #[arg(long, value_name = "PEER")]
    pub migrate_listen: Option<Peer>,
    /// This host's certificate with its chain (PEM), for tls.
    #[arg(long, value_name = "FILE", requires_all = ["migrate_key", "migrate_ca"])]
    pub migrate_cert: Option<PathBuf>,
    /// Its key (PEM).
    #[arg(long, value_name = "FILE", requires = "migrate_cert")]
    pub migrate_key: Option<PathBuf>,
    /// The authority whose certificates are believed (PEM).
    #[arg(long, value_name = "FILE", requires = "migrate_cert")]
    pub migrate_ca: Option<PathBuf>,
    /// Lines of one migration.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_STREAMS)))]
    pub migrate_streams: u8,
    /// Pack pages with zstd at this level.
    #[arg(long, value_name = "LEVEL", value_parser = clap::value_parser!(i32).range(1..=19))]
    pub migrate_zstd: Option<i32>,
    /// Bytes per second that may be sent while the guest runs, such as 100M; what is sent while it is paused is not limited.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub migrate_bandwidth: Option<u64>,
    /// Milliseconds that the last pass may take, with the VM paused; passes go on until then.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 100)]
    pub migrate_pause: u64,
    /// Passes until it is given up to get there.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub migrate_passes: u32,
    /// Seconds that a peer may stand still.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub migrate_timeout: u64,
    /// Keep the files under --state-dir when their guest runs again, for VMMs that take snapshots.
    #[arg(long)]
    pub keep_side_files: bool,
}

impl MigrationArguments {
    /// What they say.
    ///
    /// # Errors
    /// Certificates or key cannot be used.
    pub fn settings(&self, state_dir: Option<&Path>) -> anyhow::Result<Settings> {
        let identity = match (&self.migrate_cert, &self.migrate_key, &self.migrate_ca) {
            (Some(certificate), Some(key), Some(authority)) => {
                Some(Identity::load(certificate, key, authority).context("--migrate-cert")?)
            }
            _ => None,
        };
        Ok(Settings {
            peer: self.migrate_to.clone(),
            streams: self.migrate_streams,
            zstd: self.migrate_zstd,
            bandwidth: self.migrate_bandwidth,
            goal: Goal { pause: Duration::from_millis(self.migrate_pause), passes: self.migrate_passes },
            patience: Patience { message: Duration::from_secs(self.migrate_timeout), ..Patience::default() },
            identity,
            side_files: state_dir.map(Path::to_owned),
            keep_side_files: self.keep_side_files,
        })
    }
}
