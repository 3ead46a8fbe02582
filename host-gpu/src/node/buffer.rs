//! One DMA buffer under way.

use std::sync::atomic::Ordering;

use campanile_protocol::engine::saved::Saved;
use campanile_protocol::packet::Fault;
use campanile_protocol::packet::Fence;
use campanile_protocol::packet::MAX_DMA_BUFFER;

use super::chain::Candidate;
use super::clock;
use super::compute::ComputeNode;
use super::compute::Part;
use super::device_instance::DeviceInstance;
use super::packet;
use super::packet::Launch;
use super::packet::Packet;
use super::signal::Signal;
use super::space::Space;
use super::space::Stop;
use super::transfer;
use crate::memory::page_table::reader::Intent;

/// How a run of a buffer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// All packets are done, and their stores are visible.
    Done,
    /// A fence is not there yet, or memory is on the move: run others, then look again.
    Blocked,
    /// Stopped at a boundary because it was told to; goes on where it is.
    Paused,
    /// The guest's fault: code and address.
    Fault(Fault, u64),
}

/// What a buffer runs on.
#[derive(Debug)]
pub enum Node {
    /// Copies, fills and fences.
    Copy,
    /// Those and kernels.
    Compute(Box<ComputeNode>),
}

/// A DMA buffer: a copy of its packets, made once, and how far it is.
#[derive(Debug, Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    at: usize,
    done_in_packet: u64,
    /// Of a dispatch that is done in part and whose grid was read from memory.
    grid: [u32; 3],
}

impl Buffer {
    /// Copies the packets at `address`.
    pub fn fetch(space: &Space<'_>, address: u64, length: u32) -> Result<Self, Stop> {
        if length > MAX_DMA_BUFFER || !length.is_multiple_of(8) || !address.is_multiple_of(8) {
            return Err(Stop::Fault(Fault::RingEntry, address));
        }
        let mut bytes = vec![0; length as usize];
        space.read(address, &mut bytes)?;
        Ok(Self { bytes, at: 0, done_in_packet: 0, grid: [0; 3] })
    }

    /// How far it is, between two packets, two chunks or two slices.
    pub fn save(&self) -> Saved {
        // No buffer is longer than its maximum.
        let at = u32::try_from(self.at).unwrap_or(u32::MAX);
        Saved { at, done_in_packet: self.done_in_packet, grid: self.grid }
    }

    /// Goes on from what another process of this engine saved.
    pub fn restore(mut self, saved: Saved) -> Result<Self, Stop> {
        self.at = saved.at as usize;
        self.done_in_packet = saved.done_in_packet;
        self.grid = saved.grid;
        if self.at > self.bytes.len() { Err(Stop::fault(Fault::PacketSize)) } else { Ok(self) }
    }

    /// The word and the value that a blocked buffer waits for; none where it waits for memory.
    pub fn waits_for(&self) -> Option<Fence> {
        match packet::decode(self.bytes.get(self.at..)?) {
            Ok((Packet::Wait(fence), _)) => Some(fence),
            _ => None,
        }
    }

    /// What is found missing from here on is missed at this place of the buffer.
    pub fn show_progress(&self, space: &Space<'_>) {
        space.segments.wants.progress(self.at, self.done_in_packet);
    }

    /// Whether a buffer that was blocked can go on: its fence is there, or it does not wait for one.
    pub fn is_ready(&self, space: &Space<'_>) -> bool {
        self.show_progress(space);
        let Some(fence) = self.waits_for() else { return true };
        match space.word(fence.va, Intent::Read) {
            Ok(place) => place.word(0).is_none_or(|word| word.load(Ordering::Acquire) >= fence.value),
            Err(stop) => stop != Stop::Moving,
        }
    }

    /// Runs packets until the end, a fault, a fence that is not there, or `should_pause` at a boundary.
    pub fn run(
        &mut self,
        node: &mut Node,
        space: &Space<'_>,
        signals: &dyn Signal,
        should_pause: &mut dyn FnMut() -> bool,
    ) -> Step {
        let step = self.advance(node, space, signals, should_pause);
        // Whatever comes next (a fence, another process, a generation acknowledged) sees all that was started.
        let finished = match node {
            Node::Copy => Ok(()),
            Node::Compute(compute) => compute.finish(),
        };
        if finished.is_ok() {
            space.segments.writes.close();
        }
        match (step, finished) {
            (Ok(step), Ok(())) => step,
            (Err(Stop::Moving), Ok(())) => Step::Blocked,
            (Err(Stop::Fault(fault, address)), Ok(())) => Step::Fault(fault, address),
            (_, Err(fault)) => Step::Fault(fault, 0),
        }
    }

    fn advance(
        &mut self,
        node: &mut Node,
        space: &Space<'_>,
        signals: &dyn Signal,
        should_pause: &mut dyn FnMut() -> bool,
    ) -> Result<Step, Stop> {
        while self.at < self.bytes.len() {
            let (packet, size) = packet::decode(&self.bytes[self.at..]).map_err(Stop::fault)?;
            self.show_progress(space);
            match packet {
                Packet::Nop => {}
                Packet::Barrier => {
                    if let Node::Compute(compute) = node {
                        compute.drain().map_err(Stop::fault)?;
                    }
                }
                Packet::Copy(copy) => {
                    transfer::check_copy(&copy).map_err(Stop::fault)?;
                    finish(node)?;
                    loop {
                        self.show_progress(space);
                        match transfer::copy_chunk(space, &copy, self.done_in_packet)? {
                            0 => break,
                            chunk => self.done_in_packet += chunk,
                        }
                        close_if_many(space);
                        if self.done_in_packet < copy.size && should_pause() {
                            return Ok(Step::Paused);
                        }
                    }
                }
                Packet::Fill(fill) => {
                    finish(node)?;
                    loop {
                        self.show_progress(space);
                        match transfer::fill_chunk(space, &fill, self.done_in_packet)? {
                            0 => break,
                            chunk => self.done_in_packet += chunk,
                        }
                        close_if_many(space);
                        if self.done_in_packet < fill.size && should_pause() {
                            return Ok(Step::Paused);
                        }
                    }
                }
                Packet::Dispatch(launch) => match node {
                    Node::Copy => return Err(Stop::fault(Fault::NotOnThisNode)),
                    Node::Compute(compute) => {
                        if space.segments.writes.are_many() {
                            compute.finish().map_err(Stop::fault)?;
                            close_if_many(space);
                        }
                        if self.run_chains(compute, space, should_pause)? {
                            if self.at < self.bytes.len() && should_pause() {
                                return Ok(Step::Paused);
                            }
                            continue;
                        }
                        let mut part = Part { done: self.done_in_packet, grid: self.grid };
                        let ended = compute.launch(space, self.at, &launch, &mut part, should_pause);
                        (self.done_in_packet, self.grid) = (part.done, part.grid);
                        if !ended? {
                            return Ok(Step::Paused);
                        }
                    }
                },
                Packet::Signal(fence) => {
                    finish(node)?;
                    let place = space.word(fence.va, Intent::Write)?;
                    if !signals.signal(space.segments, &place, fence.value) {
                        return Err(Stop::Fault(Fault::PageFault, fence.va));
                    }
                }
                Packet::Wait(fence) => {
                    let place = space.word(fence.va, Intent::Read)?;
                    let word = place.word(0).ok_or(Stop::Fault(Fault::PageFault, fence.va))?;
                    if word.load(Ordering::Acquire) < fence.value {
                        return Ok(Step::Blocked);
                    }
                    see_stores(node)?;
                }
                Packet::Timestamp(timestamp) => {
                    finish(node)?;
                    let place = space.word(timestamp.va, Intent::Write)?;
                    let word = place.word(0).ok_or(Stop::Fault(Fault::PageFault, timestamp.va))?;
                    word.store(clock::nanoseconds(clock::monotonic()), Ordering::Release);
                }
            }
            self.at += size;
            (self.done_in_packet, self.grid) = (0, [0; 3]);
            if self.at < self.bytes.len() && should_pause() {
                return Ok(Step::Paused);
            }
        }
        Ok(Step::Done)
    }
}

impl Buffer {
    /// Runs the dispatches from here on that are brief together. False where fewer than two are, or can.
    fn run_chains(
        &mut self,
        compute: &mut ComputeNode,
        space: &Space<'_>,
        should_pause: &mut dyn FnMut() -> bool,
    ) -> Result<bool, Stop> {
        if self.done_in_packet > 0 {
            return Ok(false);
        }
        let gather = |compute: &ComputeNode, at| {
            let mut room = compute.chain_room();
            self.candidates(at, |launch| compute.fits(space.root, launch, &mut room))
        };
        let end = compute.run_chains(space, self.at, &gather, should_pause)?;
        let has_run = end > self.at;
        self.at = end;
        self.show_progress(space);
        Ok(has_run)
    }

    /// The dispatches from byte `at` on that `may` run together, up to the first that may not: nothing but barriers is between them,
    /// which order no more than a chain does.
    fn candidates(&self, mut at: usize, mut may: impl FnMut(&Launch) -> bool) -> Vec<Candidate> {
        let mut found = Vec::new();
        while let Some(rest) = self.bytes.get(at..)
            && let Ok((packet, size)) = packet::decode(rest)
        {
            let end = at + size;
            match packet {
                Packet::Dispatch(launch) if may(&launch) => found.push(Candidate { at, end, launch }),
                Packet::Nop | Packet::Barrier => {}
                _ => break,
            }
            at = end;
        }
        found
    }
}

/// Nothing is under way: what was open until here is written.
fn close_if_many(space: &Space<'_>) {
    if space.segments.writes.are_many() {
        space.segments.writes.close();
    }
}

/// Has dispatches from here on see what others have stored by now, where a device works on copies of memory.
fn see_stores(node: &mut Node) -> Result<(), Stop> {
    match node {
        Node::Compute(compute) if compute.instances.iter().any(DeviceInstance::copies_memory) => finish(node),
        Node::Copy | Node::Compute(_) => Ok(()),
    }
}

fn finish(node: &mut Node) -> Result<(), Stop> {
    match node {
        Node::Copy => Ok(()),
        Node::Compute(compute) => compute.finish().map_err(Stop::fault),
    }
}
