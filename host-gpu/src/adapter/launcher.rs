//! What an engine is made of on its own side: what starts it, and how it is ended.
//!
//! Everything that the daemon and an engine tell each other goes through the shared block, its events and the channel, and the
//! daemon's half of that ([`super::process::EngineProcess`]) is the same code whatever is at the other end. So the seam lies
//! here, below the handle: a [`Launcher`] starts a process ([`super::program::Program`]) or what stands in for one in tests,
//! and an [`Instance`] is that process. Both are trait objects: a session is configured with a launcher at run time, and none
//! of their calls is on the way of a buffer.

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::code_log::CodeLog;
use super::error::AdapterError;
use super::stderr::Allowance;
use crate::dirty::tracker::Tracker;
use crate::engine::channel::Channel;
use crate::engine::message::Start;
use crate::event::Event;

/// The files that an engine works on.
#[derive(Debug, Clone, Copy)]
pub struct Memory<'a> {
    /// Video memory.
    pub vram: &'a File,
    /// Page tables.
    pub tables: &'a File,
    /// Values of native fences.
    pub fences: &'a File,
    /// Local memory and what is evicted, where local memory is a device's own.
    pub local: Option<[BorrowedFd<'a>; 2]>,
    /// The log of what the driver of this engine has compiled, where that is kept: no other engine's.
    pub code: Option<&'a CodeLog>,
    /// Hears what is written to video memory, where that is tracked.
    pub tracker: Option<&'a Arc<Tracker>>,
}

/// What all processes of one engine have, one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Own<'a> {
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

/// An engine process, or what stands in for one.
pub trait Instance: Debug + Send {
    /// Its process id, for the log and for what the kernel says of it.
    fn id(&self) -> u32;
    /// Whether it is there: it has not ended by itself.
    fn is_there(&mut self) -> bool;
    /// Stops it where it is, for a debugger; only its end ends that.
    fn hold(&self);
    /// How it ended, in words, once its channel is closed. It is not reaped by that.
    fn ending(&self) -> String;
    /// Stops it, and waits until it stands still: none of its own steps writes any more.
    ///
    /// # Errors
    /// It does not stand still in time.
    fn stand_still(&self) -> io::Result<()>;
    /// Ends it for good, and waits until it is gone: nothing of it touches memory any more (TDR-46).
    ///
    /// # Errors
    /// `Stuck` when it does not end (TDR-15, TDR-49).
    fn end(&mut self) -> Result<(), AdapterError>;
    /// Ends one that stands still, or was never told to begin: it is not waited for.
    fn discard(self: Box<Self>);
}

/// An engine that was just started: it answers `Started` or `Refused` later.
#[derive(Debug)]
pub struct Launched {
    /// None where a test has the other end of the channel.
    pub instance: Option<Box<dyn Instance>>,
    /// This end of its channel.
    pub channel: Channel,
}

impl Launched {
    /// Tells it something; it is ended where that fails.
    pub(super) fn told(self, tell: impl FnOnce(&Channel) -> io::Result<()>) -> io::Result<Self> {
        match tell(&self.channel) {
            Ok(()) => Ok(self),
            Err(error) => {
                self.discard();
                Err(error)
            }
        }
    }

    /// Ends it: it was never told to begin, and is not waited for.
    pub(super) fn discard(self) {
        self.instance.into_iter().for_each(Instance::discard);
    }
}

/// Starts engines.
pub trait Launcher: Debug + Send + Sync {
    /// Starts one and sends it what it works on.
    ///
    /// # Errors
    /// It cannot be started, or told.
    fn launch(&self, start: &Start, memory: Memory<'_>, own: Own<'_>) -> io::Result<Launched>;
}

/// The first message, with what the engine works on.
pub(super) fn send_start(ours: &Channel, start: &Start, memory: Memory<'_>, own: Own<'_>) -> io::Result<()> {
    let mut descriptors = vec![
        own.block.as_fd(),
        memory.vram.as_fd(),
        memory.tables.as_fd(),
        own.event.as_fd(),
        own.asks.as_fd(),
        own.wake.as_fd(),
        memory.fences.as_fd(),
    ];
    descriptors.extend(memory.code.map(|code| code.file.as_fd()));
    descriptors.extend(own.planes.map(File::as_fd));
    descriptors.extend(memory.local.into_iter().flatten());
    ours.send(start, &[], &descriptors, false).map_err(io::Error::other)
}
