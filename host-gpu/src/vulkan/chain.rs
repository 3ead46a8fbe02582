//! Chains: several dispatches in one submission.
//!
//! | executor | how far it is | can be called off |
//! |---|---|---|
//! | CPU | what the driver noted of each gate | until it begins |
//! | GPU | the times that the queue noted | no: it is to be short |

use std::time::Duration;

use crate::vulkan::driver::Driver;
use crate::vulkan::driver::Ticket;
use crate::vulkan::driver::check_constants;
use crate::vulkan::error::VulkanError;
use crate::vulkan::gates::CHAIN;
use crate::vulkan::gates::Fate;
use crate::vulkan::pipeline::Pipeline;
use crate::vulkan::raw::commands::BUFFERS;
use crate::vulkan::raw::commands::Conditions;
use crate::vulkan::raw::commands::Groups;
use crate::vulkan::raw::commands::Place;
use crate::vulkan::raw::commands::SETS;
use crate::vulkan::raw::commands::WORD;
use crate::vulkan::raw::commands::Work;
use crate::vulkan::request;
use crate::vulkan::request::Bound;
use crate::vulkan::request::DispatchError;
use crate::vulkan::request::Slice;

/// A dispatch of a chain, with all groups of its grid, which has some.
#[derive(Debug)]
pub struct Link<'a> {
    /// What runs.
    pub pipeline: &'a Pipeline,
    /// What it binds.
    pub bounds: Vec<Bound<'a>>,
    /// The bytes of its constants.
    pub constants: &'a [u8],
    /// Number of its first workgroup.
    pub origin: [u32; 3],
    /// Workgroups in x, y and z.
    pub grid: [u32; 3],
}

/// What counts against what a submission may have.
#[derive(Debug, Clone, Copy, Default)]
pub struct Load {
    buffers: u32,
    sets: u32,
    links: usize,
}

impl Load {
    /// With a dispatch of `pipeline` more; none where that is too much for one submission.
    pub fn with(self, pipeline: &Pipeline) -> Option<Self> {
        let bindings = pipeline.bindings();
        let buffers: u32 = bindings.iter().map(|binding| binding.count).sum();
        let sets = bindings.last().map_or(0, |last| last.set) + 1;
        // And the grid.
        let load =
            Self { buffers: self.buffers + buffers + 1, sets: self.sets + sets, links: self.links + 1 };
        (load.buffers <= BUFFERS && load.sets <= SETS && load.links <= CHAIN).then_some(load)
    }
}

impl Driver {
    /// Whether dispatches can be submitted together: it can be seen how far they are.
    pub fn can_chain(&self) -> bool {
        self.can_call_off() || self.stamps.is_some()
    }

    /// Starts dispatches, one to [`CHAIN`], each of which sees what those before it wrote. Until one begins it can be called off, as
    /// the slices of [`Self::dispatch_batch`], and for the same devices alone: by its index in the chain.
    ///
    /// # Errors
    /// As [`Self::dispatch`], and where the device takes no chains, or they are too many together ([`Load`]).
    pub fn dispatch_chain(&mut self, links: &[Link<'_>]) -> Result<Ticket, DispatchError> {
        let load = links.iter().try_fold(Load::default(), |load, link| load.with(link.pipeline));
        if load.is_none() || links.is_empty() || !self.can_chain() {
            let most = if self.can_chain() { CHAIN } else { 0 };
            return Err(DispatchError::Batch { given: links.len(), most });
        }
        let mut places = Vec::with_capacity(links.len());
        for link in links {
            if !link.pipeline.is_of(&self.gpu) {
                return Err(DispatchError::Foreign);
            }
            request::check_slice(&self.gpu.limits, link.origin, &Slice::whole(link.grid))?;
            check_constants(link.pipeline, link.constants)?;
            let mut own: Vec<Place> = Vec::with_capacity(link.bounds.len() + 1);
            request::place(&self.gpu, link.pipeline, &link.bounds, &mut own)?;
            places.push(own);
        }
        for link in links {
            self.bring(link.pipeline, &link.bounds)?;
        }
        let (value, slot) = self.next_slot()?;
        for (index, (link, places)) in links.iter().zip(&mut places).enumerate() {
            if link.pipeline.uses_num_workgroups() {
                places.push(self.grids.tell(slot, index, link.grid)?);
            }
        }
        let gates = self.gates.as_ref().map(|gates| gates.open(slot));
        let gate = |index: u64| {
            let Conditions { buffer, from, to } = gates.as_ref()?;
            Some(Conditions { buffer: buffer.clone(), from: from + index * WORD, to: to + index * WORD })
        };
        let conditions: Vec<_> = (0..links.len() as u64).map(gate).collect();
        let parts: Vec<_> =
            links.iter().map(|link| [Groups { base: link.origin, groups: link.grid }]).collect();
        let mut works = Vec::with_capacity(links.len());
        for (index, link) in links.iter().enumerate() {
            works.push(Work {
                program: link.pipeline.program(),
                places: &places[index],
                constants: link.constants,
                parts: &parts[index],
                conditions: conditions[index].as_ref(),
            });
        }
        let row = self.stamps.as_ref().map(|stamps| stamps.clear(slot));
        self.slots.get_mut(slot).ok_or(DispatchError::Busy)?.run(&works, value, row)?;
        self.submitted = value;
        Ok(Ticket { value })
    }

    /// How many dispatches of a chain of `count` have begun. They begin in order.
    pub fn begun(&self, ticket: &Ticket, count: usize) -> Result<usize, VulkanError> {
        if self.stamps.is_none() {
            return Ok((0..count).take_while(|index| self.fate(ticket, *index) == Fate::Begun).count());
        }
        Ok(self.ended(ticket, count)?.map_or(0, |ended| (ended.len() + 1).min(count)))
    }

    /// How long each dispatch of a chain of `count` took that has ended, by the device's clock; none where there is no clock, the chain
    /// has not begun, or its slot has another.
    pub fn ended(&self, ticket: &Ticket, count: usize) -> Result<Option<Vec<Duration>>, VulkanError> {
        match self.stamps.as_ref().zip(self.slot_of(ticket)) {
            Some((stamps, slot)) => stamps.read(slot, count),
            None => Ok(None),
        }
    }
}
