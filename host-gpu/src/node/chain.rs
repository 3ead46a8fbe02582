//! Chains: dispatches that are over soon, submitted together.
//!
//! ```text
//!   packets   DISPATCH BARRIER DISPATCH DISPATCH BARRIER DISPATCH …        each brief, by what its kernel took before
//!   driver    ├─────────── one submission: each behind the one before it ──────────┤
//!   engine        ╵           ╵           ╵ should pause: gates close, what has not begun never will
//! ```
//!
//! A submission of its own costs a short dispatch more than its groups do. What the engine would ask between two of them it asks when
//! it sees that one more has begun, so that a chain holds the node up for no longer than the dispatch that runs. Devices that cannot
//! call off what was submitted get none.

use std::time::Duration;
use std::time::Instant;

use campanile_protocol::packet::Fault;

use super::compute::ComputeNode;
use super::device_instance::Link;
use super::packet::Grid;
use super::packet::Launch;
use super::slices;
use super::space::Space;
use super::space::Stop;
use crate::kernel::name::KernelName;
use crate::vulkan::driver::Ticket;

/// How long the engine sleeps between two looks at a chain.
const LOOK: Duration = Duration::from_micros(100);
/// A chain that takes so many times as long as a slice may has a kernel that is no longer brief.
const DEAR: u32 = 4;
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
    /// Most dispatches that a chain may have now; fewer than two are none.
    pub fn chain_limit(&self) -> usize {
        let is_urgent = self.latency_boost.is_active(Instant::now());
        let can = self.instances.first().is_some_and(|instance| instance.can_call_off());
        if can && !is_urgent && !self.slice.is_zero() { self.chain_length.most() } else { 0 }
    }

    /// Whether a dispatch may be part of a chain: its groups are in the packet, and over soon.
    pub fn is_brief(&self, root: u64, launch: &Launch) -> bool {
        let Grid::Direct(grid) = launch.grid else { return false };
        let kernel = KernelName { root, handle: launch.kernel.0 };
        let groups = slices::count(grid).filter(|groups| *groups > 0);
        let pace = self.kernels.get(&kernel).map(|kernel| kernel.pace);
        groups.zip(pace).is_some_and(|(groups, pace)| pace.is_brief(groups, self.slice))
    }

    /// Runs as many of the first of `candidates` as can be submitted together, behind all that is in flight, until all have ended, or
    /// `should_pause`. How many ran, all of them whole; fewer than two fit together where that is 0.
    pub fn run_chain(
        &mut self,
        space: &Space<'_>,
        candidates: &[Candidate],
        should_pause: &mut dyn FnMut() -> bool,
    ) -> Result<usize, Stop> {
        let mut links = Vec::with_capacity(candidates.len());
        for Candidate { at, launch, .. } in candidates {
            space.segments.wants.progress(*at, 0);
            let kernel = KernelName { root: space.root, handle: launch.kernel.0 };
            // What is wrong with it, or missing, shows when it is its turn.
            let Ok(resolved) = self.resolve(space, kernel, launch) else { break };
            links.push(Link { kernel, resolved, launch });
        }
        if links.len() < 2 {
            return Ok(0);
        }
        self.finish().map_err(Stop::fault)?;
        let begun_at = Instant::now();
        let Some((ticket, count)) = self.start_chain(space, &links)? else { return Ok(0) };
        let ran = self.follow(&ticket, candidates, count, should_pause).map_err(|fault| {
            self.is_lost = true;
            Stop::fault(fault)
        })?;
        let took = begun_at.elapsed();
        self.chain_length.learn(ran, took, self.slice);
        if took > self.slice * DEAR {
            for link in &links[..ran] {
                if let Some(kernel) = self.kernels.get_mut(&link.kernel) {
                    kernel.pace.doubt();
                }
            }
        }
        self.count_slices(ran as u64, took);
        Ok(ran)
    }

    /// Submits as many of the first links as go together, and says how many those are; none where the driver refuses one of them, which its own turn will show.
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

    /// Waits for a chain of `count`, and calls off what has not begun where `should_pause`. How many ran.
    fn follow(
        &mut self,
        ticket: &Ticket,
        candidates: &[Candidate],
        count: usize,
        should_pause: &mut dyn FnMut() -> bool,
    ) -> Result<usize, Fault> {
        let mut seen = 0;
        loop {
            let driver = self.instances.first_mut().ok_or(Fault::Driver)?.driver();
            // Asleep: a CPU driver wants the core.
            let is_done = driver.sleep_for(ticket, LOOK).and_then(|_| driver.retire_if_done(ticket));
            let is_done = is_done.map_err(|error| {
                log::debug!("the driver failed: {error}");
                Fault::Driver
            })?;
            let begun = driver.begun(ticket, count);
            if is_done {
                return Ok(begun);
            }
            if begun > seen {
                seen = begun;
                if let Some(running) = candidates.get(begun - 1) {
                    self.note(running.launch.kernel.0, running.at);
                }
                if should_pause()
                    && let Some(instance) = self.instances.first_mut()
                {
                    instance.driver().call_off(ticket);
                }
            }
        }
    }
}
