//! What can be said on the command line.

use std::path::PathBuf;

use clap::Args;
use clap::Parser;
use clap::Subcommand;

use crate::run_buffer::BufferSpec;
use crate::run_buffer::parse_buffer;
use crate::run_buffer::parse_constant;
use crate::run_buffer::parse_groups;
use crate::target::Target;

/// Use Campanile's GPU from inside a virtual machine.
#[derive(Debug, Parser)]
#[command(name = "campanile-guest", version, about)]
pub struct Arguments {
    /// Where the GPU is.
    #[command(flatten)]
    pub target: Target,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say what the GPU is: device, nodes, capabilities, memory, versions.
    Info {
        /// Print JSON instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Run a WGSL kernel over buffers.
    Run(RunArguments),
    /// Measure round trips, through doorbells and through the kernel, in turn.
    Bench(BenchArguments),
    /// Load the GPU steadily, and check every result.
    Burn(BurnArguments),
    /// Render a picture of the Mandelbrot set.
    Mandelbrot {
        /// Where the picture (PNG) goes.
        #[arg(value_name = "OUT.png")]
        picture: PathBuf,
    },
    /// Render an animation and check every frame, while the VM moves (with --socket: by itself, to other daemons).
    Animate(AnimateArguments),
    /// Stand between a front-end and a daemon, and pass everything on.
    #[command(hide = true)]
    Relay {
        /// Socket to listen on.
        listen: PathBuf,
        /// The daemon's socket.
        daemon: PathBuf,
        /// Give the daemon another log of dirty pages than the front-end's: for the proof that its absence is seen.
        #[arg(long)]
        lose_log: bool,
    },
    /// Check that this machine's way to the GPU does all that a program may rely on.
    #[command(hide = true)]
    Selftest,
    /// Keep a secret in a buffer until standard input ends, then say whether it is intact.
    #[command(hide = true)]
    Secret,
    /// Try to reach the buffer of another process.
    #[command(hide = true)]
    Trespass {
        /// The buffer's resource id.
        #[arg(long)]
        resource: u32,
        /// Its GPU address in the other process.
        #[arg(long)]
        va: u64,
    },
    /// Fill video memory to the last page that can be had, and say how many MiB that were.
    #[command(hide = true)]
    Fill,
}

/// `campanile-guest run`.
#[derive(Debug, Args)]
pub struct RunArguments {
    /// The kernel's source.
    #[arg(value_name = "KERNEL.wgsl")]
    pub kernel: PathBuf,
    /// Its entry point, where there are several.
    #[arg(long, value_name = "NAME")]
    pub entry: Option<String>,
    /// Thread groups: X, X,Y or X,Y,Z.
    #[arg(long, value_name = "X,Y,Z", default_value = "1", value_parser = parse_groups)]
    pub groups: [u32; 3],
    /// A buffer: SLOT:KEY=VALUE,… with bytes=SIZE (zeroed), in=FILE (its content), out=FILE (written afterwards),
    /// show=u32|i32|f32 (first words printed afterwards). May be given several times.
    #[arg(long = "buffer", value_name = "SPEC", value_parser = parse_buffer)]
    pub buffers: Vec<BufferSpec>,
    /// A 32-bit constant: a whole number, or an f32 where there is a point in it. May be given several times.
    #[arg(long = "constant", value_name = "NUMBER", value_parser = parse_constant, allow_hyphen_values = true)]
    pub constants: Vec<u32>,
    /// Submit through the kernel instead of the doorbell.
    #[arg(long)]
    pub kernel_mode: bool,
    /// Seconds that the kernel may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub timeout: u64,
}

/// `campanile-guest bench`.
#[derive(Debug, Args)]
pub struct BenchArguments {
    /// Print figures as JSON.
    #[arg(long)]
    pub json: bool,
    /// Measure shorter, for a first look.
    #[arg(long)]
    pub quick: bool,
    /// Measure nothing: submit in user mode only, for so many seconds.
    #[arg(long, value_name = "SECONDS", hide = true)]
    pub steady: Option<u64>,
}

/// `campanile-guest burn`.
#[derive(Debug, Args)]
pub struct BurnArguments {
    /// How long; without it, until the process is ended.
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<u64>,
    /// Words that each round computes and checks.
    #[arg(long, value_name = "N", default_value_t = 16384)]
    pub words: u32,
    /// Queues in use at a time.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub queues: u32,
}

/// `campanile-guest animate`.
#[derive(Debug, Args)]
pub struct AnimateArguments {
    /// Move to the daemon of this socket. May be given several times: A to B to A.
    #[arg(long, value_name = "PATH")]
    pub to: Vec<PathBuf>,
    /// Frames, all in all.
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub frames: u64,
    /// Frames before the first move, and between two.
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub every: u64,
    /// Words of a frame, and of what all frames leave behind.
    #[arg(long, value_name = "N", default_value_t = 262_144)]
    pub words: u32,
    /// Milliseconds between the beginning of a move and its pause.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 500)]
    pub settle: u64,
    /// Move in cloud-hypervisor's order of messages instead of QEMU's.
    #[arg(long)]
    pub cloud_hypervisor: bool,
    /// Move without a live phase.
    #[arg(long)]
    pub stopped: bool,
    /// Move guest RAM to new memory, too.
    #[arg(long)]
    pub move_ram: bool,
    /// Render, and do nothing beside it.
    #[arg(long)]
    pub quiet: bool,
    /// Render until this file exists, however many frames.
    #[arg(long, value_name = "FILE", conflicts_with = "frames")]
    pub until: Option<PathBuf>,
    /// Print a line for each frame that was right.
    #[arg(long)]
    pub tell: bool,
    /// Print JSON at the end, and nothing before.
    #[arg(long)]
    pub json: bool,
}
