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
