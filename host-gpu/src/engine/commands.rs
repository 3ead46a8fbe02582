//! From the control thread, and the one that compiles secondary pipelines, to the execution thread.
//!
//! Segments come in order. Of kernels, which are large, only what holds in the end is kept until it is taken: one that is made and
//! gone before that leaves nothing. So what waits is bounded by the kernels that there are, however long a buffer runs meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

use campanile_protocol::page_table::SegmentId;

use crate::event::Event;
use crate::kernel::name::KernelName;
use crate::memory::mapping::Mapping;
use crate::node::device_instance::Compiled;

/// What the control thread asks of the execution thread.
#[derive(Debug)]
pub enum Command {
    /// A segment is mapped. The first word is the serial of its request, which is acknowledged once buffers reach it.
    AddSegment(u64, SegmentId, Arc<Mapping>),
    /// A segment is gone; likewise.
    RemoveSegment(u64, SegmentId),
    /// The daemon is gone. What runs is put aside where it stops next, and the process ends.
    End,
}

/// What became of the kernel of one name since that was last taken: in this order.
#[derive(Debug)]
pub struct Change<K = Compiled> {
    /// The one that the execution thread has is gone.
    pub is_gone: bool,
    /// One is compiled, for the primary device instance of its node.
    pub added: Option<Box<K>>,
    /// The same for the secondary instance.
    pub secondary: Option<Box<K>>,
}

/// A kernel with the serial number that tells it from others of its name.
pub trait Numbered {
    /// The serial number.
    fn serial(&self) -> u64;
}

impl Numbered for Compiled {
    fn serial(&self) -> u64 {
        self.serial
    }
}

/// Kernels that wait for the execution thread.
#[derive(Debug)]
pub struct Kernels<K = Compiled>(Mutex<State<K>>);

#[derive(Debug)]
struct State<K> {
    /// All that there are, taken or not: serial numbers by name.
    known: BTreeMap<KernelName, u64>,
    changes: BTreeMap<KernelName, Change<K>>,
}

impl<K: Numbered> Default for Kernels<K> {
    fn default() -> Self {
        Self(Mutex::new(State { known: BTreeMap::new(), changes: BTreeMap::new() }))
    }
}

impl<K> Default for Change<K> {
    fn default() -> Self {
        Self { is_gone: false, added: None, secondary: None }
    }
}

impl<K: Numbered> Kernels<K> {
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, name: KernelName, kernel: K) {
        let mut state = self.lock();
        state.known.insert(name, kernel.serial());
        let change = state.changes.entry(name).or_default();
        (change.added, change.secondary) = (Some(Box::new(kernel)), None);
    }

    /// Drops it where its kernel is gone.
    fn add_secondary_kernel(&self, name: KernelName, secondary: K) {
        let mut state = self.lock();
        if state.known.get(&name) == Some(&secondary.serial()) {
            state.changes.entry(name).or_default().secondary = Some(Box::new(secondary));
        }
    }

    fn remove(&self, name: KernelName) {
        let mut state = self.lock();
        let is_known = state.known.remove(&name).is_some();
        let waits = state.changes.remove(&name);
        let was_taken = match &waits {
            Some(change) => change.is_gone || change.added.is_none(),
            None => is_known,
        };
        if was_taken {
            state.changes.insert(name, Change { is_gone: true, ..Change::default() });
        }
        drop(state);
        // The driver frees it, which the execution thread is not to wait for.
        drop(waits);
    }

    /// All that has changed since this was last called.
    pub fn take(&self) -> BTreeMap<KernelName, Change<K>> {
        std::mem::take(&mut self.lock().changes)
    }
}

/// The sending end of commands, for any thread.
#[derive(Debug, Clone)]
pub struct CommandSender {
    /// The commands.
    pub sender: mpsc::Sender<Command>,
    /// Kernels that were added or removed since they were last taken.
    pub kernels: Arc<Kernels>,
    /// Raised after each.
    pub pending: Arc<AtomicBool>,
    /// Wakes the execution thread.
    pub wake: Arc<Event>,
}

impl CommandSender {
    /// Asks for this, some time.
    pub fn send(&self, command: Command) {
        // The receiver lives as long as the process.
        let _sent = self.sender.send(command);
        self.announce();
    }

    /// A kernel is compiled, for the primary device instance of its node.
    pub fn add_kernel(&self, name: KernelName, kernel: Compiled) {
        self.kernels.add(name, kernel);
        self.announce();
    }

    /// The same for the secondary instance.
    pub fn add_secondary_kernel(&self, name: KernelName, secondary: Compiled) {
        self.kernels.add_secondary_kernel(name, secondary);
        self.announce();
    }

    /// A kernel is gone.
    pub fn remove_kernel(&self, name: KernelName) {
        self.kernels.remove(name);
        self.announce();
    }

    fn announce(&self) {
        self.pending.store(true, Ordering::Release);
        self.wake.signal();
    }
}

/// The receiving end of commands, with the flag that says that some are there.
#[derive(Debug)]
pub struct Commands {
    /// The commands.
    pub receiver: mpsc::Receiver<Command>,
    /// Kernels that were added or removed since they were last taken.
    pub kernels: Arc<Kernels>,
    /// Raised after each is sent.
    pub pending: Arc<AtomicBool>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test stops here")]

    use std::sync::Arc;

    use super::Kernels;
    use super::Numbered;
    use crate::kernel::name::KernelName;

    /// A kernel that tells how many there are.
    struct Counted(u64, #[allow(dead_code, reason = "it is counted")] Arc<()>);

    impl Numbered for Counted {
        fn serial(&self) -> u64 {
            self.0
        }
    }

    fn name(handle: u64) -> KernelName {
        KernelName { root: 7, handle }
    }

    /// Name, whether one is gone, what is added for either instance, of all that has changed.
    fn taken(kernels: &Kernels<Counted>) -> Vec<(u64, bool, Option<u64>, Option<u64>)> {
        let serial = |kernel: Option<Box<Counted>>| kernel.map(|kernel| kernel.0);
        let changes = kernels.take().into_iter();
        changes
            .map(|(name, change)| {
                (name.handle, change.is_gone, serial(change.added), serial(change.secondary))
            })
            .collect()
    }

    #[test]
    fn kernels_that_are_made_and_gone_before_they_are_taken_leave_nothing() {
        let (kernels, alive) = (Kernels::default(), Arc::new(()));
        let kernel = |serial| Counted(serial, Arc::clone(&alive));
        for serial in 0..10_000 {
            kernels.add(name(serial), kernel(serial));
            kernels.add_secondary_kernel(name(serial), kernel(serial));
            kernels.remove(name(serial));
            // The secondary pipeline is later.
            kernels.add_secondary_kernel(name(serial), kernel(serial));
            assert_eq!(Arc::strong_count(&alive), 1, "none is kept");
        }
        assert_eq!(kernels.lock().known.len(), 0);
        assert_eq!(taken(&kernels), []);
    }

    #[test]
    fn what_is_taken_is_what_holds_in_the_end() {
        let (kernels, alive) = (Kernels::default(), Arc::new(()));
        let kernel = |serial| Counted(serial, Arc::clone(&alive));
        kernels.add(name(1), kernel(1));
        kernels.add(name(2), kernel(2));
        kernels.add_secondary_kernel(name(2), kernel(2));
        assert_eq!(taken(&kernels), [(1, false, Some(1), None), (2, false, Some(2), Some(2))]);
        // The secondary pipeline of one that was taken; one that is gone, and its secondary pipeline that is late.
        kernels.add_secondary_kernel(name(1), kernel(1));
        kernels.remove(name(2));
        kernels.add_secondary_kernel(name(2), kernel(2));
        assert_eq!(taken(&kernels), [(1, false, None, Some(1)), (2, true, None, None)]);
        // A name that is given again: what it was goes, with what waits of it.
        kernels.add_secondary_kernel(name(1), kernel(1));
        kernels.remove(name(1));
        kernels.add(name(1), kernel(3));
        kernels.add_secondary_kernel(name(1), kernel(1));
        assert_eq!(Arc::strong_count(&alive), 2);
        assert_eq!(taken(&kernels), [(1, true, Some(3), None)]);
        kernels.remove(name(1));
        kernels.add(name(1), kernel(4));
        kernels.remove(name(1));
        assert_eq!(taken(&kernels), [(1, true, None, None)], "the one that was taken is told to go");
        kernels.remove(name(9));
        assert_eq!(taken(&kernels), []);
    }
}
