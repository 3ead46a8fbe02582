//! The socket of one vGPU, and the thread that serves its connections one after the other.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use campanile_host_gpu::essential_thread;
use campanile_host_gpu::essential_thread::panic_text;
use campanile_host_gpu::event::Event;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;

use super::connection;
use super::connection::ConnectionError;
use super::counters::Count;
use super::counters::Counters;
use super::device::Factory;
use super::window::Waiting;
use crate::listener::Listener;
use crate::listener::SocketError;

/// Pause after a failed accept: the host is out of descriptors, and asking at once would not help.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// One vGPU's socket, served until this is dropped.
#[derive(Debug)]
pub struct VgpuSocket {
    path: PathBuf,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

/// How the serving thread is told to stop.
#[derive(Debug)]
struct Stop {
    /// SYNC POINT: set before `current` is looked at by the stopper; looked at after `current` is set by the server.
    asked: AtomicBool,
    bell: Event,
    current: Mutex<Option<UnixStream>>,
}

impl VgpuSocket {
    /// Listens at `path` and serves one front-end at a time there, each with a new device.
    pub fn spawn<F: Factory + 'static>(
        path: &Path,
        factory: F,
        counters: Arc<Counters>,
    ) -> Result<Self, SocketError> {
        Self::serve(Listener::bind(path)?, factory, counters)
    }

    /// As [`Self::spawn`], on a socket that is there.
    ///
    /// # Errors
    /// A thread or descriptor cannot be had.
    pub fn serve<F: Factory + 'static>(
        listener: Listener,
        factory: F,
        counters: Arc<Counters>,
    ) -> Result<Self, SocketError> {
        let path = listener.path().to_owned();
        let no_thread = |source| SocketError::Thread { path: path.clone(), source };
        let bell = Event::new().map_err(no_thread)?;
        let stop = Arc::new(Stop { asked: AtomicBool::new(false), bell, current: Mutex::default() });
        let server = Server {
            name: path.display().to_string(),
            listener,
            factory,
            counters,
            waiting: Waiting::default(),
            stop: Arc::clone(&stop),
        };
        let thread = essential_thread::spawn("vgpu-socket", move || server.run()).map_err(no_thread)?;
        Ok(Self { path, stop, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a front-end is connected.
    pub fn has_front_end(&self) -> bool {
        self.stop.current.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Ends the session, removes the socket file, and waits for the threads.
    pub fn shutdown(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.asked.store(true, Ordering::SeqCst);
        if let Some(stream) = &*self.stop.current.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.stop.bell.signal();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("{}: the socket's thread panicked", self.path.display());
        }
    }
}

impl Drop for VgpuSocket {
    fn drop(&mut self) {
        self.end();
    }
}

struct Server<F> {
    name: String,
    listener: Listener,
    factory: F,
    counters: Arc<Counters>,
    waiting: Waiting,
    stop: Arc<Stop>,
}

impl<F: Factory> Server<F> {
    fn run(mut self) {
        while !self.stop.asked.load(Ordering::SeqCst) {
            match self.listener.socket.accept() {
                Ok((stream, _)) => self.serve(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    log::error!("{}: cannot accept a connection: {error}", self.name);
                    let mut bell = [PollFd::new(&self.stop.bell, PollFlags::IN)];
                    let _ = poll(&mut bell, Some(&PAUSE));
                }
            }
        }
    }

    fn wait(&self) {
        let mut fds =
            [PollFd::new(&self.listener.socket, PollFlags::IN), PollFd::new(&self.stop.bell, PollFlags::IN)];
        let _ = poll(&mut fds, None);
    }

    fn serve(&mut self, stream: UnixStream) {
        self.counters.add(Count::Sessions);
        log::info!("{}: a front-end has connected", self.name);
        let served = catch_unwind(AssertUnwindSafe(|| self.session(&stream)));
        *self.stop.current.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let _ = stream.shutdown(Shutdown::Both);
        let ended = served.unwrap_or_else(|panic| Err(ConnectionError::Panic(panic_text(&*panic))));
        match ended {
            Ok(()) => log::info!("{}: the front-end has hung up", self.name),
            Err(error @ ConnectionError::Panic(_)) => {
                self.counters.add(Count::Panics);
                log::error!("{}: session ended: {error}", self.name);
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(|source| format!(": {source}"));
                log::error!("{}: session ended: {error}{}", self.name, cause.unwrap_or_default());
            }
        }
    }

    fn session(&mut self, stream: &UnixStream) -> Result<(), ConnectionError> {
        // Accepted sockets are blocking, whatever the listener is.
        let current = stream.try_clone().map_err(ConnectionError::Host)?;
        *self.stop.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(current);
        if self.stop.asked.load(Ordering::SeqCst) {
            return Ok(());
        }
        let device = (self.factory)().map_err(ConnectionError::Device)?;
        connection::serve(&self.name, stream, device, &self.counters, &self.waiting)
    }
}
