//! The ledger of one vGPU, as it is written.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::process;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering;

use campanile_host_gpu::essential_thread::EXIT_STATUS;
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

/// Ledgers of this process.
static LEDGERS: AtomicUsize = AtomicUsize::new(0);

/// The ledger of one vGPU: nothing where the daemon has no store.
#[derive(Debug)]
pub struct Ledger {
    vgpu: String,
    /// None: nothing is written.
    written: Mutex<Option<Written>>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self::of(String::new())
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        LEDGERS.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Ledger {
    /// That of a vGPU.
    pub fn new(vgpu: &str) -> Self {
        let this = Self::of(vgpu.to_owned());
        if fd_store::is_open() {
            this.renew();
        }
        this
    }

    fn of(vgpu: String) -> Self {
        LEDGERS.fetch_add(1, Ordering::Relaxed);
        Self { vgpu, written: Mutex::default() }
    }

    fn written(&self) -> MutexGuard<'_, Option<Written>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a daemon after this one would read; none where nothing is written.
    #[cfg(test)]
    pub(crate) fn keys(&self) -> Option<Vec<Key>> {
        let written = self.written();
        let log = Log::open(written.as_ref()?.log.file().try_clone().unwrap()).unwrap();
        Some(log.keys().collect())
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

    /// The words of its rings, if there are any.
    pub(crate) fn words(&self) -> Option<Arc<Words>> {
        self.written().as_ref().map(|written| Arc::clone(&written.words))
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

    /// A thread that serves this vGPU has panicked. Where the process serves no other vGPU, and another process would follow it, it ends as by a
    /// kill: the VM goes on with that one. Else returns, and the connection ends alone.
    ///
    /// `handles`: it is the thread that handles chains, so that the one in its hands counts this end.
    pub(crate) fn panicked(&self, what: &str, handles: bool) {
        let words = self.written().as_ref().filter(|written| written.is_open).map(|it| Arc::clone(&it.words));
        if let Some(words) = words
            && LEDGERS.load(Ordering::Relaxed) == 1
        {
            if !handles {
                words.end_handling();
            }
            ::log::error!("{}: a thread panicked: {what}; the daemon ends, and another goes on", self.vgpu);
            ::log::logger().flush();
            process::exit(EXIT_STATUS);
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

    /// The name of its vGPU.
    pub(crate) fn vgpu(&self) -> &str {
        &self.vgpu
    }

    /// Writes that no process has a device page any more.
    pub fn forget_pages(&self) {
        self.with(|written| {
            let keys: Vec<Key> = written.log.keys().filter(|key| matches!(key, Key::Page(_))).collect();
            keys.into_iter().try_for_each(|key| written.log.remove(key))
        });
    }

    /// Writes that nothing of what a guest has open is any more: it has begun anew.
    pub fn forget_guest(&self) {
        self.with(|written| {
            let is_its = |key: &Key| !matches!(key, Key::Connection | Key::Window | Key::Local);
            let keys: Vec<Key> = written.log.keys().filter(is_its).collect();
            keys.into_iter().try_for_each(|key| written.log.remove(key))
        });
    }

    /// Keeps a descriptor in place of the one that has this role. Whether that was done.
    pub fn keep(&self, role: &str, file: BorrowedFd<'_>) -> bool {
        self.with(|written| written.keep(&self.vgpu, role, file)).is_some()
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use super::Key;
    use super::Ledger;
    use super::Log;
    use super::Words;
    use crate::ids::FrontContext;
    use crate::ids::GuestProcess;
    use crate::service_manager::tests::HeardStore;

    const VGPU: &str = "ledger-tested";

    /// What was stored since the last call, and removed without being stored again: roles of the vGPU of these tests.
    fn heard(store: &HeardStore) -> (BTreeSet<String>, BTreeSet<String>) {
        let (mut stored, mut removed) = (BTreeSet::new(), BTreeSet::new());
        for said in store.heard() {
            let Some((_, role)) = said.rsplit_once(&format!("FDNAME=campanile.{VGPU}.")) else { continue };
            if said.starts_with("FDSTOREREMOVE=1") {
                stored.remove(role);
                removed.insert(role.to_owned());
            } else {
                removed.remove(role);
                stored.insert(role.to_owned());
            }
        }
        (stored, removed)
    }

    fn roles<const N: usize>(roles: [&str; N]) -> BTreeSet<String> {
        roles.map(str::to_owned).into()
    }

    fn file() -> File {
        tempfile::tempfile().unwrap()
    }

    #[test]
    fn cont_12_what_is_kept_lies_in_the_store_from_the_beginning_of_a_connection_to_its_end() {
        let store = HeardStore::open();
        let ledger = Ledger::new(VGPU);
        ledger.keep("vram", file().as_fd());
        assert_eq!(heard(&store), (roles([]), roles([])), "no VM is connected");
        for _ in 0..2 {
            ledger.put(Key::Context(FrontContext::new(7)), &());
            let words = ledger.begin(file().as_fd()).unwrap();
            let (stored, _) = heard(&store);
            assert!(stored.is_superset(&roles(["connection", "log", "words"])), "{stored:?}");
            ledger.keep("kick-0", file().as_fd());
            assert_eq!(heard(&store).0, roles(["kick-0"]), "at once");
            assert_eq!(ledger.keys(), Some(vec![Key::Context(FrontContext::new(7))]));
            // A connection that goes on is none that begins.
            assert!(Arc::ptr_eq(&words, &ledger.begin(file().as_fd()).unwrap()));
            assert_eq!(heard(&store).0, roles([]));
            ledger.end(false);
            let (stored, removed) = heard(&store);
            assert!(
                stored.is_empty() && removed.is_superset(&roles(["connection", "kick-0", "log", "words"]))
            );
            assert_eq!(ledger.keys(), Some(Vec::new()), "the next one has a ledger, with nothing in it");
        }
    }

    #[test]
    fn cont_12_what_is_kept_before_a_connection_is_stored_when_that_begins() {
        let store = HeardStore::open();
        let ledger = Ledger::new(VGPU);
        ledger.keep("vram", file().as_fd());
        ledger.keep("evicted", file().as_fd());
        ledger.begin(file().as_fd()).unwrap();
        assert_eq!(heard(&store).0, roles(["connection", "evicted", "log", "vram", "words"]));
    }

    #[test]
    fn what_another_process_goes_on_with_stays_in_the_store_and_is_not_written_to_any_more() {
        let store = HeardStore::open();
        let ledger = Ledger::new(VGPU);
        ledger.begin(file().as_fd()).unwrap();
        ledger.put(Key::Context(FrontContext::new(7)), &());
        heard(&store);
        ledger.end(true);
        assert_eq!(heard(&store), (roles([]), roles([])));
        assert_eq!(ledger.keys(), None);
        // There it goes on: what was stored is its own, and goes with the connection.
        let next = Ledger::new(VGPU);
        let stored = roles(["connection", "log", "words", "kick-0"]);
        next.resume(Log::new().unwrap(), Arc::new(Words::new().unwrap()), stored.clone());
        next.begin(file().as_fd()).unwrap();
        assert_eq!(heard(&store).0, roles([]), "it is there already");
        next.end(false);
        assert_eq!(heard(&store), (roles([]), stored));
    }

    #[test]
    fn guest_memory_that_is_no_more_is_taken_out_of_the_store_and_the_rest_is_stored_once() {
        let store = HeardStore::open();
        let ledger = Ledger::new(VGPU);
        ledger.begin(file().as_fd()).unwrap();
        heard(&store);
        let [first, second] = [file(), file()];
        let named = ledger.keep_memory(&[first.try_clone().unwrap(), second.try_clone().unwrap()]).unwrap();
        assert_eq!(heard(&store), (named.iter().cloned().collect(), roles([])));
        assert_eq!(ledger.keep_memory(&[second.try_clone().unwrap()]).unwrap(), named[1..]);
        assert_eq!(heard(&store), (roles([]), named[..1].iter().cloned().collect()));
    }

    #[test]
    fn a_guest_that_begins_anew_leaves_what_its_front_end_has_said() {
        let _store = HeardStore::open();
        let ledger = Ledger::new(VGPU);
        for key in [
            Key::Connection,
            Key::Window,
            Key::Page(GuestProcess::new(3)),
            Key::Context(FrontContext::new(3)),
            Key::File(1),
            Key::Generation,
            Key::Local,
        ] {
            ledger.put(key, &true);
        }
        ledger.forget_guest();
        assert_eq!(ledger.keys(), Some(vec![Key::Connection, Key::Window, Key::Local]));
    }
}
