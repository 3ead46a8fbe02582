//! One engine of a daemon, as the broker has it.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::adapter::process::GrantHandle;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_protocol::engine::block::BLOCK_BYTES;
use campanile_protocol::engine::block::GRANT;
use campanile_protocol::engine::block::PROGRESS;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::handshake::grant::Breach;
use campanile_protocol::handshake::grant::Given;

use super::evidence;
use super::message::Tuning;
use crate::sched::alarm::Alarm;
use crate::sched::alarm::Hang;
use crate::sched::record::RECORD_BYTES;
use crate::sched::record::Record;
use crate::sched::schedule::Participant;
use crate::sched::schedule::Schedule;
use crate::sched::thread::Supervisor;
use crate::sched::turns::EngineId;

/// How long an engine may keep its node after its daemon was told that it hangs. Longer than the daemon waits for a process
/// that it has killed.
pub(super) const RESET_LIMIT: Duration = Duration::from_secs(10);
/// How long the engine of a daemon that has gone may go on, where it has no timeout.
const END_LIMIT: Duration = Duration::from_secs(2);

/// What a daemon says of an engine.
#[derive(Debug)]
pub(super) struct Application {
    /// The vGPU.
    pub(super) vgpu: String,
    /// The device, by its number.
    pub(super) device: u8,
    /// Whether it copies.
    pub(super) is_copy: bool,
    /// What it gets.
    pub(super) tuning: Tuning,
    /// What came beside the message.
    pub(super) files: Vec<OwnedFd>,
}

/// An engine that takes part.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) id: EngineId,
    pub(super) alarm: Arc<Alarm>,
    /// Its process, where there is one.
    pub(super) process: Option<OwnedFd>,
    vgpu: String,
    at: EngineAddress,
    handle: GrantHandle,
    timeout: Option<Duration>,
    /// By when it is to have yielded its node, since its daemon was told that it hangs.
    overdue: Option<Instant>,
}

impl Seat {
    /// Takes an engine in. It has what its grant word says.
    ///
    /// # Errors
    /// What the daemon says or has sent cannot be; in words.
    pub(super) fn take(application: Application, supervisor: &Supervisor) -> Result<Self, String> {
        let Application { vgpu, device, is_copy, tuning, files } = application;
        let (timeout, share) = tuning.get()?;
        let count = files.len();
        let mut files = files.into_iter();
        let parts = (files.next(), files.next(), files.next(), files.next(), files.next(), files.next());
        let (Some(block), Some(wake), Some(asks), Some(record), process, None) = parts else {
            return Err(format!("an engine with {count} descriptors, where 4 or 5 are"));
        };
        let (block, record) = (Arc::new(block.into()), record.into());
        let shared = Arc::new(evidence::memory(&block, BLOCK_BYTES, "the shared block")?);
        let record = Record::over(evidence::memory(&record, RECORD_BYTES, "the record")?);
        let wake = Arc::new(evidence::event(wake, "what wakes it")?);
        let asks = Arc::new(evidence::event(asks, "what it asks by")?);
        let word = shared.word(GRANT).map_or(0, |word| word.load(Ordering::Acquire));
        let given = Given::adopt(word).map_err(|breach| breach.to_string())?;
        let node = if is_copy { NodeKind::Copy } else { NodeKind::Compute };
        let at = EngineAddress::new(device, node);
        let alarm = Alarm::new().map(Arc::new).map_err(|error| error.to_string())?;
        let handle = GrantHandle { shared, file: block, wake, asks, process: None };
        let its = Arc::clone(&alarm);
        let participant = Participant { at, handle: handle.clone(), alarm: its, timeout, share };
        let admitted = supervisor.admit(participant, given, Arc::new(record));
        let id = admitted.map_err(|error| format!("it cannot take part in turns: {error}"))?;
        Ok(Self { id, alarm, process, vgpu, at, handle, timeout, overdue: None })
    }

    /// What it gets from now on.
    ///
    /// # Errors
    /// That cannot be; in words.
    pub(super) fn retune(&mut self, tuning: Tuning, supervisor: &Supervisor) -> Result<(), String> {
        let (timeout, share) = tuning.get()?;
        self.timeout = timeout;
        supervisor.retune(self.id, timeout, share);
        Ok(())
    }

    /// Its alarm was raised: what the supervisor saw, where it did. If the engine has its node, its time to end begins.
    pub(super) fn hang(&mut self, now: Instant) -> Option<(Hang, Progress)> {
        let sighting = self.alarm.take()?;
        if sighting.hang != Hang::NotSuspended {
            self.overdue.get_or_insert(now + RESET_LIMIT);
        }
        Some((sighting.hang, sighting.progress))
    }

    /// By when it is to be looked at again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.overdue
    }

    /// Whether it keeps its node though its daemon had time enough to end it.
    pub(super) fn is_overstayed(&mut self, now: Instant, supervisor: &Supervisor) -> bool {
        self.overdue.take_if(|overdue| *overdue <= now).is_some() && supervisor.keeps_node(self.id)
    }

    /// That it is not believed any more, as for one that breaks the protocol.
    pub(super) fn breach(&self) -> (Hang, Progress) {
        let load = |offset| self.handle.shared.word(offset).map_or(0, |word| word.load(Ordering::Acquire));
        let word = load(GRANT);
        let breach = Breach { word, given: Given::adopt(word).unwrap_or_default() };
        (Hang::BrokenProtocol(breach), Progress::from_word(load(PROGRESS)))
    }

    /// How long it may go on after its daemon has gone.
    pub(super) fn end_limit(&self) -> Duration {
        self.timeout.unwrap_or(END_LIMIT).min(RESET_LIMIT)
    }
}

impl fmt::Display for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vGPU {}, {} engine", self.vgpu, self.at)
    }
}
