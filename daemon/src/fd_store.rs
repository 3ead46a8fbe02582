//! The descriptor store of what started this process (`FDSTORE=1`, sd_notify(3)): systemd, or the keeper of `serve --respawn`. What is
//! there outlives this process, and is handed to the one that is started in its place.
//!
//! ```text
//!   put ── FDSTORE=1, FDNAME, descriptor ──▶ store ── this process is killed, another is started ──▶ deliver ─▶ take, by vGPU
//! ```
//!
//! A name has one descriptor. What is there already under another name is not stored twice: so nothing is put under two names.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use rustix::net::SendAncillaryBuffer;
use rustix::net::SendAncillaryMessage;
use rustix::net::SendFlags;
use rustix::net::SocketAddrUnix;
use rustix::net::sendmsg;
use rustix::net::sendmsg_addr;

use crate::service_manager;

/// Bytes of the longest name (sd_pid_notify_with_fds(3)).
const MAX_NAME: usize = 255;

static DELIVERED: Mutex<BTreeMap<String, OwnedFd>> = Mutex::new(BTreeMap::new());

/// Whether there is one.
pub fn is_open() -> bool {
    service_manager::socket().is_some()
}

/// The name under which what `role` says of a vGPU lies there; none where it would be too long.
fn name(vgpu: &str, role: &str) -> Option<String> {
    let mut name = String::from(service_manager::STORED);
    for byte in vgpu.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => name.push(char::from(byte)),
            _ => {
                let _written = write!(name, "%{byte:02x}");
            }
        }
    }
    let _written = write!(name, ".{role}");
    (name.len() <= MAX_NAME).then_some(name)
}

/// Puts a descriptor there, in place of the one that has its name.
///
/// # Errors
/// The store has gone, or the name of the vGPU is too long for it.
pub fn put(vgpu: &str, role: &str, file: BorrowedFd<'_>) -> io::Result<()> {
    set(&name(vgpu, role).ok_or(io::ErrorKind::InvalidFilename)?, Some(file))
}

/// Takes a descriptor out, if one has this name.
///
/// # Errors
/// As [`put`].
pub fn remove(vgpu: &str, role: &str) -> io::Result<()> {
    set(&name(vgpu, role).ok_or(io::ErrorKind::InvalidFilename)?, None)
}

/// Has a store take the descriptor of this name, or drop what has it. One that has it already may have it twice then.
///
/// # Errors
/// It has gone, or does not take it at once where it is not waited for.
pub(crate) fn add(store: &UnixDatagram, name: &str, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    add_at(Store { socket: store, behind: None }, name, file)
}

/// What a process has put into the store of its keeper that is to go into the one behind it when the keeper ends.
#[derive(Debug)]
struct Copies {
    files: BTreeMap<String, OwnedFd>,
    /// It has ended: what is put goes there.
    has_moved: bool,
}

static COPIES: Mutex<Copies> = Mutex::new(Copies { files: BTreeMap::new(), has_moved: false });

impl Copies {
    fn note(&mut self, name: &str, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
        match file {
            Some(file) => drop(self.files.insert(name.to_owned(), file.try_clone_to_owned()?)),
            None => drop(self.files.remove(name)),
        }
        Ok(())
    }

    /// Tells the store behind the keeper's all that the keeper's was told: what that one has of the keeper may be older. To be done again
    /// where it fails.
    fn move_to(&mut self, tell: impl Fn(&str, Option<BorrowedFd<'_>>) -> io::Result<()>) -> io::Result<()> {
        self.files.iter().try_for_each(|(name, file)| tell(name, Some(file.as_fd())))?;
        self.has_moved = true;
        Ok(())
    }
}

fn copies() -> MutexGuard<'static, Copies> {
    COPIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where the keeper of this process has ended, and a store lies behind its own, that one keeps from here on what the keeper has kept.
pub(crate) fn follow_keeper() {
    let (Some(socket), Some(behind)) = (service_manager::socket(), service_manager::store_behind()) else {
        return;
    };
    let mut copies = copies();
    if copies.has_moved || !service_manager::has_lost_its_keeper() {
        return;
    }
    let told = copies.move_to(|name, file| put_at(Store { socket, behind: Some(behind) }, name, file));
    if let Err(error) = told {
        log::warn!("descriptor store: the VM may not outlive this process, whose keeper has ended: {error}");
    }
}

/// Has that of what started this process, if there is one, have this descriptor under this name, or none.
///
/// # Errors
/// It has gone.
pub(crate) fn set(name: &str, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let Some(socket) = service_manager::socket() else { return Ok(()) };
    let Some(behind) = service_manager::store_behind() else {
        return put_at(Store { socket, behind: None }, name, file);
    };
    let mut copies = copies();
    copies.note(name, file)?;
    if copies.has_moved {
        return put_at(Store { socket, behind: Some(behind) }, name, file);
    }
    match put_at(Store { socket, behind: None }, name, file) {
        Err(error) if service_manager::has_gone(&error) => {
            copies.move_to(|name, file| put_at(Store { socket, behind: Some(behind) }, name, file))
        }
        done => done,
    }
}

/// A store, by a socket that leads to it, or from which its address is reached.
#[derive(Debug, Clone, Copy)]
struct Store<'a> {
    socket: &'a UnixDatagram,
    behind: Option<&'a SocketAddrUnix>,
}

/// Puts a descriptor there in place of the one that has this name, or none.
fn put_at(store: Store<'_>, name: &str, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    add_at(store, name, None)?;
    file.map_or(Ok(()), |file| add_at(store, name, Some(file)))
}

fn add_at(store: Store<'_>, name: &str, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    match file {
        Some(file) => tell(store, &format!("FDSTORE=1\nFDPOLL=0\nFDNAME={name}"), Some(file)),
        None => tell(store, &format!("FDSTOREREMOVE=1\nFDNAME={name}"), None),
    }
}

fn tell(Store { socket, behind }: Store<'_>, words: &str, file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files: Vec<BorrowedFd<'_>> = file.into_iter().collect();
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&files));
    }
    let words = [IoSlice::new(words.as_bytes())];
    match behind {
        Some(address) => sendmsg_addr(socket, address, &words, &mut control, SendFlags::NOSIGNAL)?,
        None => sendmsg(socket, &words, &mut control, SendFlags::NOSIGNAL)?,
    };
    Ok(())
}

/// Whether a process before this one has left something of this role, of any vGPU, that nothing has taken yet.
pub fn has(role: &str) -> bool {
    let delivered = DELIVERED.lock().unwrap_or_else(PoisonError::into_inner);
    delivered.keys().any(|name| name.rsplit_once('.').is_some_and(|(_, its)| its == role))
}

/// What a process before this one has put there.
pub fn deliver(files: impl IntoIterator<Item = (String, OwnedFd)>) {
    DELIVERED.lock().unwrap_or_else(PoisonError::into_inner).extend(files);
}

/// Takes what was delivered of a vGPU, by name.
pub fn take_named(vgpu: &str) -> BTreeMap<String, OwnedFd> {
    let Some(prefix) = name(vgpu, "") else { return BTreeMap::new() };
    let mut delivered = DELIVERED.lock().unwrap_or_else(PoisonError::into_inner);
    let taken: BTreeMap<String, OwnedFd> =
        delivered.extract_if(.., |name, _| name.starts_with(&prefix)).collect();
    drop(delivered);
    if service_manager::store_behind().is_some() {
        // This process's keeper has them, too.
        let mut copies = copies();
        for (name, file) in &taken {
            if let Err(error) = copies.note(name, Some(file.as_fd())) {
                log::warn!("descriptor store: {name}: {error}");
            }
        }
    }
    taken
}

/// The same, by role.
pub fn take(vgpu: &str) -> BTreeMap<String, OwnedFd> {
    let length = name(vgpu, "").unwrap_or_default().len();
    let named = take_named(vgpu).into_iter();
    named.map(|(name, file)| (name[length..].to_owned(), file)).collect()
}

/// What names of a vGPU begin with; none where they would be too long.
pub(crate) fn prefix(vgpu: &str) -> Option<String> {
    name(vgpu, "")
}

/// Whether what has this name is of a vGPU, and not of all that a daemon serves.
pub(crate) fn is_of_a_vgpu(name: &str) -> bool {
    name.strip_prefix(service_manager::STORED).is_some_and(|rest| !rest.starts_with('.'))
}

/// Takes one of them.
pub fn take_one(vgpu: &str, role: &str) -> Option<OwnedFd> {
    let name = name(vgpu, role)?;
    DELIVERED.lock().unwrap_or_else(PoisonError::into_inner).remove(&name)
}

/// Closes what was delivered and nothing has taken, and takes it out of the store. Its names.
pub fn drop_others() -> Vec<String> {
    let left = std::mem::take(&mut *DELIVERED.lock().unwrap_or_else(PoisonError::into_inner));
    for name in left.keys() {
        if let Err(error) = set(name, None) {
            log::warn!("descriptor store: {name}: {error}");
        }
    }
    left.into_keys().collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::fd::AsFd;
    use std::os::fd::BorrowedFd;

    use super::Copies;
    use super::MAX_NAME;
    use super::deliver;
    use super::name;
    use super::take;

    #[test]
    fn a_name_has_the_characters_that_a_store_takes_and_is_not_too_long() {
        assert_eq!(name("vm-0", "kick-1").as_deref(), Some("campanile.vm-0.kick-1"));
        assert_eq!(name("a:b.c", "log").as_deref(), Some("campanile.a%3ab%2ec.log"));
        assert!(name(&"x".repeat(MAX_NAME), "log").is_none());
    }

    #[test]
    fn cont_22_the_store_behind_a_keepers_is_told_all_that_is_kept_then_and_once() {
        let mut copies = Copies { files: BTreeMap::new(), has_moved: false };
        let file = std::fs::File::open("/dev/null").unwrap();
        for (name, file) in
            [("a", Some(&file)), ("b", Some(&file)), ("b", None), ("c", Some(&file)), ("c", Some(&file))]
        {
            copies.note(name, file.map(AsFd::as_fd)).unwrap();
        }
        let told = std::cell::RefCell::new(Vec::new());
        let tell = |name: &str, file: Option<BorrowedFd<'_>>| {
            assert!(file.is_some());
            told.borrow_mut().push(name.to_owned());
            Ok(())
        };
        assert!(
            copies.move_to(|_, _| Err(std::io::ErrorKind::NotConnected.into())).is_err() && !copies.has_moved
        );
        copies.move_to(tell).unwrap();
        assert_eq!((told.into_inner(), copies.has_moved), (vec!["a".to_owned(), "c".to_owned()], true));
    }

    #[test]
    fn what_was_delivered_goes_to_its_vgpu_once() {
        let file = || std::fs::File::open("/dev/null").unwrap().into();
        let names = ["campanile.store-a.log", "campanile.store-a.ram-7", "campanile.store-ab.log"];
        deliver(names.map(|name| (name.to_owned(), file())));
        assert!(super::has("ram-7") && !super::has("ram"));
        assert_eq!(take("store-a").into_keys().collect::<Vec<_>>(), ["log", "ram-7"]);
        assert!(take("store-a").is_empty());
        assert_eq!(take("store-ab").len(), 1);
    }
}
