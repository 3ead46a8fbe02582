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
use std::sync::mpsc;

use super::containment;
use super::containment::Containment;
use super::stderr;
use super::stderr::Allowance;
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
    /// What they are started for: the name of a vGPU, which stands before what they write to standard error.
    pub owner: String,
    /// What holds them from outside.
    pub containment: Containment,
    /// Takes the other end of each channel in the place of a process: for tests that are the engines themselves.
    pub stand_in: Option<mpsc::Sender<Channel>>,
}

impl Program {
    /// This executable, in this environment, for nothing in particular and without limits.
    pub fn new(path: PathBuf, environment: Vec<(String, String)>) -> Self {
        let (owner, containment) = ("engine".to_owned(), Containment::default());
        Self { path, environment, owner, containment, stand_in: None }
    }

    /// The same for the vGPU of this name, whose processes are held so.
    #[must_use]
    pub fn of(&self, owner: &str, containment: Containment) -> Self {
        Self { owner: owner.to_owned(), containment, ..self.clone() }
    }
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
    /// Hears what is written to video memory, where that is tracked.
    pub tracker: Option<&'a Arc<Tracker>>,
}

/// What all processes of one engine have, one after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Own<'a> {
    /// The shared block.
    pub(super) block: &'a File,
    /// Where it notes what its work could write, where that is how writes are tracked.
    pub(super) planes: Option<&'a File>,
    /// It has something to report.
    pub(super) event: &'a Event,
    /// It wants its node, or gives it back.
    pub(super) asks: &'a Event,
    /// Wakes it.
    pub(super) wake: &'a Event,
    /// What it may write to standard error.
    pub(super) allowance: &'a Arc<Allowance>,
}

/// Starts the process and sends it what it works on. The process has no other descriptor of the daemon, and of its
/// environment what [`INHERITED`] names. What it writes to standard error is logged as far as its allowance goes.
pub(super) fn launch(
    program: &Program,
    start: &Start,
    memory: Memory<'_>,
    own: Own<'_>,
) -> io::Result<(Option<Child>, Channel)> {
    let (ours, theirs) = Channel::pair()?;
    if let Some(stand_in) = &program.stand_in {
        send_start(&ours, start, memory, own)?;
        stand_in.send(theirs).map_err(|_| io::Error::other("nothing stands in for engines any more"))?;
        return Ok((None, ours));
    }
    let mut command = Command::new(&program.path);
    command
        .arg("engine")
        .env_clear()
        .envs(INHERITED.into_iter().filter_map(|name| Some((name, env::var_os(name)?))))
        // Else glibc counts CPUs, by opening a file, when some thread is the ninth to allocate: sealed engines may not.
        .env("MALLOC_ARENA_MAX", "8")
        .envs(program.environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::from(theirs.into_socket()))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    descriptors::inherit_nothing(&mut command);
    // An engine would inherit what confines this thread, and end with it.
    let containment = program.containment.clone();
    let mut child = outside::run(move || containment::spawn(command, &containment))?.map_err(|error| {
        io::Error::new(error.kind(), format!("starting {} engine: {error}", program.path.display()))
    })?;
    let origin = format!("{}: engine process {}", program.owner, child.id());
    let pipe = child.stderr.take().ok_or_else(|| io::Error::other("an engine without standard error"));
    let drained = pipe.and_then(|pipe| stderr::drain(pipe, origin, Arc::clone(own.allowance)));
    if let Err(error) = drained.and_then(|()| send_start(&ours, start, memory, own)) {
        child.kill()?;
        child.wait()?;
        return Err(error);
    }
    Ok((Some(child), ours))
}

/// The first message, with what it works on.
fn send_start(ours: &Channel, start: &Start, memory: Memory<'_>, own: Own<'_>) -> io::Result<()> {
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
    ours.send(start, &[], &descriptors, false).map_err(io::Error::other)
}
