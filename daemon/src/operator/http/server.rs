//! The thread that serves clients, one loop for all of them.

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;
use std::thread::JoinHandle;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::event::Event;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustix::net::accept_with;

use super::address::Address;
use super::client::Client;
use super::client::Progress;
use super::page::Pages;
use crate::listener::Listener;
use crate::listener::SocketError;
use crate::open_sockets;
use crate::open_sockets::Registered;

/// Clients at one time; the oldest makes room for the newest.
const MAX_CLIENTS: usize = 64;
/// Connections that are accepted before those that are there are looked at again.
const AT_ONCE: usize = 16;
/// Pause after a failed accept: the host is out of descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// Where clients come from.
#[derive(Debug)]
pub enum Door {
    /// A Unix socket.
    Unix(Listener),
    /// A port.
    Tcp(TcpListener, Registered),
}

impl Door {
    /// Listens there.
    ///
    /// # Errors
    /// The name or the port is taken, or cannot be had.
    pub fn open(address: &Address) -> Result<Self, SocketError> {
        match address {
            Address::Unix(path) => Ok(Self::Unix(Listener::bind_private(path)?)),
            Address::Tcp(at) => {
                let failed = |source| SocketError::Bind { path: address.to_string().into(), source };
                let (socket, registered) = open_sockets::tcp(&at.to_string()).map_err(failed)?;
                Ok(Self::Tcp(socket, registered))
            }
        }
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Unix(listener) => listener.socket.as_fd(),
            Self::Tcp(socket, _) => socket.as_fd(),
        }
    }
}

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub struct Server {
    stop: Arc<AtomicBool>,
    bell: Event,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `pages` to those that come through `door`, on a thread of this name.
    ///
    /// # Errors
    /// A thread or descriptor cannot be had.
    pub fn start(name: &'static str, door: Door, pages: Box<dyn Pages>) -> io::Result<Self> {
        let bell = Event::new()?;
        let its_bell = bell.try_clone()?;
        let stop = Arc::new(AtomicBool::new(false));
        let its_stop = Arc::clone(&stop);
        let run = move || {
            Loop { name, door, pages, clients: VecDeque::new(), blocked: None }.run(&its_bell, &its_stop)
        };
        // The daemon goes on without it: a client sees that there is no answer.
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { stop, bell, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.bell.signal();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("a thread that serves HTTP panicked");
        }
    }
}

#[derive(Debug)]
struct Loop {
    name: &'static str,
    door: Door,
    pages: Box<dyn Pages>,
    clients: VecDeque<Client>,
    /// Until when none is accepted.
    blocked: Option<Instant>,
}

impl Loop {
    fn run(mut self, bell: &Event, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            let now = Instant::now();
            self.blocked = self.blocked.filter(|until| *until > now);
            self.clients.retain(|client| client.ends() > now);
            let ready = self.wait(bell, now);
            // From the last on: each that is over leaves the places before it as they are.
            for index in ready.into_iter().rev() {
                let pages = &mut self.pages;
                let Some(client) = self.clients.get_mut(index) else { continue };
                if client.go_on(|asked| pages.page(asked)) == Progress::Over {
                    let _done = self.clients.remove(index);
                }
            }
            if self.blocked.is_none() {
                self.accept();
            }
        }
    }

    /// Waits until something can be done; the clients that can go on.
    fn wait(&self, bell: &Event, now: Instant) -> Vec<usize> {
        let door = if self.blocked.is_some() { PollFlags::empty() } else { PollFlags::IN };
        let mut fds = vec![PollFd::new(bell, PollFlags::IN), PollFd::new(&self.door, door)];
        fds.extend(self.clients.iter().map(|client| PollFd::new(client, client.wants())));
        let next = self.clients.iter().map(Client::ends).chain(self.blocked).min();
        let limit = next.map(|next| next.saturating_duration_since(now));
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) => {
                let clients = fds.iter().skip(2).enumerate();
                clients.filter(|(_, fd)| !fd.revents().is_empty()).map(|(index, _)| index).collect()
            }
            Err(_interrupted) => Vec::new(),
        }
    }

    fn accept(&mut self) {
        for _ in 0..AT_ONCE {
            match accept_with(&self.door, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    if self.clients.len() >= MAX_CLIENTS {
                        let _oldest = self.clients.pop_front();
                    }
                    self.clients.push_back(Client::new(socket, Instant::now()));
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(error) => {
                    log::warn!("{}: cannot accept a connection: {error}", self.name);
                    self.blocked = Some(Instant::now() + PAUSE);
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::time::Duration;
    use std::time::Instant;

    use campanile_host_gpu::event::Event;

    use super::AtomicBool;
    use super::Client;
    use super::Door;
    use super::Listener;
    use super::Loop;
    use super::Ordering;
    use crate::operator::http::client::TIMEOUT;
    use crate::operator::http::page::Asked;
    use crate::operator::http::page::Page;
    use crate::operator::http::page::Pages;

    #[derive(Debug)]
    struct Nothing;

    impl Pages for Nothing {
        fn page(&mut self, _asked: Asked<'_>) -> Result<Page, &'static str> {
            Err("404 Not Found")
        }
    }

    #[test]
    fn a_client_whose_time_is_over_is_dropped_and_the_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let door = Door::Unix(Listener::bind_private(&folder.path().join("metrics")).unwrap());
        let (late, mut its_end) = UnixStream::pair().unwrap();
        let (other, mut other_end) = UnixStream::pair().unwrap();
        let now = Instant::now();
        let clients = [
            Client::new(late.into(), now.checked_sub(TIMEOUT).unwrap()),
            Client::new(other.into(), now + Duration::from_secs(3600)),
        ];
        assert_eq!(clients[0].ends(), now);
        let clients = VecDeque::from(clients);
        let served = Loop { name: "test", door, pages: Box::new(Nothing), clients, blocked: None };
        let (bell, stop) = (Event::new().unwrap(), Arc::new(AtomicBool::new(false)));
        let (its_bell, its_stop) = (bell.try_clone().unwrap(), Arc::clone(&stop));
        let thread = std::thread::spawn(move || served.run(&its_bell, &its_stop));
        assert_eq!(its_end.read(&mut [0]).unwrap(), 0, "it is closed");
        other_end.set_nonblocking(true).unwrap();
        assert!(other_end.read(&mut [0]).is_err(), "it waits");
        stop.store(true, Ordering::Release);
        bell.signal();
        thread.join().unwrap();
    }
}
