//! Rings in guest memory and a device behind them, without a connection or a thread: each step is taken by the caller. For
//! tests and fuzzers of what a guest writes into its rings.

use std::io;
use std::sync::Arc;
use std::sync::Mutex;

use campanile_host_gpu::memory::truncation::domain::FaultDomain;
use rustix::event::EventfdFlags;
use rustix::event::eventfd;

use super::call::Call;
use super::counters::Counters;
use super::device::Device;
use super::gate::Gate;
use super::mailbox::Mailbox;
use super::ring::Rings;
use super::session::Shared;
use super::worker::Worker;
use crate::guest_ram::dirty_log::DirtyLog;
use crate::guest_ram::memory::GuestRam;
use crate::poller::Poller;

/// Where a ring lies, guest-physical.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Descriptors, a power of two.
    pub size: u16,
    /// The descriptor table.
    pub table: u64,
    /// The available ring.
    pub available: u64,
    /// The used ring.
    pub used: u64,
}

/// The rings of one device, as a queue worker has them.
pub struct Stepped {
    worker: Worker,
    counters: Arc<Counters>,
    rings: u64,
}

impl Stepped {
    /// Starts ring after ring at `places`, at position 0, with these feature bits acknowledged. The first rings of the device
    /// are started; it may have more.
    ///
    /// # Errors
    /// A place is none, or there are more than the device has; the system refused something.
    pub fn new(
        device: Box<dyn Device>,
        memory: &Arc<GuestRam>,
        features: u64,
        places: &[Place],
    ) -> io::Result<Self> {
        let offer = device.offer()?;
        let log = Arc::new(DirtyLog::default());
        let rings = Arc::new(Rings::new(offer.queues, offer.smallest_answer, &log));
        let counters = Arc::new(Counters::default());
        for (index, place) in places.iter().enumerate() {
            let ring = rings.ring(index).ok_or(io::ErrorKind::InvalidInput)?;
            let descriptor = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            let mut ring = ring.lock();
            ring.set_features(features);
            ring.set_size(place.size.into()).map_err(io::Error::other)?;
            ring.set_addresses(place.table, place.available, place.used).map_err(io::Error::other)?;
            ring.set_ram(Arc::clone(memory));
            ring.set_call(Some(Call::new(descriptor()?)?));
            ring.set_enabled(true);
            let _first = ring.start(descriptor()?);
        }
        let shared = Shared {
            rings,
            log,
            gate: Arc::new(Gate::default()),
            mailbox: Arc::new(Mailbox::new()?),
            poller: Arc::new(Poller::new()?),
            counters: Arc::clone(&counters),
            domain: FaultDomain::new()?,
            aperture: Arc::new(Mutex::new(None)),
            window: Arc::default(),
            is_handed_over: Arc::default(),
            ledger: Arc::default(),
        };
        let mut worker = Worker::new(device, shared);
        worker.give_memory(Arc::clone(memory));
        let rings = places.iter().fold(0, |rings, _| rings << 1 | 1);
        Ok(Self { worker, counters, rings })
    }

    /// Every ring was kicked: a bounded number of commands is taken from each.
    pub fn step(&mut self) {
        self.worker.step(self.rings);
    }

    /// What was counted.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::fd::BorrowedFd;
    use std::sync::Arc;
    use std::sync::Mutex;

    use super::Device;
    use super::GuestRam;
    use super::Place;
    use super::Stepped;
    use crate::frontend::vhost::answers::Answers;
    use crate::frontend::vhost::device::Offer;
    use crate::frontend::vhost::device::WindowError;
    use crate::frontend::vhost::malformed::MalformedChain;
    use crate::frontend::vhost::ring::transfer::tests::AVAILABLE;
    use crate::frontend::vhost::ring::transfer::tests::TABLE;
    use crate::frontend::vhost::ring::transfer::tests::USED;
    use crate::frontend::vhost::ring::transfer::tests::one_chain;
    use crate::frontend::vhost::ticket::Ticket;
    use crate::ledger::words::Words;

    /// A device that answers nothing yet, and looks whether a chain is being handled when it gets one.
    struct Parks(Arc<Words>, Arc<Mutex<Vec<bool>>>);

    impl Device for Parks {
        fn offer(&self) -> io::Result<Offer> {
            let (features, config, aperture) = (0, Vec::new(), None);
            Ok(Offer { features, queues: 1, config, smallest_answer: 1, aperture, migrates: false })
        }
        fn command(&mut self, _: u16, _: &[u8], _: Ticket, _: &mut Answers) {
            self.1.lock().unwrap().push(self.0.is_handling());
        }
        fn malformed(&mut self, _: u16, _: MalformedChain, _: Ticket, _: &mut Answers) {}
        fn event_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }
        fn event(&mut self, _: &mut Answers) {}
        fn memory_changed(&mut self, _: Arc<GuestRam>, _: &mut Answers) {}
        fn window(&mut self, _: Result<(), WindowError>, _: &mut Answers) {}
        fn reset(&mut self) {}
    }

    #[test]
    fn a_chain_is_being_handled_while_the_device_has_the_call_and_not_while_it_waits_for_its_answer() {
        let (ram, words, seen) = (one_chain(), Arc::new(Words::new().unwrap()), Arc::default());
        let place = Place { size: 8, table: TABLE, available: AVAILABLE, used: USED };
        let device = Box::new(Parks(Arc::clone(&words), Arc::clone(&seen)));
        let mut stepped = Stepped::new(device, &ram, 0, &[place]).unwrap();
        stepped.worker.write_to(&words).unwrap();
        stepped.step();
        assert_eq!(*seen.lock().unwrap(), [true]);
        assert!(!words.is_handling());
        assert_eq!(words.ring(0).unwrap().heads(), [3], "it is in flight");
    }
}
