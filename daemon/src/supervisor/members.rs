//! The engines that take part in turns: what was given to each, and what its words say.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_host_gpu::adapter::process::GrantHandle;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::log_limit;
use campanile_host_gpu::log_limit::LogLimit;
use campanile_protocol::engine::block::GRANT;
use campanile_protocol::engine::block::PROGRESS;
use campanile_protocol::engine::progress::Progress;
use campanile_protocol::engine::scheduling::CONTENDED;
use campanile_protocol::engine::scheduling::HURRIED;
use campanile_protocol::handshake::grant::Given;
use campanile_protocol::handshake::grant::Phase;

use super::alarm::Alarm;
use super::alarm::Hang;
use super::bells::Bells;
use super::hearing::FRUITFUL;
use super::hearing::FRUITLESS;
use super::hearing::Hearing;
use super::hearing::LOOK;
use super::share::Share;
use super::suspends::Expected;
use super::turns::EngineId;
use super::turns::Operation;

/// An engine. Whoever adds one starts its process before, or has it over a word that is `{IDLE, 0}`.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) at: EngineAddress,
    pub(super) handle: GrantHandle,
    pub(super) alarm: Arc<Alarm>,
    pub(super) timeout: Option<Duration>,
    pub(super) share: Share,
    pub(super) held: Duration,
    given: Given,
    /// As it was when a signal was last judged.
    given_before: Given,
    /// It broke the protocol: nothing that it stores counts any more, and its process is to end.
    is_broken: bool,
    hearing: Hearing,
    /// How much may be logged for its VM.
    log: Option<Arc<LogLimit>>,
}

impl Member {
    pub(super) fn new(
        at: EngineAddress,
        handle: GrantHandle,
        alarm: Arc<Alarm>,
        timeout: Option<Duration>,
        share: Share,
    ) -> Self {
        let given = Given::default();
        let (held, hearing) = (Duration::ZERO, Hearing::default());
        Self {
            at,
            handle,
            alarm,
            timeout,
            share,
            held,
            given,
            given_before: given,
            is_broken: false,
            hearing,
            log: LogLimit::of_thread(),
        }
    }

    fn load(&self, offset: u64) -> u64 {
        self.handle.shared.word(offset).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Where it is with its node, as its word says it and as it may say it. The first breach raises the alarm; from then on it keeps
    /// the node that it had, or wants none.
    pub(super) fn look(&mut self) -> Phase {
        let judged = match self.handle.shared.word(GRANT) {
            Some(word) if !self.is_broken => self.given.look(word),
            _ if self.given.holds() => return Phase::Revoking,
            _ => return Phase::Idle,
        };
        judged.unwrap_or_else(|breach| {
            self.raise(Hang::BrokenProtocol(breach), self.progress());
            self.is_broken = true;
            self.look()
        })
    }

    pub(super) fn progress(&self) -> Progress {
        Progress::from_word(self.load(PROGRESS))
    }

    /// Raises its alarm. Nothing else is said of one that broke the protocol.
    pub(super) fn raise(&self, hang: Hang, progress: Progress) {
        if !self.is_broken {
            self.alarm.raise(hang, progress);
        }
    }

    /// A signal of it led to what was done since the last, or a step of the supervisor found it gone on. True where it is not to
    /// be listened to from now on.
    fn spend(&mut self, now: Duration) -> bool {
        let cost = if self.given == self.given_before { FRUITLESS } else { FRUITFUL };
        self.given_before = self.given;
        self.hearing.spend(cost, now)
    }

    fn listen(&self, bells: &Bells, engine: EngineId, listens: bool) {
        if let Err(error) = bells.set_listens(engine, &self.handle.asks, listens) {
            log_limit::within(self.log.clone(), || {
                log::warn!("{} engine {} of the supervisor: {error}", self.at, engine.0);
            });
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) next: u64,
    pub(super) engines: BTreeMap<EngineId, Member>,
    pub(super) gone: Vec<EngineId>,
    pub(super) new: Vec<EngineId>,
    pub(super) expected: Vec<Expected>,
    pub(super) stop: bool,
}

impl Members {
    /// A word of an engine; 0 where it is gone.
    pub(super) fn load(&self, engine: EngineId, offset: u64) -> u64 {
        self.engines.get(&engine).map_or(0, |member| member.load(offset))
    }

    /// Where each engine is with its node.
    pub(super) fn look(&mut self) -> BTreeMap<EngineId, Phase> {
        self.engines.iter_mut().map(|(&engine, member)| (engine, member.look())).collect()
    }

    /// After everything was looked at for these signals. Mutes engines that signal for nothing, and listens again to those that were
    /// muted long enough. When to look again, where an engine is muted.
    pub(super) fn hear(&mut self, bells: &Bells, signalled: &[EngineId], now: Duration) -> Option<Duration> {
        for (&engine, member) in &mut self.engines {
            if member.hearing.is_forgiven(now) {
                member.listen(bells, engine, true);
            }
            if signalled.contains(&engine) && member.spend(now) {
                member.listen(bells, engine, false);
            }
        }
        self.engines.values().any(|member| member.hearing.is_muted()).then_some(now + LOOK)
    }

    /// An engine was faster than a step of the supervisor. When to decide again.
    pub(super) fn outrun(&mut self, bells: &Bells, engine: EngineId, now: Duration) -> Duration {
        let Some(member) = self.engines.get_mut(&engine) else { return now };
        if member.spend(now) {
            member.listen(bells, engine, false);
        }
        if member.hearing.is_muted() { now + LOOK } else { now }
    }

    /// Carries an operation out; where the engine was faster, which.
    pub(super) fn apply(&mut self, operation: Operation) -> Result<(), EngineId> {
        let (Operation::Give(engine)
        | Operation::Revoke(engine)
        | Operation::Hurry(engine)
        | Operation::Reclaim(engine)
        | Operation::Contend(engine, _)
        | Operation::Hung(engine)) = operation;
        let Some(member) = self.engines.get_mut(&engine).filter(|member| !member.is_broken) else {
            return Ok(());
        };
        let shared = Arc::clone(&member.handle.shared);
        let Some(word) = shared.word(GRANT) else { return Ok(()) };
        let is_done = match operation {
            Operation::Give(_) => member.given.give(word),
            Operation::Revoke(_) => member.given.revoke(word),
            Operation::Hurry(_) => {
                if let Some(word) = shared.word(HURRIED) {
                    word.fetch_add(1, Ordering::Release);
                }
                return Ok(());
            }
            // Let it sleep: it asks when it has work.
            Operation::Reclaim(_) => return member.given.reclaim(word).then_some(()).ok_or(engine),
            Operation::Hung(_) => {
                member.raise(Hang::NotYielded, member.progress());
                true
            }
            Operation::Contend(_, is_contended) => {
                if let Some(word) = shared.word(CONTENDED) {
                    word.store(u64::from(is_contended), Ordering::Release);
                }
                return Ok(());
            }
        };
        member.handle.wake.signal();
        is_done.then_some(()).ok_or(engine)
    }
}
