//! What a place for an engine is to have: its shared block, filled before any process works on it.

use std::collections::BTreeMap;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::adapter::Adapter;
use campanile_host_gpu::adapter::process::EngineProcess;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::sched::parameters::Settings;

use super::invalid::Invalid;
use crate::ids::GuestProcess;
use crate::vgpu::doorbells::line::WaitingConnect;
use crate::vgpu::engines::pending_kernel::PendingKernel;
use crate::vgpu::engines::slot::EngineSlot;
use crate::vgpu::engines::slot::WaitingMessage;
use crate::vgpu::fences::table::FenceTable;
use crate::vgpu::objects::recent::Recent;
use crate::vgpu::tdr::fences::Fences;

/// What a place for an engine is to have.
#[derive(Debug)]
pub(super) struct RestoredEngine {
    pub(super) at: EngineAddress,
    /// Its shared block, where something is in it.
    pub(super) block: Option<EngineProcess>,
    pub(super) fences: Fences,
    pub(super) taken: u64,
    pub(super) resets: Vec<Duration>,
    pub(super) connects: Vec<WaitingConnect>,
    pub(super) waiting: Vec<WaitingMessage>,
    pub(super) compiling: BTreeMap<(u64, u64), PendingKernel>,
}

impl RestoredEngine {
    /// Its shared block, made where there is none yet.
    pub(super) fn block(&mut self, bands: &Settings) -> Result<&mut EngineProcess, Invalid> {
        if self.block.is_none() {
            let made = EngineProcess::unstarted(self.at.node);
            let mut block = made.map_err(|error| format!("memory for the {} engine: {error}", self.at))?;
            block.hw_queue.continue_fences(self.fences.submitted(), self.fences.completed());
            // Before the first work (PRE-69).
            block.setup_priority_bands(bands);
            self.block = Some(block);
        }
        self.block.as_mut().ok_or_else(|| format!("no memory for the {} engine", self.at))
    }

    /// Connects of a guest process in line.
    pub(super) fn connects_of(&self, context: GuestProcess) -> usize {
        self.connects.iter().filter(|connect| connect.origin.context == context).count()
    }

    /// Tells it of all native fences, before anything of theirs can be found in an address space.
    pub(super) fn announce_fences(&self, fences: &FenceTable) {
        if let Some(block) = &self.block {
            for (index, global) in fences.iter() {
                block.native_fences.create(index, global);
            }
        }
    }

    /// Puts it into its place, which has nothing.
    pub(super) fn put_into(self, slot: &mut EngineSlot, now: Instant) {
        slot.taken = self.taken;
        slot.resets = Recent::from_ages(&self.resets, now);
        slot.waiting = self.waiting;
        slot.kernels_asked = self.compiling.len() as u64;
        slot.compiling = self.compiling;
        for connect in self.connects {
            slot.line.push(connect.origin.context, connect);
        }
        slot.fences = self.fences;
        if let Some(block) = self.block {
            slot.take_over(block, self.fences);
        }
    }
}
