//! What holds engines: the operator's limits, and what this machine can do of them.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use campanile_host_gpu::adapter::containment::Cgroup;
use campanile_host_gpu::adapter::containment::Containment;

use super::accounts::Accounts;
use crate::confine::cgroup::Ceiling;
use crate::confine::cgroup::Delegated;
use crate::operator::held::Held;
use crate::vgpu::memory::vidmm::vram::VideoMemory;

/// Memory of each engine process beside the video memory, where the operator says nothing: a software driver on a large
/// machine takes hundreds of megabytes, most of it for the stacks of its threads.
pub const ENGINE_MEMORY: u64 = 4 << 30;

/// Nodes of an engine, each with a process.
const NODES: u64 = 2;

/// How engines are held.
#[derive(Debug, Clone)]
pub struct Holding {
    /// Bytes of each engine process beside the video memory; none for no limit.
    pub memory: Option<u64>,
    /// CPUs that the engines of each vGPU may use; none for all.
    pub cpus: Option<u32>,
    /// The accounts of engine processes.
    pub accounts: Accounts,
    /// Those of the vGPUs, by name.
    pub cgroups: Cgroups,
}

/// The cgroups of engines.
#[derive(Debug, Clone)]
pub enum Cgroups {
    /// Of each vGPU, by its name.
    Made(Arc<Made>),
    /// None, and why.
    Unused(String),
}

/// Cgroups that are there as long as this.
#[derive(Debug)]
pub struct Made {
    vgpus: BTreeMap<String, Arc<Cgroup>>,
    _delegated: Delegated,
}

impl Default for Holding {
    /// A program that serves by itself has a cgroup that is not the daemon's to arrange.
    fn default() -> Self {
        let why = "the daemon is part of another program";
        let (accounts, cgroups) = (Accounts::of_the_daemon(why), Cgroups::Unused(why.to_owned()));
        Self { memory: Some(ENGINE_MEMORY), cpus: None, accounts, cgroups }
    }
}

impl Holding {
    /// Makes a cgroup for each vGPU, by its name and the bytes of its video memory, where that is possible. Call it before
    /// privileges are given up.
    pub fn make_cgroups<'a>(
        &mut self,
        vgpus: impl IntoIterator<Item = (&'a str, u64)>,
        engines: u8,
        spares: bool,
    ) {
        let processes = u64::from(engines) * NODES * (1 + u64::from(spares));
        self.cgroups = match self.made(vgpus, processes) {
            Ok(made) => Cgroups::Made(Arc::new(made)),
            Err(why) => {
                log::info!("engines have limits of each process only, and no cgroup a vGPU: {why}");
                Cgroups::Unused(why)
            }
        };
    }

    fn made<'a>(
        &self,
        all: impl IntoIterator<Item = (&'a str, u64)>,
        processes: u64,
    ) -> Result<Made, String> {
        let mut delegated = Delegated::find()?;
        let mut vgpus = BTreeMap::new();
        for (name, vram_bytes) in all {
            let memory = self.memory.map(|each| total(each, processes, vram_bytes));
            let ceiling = Ceiling { memory, processes, cpus: self.cpus };
            let folder = delegated.make_vgpu(name, ceiling);
            let cgroup = folder.and_then(|folder| Cgroup::open(&folder));
            vgpus.insert(name.to_owned(), Arc::new(cgroup.map_err(|error: io::Error| error.to_string())?));
        }
        Ok(Made { vgpus, _delegated: delegated })
    }

    /// Why what the operator wants cannot be had, if it cannot.
    pub fn objection(&self) -> Option<String> {
        match (&self.cgroups, self.cpus) {
            (Cgroups::Unused(why), Some(_)) => Some(format!(
                "--engine-cpus needs a cgroup of version 2 that was delegated to the daemon: {why}"
            )),
            _ => None,
        }
    }

    /// For the engines of a vGPU, the `index`th; in `namespaces` of their own or not.
    pub fn of_vgpu(&self, index: usize, name: &str, namespaces: bool) -> Held {
        let (cgroup, why_no_cgroup) = match &self.cgroups {
            Cgroups::Made(made) => (made.vgpus.get(name).cloned(), None),
            Cgroups::Unused(why) => (None, Some(why.clone())),
        };
        let containment = Containment {
            memory: self.memory,
            cgroup,
            account: self.accounts.of_vgpu(index),
            namespaces,
            ..Containment::default()
        };
        Held { containment, cpus: self.cpus, why_no_cgroup, why_account: self.accounts.why().to_owned() }
    }
}

/// What all processes of a vGPU may take together.
fn total(each: u64, processes: u64, vram_bytes: u64) -> u64 {
    each.saturating_mul(processes).saturating_add(VideoMemory::file_bytes_of(vram_bytes))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::PathBuf;
    use std::sync::Arc;

    use campanile_host_gpu::adapter::program::Program;

    use super::Ceiling;
    use super::Cgroups;
    use super::Delegated;
    use super::Holding;
    use super::Made;
    use super::total;
    use crate::host::options::HostOptions;
    use crate::host::options::VgpuOptions;
    use crate::host::start::Host;

    #[test]
    fn cgroups_are_there_as_long_as_the_host() {
        let folder = tempfile::tempdir().unwrap();
        for (file, text) in [("cgroup.controllers", "memory\n"), ("cgroup.subtree_control", "")] {
            fs::write(folder.path().join(file), text).unwrap();
        }
        let mut delegated = Delegated::within(folder.path(), 7).unwrap();
        let of_vgpu = delegated.make_vgpu("a", Ceiling { memory: None, processes: 1, cpus: None }).unwrap();
        let made = Arc::new(Made { vgpus: BTreeMap::new(), _delegated: delegated });
        let vgpu = VgpuOptions::new("a".to_owned(), folder.path().join("a.sock"), 64 << 20);
        let program = Program::new(PathBuf::from("/nonexistent/campanile"), Vec::new());
        let holding = Holding { cgroups: Cgroups::Made(made), ..Holding::default() };
        let host = Host::start(HostOptions { holding, ..HostOptions::new(vec![vgpu], program) }).unwrap();
        assert!(of_vgpu.exists());
        drop(host);
        assert!(!of_vgpu.exists());
    }

    #[test]
    fn a_vgpu_has_its_video_memory_and_the_memory_of_each_process() {
        assert!(total(1 << 30, 4, 64 << 20) >= (4 << 30) + (64 << 20));
        assert!(total(1 << 30, 4, 64 << 20) < 5 << 30);
        assert_eq!(total(u64::MAX, 4, 64 << 20), u64::MAX);
    }

    #[test]
    fn cpus_that_cannot_be_limited_are_no_start() {
        let holding = Holding::default();
        assert_eq!(holding.objection(), None);
        let limited = Holding { cpus: Some(2), ..holding };
        let why = limited.objection().unwrap();
        assert!(why.contains("--engine-cpus") && why.contains("part of another program"), "{why}");
    }
}
