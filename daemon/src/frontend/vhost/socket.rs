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
use std::time::Duration;

use campanile_host_gpu::essential_thread;
use campanile_host_gpu::essential_thread::panic_text;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;

use super::connection;
use super::connection::ConnectionError;
use super::connection::Ended;
use super::connection::Place;
use super::counters::Count;
use super::counters::Counters;
use super::device::Factory;
use super::handed::Inherited;
use super::parking::Next;
use super::parking::Parked;
use super::parking::Parking;
use super::window::Waiting;
use crate::intake::DRAINED;
use crate::intake::Intake;
use crate::ledger::keeping::Ledger;
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
    parking: Parking,
    current: Mutex<Option<UnixStream>>,
}

impl VgpuSocket {
    /// Listens at `path` and serves one front-end at a time there, each with a new device.
    pub fn spawn<F: Factory + 'static>(
        path: &Path,
        factory: F,
        counters: Arc<Counters>,
    ) -> Result<Self, SocketError> {
        Self::serve(Listener::bind(path)?, factory, counters, Keeping::default(), None)
    }

    /// As [`Self::spawn`], on a socket that is there, and with the connection that another process has served so far, if there is one.
    ///
    /// # Errors
    /// A thread or descriptor cannot be had.
    pub fn serve<F: Factory + 'static>(
        listener: Listener,
        factory: F,
        counters: Arc<Counters>,
        keeping: Keeping,
        inherited: Option<Inherited>,
    ) -> Result<Self, SocketError> {
        let path = listener.path().to_owned();
        let no_thread = |source| SocketError::Thread { path: path.clone(), source };
        let parking = Parking::new().map_err(no_thread)?;
        let stop = Arc::new(Stop { asked: AtomicBool::new(false), parking, current: Mutex::default() });
        let server = Server {
            name: path.display().to_string(),
            listener,
            factory,
            counters,
            keeping,
            waiting: Waiting::default(),
            stop: Arc::clone(&stop),
        };
        let thread =
            essential_thread::spawn("vgpu-socket", move || server.run(inherited)).map_err(no_thread)?;
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

    /// Has its thread stand still between two messages, so that what it serves can go to another process. Waits up to `limit`.
    ///
    /// # Errors
    /// It is in the middle of one.
    pub fn park(&self, limit: Duration) -> Result<Parked, String> {
        self.stop.parking.park(limit)
    }

    /// Ends the session, removes the socket file, and waits for the threads.
    pub fn shutdown(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.asked.store(true, Ordering::SeqCst);
        // Another process may serve the connection by now.
        if !self.stop.parking.is_left()
            && let Some(stream) = &*self.stop.current.lock().unwrap_or_else(PoisonError::into_inner)
        {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.stop.parking.bell().signal();
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

/// What a socket has of its daemon.
#[derive(Debug, Default)]
pub struct Keeping {
    /// Where a daemon after this one finds the connection.
    pub ledger: Arc<Ledger>,
    /// Whether another front-end may connect.
    pub intake: Arc<Intake>,
}

struct Server<F> {
    name: String,
    listener: Listener,
    factory: F,
    counters: Arc<Counters>,
    keeping: Keeping,
    waiting: Waiting,
    stop: Arc<Stop>,
}

impl<F: Factory> Server<F> {
    fn run(mut self, inherited: Option<Inherited>) {
        let mut next = inherited.map_or(Next::GoesOn, |inherited| self.take_up(inherited));
        while next == Next::GoesOn && !self.stop.asked.load(Ordering::SeqCst) {
            match self.listener.socket.accept() {
                Ok((stream, _)) => next = self.serve(&stream, |server| server.session(&stream)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => next = self.wait(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    log::error!("{}: cannot accept a connection: {error}", self.name);
                    let mut bell = [PollFd::new(self.stop.parking.bell(), PollFlags::IN)];
                    let _ = poll(&mut bell, Some(&PAUSE));
                }
            }
        }
    }

    fn wait(&self) -> Next {
        let bell = self.stop.parking.bell();
        let mut fds = [PollFd::new(&self.listener.socket, PollFlags::IN), PollFd::new(bell, PollFlags::IN)];
        let _ = poll(&mut fds, None);
        let rung = bell.drain();
        if rung { self.stop.parking.stand(None) } else { Next::GoesOn }
    }

    /// Serves a connection that another process has served so far.
    fn take_up(&mut self, inherited: Inherited) -> Next {
        let Inherited { handed, ready, go, is_orphan } = inherited;
        // Not noted yet as connected here: a predecessor that goes on has it, and nothing here may shut it down.
        let device = (self.factory)().map_err(ConnectionError::Device);
        let said = device.as_ref().map(|_| ()).map_err(whole);
        let is_told = ready.send(said).is_ok();
        if !is_told || device.is_err() || go.recv().is_err() {
            if !is_orphan {
                // The predecessor goes on with it.
                return Next::Leaves;
            }
            self.keeping.ledger.end(false);
            let _ = handed.stream.shutdown(Shutdown::Both);
            return Next::GoesOn;
        }
        self.counters.add(Count::Sessions);
        let stream = match handed.stream.try_clone() {
            Ok(stream) => stream,
            Err(error) => {
                log::error!("{}: session ended: no descriptor is left: {error}", self.name);
                self.keeping.ledger.end(false);
                let _ = handed.stream.shutdown(Shutdown::Both);
                return Next::GoesOn;
            }
        };
        self.serve(&stream, |server| {
            server.note_current(&stream)?;
            connection::serve(server.place(), &stream, device?, Some((handed, ready)))
        })
    }

    /// Serves a connection to its end, and says how it ended.
    fn serve(
        &mut self,
        stream: &UnixStream,
        session: impl FnOnce(&mut Self) -> Result<Ended, ConnectionError>,
    ) -> Next {
        let served = catch_unwind(AssertUnwindSafe(|| session(self)));
        if let Err(panic) = &served {
            self.keeping.ledger.panicked(&panic_text(&**panic), false);
        }
        self.forget_current();
        self.keeping.ledger.end(matches!(served, Ok(Ok(Ended::HandedOver))));
        let ended = served.unwrap_or_else(|panic| Err(ConnectionError::Panic(panic_text(&*panic))));
        if !matches!(ended, Ok(Ended::HandedOver)) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        match ended {
            Ok(Ended::HungUp) => log::info!("{}: the front-end has hung up", self.name),
            Ok(Ended::TurnedAway) => log::warn!("{}: a front-end is turned away: {DRAINED}", self.name),
            Ok(Ended::HandedOver) => return Next::Leaves,
            Err(error) => {
                if matches!(error, ConnectionError::Panic(_)) {
                    self.counters.add(Count::Panics);
                }
                log::error!("{}: session ended: {}", self.name, whole(&error));
            }
        }
        Next::GoesOn
    }

    fn forget_current(&self) {
        *self.stop.current.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Notes that a front-end is connected.
    fn note_current(&self, stream: &UnixStream) -> Result<(), ConnectionError> {
        // Accepted sockets are blocking, whatever the listener is.
        let current = stream.try_clone().map_err(ConnectionError::Host)?;
        *self.stop.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(current);
        Ok(())
    }

    fn session(&mut self, stream: &UnixStream) -> Result<Ended, ConnectionError> {
        let noted = self.keeping.intake.enter(|| self.note_current(stream));
        let Some(noted) = noted else { return Ok(Ended::TurnedAway) };
        noted?;
        self.counters.add(Count::Sessions);
        log::info!("{}: a front-end has connected", self.name);
        let device = (self.factory)().map_err(ConnectionError::Device)?;
        if self.stop.asked.load(Ordering::SeqCst) {
            return Ok(Ended::HungUp);
        }
        connection::serve(self.place(), stream, device, None)
    }

    fn place(&self) -> Place<'_> {
        let Self { name, counters, keeping, waiting, stop, .. } = self;
        Place { socket: name, counters, waiting, parking: &stop.parking, ledger: &keeping.ledger }
    }
}

/// An error and its cause.
fn whole(error: &ConnectionError) -> String {
    let cause = std::error::Error::source(error).map(|source| format!(": {source}"));
    format!("{error}{}", cause.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::io::Read;
    use std::os::fd::BorrowedFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::Mutex;
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::Counters;
    use super::Ended;
    use super::Keeping;
    use super::Listener;
    use super::Parking;
    use super::Server;
    use super::Stop;
    use super::VgpuSocket;
    use super::Waiting;
    use crate::frontend::vhost::answers::Answers;
    use crate::frontend::vhost::connection::ConnectionError;
    use crate::frontend::vhost::device::Device;
    use crate::frontend::vhost::device::Offer;
    use crate::frontend::vhost::device::WindowError;
    use crate::frontend::vhost::malformed::MalformedChain;
    use crate::frontend::vhost::ticket::Ticket;
    use crate::guest_ram::memory::GuestRam;

    const LONG: Duration = Duration::from_secs(60);

    /// A device that is freed only when its socket ends.
    struct Slow(Arc<OnceLock<Arc<Stop>>>);

    impl Device for Slow {
        fn offer(&self) -> io::Result<Offer> {
            let (features, config, aperture) = (0, Vec::new(), None);
            Ok(Offer { features, queues: 1, config, smallest_answer: 0, aperture, migrates: false })
        }
        fn command(&mut self, _: u16, _: &[u8], _: Ticket, _: &mut Answers) {}
        fn malformed(&mut self, _: u16, _: MalformedChain, _: Ticket, _: &mut Answers) {}
        fn event_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }
        fn event(&mut self, _: &mut Answers) {}
        fn memory_changed(&mut self, _: Arc<GuestRam>, _: &mut Answers) {}
        fn window(&mut self, _: Result<(), WindowError>, _: &mut Answers) {}
        fn reset(&mut self) {}
    }

    impl Drop for Slow {
        fn drop(&mut self) {
            let stop = self.0.get().expect("the test has set it");
            assert!(stop.parking.bell().wait(Some(LONG)), "the socket never ended");
        }
    }

    #[test]
    fn a_drain_that_begins_once_a_front_end_was_accepted_turns_it_away_and_one_that_begins_later_finds_it() {
        let folder = tempfile::tempdir().unwrap();
        let parking = Parking::new().unwrap();
        let stop = Arc::new(Stop { asked: AtomicBool::new(false), parking, current: Mutex::default() });
        let (its_stop, keeping) = (Arc::clone(&stop), Keeping::default());
        let intake = Arc::clone(&keeping.intake);
        let its_intake = Arc::clone(&intake);
        let mut server = Server {
            name: "a".to_owned(),
            listener: Listener::bind(&folder.path().join("a.sock")).unwrap(),
            factory: move || {
                its_intake.set_closed(true);
                assert!(its_stop.current.lock().unwrap().is_some(), "the drain finds it");
                Err(io::Error::other("on purpose"))
            },
            counters: Arc::new(Counters::default()),
            keeping,
            waiting: Waiting::default(),
            stop: Arc::clone(&stop),
        };
        let (accepted, _front_end) = UnixStream::pair().unwrap();
        let error = server.session(&accepted).unwrap_err();
        assert!(matches!(error, ConnectionError::Device(_)), "what was let in before stays: {error}");
        assert!(intake.is_closed());
        *stop.current.lock().unwrap() = None;
        assert_eq!(server.session(&accepted).unwrap(), Ended::TurnedAway);
        assert!(stop.current.lock().unwrap().is_some(), "it was noted before it looked");
    }

    #[test]
    fn a_connection_that_another_process_has_is_not_shut_down_while_its_device_is_freed_here() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let stop = Arc::new(OnceLock::new());
        let its_stop = Arc::clone(&stop);
        let factory = move || Ok(Box::new(Slow(Arc::clone(&its_stop))) as Box<dyn Device>);
        let socket = VgpuSocket::spawn(&path, factory, Arc::new(Counters::default())).unwrap();
        stop.set(Arc::clone(&socket.stop)).unwrap();
        let mut front_end = UnixStream::connect(&path).unwrap();
        let parked = loop {
            let parked = socket.park(LONG).unwrap();
            if parked.is_connected {
                break parked;
            }
        };
        let handed = parked.record(LONG).unwrap();
        parked.leave();
        socket.shutdown();
        front_end.set_nonblocking(true).unwrap();
        assert_eq!(front_end.read(&mut [0; 1]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(handed);
        assert_eq!(front_end.read(&mut [0; 1]).unwrap(), 0);
    }
}
