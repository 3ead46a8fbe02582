//! When a device at work is written for a daemon that follows this one if it is killed.
//!
//! ```text
//!             something is to be done                       nothing is left to do, and the last try is long enough ago
//!   HOLDS ───────────────────────────────▶ FORGOTTEN ────────────────────────────────────────────────────────────────▶ HOLDS
//!                                             │  ▲                                                            │
//!                                             │  └── something is to be done ── TRIED ◀── it cannot be written ┘
//!                                             └ killed here: devices are lost
//! ```
//!
//! Writing takes the thread of the vGPU a fiftieth of its time at the most, so that one that is never idle for long, or has
//! much to write, is written more rarely. After a while without any, the next few follow at once.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use super::counters::Counters;
use super::device::AtWork;
use super::device::Device;
use super::handed::Checkpointed;
use super::saved::SavedRing;
use crate::ledger::checkpoint::Checkpoint;
use crate::ledger::keeping::Ledger;
use crate::ledger::read::CHECKPOINT;
use crate::vgpu::state::saved::bytes::Bytes;

/// From one try to the next, so many times as long as it takes.
const SHARE: u32 = 50;
/// As much of that as is not waited for after a while without any.
const BURST: Duration = Duration::from_millis(250);

/// How what was written last stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Holds,
    Forgotten,
    /// Nothing has happened since it could not be written.
    Tried,
}

/// The checkpoints of one connection.
#[derive(Debug)]
pub(super) struct Checkpoints {
    checkpoint: Checkpoint,
    ledger: Arc<Ledger>,
    counters: Arc<Counters>,
    /// What was stored last in each role.
    kept: BTreeMap<String, Arc<File>>,
    standing: Standing,
    /// When the next one may be tried.
    next: Instant,
}

impl Checkpoints {
    /// Of a connection that this ledger is of.
    ///
    /// # Errors
    /// No memory or descriptor is left.
    pub(super) fn new(ledger: &Arc<Ledger>, counters: &Arc<Counters>) -> io::Result<Self> {
        let checkpoint = Checkpoint::new()?;
        ledger.keep(CHECKPOINT, checkpoint.file().as_fd());
        let (ledger, counters, kept) = (Arc::clone(ledger), Arc::clone(counters), BTreeMap::new());
        let (standing, next) = (Standing::Forgotten, Instant::now());
        Ok(Self { checkpoint, ledger, counters, kept, standing, next })
    }

    /// Something is to be done: what was written holds no more.
    pub(super) fn forget(&mut self) {
        if self.standing == Standing::Holds {
            self.checkpoint.forget();
            self.counters.set_checkpoint_holds(false);
        }
        self.standing = Standing::Forgotten;
    }

    /// How long nothing may be to do until the next one is written; none where none is due.
    pub(super) fn due(&self) -> Option<Duration> {
        let is_due = self.standing == Standing::Forgotten;
        is_due.then(|| self.next.saturating_duration_since(Instant::now()))
    }

    /// Writes the device, where that can be.
    pub(super) fn write(
        &mut self,
        device: &mut dyn Device,
        epoch: u64,
        rings: impl FnOnce() -> Vec<SavedRing>,
    ) {
        let begun = Instant::now();
        self.standing = Standing::Tried;
        if let Some(at_work) = device.at_work() {
            match self.put(at_work, epoch, rings()) {
                Ok(()) => {
                    self.standing = Standing::Holds;
                    self.counters.set_checkpoint_holds(true);
                }
                Err(error) => log::debug!("{}: no checkpoint: {error}", self.ledger.vgpu()),
            }
        }
        let now = Instant::now();
        log::trace!("{}: checkpoint: {:?} after {:?}", self.ledger.vgpu(), self.standing, now - begun);
        let paid = now.checked_sub(BURST).map_or(now, |earliest| self.next.max(earliest));
        self.next = paid + now.saturating_duration_since(begun) * SHARE;
    }

    fn put(&mut self, AtWork { device, files }: AtWork, epoch: u64, rings: Vec<SavedRing>) -> io::Result<()> {
        let (vgpu, device) = (self.ledger.vgpu().to_owned(), Bytes(device));
        let written = Checkpointed { vgpu, rings, epoch, device };
        let mut bytes = Vec::new();
        ciborium::into_writer(&written, &mut bytes).map_err(io::Error::other)?;
        for (role, file) in files {
            if !self.kept.get(&role).is_some_and(|kept| Arc::ptr_eq(kept, &file)) {
                self.kept.remove(&role);
                if !self.ledger.keep(&role, file.as_fd()) {
                    return Err(io::Error::other(format!("{role} is not in the descriptor store")));
                }
                self.kept.insert(role, file);
            }
        }
        self.checkpoint.write(&bytes)
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.forget();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io;
    use std::os::fd::BorrowedFd;
    use std::sync::Arc;
    use std::time::Duration;
    use std::time::Instant;

    use super::super::answers::Answers;
    use super::super::device::Offer;
    use super::super::device::WindowError;
    use super::super::malformed::MalformedChain;
    use super::super::ticket::Ticket;
    use super::AtWork;
    use super::Checkpointed;
    use super::Checkpoints;
    use super::Counters;
    use super::Device;
    use super::Ledger;
    use super::SHARE;
    use super::SavedRing;
    use crate::guest_ram::memory::GuestRam;
    use crate::ledger::checkpoint::take;
    use crate::service_manager::tests::HeardStore;

    /// A device that can be written, or cannot, and takes its time for that.
    struct Written {
        device: Option<Vec<u8>>,
        files: Vec<(String, Arc<File>)>,
        takes: Duration,
        asked: u32,
    }

    impl Device for Written {
        fn offer(&self) -> io::Result<Offer> {
            Err(io::ErrorKind::Unsupported.into())
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
        fn at_work(&mut self) -> Option<AtWork> {
            self.asked += 1;
            let begun = Instant::now();
            while begun.elapsed() < self.takes {
                std::hint::spin_loop();
            }
            self.device.clone().map(|device| AtWork { device, files: self.files.clone() })
        }
    }

    fn written() -> Written {
        Written { device: Some(b"a device".to_vec()), files: Vec::new(), takes: Duration::ZERO, asked: 0 }
    }

    fn checkpoints(vgpu: &str) -> (Checkpoints, Arc<Counters>) {
        let (ledger, counters) = (Arc::new(Ledger::new(vgpu)), Arc::new(Counters::default()));
        (Checkpoints::new(&ledger, &counters).unwrap(), counters)
    }

    #[test]
    fn cont_21_what_is_written_holds_until_something_is_to_be_done_and_is_written_again_after_that() {
        let (mut checkpoints, counters) = checkpoints("a");
        let mut device = written();
        for index in 1..=2 {
            assert!(checkpoints.due().is_some() && !counters.checkpoint_holds());
            let ring = SavedRing { position: index, ..SavedRing::default() };
            checkpoints.write(&mut device, 0, || vec![ring.clone()]);
            assert!(checkpoints.due().is_none() && counters.checkpoint_holds(), "it is as it is");
            let bytes = take(checkpoints.checkpoint.file()).unwrap().unwrap();
            let said: Checkpointed = ciborium::from_reader(bytes.as_slice()).unwrap();
            assert_eq!(
                (said.vgpu.as_str(), said.rings, said.device.0.as_slice()),
                ("a", vec![ring], &b"a device"[..])
            );
            checkpoints.write(&mut device, 0, Vec::new);
            checkpoints.forget();
            assert!(take(checkpoints.checkpoint.file()).unwrap().is_none(), "nothing holds any more");
        }
    }

    #[test]
    fn cont_21_a_device_that_cannot_be_written_is_asked_again_when_something_has_happened_to_it() {
        let (mut checkpoints, counters) = checkpoints("a");
        let mut device = Written { device: None, ..written() };
        checkpoints.write(&mut device, 0, Vec::new);
        assert_eq!((checkpoints.due(), device.asked), (None, 1));
        assert!(take(checkpoints.checkpoint.file()).unwrap().is_none() && !counters.checkpoint_holds());
        checkpoints.forget();
        assert!(checkpoints.due().is_some());
        // One that is too large is none.
        device.device = Some(vec![0; crate::ledger::checkpoint::MAX_BYTES + 1]);
        checkpoints.write(&mut device, 0, Vec::new);
        assert!(checkpoints.due().is_none() && take(checkpoints.checkpoint.file()).unwrap().is_none());
    }

    #[test]
    fn what_takes_long_to_write_is_written_rarely() {
        let (mut checkpoints, _) = checkpoints("a");
        let mut device = Written { takes: Duration::from_millis(10), ..written() };
        let begun = Instant::now();
        checkpoints.write(&mut device, 0, Vec::new);
        checkpoints.forget();
        assert!(checkpoints.next >= begun + Duration::from_millis(10) * (SHARE - 1) - super::BURST);
        assert!(checkpoints.due().is_some_and(|left| !left.is_zero()));
    }

    #[test]
    fn cont_21_files_that_a_checkpoint_needs_lie_in_the_store_before_it_holds_and_each_once() {
        let store = HeardStore::open();
        let (mut checkpoints, _) = checkpoints("checkpoints-tested");
        let block = Arc::new(tempfile::tempfile().unwrap());
        let mut device = Written { files: vec![("block-0".to_owned(), Arc::clone(&block))], ..written() };
        checkpoints.ledger.begin(std::os::fd::AsFd::as_fd(&*block)).unwrap();
        let stored = || {
            store
                .heard()
                .filter(|said| said.starts_with("FDSTORE=1") && said.ends_with("checkpoints-tested.block-0"))
                .count()
        };
        stored();
        for expected in [1, 0] {
            checkpoints.write(&mut device, 0, Vec::new);
            checkpoints.forget();
            assert_eq!(stored(), expected);
        }
        device.files[0].1 = Arc::new(tempfile::tempfile().unwrap());
        checkpoints.write(&mut device, 0, Vec::new);
        assert_eq!(stored(), 1, "another engine has another block");
    }
}
