//! How engine processes are started.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;

use super::child::ChildProcess;
use super::containment;
use super::containment::Containment;
use super::launcher::Launched;
use super::launcher::Launcher;
use super::launcher::Memory;
use super::launcher::Own;
use super::launcher::send_start;
use super::stderr;
use super::stderr::Allowance;
use crate::code_cache::folder;
use crate::descriptors;
use crate::engine::channel::Channel;
use crate::engine::message::Start;
use crate::outside;
use crate::vulkan::options::EXECUTOR;

/// The variables of the daemon that engines have, too: how the Vulkan loader finds drivers and layers, for vectors of how many bits
/// lavapipe compiles, which makes it one device or another, how work is handed to it, and what is logged. Every other one stays with the
/// daemon.
pub const INHERITED: [&str; 10] = [
    EXECUTOR,
    "LD_LIBRARY_PATH",
    "LP_NATIVE_VECTOR_WIDTH",
    "RUST_BACKTRACE",
    "RUST_LOG",
    "VK_ADD_DRIVER_FILES",
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
    "VK_INSTANCE_LAYERS",
    "VK_LAYER_PATH",
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
}

impl Program {
    /// This executable, in this environment, for nothing in particular and without limits.
    pub fn new(path: PathBuf, environment: Vec<(String, String)>) -> Self {
        let (owner, containment) = ("engine".to_owned(), Containment::default());
        Self { path, environment, owner, containment }
    }

    /// The same for the vGPU of this name, whose processes are held so.
    #[must_use]
    pub fn of(&self, owner: &str, containment: Containment) -> Self {
        Self { owner: owner.to_owned(), containment, ..self.clone() }
    }
}

impl Launcher for Program {
    /// Starts the process and sends it what it works on. The process has no other descriptor of the daemon, and of its
    /// environment what [`INHERITED`] names. What it writes to standard error is logged as far as its allowance goes.
    fn launch(&self, start: &Start, memory: Memory<'_>, own: Own<'_>) -> io::Result<Launched> {
        let launched = self.spawn(start, own.allowance)?;
        launched.told(|channel| send_start(channel, start, memory, own))
    }
}

impl Program {
    /// Starts the process, which waits for its first message.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn spawn(&self, start: &Start, allowance: &Arc<Allowance>) -> io::Result<Launched> {
        let (ours, theirs) = Channel::pair()?;
        let mut command = Command::new(&self.path);
        command
            .arg0("campanile")
            .arg("engine")
            .env_clear()
            .envs(INHERITED.into_iter().filter_map(|name| Some((name, env::var_os(name)?))))
            // Else glibc counts CPUs, by opening a file, when some thread is the ninth to allocate: sealed engines may not.
            .env("MALLOC_ARENA_MAX", "8")
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .envs(cache_environment(start)?)
            .stdin(Stdio::from(theirs.into_socket()))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        descriptors::inherit_nothing(&mut command);
        // An engine would inherit what confines this thread, and end with it.
        let containment = self.containment.clone();
        let mut child =
            outside::run(move || containment::spawn(command, &containment))?.map_err(|error| {
                io::Error::new(error.kind(), format!("starting {} engine: {error}", self.path.display()))
            })?;
        let origin = format!("{}: engine process {}", self.owner, child.id());
        let pipe = child.stderr.take().ok_or_else(|| io::Error::other("an engine without standard error"));
        let drained = pipe.and_then(|pipe| stderr::drain(pipe, origin, Arc::clone(allowance)));
        let process = ChildProcess::new(child, self.containment.clone());
        let launched = Launched { instance: Some(Box::new(process)), channel: ours };
        launched.told(|_| drained)
    }
}

/// Variables of a process whose driver has a cache: of its own, in two files that stay open, in a folder that it makes and removes.
fn cache_environment(start: &Start) -> io::Result<Vec<(&'static str, OsString)>> {
    if start.code_mib == 0 {
        return Ok(Vec::new());
    }
    Ok(vec![
        (folder::VARIABLE, folder::fresh()?.into()),
        ("MESA_DISK_CACHE_SINGLE_FILE", "true".into()),
        ("MESA_SHADER_CACHE_DISABLE", "false".into()),
    ])
}
