//! The sockets at which this process listens, for a successor that is to go on with them (`campanile ctl upgrade`): connections that
//! wait there are not lost, and no port is free for a moment.
//!
//! ```text
//!   predecessor: bound ─▶ registered, as long as its owner has it ─▶ all ── to the successor ──▶ inherit ─▶ take, by name
//! ```
//!
//! A socket is told by the words that the options have for it: a path, or `tcp:ADDRESS`.

use std::ffi::OsStr;
use std::ffi::OsString;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::Weak;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

/// A socket on its way from one process to the next.
#[derive(Debug)]
pub struct OpenSocket {
    /// Its name.
    pub name: OsString,
    /// The socket.
    pub socket: OwnedFd,
    /// It lies in a file that this daemon has made, and removes.
    pub has_file: bool,
}

#[derive(Debug)]
struct Entry {
    name: OsString,
    socket: Weak<OwnedFd>,
    has_file: bool,
}

static OPEN: Mutex<Vec<Entry>> = Mutex::new(Vec::new());
static INHERITED: Mutex<Vec<OpenSocket>> = Mutex::new(Vec::new());
static IS_LEFT: AtomicBool = AtomicBool::new(false);
static IS_ON_TRIAL: AtomicBool = AtomicBool::new(false);

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has a socket registered, as long as this is there.
#[derive(Debug)]
pub struct Registered {
    _socket: Arc<OwnedFd>,
}

/// Registers a socket that listens.
///
/// # Errors
/// No descriptor is left.
pub fn register(name: &OsStr, socket: impl AsFd, has_file: bool) -> io::Result<Registered> {
    let socket = Arc::new(socket.as_fd().try_clone_to_owned()?);
    let mut open = locked(&OPEN);
    open.retain(|entry| entry.socket.strong_count() > 0);
    open.push(Entry { name: name.to_owned(), socket: Arc::downgrade(&socket), has_file });
    Ok(Registered { _socket: socket })
}

/// All that are registered, for a successor.
///
/// # Errors
/// No descriptor is left.
pub fn all() -> io::Result<Vec<OpenSocket>> {
    let open = locked(&OPEN);
    let there = open.iter().filter_map(|entry| Some((entry, entry.socket.upgrade()?)));
    let copied = |(entry, socket): (&Entry, Arc<OwnedFd>)| {
        let (name, has_file) = (entry.name.clone(), entry.has_file);
        Ok(OpenSocket { name, socket: socket.try_clone()?, has_file })
    };
    there.map(copied).collect()
}

/// A successor has them: their files are not this process's to remove any more.
pub fn leave() {
    IS_LEFT.store(true, Ordering::Release);
}

/// Whether a successor has them.
pub fn are_left() -> bool {
    IS_LEFT.load(Ordering::Acquire)
}

/// Takes over the sockets of a predecessor. It may still go on itself: until [`settle`] their files are not this process's to remove.
pub fn inherit(sockets: Vec<OpenSocket>) {
    IS_ON_TRIAL.store(true, Ordering::Release);
    *locked(&INHERITED) = sockets;
}

/// The predecessor has left.
pub fn settle() {
    IS_ON_TRIAL.store(false, Ordering::Release);
}

/// Whether the predecessor may still go on.
pub fn are_on_trial() -> bool {
    IS_ON_TRIAL.load(Ordering::Acquire)
}

/// The socket of this name, if the predecessor had it, and nothing has taken it yet.
pub fn take(name: &OsStr) -> Option<OpenSocket> {
    let mut inherited = locked(&INHERITED);
    let at = inherited.iter().position(|socket| socket.name == name)?;
    Some(inherited.swap_remove(at))
}

/// Closes what no option names any more; a file of it is removed.
pub fn close_others() {
    for OpenSocket { name, has_file, .. } in std::mem::take(&mut *locked(&INHERITED)) {
        log::info!("{}: this daemon listens there no more", name.display());
        if has_file && let Err(error) = std::fs::remove_file(Path::new(&name)) {
            log::warn!("{}: cannot be removed: {error}", name.display());
        }
    }
}

/// Listens at a TCP address, or goes on with what the predecessor had there. Not blocking.
///
/// # Errors
/// The port is taken, or cannot be had.
pub fn tcp(address: &str) -> io::Result<(TcpListener, Registered)> {
    let name = OsString::from(format!("tcp:{address}"));
    let listener = match take(&name) {
        Some(OpenSocket { socket, .. }) => TcpListener::from(socket),
        None => TcpListener::bind(address)?,
    };
    listener.set_nonblocking(true)?;
    let registered = register(&name, &listener, false)?;
    Ok((listener, registered))
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::all;
    use super::inherit;
    use super::take;
    use super::tcp;

    #[test]
    fn a_port_goes_on_with_the_successor_under_the_words_of_the_option() {
        let (listener, registered) = tcp("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let is_ours = |socket: &super::OpenSocket| {
            std::net::TcpListener::from(socket.socket.try_clone().unwrap()).local_addr().unwrap() == address
        };
        let ours: Vec<_> = all().unwrap().into_iter().filter(is_ours).collect();
        assert_eq!(ours.len(), 1);
        drop((listener, registered));
        assert!(!all().unwrap().iter().any(is_ours), "its owner has gone");
        inherit(ours);
        let (again, _registered) = tcp("127.0.0.1:0").unwrap();
        assert_eq!(again.local_addr().unwrap(), address);
        assert!(take("tcp:127.0.0.1:0".as_ref()).is_none(), "it is taken once");
        TcpStream::connect(address).unwrap();
        again.accept().unwrap();
    }
}
