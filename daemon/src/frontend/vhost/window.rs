//! The window: the guest's view of the aperture, mapped by the front-end on request.

use campanile_host_gpu::log_limit::inherit;
use std::io;
use std::sync::Arc;
use std::sync::Condvar;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use vhost::vhost_user::Backend;
use vhost::vhost_user::VhostUserFrontendReqHandler;
use vhost::vhost_user::message::VhostUserMMap;
use vhost::vhost_user::message::VhostUserMMapFlags;

use super::device::Aperture;
use super::device::WindowError;
use super::mailbox::Mailbox;

/// Requests of one vGPU socket that front-ends may leave unanswered, each of which costs a thread: the channel
/// cannot be closed from here, only by the front-end.
const MAX_UNANSWERED: usize = 4;

/// Threads of one vGPU socket that wait for a front-end.
pub(super) type Waiting = Arc<AtomicUsize>;

/// Whether the front-end shows the window, where it has said so in this epoch.
#[derive(Debug, Default)]
pub(super) struct Shown {
    said: Mutex<Option<bool>>,
    changed: Condvar,
}

impl Shown {
    /// The front-end has said so, or a new epoch begins.
    pub(super) fn set(&self, said: Option<bool>) {
        *self.said.lock().unwrap_or_else(PoisonError::into_inner) = said;
        self.changed.notify_all();
    }

    /// What it has said; waits up to `limit` for that.
    pub(super) fn wait(&self, limit: Duration) -> Option<bool> {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(said, limit, |said| said.is_none());
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// One request to map the aperture, all of it.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) aperture: Arc<Aperture>,
    pub(super) epoch: u64,
    pub(super) mailbox: Arc<Mailbox>,
}

impl Request {
    /// Asks from a thread of its own, and posts the reply.
    pub(super) fn send(self, backend: Backend, waiting: &Waiting) {
        let (epoch, mailbox) = (self.epoch, Arc::clone(&self.mailbox));
        let refuse = |error| mailbox.post(|mail| mail.tell_window(epoch, Err(error)));
        let before = waiting.fetch_add(1, Ordering::Relaxed);
        if before >= MAX_UNANSWERED {
            waiting.fetch_sub(1, Ordering::Relaxed);
            return refuse(WindowError::Unanswered(before));
        }
        let done = Arc::clone(waiting);
        let thread = thread::Builder::new().name("vgpu-window".into()).spawn(inherit(move || {
            let reply = self.ask(&backend).map_err(WindowError::Refused);
            drop(backend);
            done.fetch_sub(1, Ordering::Relaxed);
            self.mailbox.post(|mail| mail.tell_window(self.epoch, reply));
        }));
        if let Err(error) = thread {
            waiting.fetch_sub(1, Ordering::Relaxed);
            refuse(WindowError::Host(error));
        }
    }

    fn ask(&self, backend: &Backend) -> io::Result<()> {
        let window = VhostUserMMap {
            shmid: self.aperture.region,
            padding: [0; 7],
            fd_offset: self.aperture.offset,
            shm_offset: 0,
            len: self.aperture.length,
            flags: VhostUserMMapFlags::WRITABLE.bits(),
        };
        let mut mapped = backend.shmem_map(&window, &self.aperture.file);
        if mapped.is_err() && self.epoch > 0 {
            // The front-end should have dropped the mapping of the epoch before; one that did not refuses another.
            mapped =
                backend.shmem_unmap(&window).and_then(|_| backend.shmem_map(&window, &self.aperture.file));
        }
        mapped.map(|_| ())
    }
}
