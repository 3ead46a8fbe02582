//! What one connection has negotiated, and the steps that its requests are made of.
//!
//! ```text
//!   SET_MEM_TABLE …          every ring sees the new memory before the reply, the device soon after
//!   SET_VRING_KICK           ring starts; the first one of an epoch also asks for the window
//!   GET_VRING_BASE           device freezes, ring stops
//!   ENABLE 0 of the last     device freezes: see `migration.rs`
//!   RESET_DEVICE, or every ring stopped + SET_FEATURES + SET_VRING_BASE 0 after use       next epoch
//! ```

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;

use campanile_host_gpu::memory::truncation::domain::FaultDomain;
use vhost::vhost_user::Backend;
use vhost::vhost_user::message::VhostUserProtocolFeatures;

use super::advice::Advice;
use super::advice::Said;
use super::counters::Count;
use super::counters::Counters;
use super::device::Aperture;
use super::device::Offer;
use super::device::WindowError;
use super::features;
use super::gate::Gate;
use super::mailbox::Mail;
use super::mailbox::Mailbox;
use super::memory_table::Common;
use super::memory_table::MemoryTable;
use super::motion::Motion;
use super::refusal::Refusal;
use super::ring::Ring;
use super::ring::Rings;
use super::ring::state::Based;
use super::window;
use crate::guest_ram::dirty_log::DirtyLog;
use crate::ledger::keeping::Ledger;
use crate::poller::Poller;

/// What the session and its worker share.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub(super) rings: Arc<Rings>,
    pub(super) mailbox: Arc<Mailbox>,
    /// The worker waits on it; kick descriptors come and go from the connection thread.
    pub(super) poller: Arc<Poller>,
    pub(super) counters: Arc<Counters>,
    /// The connection's dirty log; whatever writes guest RAM marks there.
    pub(super) log: Arc<DirtyLog>,
    pub(super) gate: Arc<Gate>,
    /// Has the faults in all memory that the front-end has given.
    pub(super) domain: Arc<FaultDomain>,
    /// What the guest's window shows; another after a load.
    pub(super) aperture: Arc<Mutex<Option<Arc<Aperture>>>>,
    /// Whether the front-end shows it, where it has said so in this epoch.
    pub(super) window: Arc<window::Shown>,
    /// The connection goes on, served by another process.
    pub(super) is_handed_over: Arc<AtomicBool>,
    /// What a daemon after this one is to know.
    pub(super) ledger: Arc<Ledger>,
}

impl Shared {
    /// For what is mapped of the front-end's memory.
    pub(super) fn common(&self) -> Common<'_> {
        Common { log: &self.log, domain: &self.domain }
    }
}

/// One connection's state; its trait implementation is in `requests.rs`.
#[derive(Debug)]
pub(super) struct Session {
    /// The socket's name, for the log.
    pub(super) name: String,
    pub(super) shared: Shared,
    /// All feature bits that are offered.
    pub(super) offered: u64,
    pub(super) migrates: bool,
    pub(super) config: Vec<u8>,
    pub(super) smallest_answer: usize,
    waiting: window::Waiting,
    negotiated: Mutex<Negotiated>,
    /// The connection itself: whether the front-end is there still.
    pub(super) line: UnixStream,
}

/// What only the connection thread touches.
#[derive(Default)]
pub(super) struct Negotiated {
    pub(super) memory: MemoryTable,
    pub(super) protocol: u64,
    /// Feature bits that the guest has acknowledged.
    pub(super) features: u64,
    /// GET_PROTOCOL_FEATURES was asked, or SET_PROTOCOL_FEATURES never said: no front-end was connected before.
    pub(super) is_fresh: bool,
    /// GET_PROTOCOL_FEATURES was asked.
    pub(super) has_asked: bool,
    pub(super) motion: Motion,
    backend: Option<Backend>,
    /// The descriptor of its channel, which the vhost crate keeps to itself.
    pub(super) back_channel: Option<OwnedFd>,
    pub(super) epoch: u64,
    pub(super) window_asked: bool,
    /// The last ring has been stopped, and none started since.
    at_rest: bool,
    /// SET_FEATURES came at rest: the guest resumes or begins anew.
    renegotiated: bool,
    pub(super) is_greeted: bool,
    said: Said,
    /// Some of the configuration has been asked for.
    pub(super) configured: bool,
}

impl Negotiated {
    /// Whether the front-end may be QEMU's generic device: it has windows.
    fn is_qemu(&self) -> bool {
        self.protocol & VhostUserProtocolFeatures::SHMEM.bits() != 0
    }
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

impl std::fmt::Debug for Negotiated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Negotiated").field("protocol", &self.protocol).field("epoch", &self.epoch).finish()
    }
}

impl Session {
    pub(super) fn new(
        name: &str,
        shared: Shared,
        offer: Offer,
        waiting: window::Waiting,
        line: UnixStream,
    ) -> Self {
        Self {
            name: name.to_owned(),
            shared,
            offered: offer.features | features::transport(offer.migrates),
            migrates: offer.migrates,
            config: offer.config,
            smallest_answer: offer.smallest_answer,
            waiting,
            negotiated: Mutex::new(Negotiated { is_fresh: true, ..Negotiated::default() }),
            line,
        }
    }

    /// What the window shows by now.
    pub(super) fn aperture(&self) -> Option<Arc<Aperture>> {
        self.shared.aperture.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What decides the protocol features.
    pub(super) fn kind(&self) -> features::Kind {
        let (aperture, migrates) = (self.aperture().is_some(), self.migrates);
        features::Kind { aperture, migrates, configured: !self.config.is_empty() }
    }

    pub(super) fn negotiated(&self) -> MutexGuard<'_, Negotiated> {
        self.negotiated.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the operator of a request that is refused, where the protocol has no room for a reason.
    pub(super) fn say(&self, refusal: &Refusal) {
        log::error!("{}: {refusal}", self.name);
    }

    pub(super) fn ring(&self, index: u32) -> Result<&Ring, Refusal> {
        let ring = usize::try_from(index).ok().and_then(|index| self.shared.rings.ring(index));
        ring.ok_or(Refusal::NoSuchQueue { index, queues: self.shared.rings.len() })
    }

    /// Whether memory of the front-end has turned out not to be there; what, in words.
    pub(super) fn lost_memory(&self) -> Option<String> {
        let host = self.shared.domain.fault()?;
        let guest = self.negotiated().memory.guest_address_of_host(host);
        Some(guest.map_or_else(
            || "shared memory (the dirty log, or a page of a guest process)".to_owned(),
            |guest| format!("guest memory at {guest:#x}"),
        ))
    }

    /// Has the worker look at every ring.
    pub(super) fn look_at_all(&self, change: impl FnOnce(&mut Mail)) {
        let count = u32::try_from(self.shared.rings.len()).unwrap_or(64);
        let rings = u64::MAX.checked_shr(64 - count).unwrap_or(0);
        self.shared.mailbox.post(|mail| {
            change(mail);
            mail.rings |= rings;
        });
    }

    /// Has the worker look at a ring that may have become live: there may be entries without a kick, and answers
    /// that were held. The device goes on, if it was frozen.
    pub(super) fn look_at(&self, index: u32) {
        if self.ring(index).is_ok_and(|ring| ring.lock().is_live()) {
            self.thaw();
            self.shared.mailbox.post(|mail| mail.rings |= 1 << index);
        }
    }

    /// Forgets a kick descriptor. Closing it is not enough: the front-end has it open too.
    pub(super) fn forget(&self, kick: Option<OwnedFd>) {
        if let Some(kick) = kick
            && let Err(error) = self.shared.poller.delete(&kick)
        {
            log::debug!("a kick descriptor cannot be removed: {error}");
        }
    }

    /// Puts a new memory table in force: for the rings now, for the device when the worker gets to it.
    pub(super) fn set_memory(&self, table: MemoryTable) {
        let ram = Arc::clone(table.ram());
        self.negotiated().memory = table;
        let mut runs_anew = false;
        for ring in self.shared.rings.iter() {
            let mut ring = ring.lock();
            let before = ring.is_live();
            ring.set_ram(Arc::clone(&ram));
            runs_anew |= ring.is_live() && !before;
        }
        if runs_anew {
            self.thaw();
        }
        self.look_at_all(|mail| mail.memory = Some(ram));
    }

    /// The device returns to where it was when the session began; every ticket is void.
    pub(super) fn begin_epoch(&self) {
        let mut negotiated = self.negotiated();
        negotiated.epoch += 1;
        negotiated.window_asked = false;
        negotiated.renegotiated = false;
        for ring in self.shared.rings.iter() {
            ring.lock().begin_epoch(negotiated.epoch);
        }
        let epoch = negotiated.epoch;
        negotiated.motion = Motion::default();
        drop(negotiated);
        self.shared.counters.add(Count::Resets);
        self.shared.mailbox.post(|mail| {
            mail.epoch = epoch;
            (mail.frozen, mail.save) = (false, None);
        });
    }

    /// A ring was given its position: perhaps by a guest that has begun anew, and whose front-end does not say so.
    /// cloud-hypervisor never does; nor does QEMU 11.1 for its generic device, though it takes RESET_DEVICE.
    pub(super) fn based(&self, based: Based) {
        let negotiated = self.negotiated();
        // A guest whose state was saved is resumed, if anything; one that begins anew does not stop at a save.
        let begins_anew = negotiated.renegotiated && !negotiated.motion.is_saved;
        drop(negotiated);
        if based == Based::Rewound && begins_anew {
            self.begin_epoch();
        }
    }

    pub(super) fn started(&self) {
        let mut negotiated = self.negotiated();
        negotiated.at_rest = false;
        self.greet(&mut negotiated);
        if !negotiated.configured && negotiated.is_qemu() {
            let own = count(self.config.len());
            negotiated.said.say(&self.name, Advice::NoConfig { own });
        }
        self.ask_for_window(&mut negotiated);
    }

    /// QEMU asks for the whole configuration at once, whenever the guest reads some of it. Other front-ends hand on the
    /// guest's own accesses, from which nothing follows.
    pub(super) fn configuration_asked(&self, offset: u32, size: u32) {
        let mut negotiated = self.negotiated();
        negotiated.configured = true;
        let own = count(self.config.len());
        if offset == 0 && size != own && negotiated.is_qemu() {
            negotiated.said.say(&self.name, Advice::ConfigSize { asked: size, own });
        }
    }

    /// QEMU asks for the windows when it has set up its queues, and no other front-end's settings can be wrong.
    pub(super) fn windows_asked(&self) {
        let own = count(self.shared.rings.len());
        let asked = count(self.shared.rings.iter().filter(|ring| ring.lock().has_call()).count());
        if asked != 0 && asked != own {
            self.negotiated().said.say(&self.name, Advice::Queues { asked, own });
        }
    }

    pub(super) fn stopped(&self) {
        let rest = self.shared.rings.iter().all(|ring| !ring.lock().is_started());
        let mut negotiated = self.negotiated();
        negotiated.at_rest = rest;
        negotiated.renegotiated = false;
    }

    pub(super) fn set_features(&self, acked: u64) {
        for ring in self.shared.rings.iter() {
            let mut ring = ring.lock();
            ring.set_features(acked);
            if acked & features::PROTOCOL_FEATURES == 0 {
                ring.set_enabled(true);
            }
        }
        let mut negotiated = self.negotiated();
        negotiated.renegotiated |= negotiated.at_rest;
        negotiated.features = acked;
        drop(negotiated);
        if acked & features::LOG_ALL == 0 {
            self.end_log();
        }
        if acked & features::PROTOCOL_FEATURES == 0 {
            if self.shared.rings.iter().any(|ring| ring.lock().is_live()) {
                self.thaw();
            }
            self.look_at_all(|_| {});
        }
    }

    pub(super) fn set_backend(&self, backend: Backend) {
        let mut negotiated = self.negotiated();
        let has = |feature: VhostUserProtocolFeatures| negotiated.protocol & feature.bits() != 0;
        backend.set_reply_ack_flag(has(VhostUserProtocolFeatures::REPLY_ACK));
        backend.set_shmem_flag(has(VhostUserProtocolFeatures::SHMEM));
        negotiated.backend = Some(backend);
        if self.shared.rings.iter().any(|ring| ring.lock().is_started()) {
            self.ask_for_window(&mut negotiated);
        }
    }

    /// Once an epoch, when a ring has started. Not before: after RESET_DEVICE the front-end may still be taking
    /// the old mapping away.
    fn ask_for_window(&self, negotiated: &mut Negotiated) {
        let Some(aperture) = self.aperture() else { return };
        if negotiated.window_asked {
            return;
        }
        let epoch = negotiated.epoch;
        if negotiated.protocol & VhostUserProtocolFeatures::SHMEM.bits() == 0 {
            negotiated.window_asked = true;
            let refused = Err(WindowError::NotNegotiated);
            return self.shared.mailbox.post(|mail| mail.tell_window(epoch, refused));
        }
        let Some(backend) = negotiated.backend.clone() else { return };
        negotiated.window_asked = true;
        let mailbox = Arc::clone(&self.shared.mailbox);
        window::Request { aperture, epoch, mailbox }.send(backend, &self.waiting);
    }
}
