//! How engine processes are started.

use std::env;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;

use crate::descriptors;
use crate::dirty::tracker::Tracker;
use crate::engine::channel::Channel;
use crate::engine::message::Start;
use crate::event::Event;
use crate::outside;

/// The variables of the daemon that engines have, too: how the Vulkan loader finds drivers, and what is logged. Every other
/// one stays with the daemon.
pub const INHERITED: [&str; 6] = [
    "LD_LIBRARY_PATH",
    "RUST_BACKTRACE",
    "RUST_LOG",
    "VK_ADD_DRIVER_FILES",
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
];

/// How to start engine processes.
#[derive(Debug, Clone)]
pub struct Program {
    /// The executable; it is called with the single argument `engine` and the channel as standard input.
    pub path: PathBuf,
    /// Environment of the Vulkan loader, besides the variables of [`INHERITED`]; an entry here wins.
    pub environment: Vec<(String, String)>,
}

/// The files that an engine works on.
#[derive(Debug, Clone, Copy)]
pub struct Memory<'a> {
    /// Video memory.
    pub vram: &'a File,
    /// Page tables.
    pub tables: &'a File,
    /// Values of native fences.
    pub fences: &'a File,
    /// Hears what is written to video memory, where anybody does.
    pub tracker: Option<&'a Arc<Tracker>>,
}

/// What a process shares with its successors only.
#[derive(Debug, Clone, Copy)]
pub(super) struct Own<'a> {
    /// The shared block.
    pub(super) block: &'a File,
    /// What it writes to, where it says so itself.
    pub(super) planes: Option<&'a File>,
    /// It has something to report.
    pub(super) event: &'a Event,
    /// It wants its node, or gives it back.
    pub(super) asks: &'a Event,
    /// Wakes it.
    pub(super) wake: &'a Event,
}

/// Starts the process and sends it what it works on. The process has no other descriptor of the daemon, and of its
/// environment what [`INHERITED`] names.
pub(super) fn launch(
    program: &Program,
    start: &Start,
    memory: Memory<'_>,
    own: Own<'_>,
) -> io::Result<(Child, Channel)> {
    let (ours, theirs) = Channel::pair()?;
    let mut command = Command::new(&program.path);
    command
        .arg("engine")
        .env_clear()
        .envs(INHERITED.into_iter().filter_map(|name| Some((name, env::var_os(name)?))))
        // Else glibc counts CPUs, by opening a file, when some thread is the ninth to allocate: sealed engines may not.
        .env("MALLOC_ARENA_MAX", "8")
        .envs(program.environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::from(theirs.into_socket()))
        .stdout(Stdio::null());
    descriptors::inherit_nothing(&mut command);
    // An engine would inherit what confines this thread, and end with it.
    let mut child = outside::run(move || command.spawn())?.map_err(|error| {
        io::Error::new(error.kind(), format!("starting {} engine: {error}", program.path.display()))
    })?;
    let mut descriptors = vec![
        own.block.as_fd(),
        memory.vram.as_fd(),
        memory.tables.as_fd(),
        own.event.as_fd(),
        own.asks.as_fd(),
        own.wake.as_fd(),
        memory.fences.as_fd(),
    ];
    descriptors.extend(own.planes.map(File::as_fd));
    if let Err(error) = ours.send(start, &[], &descriptors, false) {
        child.kill()?;
        child.wait()?;
        return Err(io::Error::other(error));
    }
    Ok((child, ours))
}
