//! What stands behind the rings.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use thiserror::Error;

use super::answers::Answers;
use super::malformed::MalformedChain;
use super::ticket::Ticket;
use crate::guest_ram::dirty_log::DirtyLog;
use crate::guest_ram::memory::GuestRam;

/// What a device shows to the front-end; asked once, before anything else.
#[derive(Debug)]
pub struct Offer {
    /// Device-specific feature bits (0 to 23, and 50 on). The shell adds those of transport and rings.
    pub features: u64,
    /// Rings, at most [`MAX_QUEUES`].
    pub queues: u16,
    /// Device configuration space; reads past it give zeroes.
    pub config: Vec<u8>,
    /// Bytes of the shortest answer: a chain with less room is malformed.
    pub smallest_answer: usize,
    /// Memory that the guest is to see as a shared memory region; `None`: the device needs no window.
    pub aperture: Option<Aperture>,
    /// Whether [`Device::save`] and [`Device::load`] work: front-ends are then offered live migration (LM-67).
    pub migrates: bool,
}

/// What makes a device's state, on a thread that may wait: for a peer, or a disk. It must end in bounded time.
pub type Save = Box<dyn FnOnce() -> Result<Vec<u8>, String> + Send>;

/// A device at work, as a [`Device`] gives it.
#[derive(Debug)]
pub struct AtWork {
    /// The device, encoded.
    pub device: Vec<u8>,
    /// Files that a daemon after this one needs for that, by their roles.
    pub files: Vec<(String, Arc<File>)>,
}

/// Rings that a device may have.
pub const MAX_QUEUES: u16 = 64;

/// Host memory shown to the guest through a virtio shared memory region.
#[derive(Debug)]
pub struct Aperture {
    /// Id of the region.
    pub region: u8,
    /// The memory.
    pub file: File,
    /// Where in the file it starts.
    pub offset: u64,
    /// Its bytes: the whole region.
    pub length: u64,
}

/// Why the guest sees no window.
#[derive(Debug, Error)]
pub enum WindowError {
    /// The front-end did not acknowledge SHMEM.
    #[error(
        "this VMM has no shared memory regions for vhost-user devices (QEMU has them from 11.1 on, and crosvm); \
         buffers lie in the guest's own memory"
    )]
    NotNegotiated,
    /// The front-end said no, or its channel broke.
    #[error("the VMM did not map the window")]
    Refused(#[source] io::Error),
    /// Earlier front-ends of this socket still owe an answer.
    #[error("{0} requests for a window are unanswered")]
    Unanswered(usize),
    /// No thread to ask with.
    #[error("no thread to ask the VMM for the window")]
    Host(#[source] io::Error),
}

/// A device behind the rings of one connection. It lives on the queue worker's thread, which calls nothing else
/// meanwhile: a slow callback delays its own VM only. Dropping it frees everything of the VM.
///
/// ```text
///                    freeze                 is_frozen
///   running ────────────────────▶ freezing ───────────▶ frozen ── save ──▶ (bytes)
///      ▲                             │                  │  ▲
///      └──────────── thaw ───────────┴──────────────────┘  └── load: of a device with nothing in it
///            after a load: started, thaw; then restored, for each request that was in flight
/// ```
///
/// While it freezes or is frozen it gets no commands. A reset ends every freeze, and nothing is left to run.
pub trait Device: Send {
    /// What the device shows.
    fn offer(&self) -> io::Result<Offer>;

    /// One descriptor chain: `request` is everything that the device may read, copied out of guest memory. At
    /// most [`super::MAX_REQUEST`] bytes, at least one.
    fn command(&mut self, queue: u16, request: &[u8], ticket: Ticket, answers: &mut Answers);

    /// A chain that could not be read. The ticket may have room for an error, or none; answer it either way, so
    /// that the guest gets its buffers back. Already counted.
    fn malformed(&mut self, queue: u16, reason: MalformedChain, ticket: Ticket, answers: &mut Answers);

    /// A descriptor that is readable while the device has something to do: an eventfd, a timer, or an epoll of
    /// many. Asked once.
    fn event_fd(&self) -> Option<BorrowedFd<'_>>;

    /// [`Device::event_fd`] is readable. Make it unreadable, else this is called without end.
    fn event(&mut self, answers: &mut Answers);

    /// Guest memory is now this. Rings already use it; drop the old one soon, since it keeps the old mappings.
    fn memory_changed(&mut self, memory: Arc<GuestRam>, answers: &mut Answers);

    /// The aperture can be seen by the guest, or never will in this epoch. Called at most once between two
    /// resets, and not at all for a device without an aperture.
    fn window(&mut self, state: Result<(), WindowError>, answers: &mut Answers);

    /// The guest has reset the device: free everything of that VM. Every ticket is void, and the window is gone
    /// until [`Device::window`] tells of the next one.
    fn reset(&mut self);

    /// Begins to stop all GPU work: the guest is being paused, saved or reset.
    fn freeze(&mut self) {}

    /// Whether nothing changes guest RAM or the device's own memory any more, and all that was written to guest RAM
    /// before is in the dirty log. Asked after each event and every millisecond; the front-end waits for it, at most
    /// [`super::FREEZE_BOUND`], and loses the device past that.
    fn is_frozen(&self) -> bool {
        true
    }

    /// A ring runs again: go on. [`Device::event`] follows, for what is due by now.
    fn thaw(&mut self) {}

    /// Whether it gets no commands for now, by its own wish: it stands still for the operator. It has an event when that is
    /// over.
    fn holds(&self) -> bool {
        false
    }

    /// What is written to guest RAM from now on goes into this log, or nowhere. The front-end replaces the pages behind
    /// it as often as it likes, and then this is not called.
    fn log_changed(&mut self, _log: Option<Arc<DirtyLog>>) {}

    /// The state of a device that is frozen. It stays as it is, and may be thawed: the front-end decides.
    fn save(&mut self) -> Save {
        Box::new(|| Err("this device cannot be saved".into()))
    }

    /// The device as it is, at work, for a daemon that goes on with it if this one is killed. Nothing stops for that. None while
    /// something is under way of which no other daemon could know what becomes.
    fn at_work(&mut self) -> Option<AtWork> {
        None
    }

    /// Puts the device, in which nothing is, into this state; it is frozen then. The file of the aperture may be another
    /// from here on: the offer is asked again for it. Before features, memory and rings:
    /// requests that were in flight follow, see [`Device::restored`]. What is answered meanwhile waits with the device.
    ///
    /// # Errors
    /// Why nothing was applied. The front-end is told that it failed, and the log why.
    fn load(&mut self, _state: Vec<u8>) -> Result<(), String> {
        Err("this device cannot be restored".into())
    }

    /// Rings run for the first time after a load: from here on this is the guest's device, and no other is.
    ///
    /// # Errors
    /// Why it may not run; the session ends.
    fn started(&mut self) -> Result<(), String> {
        Ok(())
    }

    /// A command that was in flight when the state was saved, by its queue and head: it was taken, and not answered.
    /// An error says why its chain is not the one that was taken; answer it either way.
    fn restored(&mut self, _request: Result<&[u8], MalformedChain>, ticket: Ticket, answers: &mut Answers) {
        answers.answer(ticket, &[]);
    }
}

/// Makes the device of each new connection.
pub trait Factory: FnMut() -> io::Result<Box<dyn Device>> + Send {}

impl<F: FnMut() -> io::Result<Box<dyn Device>> + Send> Factory for F {}
