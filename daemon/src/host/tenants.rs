//! The vGPUs that are served, as the operator wants them.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::check::objections;
use super::ground::Served;
use super::options::HostOptions;
use super::options::VgpuOptions;
use super::upgrade::message::Changes;
use crate::fd_store;
use crate::intake::Intake;
use crate::ledger::log::Key;
use crate::ledger::log::Log;
use crate::ledger::read::ESTATE;

/// Where a vGPU comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Origin {
    /// Command line and files: it goes when they do not name it any more.
    Configured,
    /// The operator has made it, as these words say.
    Made(String),
}

impl Origin {
    /// The operator's words, where they made it.
    pub(super) fn made(&self) -> Option<&str> {
        match self {
            Self::Configured => None,
            Self::Made(spec) => Some(spec),
        }
    }
}

/// One of them.
#[derive(Debug)]
pub(super) struct Tenant {
    /// As it is, whatever files say by now.
    pub(super) options: VgpuOptions,
    pub(super) origin: Origin,
    pub(super) served: Served,
    /// What the operator has set since, by key.
    pub(super) set: BTreeMap<String, String>,
}

impl Tenant {
    pub(super) fn new(options: VgpuOptions, origin: Origin, served: Served) -> Self {
        Self { options, origin, served, set: BTreeMap::new() }
    }
}

/// Where a daemon after this one, if this one is killed, finds what the operator has changed.
#[derive(Debug, Default)]
pub(super) struct Remembered(Option<Log>);

impl Remembered {
    fn write(&mut self, changes: &Changes) -> io::Result<()> {
        if !fd_store::is_open() || self.0.is_none() && *changes == Changes::default() {
            return Ok(());
        }
        match &mut self.0 {
            Some(log) => log.put(Key::Estate, changes),
            none => {
                let mut log = Log::new()?;
                log.put(Key::Estate, changes)?;
                fd_store::put("", ESTATE, log.file().as_fd())?;
                *none = Some(log);
                Ok(())
            }
        }
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct State {
    /// Those in force, but for the vGPUs.
    pub(super) options: HostOptions,
    pub(super) tenants: Vec<Tenant>,
    pub(super) remembered: Remembered,
    pub(super) intake: Arc<Intake>,
}

impl State {
    /// Writes what the operator has made and set since the start.
    pub(super) fn remember(&mut self) {
        let changes = self.changes();
        if let Err(error) = self.remembered.write(&changes) {
            log::warn!("what was changed at run time may not outlive this daemon: {error}");
        }
    }

    /// What the operator has made and set since the start.
    pub(super) fn changes(&self) -> Changes {
        let mut changes = Changes { is_drained: self.intake.is_closed(), ..Changes::default() };
        for Tenant { options, origin, set, .. } in &self.tenants {
            if let Origin::Made(spec) = origin {
                changes.made.push(spec.clone());
            }
            if !set.is_empty() {
                changes.set.push((options.name.clone(), set.values().cloned().collect()));
            }
        }
        changes
    }

    /// Whether the daemon can be with this vGPU, in place of the one at `replaced` or besides all.
    pub(super) fn check(&self, replaced: Option<usize>, vgpu: &VgpuOptions) -> Result<(), String> {
        let mut vgpus: Vec<VgpuOptions> = self.tenants.iter().map(|tenant| tenant.options.clone()).collect();
        match replaced {
            Some(at) => vgpus[at] = vgpu.clone(),
            None => vgpus.push(vgpu.clone()),
        }
        let options = HostOptions { vgpus, ..self.options.clone() };
        match objections(&options).into_iter().next() {
            Some(objection) => Err(objection.text),
            None => Ok(()),
        }
    }
}
