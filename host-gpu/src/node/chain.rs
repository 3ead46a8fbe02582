//! Chains: dispatches that are over soon, submitted together.
//!
//! ```text
//!   packets   DISPATCH BARRIER DISPATCH DISPATCH BARRIER DISPATCH …        each brief, by what its kernel took before
//!   driver    ├─────────── one submission: each behind the one before it ──────────┤
//!   engine        ╵           ╵           ╵ should pause: gates close, what has not begun never will
//! ```
//!
//! A submission of its own costs a short dispatch more than its groups do. What the engine would ask between two dispatches it asks when
//! it sees that one more has begun, so that a chain holds the node up for no longer than the dispatch that runs. Two chains may be in
//! flight, so that the second is made while the first runs.
//!
//! A GPU would wait at each gate for longer than most of these dispatches take (10 µs on an H100). Chains have none there, and run to
//! their end: two together are to take no longer than a slice, by what the device's clock said of each of their kernels.

use std::collections::VecDeque;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::packet::Fault;

use super::compute::ComputeNode;
use super::compute::note;
use super::device_instance::DeviceInstance;
use super::device_instance::Link;
use super::packet::Launch;
use super::space::Space;
use super::space::Stop;
use crate::kernel::name::KernelName;
use crate::vulkan::driver::Ticket;
use crate::vulkan::options::Executor;

/// How long the engine sleeps between two looks at a chain.
const LOOK: Duration = Duration::from_micros(100);
/// Chains in flight.
const CHAINS: u32 = 2;
/// A chain that takes so many times as long as a slice may has a kernel that is no longer brief.
const DEAR: u32 = 4;

/// A chain that was submitted.
struct Chain {
    ticket: Ticket,
    links: Vec<Candidate>,
    kernels: Vec<KernelName>,
    started: Instant,
}

impl Chain {
    /// Bytes of the buffer before what follows it.
    fn end(&self) -> usize {
        self.links.last().map_or(0, |last| last.end)
    }
}

/// What a chain may still have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Room {
    /// How many dispatches.
    pub dispatches: usize,
    /// How long they may take together; none where what takes longer can be called off.
    pub time: Option<Duration>,
}

impl Room {
    /// Takes the part of one more dispatch, which takes so long. False where there is no room for it.
    fn take(&mut self, time: Duration) -> bool {
        let fits = self.dispatches > 0 && self.time.is_none_or(|left| time <= left);
        if fits {
            self.dispatches -= 1;
            self.time = self.time.map(|left| left.saturating_sub(time));
        }
        fits
    }
}

/// A dispatch that may be part of a chain, with where its packet begins, and where the chain goes on behind it.
#[derive(Debug)]
pub struct Candidate {
    /// Bytes of the buffer before its packet.
    pub at: usize,
    /// Bytes before what follows it.
    pub end: usize,
    /// What is to run.
    pub launch: Launch,
}

impl ComputeNode {
    /// What a chain that is begun now may have; room for fewer than two dispatches is none.
    pub fn chain_room(&self) -> Room {
        let is_urgent = self.latency_boost.is_active(Instant::now());
        let has = |what: fn(&DeviceInstance) -> bool| self.instances.first().is_some_and(what);
        let can = has(DeviceInstance::can_chain) && !is_urgent && !self.slice.is_zero();
        Room {
            dispatches: if can { self.chain_length.most() } else { 0 },
            time: (!has(DeviceInstance::can_call_off)).then_some(self.slice / CHAINS),
        }
    }

    /// Whether a dispatch may be part of a chain: its groups are in the packet, over soon, and there is `room` for them, of which they
    /// take their part. One that is brief is never too much alone.
    pub fn fits(&self, root: u64, launch: &Launch, room: &mut Room) -> bool {
        let kernel = KernelName { root, handle: launch.kernel.0 };
        let pace = self.kernels.get(&kernel).map(|kernel| kernel.pace);
        let Some((groups, pace)) = launch.groups().zip(pace) else { return false };
        pace.is_brief(groups, self.slice) && room.take(pace.brief_time(groups, self.slice))
    }

    /// Runs chains of the candidates that `gather` finds from byte `at` of the buffer on, behind all that is in flight, one submitted
    /// while the one before it runs: until fewer than two go together, or `should_pause`. Where the buffer goes on; all that ran ran
    /// whole.
    pub fn run_chains(
        &mut self,
        space: &Space<'_>,
        at: usize,
        gather: &dyn Fn(&Self, usize) -> Vec<Candidate>,
        should_pause: &mut dyn FnMut() -> bool,
    ) -> Result<usize, Stop> {
        let (mut next, mut done) = (at, at);
        let mut running: VecDeque<Chain> = VecDeque::new();
        let (mut is_over, mut seen) = (false, Instant::now());
        loop {
            while !is_over && running.len() < CHAINS as usize {
                let started = self.start_next(space, gather(self, next), running.is_empty());
                match started {
                    Ok(Some(chain)) => {
                        next = chain.end();
                        running.push_back(chain);
                    }
                    // What is wrong shows when it is its turn, unless the driver failed.
                    Err(stop) if self.is_lost => return Err(stop),
                    Ok(None) | Err(_) => is_over = true,
                }
            }
            // Nothing began behind what was called off, so the last one that ran says where to go on.
            let Some(chain) = running.pop_front() else { return Ok(done) };
            let ran = self.follow(&chain, &running, should_pause, &mut is_over).map_err(Stop::fault)?;
            let begun = seen.max(chain.started);
            seen = Instant::now();
            self.learn_of_chain(&chain, ran, seen - begun).map_err(Stop::fault)?;
            done = ran.checked_sub(1).and_then(|last| chain.links.get(last)).map_or(done, |last| last.end);
        }
    }

    /// What a chain took, of which so many ran.
    fn learn_of_chain(&mut self, chain: &Chain, ran: usize, took: Duration) -> Result<(), Fault> {
        let driver = self.instances.first_mut().ok_or(Fault::Driver)?.driver();
        let clocked =
            driver.ended(&chain.ticket, ran).map_err(|error| self.lose(&error))?.unwrap_or_default();
        for ((name, link), took) in chain.kernels.iter().zip(&chain.links).zip(clocked) {
            if let Some((kernel, groups)) = self.kernels.get_mut(name).zip(link.launch.groups()) {
                kernel.pace.clock(groups, took, self.slice);
            }
        }
        self.chain_length.learn(ran, took, self.slice);
        if took > self.slice * DEAR {
            for name in chain.kernels.iter().take(ran) {
                if let Some(kernel) = self.kernels.get_mut(name) {
                    kernel.pace.doubt();
                }
            }
        }
        self.count_slices(ran as u64, took);
        Ok(())
    }

    /// Submits a chain of the first of `candidates`; none where fewer than two go together. The first waits for what is in flight.
    fn start_next(
        &mut self,
        space: &Space<'_>,
        mut candidates: Vec<Candidate>,
        is_first: bool,
    ) -> Result<Option<Chain>, Stop> {
        // What is noted of stores is closed where nothing runs.
        if !is_first && space.segments.writes.are_many() {
            return Ok(None);
        }
        let mut links = Vec::with_capacity(candidates.len());
        for Candidate { at, launch, .. } in &candidates {
            space.segments.wants.progress(*at, 0);
            let kernel = KernelName { root: space.root, handle: launch.kernel.0 };
            let Ok(resolved) = self.resolve(space, kernel, launch) else { break };
            links.push(Link { kernel, resolved, launch });
        }
        if links.len() < 2 {
            return Ok(None);
        }
        if is_first {
            self.finish().map_err(Stop::fault)?;
        }
        let Some((ticket, count)) = self.start_chain(space, &links)? else { return Ok(None) };
        let kernels = links.iter().take(count).map(|link| link.kernel).collect();
        candidates.truncate(count);
        Ok(Some(Chain { ticket, links: candidates, kernels, started: Instant::now() }))
    }

    /// Submits as many of the first links as go together, and says how many those are; none where the driver refuses one of them, which
    /// its own turn will show.
    fn start_chain(
        &mut self,
        space: &Space<'_>,
        links: &[Link<'_>],
    ) -> Result<Option<(Ticket, usize)>, Stop> {
        let instance = self.instances.first_mut().ok_or(Stop::fault(Fault::Driver))?;
        for resolved in links.iter().flat_map(|link| &link.resolved) {
            instance.import(space, resolved)?;
        }
        match instance.start_chain(links) {
            Ok(started) => Ok(Some(started)),
            Err(error) if error.is_of_the_driver() => Err(Stop::fault(self.lose(&error))),
            Err(error) => {
                log::debug!("a chain was refused: {error}");
                Ok(None)
            }
        }
    }

    /// Waits for a chain, and calls off what has not begun of it and of those `behind` it where `should_pause`: then `is_over`. How many
    /// ran.
    fn follow(
        &mut self,
        chain: &Chain,
        behind: &VecDeque<Chain>,
        should_pause: &mut dyn FnMut() -> bool,
        is_over: &mut bool,
    ) -> Result<usize, Fault> {
        let (count, mut seen) = (chain.links.len(), 0);
        loop {
            let driver = self.instances.first_mut().ok_or(Fault::Driver)?.driver();
            let looked = match driver.executor() {
                // Asleep: a CPU driver wants the core.
                Executor::Cpu => driver.sleep_for(&chain.ticket, LOOK),
                Executor::Gpu => driver.wait_for(&chain.ticket, LOOK),
            };
            let is_done = looked.and_then(|_| driver.retire_if_done(&chain.ticket));
            let begun = is_done.and_then(|is_done| Ok((is_done, driver.begun(&chain.ticket, count)?)));
            let (is_done, begun) = begun.map_err(|error| self.lose(&error))?;
            if begun > seen
                && let Some(running) = chain.links.get(begun - 1)
            {
                note(&self.shared, running.launch.kernel.0, running.at);
            }
            // Also of one that was done at the first look, lest a buffer of such chains be asked nothing to its end.
            if (is_done || begun > seen)
                && should_pause()
                && let Some(instance) = self.instances.first_mut()
            {
                *is_over = true;
                // The last first: none begins behind one that was called off.
                behind.iter().rev().for_each(|later| instance.driver().call_off(&later.ticket));
                instance.driver().call_off(&chain.ticket);
            }
            if is_done {
                return Ok(begun);
            }
            seen = begun;
        }
    }
}
