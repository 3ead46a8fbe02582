//! What can be said on the command line.

use std::path::PathBuf;

use clap::Args;
use clap::Parser;
use clap::Subcommand;

use super::check_gpu::args::CheckGpuArguments;
use super::engines::EngineArguments;
use super::holding::HoldingArguments;
use super::log_format::LogFormat;
use super::log_level::LogLevel;
use super::migration::MigrateArguments;
use super::migration::MigrationArguments;
use super::migration::SnapshotArguments;
use super::processes::ProcessArguments;
use super::scheduling::SchedulingArguments;
use crate::config::files::DEFAULT;
use crate::config::size::parse_size;
use crate::config::vgpu::parse_vgpu;
use crate::confine::identity::UserSpec;
use crate::host::options::VgpuOptions;
use crate::operator::http::address::Address;
use crate::operator::http::address::Loopback;
use crate::operator::verb::Verb;
use crate::vgpu::objects::budget::BUDGET_BYTES;

/// Campanile: a host daemon that gives virtual machines a paravirtual GPU.
#[derive(Debug, Parser)]
#[command(name = "campanile", version, about)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve vGPUs to VMMs.
    Serve(ServeArguments),
    /// Give turns on the GPUs of this host to several daemons, each with `campanile serve --schedule PATH`.
    Schedule(ScheduleArguments),
    /// Say whether files of a configuration are right, and what they can hold.
    Config(ConfigArguments),
    /// Ask something of a daemon that serves.
    Ctl(CtlArguments),
    /// Have a daemon move a vGPU to another one while its guest runs, and look on until its VMM moves the rest.
    Migrate(MigrateArguments),
    /// Have a daemon write a vGPU into a file; its guest goes on.
    Snapshot(SnapshotArguments),
    /// Say of every Vulkan device of this machine whether engines can use it, what it lacks, and how fast it is.
    ///
    /// Ends with 0 where a device can serve, and with 5 where none can.
    CheckGpu(CheckGpuArguments),
    /// Say in words what is in the state of a vGPU.
    Inspect(InspectArguments),
    /// Be an engine process; the daemon starts these by itself.
    #[command(hide = true)]
    Engine,
}

/// `campanile config`.
#[derive(Debug, Args)]
pub struct ConfigArguments {
    /// What to do.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Say what is wrong with a configuration, and where; nothing is started.
    Check {
        /// The file; those of conf.d beside it are read, too.
        #[arg(value_name = "FILE", default_value = DEFAULT)]
        file: PathBuf,
    },
    /// Print a configuration with every option and what it is by default.
    Example,
}

/// `campanile inspect`.
#[derive(Debug, Args)]
pub struct InspectArguments {
    /// The file.
    pub file: PathBuf,
}

/// `campanile serve`.
#[derive(Debug, Args)]
pub struct ServeArguments {
    /// Configuration, as TOML; files that end in .toml in the folder conf.d beside it add to it. What the command line says wins.
    /// Without it /etc/campanile/campanile.toml, where that is there and the command line names no vGPU.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Socket of a single vGPU.
    #[arg(long, value_name = "PATH", requires = "vram")]
    pub socket: Option<PathBuf>,
    /// Video memory of the single vGPU, such as 512M.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub vram: Option<u64>,
    /// A vGPU: name=NAME,socket=PATH,vram=SIZE, and where wanted vram-min=SIZE, vram-max=SIZE, front=gpu|fs, aperture=SIZE, tag=TAG, single-use, weight=N, cap=PERCENT, bands=normal|focus|realtime,
    /// tdr-timeout=MILLISECONDS, restore=SNAPSHOT, migrate-from=PEER (a name in its certificate, or uid:NUMBER; several times for several), with --workers migrate-listen=ADDRESS. May be given several times.
    #[arg(long, value_name = "SPEC", value_parser = parse_vgpu)]
    pub vgpu: Vec<VgpuOptions>,
    /// Memory that the guests of all vGPUs may have together, such as 8G; each always gets its vram-min.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub vram_total: Option<u64>,
    /// Memory that the daemon itself may hold for each VM, such as 64M, 16M to 64G; beyond it guests get OUT_OF_RESOURCES.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value_t = BUDGET_BYTES)]
    pub vm_budget: u64,
    /// Socket of the `campanile schedule` that gives turns on the GPUs of this host to this daemon and others. Without it the
    /// daemon knows of no others. The options scheduler and normal-share hold within each vGPU then, and not between them.
    #[arg(long, value_name = "PATH")]
    pub schedule: Option<PathBuf>,
    /// Socket on which `campanile ctl` reaches the daemon; only this user and root can.
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Users beside root and this one that the control socket answers: NAME or UID, several with commas between. It is then of mode 0666,
    /// and the user of each connection decides.
    #[arg(long, value_name = "USERS", value_delimiter = ',')]
    pub control_user: Vec<String>,
    /// Socket on which `campanile ctl` can ask what changes nothing; the group of this user can, too.
    #[arg(long, value_name = "PATH")]
    pub status: Option<PathBuf>,
    /// Where scrapers read metrics (OpenMetrics, GET /metrics): unix:PATH, which only this user can connect to, or
    /// tcp:127.0.0.1:PORT.
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<Address>,
    /// Where a browser of this host sees the vGPUs, on a page that changes nothing: 127.0.0.1:PORT.
    #[arg(long, value_name = "ADDRESS")]
    pub web: Option<Loopback>,
    /// What is logged, and what is more urgent; where RUST_LOG is set, that says it.
    #[arg(long, value_name = "LEVEL", value_enum, default_value = "info")]
    pub log_level: LogLevel,
    /// How a line of log looks.
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// Account to serve as, once what only root can open is open: NAME or UID, and where wanted :GROUP or :GID.
    #[arg(long, value_name = "USER")]
    pub user: Option<UserSpec>,
    /// Which processes serve.
    #[command(flatten)]
    pub processes: ProcessArguments,
    /// Let the daemon itself keep its privileges (for debugging, and for kernels without landlock or seccomp).
    #[arg(long, conflicts_with = "user")]
    pub no_confinement: bool,
    /// What holds engines.
    #[command(flatten)]
    pub holding: HoldingArguments,
    /// Migration.
    #[command(flatten)]
    pub migration: MigrationArguments,
    /// Common settings.
    #[command(flatten)]
    pub engine: EngineArguments,
}

/// `campanile schedule`.
#[derive(Debug, Args)]
pub struct ScheduleArguments {
    /// Socket at which daemons connect; this user and its group can.
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// A file to lock: there is one schedule with this lock.
    #[arg(long, hide = true)]
    pub lock: Option<PathBuf>,
    /// What runs next, of all daemons.
    #[command(flatten)]
    pub scheduling: SchedulingArguments,
    /// Account to run as, once what only root can open is open: NAME or UID, and where wanted :GROUP or :GID.
    #[arg(long, value_name = "USER")]
    pub user: Option<UserSpec>,
    /// What is logged, and what is more urgent; where RUST_LOG is set, that says it.
    #[arg(long, value_name = "LEVEL", value_enum, default_value = "info")]
    pub log_level: LogLevel,
    /// How a line of log looks.
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// Let the process keep its privileges (for debugging, and for kernels without landlock or seccomp).
    #[arg(long, conflicts_with = "user")]
    pub no_confinement: bool,
}

/// `campanile ctl`.
#[derive(Debug, Args)]
pub struct CtlArguments {
    /// The daemon's control socket, as in `campanile serve --control PATH`.
    #[arg(long, value_name = "PATH", env = "CAMPANILE_CONTROL")]
    pub control: PathBuf,
    /// Print the answer as JSON.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to ask.
    #[command(subcommand)]
    pub verb: Verb,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;

    use super::Arguments;
    use super::Command;
    use crate::vgpu::tdr::policy::DebugMode;
    use crate::vgpu::tdr::policy::Level;

    #[test]
    fn tdr_13_tdr_18_the_defaults_are_2_s_and_5_in_60_s() {
        let arguments = Arguments::try_parse_from(["campanile", "serve"]).unwrap();
        let Command::Serve(arguments) = arguments.command else { panic!("{arguments:?}") };
        assert_eq!(arguments.engine.tdr.timeouts(), [Duration::from_secs(2); 2]);
        let policy = arguments.engine.tdr.policy();
        assert_eq!((policy.level, policy.debug), (Level::Recover, DebugMode::Recover));
        assert_eq!((policy.limit_count, policy.limit_time), (5, Duration::from_secs(60)));
        assert_eq!(policy.process_limit(), 4);
    }
}
