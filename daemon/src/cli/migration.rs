//! Migration on the command line.

use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde_json::Value;

use super::asking;
use super::output::print;
use super::replug;
use super::replug::ReplugArguments;
use crate::config::size::parse_size;
use crate::migration::channel::address::Peer;
use crate::migration::channel::message::MAX_STREAMS;
use crate::migration::channel::tls::Identity;
use crate::migration::passes::plan::Goal;
use crate::migration::settings::Settings;
use crate::migration::settings::Timeouts;
use crate::operator::client;
use crate::operator::verb::Verb;

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
            timeouts: Timeouts { message: Duration::from_secs(self.migrate_timeout), ..Timeouts::default() },
            identity,
            side_files: state_dir.map(Path::to_owned),
            keep_side_files: self.keep_side_files,
        })
    }
}

/// `campanile migrate`.
#[derive(Debug, Args)]
pub struct MigrateArguments {
    /// The daemon's control socket.
    #[arg(long, value_name = "PATH", env = "CAMPANILE_CONTROL")]
    pub control: PathBuf,
    /// The vGPU.
    #[arg(long, value_name = "NAME")]
    pub vgpu: String,
    /// Where the other daemon listens; else where --migrate-to says.
    #[arg(long, value_name = "PEER")]
    pub to: Option<Peer>,
    /// What the vGPU is called there, if not the same.
    #[arg(long = "as", value_name = "NAME")]
    pub rename: Option<String>,
    /// Begin, and do not look on.
    #[arg(long)]
    pub no_wait: bool,
    /// With a VMM that does not migrate the device.
    #[command(flatten)]
    pub replug: ReplugArguments,
}

/// `campanile snapshot`.
#[derive(Debug, Args)]
pub struct SnapshotArguments {
    /// The daemon's control socket.
    #[arg(long, value_name = "PATH", env = "CAMPANILE_CONTROL")]
    pub control: PathBuf,
    /// The vGPU.
    #[arg(long, value_name = "NAME")]
    pub vgpu: String,
    /// The file, as the daemon sees it.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// How often `campanile migrate` looks.
const LOOK: Duration = Duration::from_millis(500);

fn mib(bytes: &Value) -> String {
    format!("{} MiB", bytes.as_u64().unwrap_or(0) >> 20)
}

/// One vGPU's way out, in a line.
fn departure(of: &Value) -> String {
    let progress = &of["progress"];
    let word = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let passes = progress["passes"].as_array().map_or(0, Vec::len);
    let blackout = progress["blackout_us"].as_u64().map(|us| format!(", stood still for {} ms", us / 1000));
    let kernels = |field: &str| progress[field].as_u64().unwrap_or(0);
    let kernels = match (kernels("kernels_sent"), kernels("kernels_left")) {
        (0, _) => String::new(),
        (sent, left) => format!("; {} of {sent} kernels compiled there", sent - left.min(sent)),
    };
    format!(
        "{}: {}, to {}: {}; {passes} passes, {} sent, {} left, about {} ms at {} a second{kernels}{}{}",
        word(&of["vgpu"]),
        word(&of["phase"]),
        word(&of["to"]),
        of["ownership"].as_str().map_or_else(|| word(&progress["doing"]), str::to_owned),
        mib(&progress["sent_bytes"]),
        mib(&progress["left_bytes"]),
        progress["estimate_ms"].as_u64().unwrap_or(0),
        mib(&progress["bytes_per_second"]),
        blackout.unwrap_or_default(),
        of["last"].as_str().map_or_else(String::new, |last| format!("; the last one: {last}")),
    )
}

/// `campanile ctl migration`, for people.
pub fn describe(result: &Value) -> String {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let departures = list(&result["departures"]).iter().map(departure).collect::<Vec<_>>();
    let arrivals = list(&result["arrivals"]["bundles"]);
    let arrivals = arrivals.iter().map(|bundle| {
        let word = |field: &str| bundle[field].as_str().unwrap_or("-").to_owned();
        format!("{}: comes here: {}, {}", word("vgpu"), word("state"), mib(&bundle["received_bytes"]))
    });
    departures.into_iter().chain(arrivals).map(|line| line + "\n").collect()
}

/// Begins, and tells how far it is until the VMM has moved the rest, or it is over.
///
/// # Errors
/// The daemon refuses, or it has failed.
pub fn migrate(arguments: &MigrateArguments) -> anyhow::Result<()> {
    let MigrateArguments { control, vgpu, to, rename, no_wait, replug } = arguments;
    if replug.qmp_source.is_some() {
        return replug::replug(control, vgpu, rename.as_deref().unwrap_or(vgpu), replug);
    }
    let verb = Verb::Migrate { vgpu: vgpu.clone(), to: to.clone(), rename: rename.clone() };
    let mut of = client::ask(control, &verb)?;
    let mut told = String::new();
    loop {
        let line = departure(&of);
        if line != told {
            // How it went is in the exit code, too; it goes on where this cannot be said.
            let _unsaid = print(&format!("{line}\n"));
            told = line;
        }
        match of["phase"].as_str() {
            Some("brownout" | "finishing") if !*no_wait => std::thread::sleep(LOOK),
            Some("idle") => {
                let last = of["last"].as_str().unwrap_or_default().to_owned();
                anyhow::ensure!(last.starts_with("the VM has gone"), "{last}");
                return Ok(());
            }
            _ => return Ok(()),
        }
        let all = client::ask(control, &Verb::Migration)?;
        let ours = all["departures"].as_array().and_then(|all| all.iter().find(|of| of["vgpu"] == **vgpu));
        of = ours.cloned().context("the vGPU is gone")?;
    }
}

/// Takes a snapshot.
///
/// # Errors
/// The daemon refuses, or it cannot be written.
pub fn snapshot(arguments: &SnapshotArguments) -> anyhow::Result<()> {
    let file = std::path::absolute(&arguments.file)?;
    let verb = Verb::Snapshot { vgpu: arguments.vgpu.clone(), file };
    let taken = asking::ask(&arguments.control, &verb)?;
    let text = format!(
        "{}: {} pages in {} passes, {}\n",
        taken["file"].as_str().unwrap_or_default(),
        taken["pages"],
        taken["passes"],
        mib(&taken["bytes"])
    );
    print(&text)?;
    Ok(())
}
