//! The ledger of one vGPU, as it is written.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use serde::Serialize;

use super::log::Key;
use super::log::Log;
use super::read;
use super::words::Words;
use crate::fd_store;

/// What was written since the last end.
#[derive(Debug)]
struct Written {
    log: Log,
    words: Arc<Words>,
    /// By role: descriptors that are to be stored when the connection begins; none of those that are.
    files: BTreeMap<String, Option<OwnedFd>>,
    /// A connection has begun.
    is_open: bool,
}

impl Written {
    fn nothing() -> io::Result<Self> {
        let (log, words) = (Log::new()?, Arc::new(Words::new()?));
        Ok(Self { log, words, files: BTreeMap::new(), is_open: false })
    }

    fn keep(&mut self, vgpu: &str, role: &str, file: BorrowedFd<'_>) -> io::Result<()> {
        let waiting = if self.is_open {
            fd_store::put(vgpu, role, file)?;
            None
        } else {
            Some(file.try_clone_to_owned()?)
        };
        self.files.insert(role.to_owned(), waiting);
        Ok(())
    }

    fn open(&mut self, vgpu: &str, connection: BorrowedFd<'_>) -> io::Result<()> {
        self.is_open = true;
        for (role, file) in std::mem::take(&mut self.files) {
            match file {
                Some(file) => self.keep(vgpu, &role, file.as_fd())?,
                None => drop(self.files.insert(role, None)),
            }
        }
        let own = [(read::LOG, self.log.file().try_clone()?), (read::WORDS, self.words.file().try_clone()?)];
        for (role, file) in own {
            self.keep(vgpu, role, file.as_fd())?;
        }
        self.keep(vgpu, read::CONNECTION, connection)
    }
}

/// The ledger of one vGPU: nothing where the daemon has no store.
#[derive(Debug, Default)]
pub struct Ledger {
    vgpu: String,
    /// None: nothing is written.
    written: Mutex<Option<Written>>,
}

impl Ledger {
    /// That of a vGPU.
    pub fn new(vgpu: &str) -> Self {
        let this = Self { vgpu: vgpu.to_owned(), written: Mutex::default() };
        if fd_store::is_open() {
            this.renew();
        }
        this
    }

    fn written(&self) -> MutexGuard<'_, Option<Written>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renew(&self) {
        let nothing = Written::nothing();
        if let Err(error) = &nothing {
            ::log::warn!("{}: a VM will not outlive this daemon: {error}", self.vgpu);
        }
        *self.written() = nothing.ok();
    }

    /// Does `what` with what is written, if anything is.
    fn with<T>(&self, what: impl FnOnce(&mut Written) -> io::Result<T>) -> Option<T> {
        let mut written = self.written();
        let done = what(written.as_mut()?);
        if let Err(error) = &done {
            ::log::error!("{}: the VM may not outlive this daemon: {error}", self.vgpu);
        }
        done.ok()
    }

    /// A connection begins, or goes on that a process before this one has served. The words of its rings, if there are any.
    pub(crate) fn begin(&self, connection: BorrowedFd<'_>) -> Option<Arc<Words>> {
        self.with(|written| {
            if !written.is_open {
                written.open(&self.vgpu, connection)?;
            }
            Ok(Arc::clone(&written.words))
        })
    }

    /// Goes on with what a process before this one has written and stored.
    pub(crate) fn resume(&self, log: Log, words: Arc<Words>, stored: BTreeSet<String>) {
        let files = stored.into_iter().map(|role| (role, None)).collect();
        *self.written() = Some(Written { log, words, files, is_open: true });
    }

    /// The connection has ended: nothing is left of it. Where another process goes on with it, the store is that one's.
    pub(crate) fn end(&self, is_handed_over: bool) {
        let Some(written) = self.written().take() else { return };
        if is_handed_over {
            return;
        }
        self.renew();
        for (role, _) in written.files.into_iter().filter(|(_, waiting)| waiting.is_none()) {
            if let Err(error) = fd_store::remove(&self.vgpu, &role) {
                ::log::warn!("{}: descriptor store: {role}: {error}", self.vgpu);
            }
        }
    }

    /// Writes what `key` is from now on.
    pub fn put(&self, key: Key, value: &impl Serialize) {
        self.with(|written| written.log.put(key, value));
    }

    /// Writes that `key` is no more.
    pub fn remove(&self, key: Key) {
        self.with(|written| written.log.remove(key));
    }

    /// Writes that nothing of what a guest has open is any more: it has begun anew.
    pub fn forget_guest(&self) {
        self.with(|written| {
            let is_its = |key: &Key| !matches!(key, Key::Connection | Key::Window);
            let keys: Vec<Key> = written.log.keys().filter(is_its).collect();
            keys.into_iter().try_for_each(|key| written.log.remove(key))
        });
    }

    /// Keeps a descriptor in place of the one that has this role.
    pub fn keep(&self, role: &str, file: BorrowedFd<'_>) {
        self.with(|written| written.keep(&self.vgpu, role, file));
    }

    /// Keeps these files of guest memory, and no others. Their roles, in their order.
    pub(crate) fn keep_memory(&self, files: &[File]) -> Option<Vec<String>> {
        self.with(|written| {
            let mut roles = Vec::with_capacity(files.len());
            for file in files {
                let role = read::role_of(&file.metadata()?);
                if !written.files.contains_key(&role) {
                    written.keep(&self.vgpu, &role, file.as_fd())?;
                }
                roles.push(role);
            }
            let is_other = |role: &String, _: &mut _| role.starts_with("ram-") && !roles.contains(role);
            for (role, waiting) in written.files.extract_if(.., is_other) {
                if waiting.is_none() {
                    fd_store::remove(&self.vgpu, &role)?;
                }
            }
            Ok(roles)
        })
    }
}
