//! What holds engines: the operator's limits, and what this machine can do of them.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use campanile_host_gpu::adapter::containment::Account;
use campanile_host_gpu::adapter::containment::Cgroup;
use campanile_host_gpu::adapter::containment::Containment;

use super::accounts::Accounts;
use super::keeper::keep;
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
    /// By the names of vGPUs.
    pub vgpus: Mutex<BTreeMap<String, Arc<Cgroup>>>,
    /// Processes that the engines of a vGPU may be.
    pub processes: u64,
    /// The one that they are in.
    pub delegated: Mutex<Delegated>,
}

impl Made {
    fn add(&self, holding: &Holding, name: &str, vram_bytes: u64) -> io::Result<Arc<Cgroup>> {
        let memory = holding.memory.map(|each| total(each, self.processes, vram_bytes));
        let ceiling = Ceiling { memory, processes: self.processes, cpus: holding.cpus };
        let folder = locked(&self.delegated).make_vgpu(name, ceiling)?;
        let cgroup = Arc::new(Cgroup::open(&folder)?);
        locked(&self.vgpus).insert(name.to_owned(), Arc::clone(&cgroup));
        Ok(cgroup)
    }

    fn remove(&self, name: &str) {
        if locked(&self.vgpus).remove(name).is_some() {
            locked(&self.delegated).remove_vgpu(name);
        }
    }
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
        let delegated = Mutex::new(Delegated::find()?);
        let made = Made { vgpus: Mutex::default(), processes, delegated };
        for (name, vram_bytes) in all {
            made.add(self, name, vram_bytes).map_err(|error| error.to_string())?;
        }
        Ok(made)
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
            Cgroups::Made(made) => (locked(&made.vgpus).get(name).cloned(), None),
            Cgroups::Unused(why) => (None, Some(why.clone())),
        };
        self.held(cgroup, why_no_cgroup, self.accounts.of_vgpu(index), namespaces)
    }

    /// For the engines of a vGPU that comes while the daemon serves, at this socket; `others` are the user numbers of those that
    /// are there. [`Self::end_vgpu`] takes back what was made for it.
    ///
    /// # Errors
    /// In words: no cgroup can be made, and CPUs are to be limited; no user is free.
    pub fn begin_vgpu(
        &self,
        vgpu: (&str, u64),
        socket: &Path,
        others: &BTreeSet<u32>,
        namespaces: bool,
    ) -> Result<Held, String> {
        let account = self.accounts.of_new(socket, others)?;
        let (name, vram_bytes) = vgpu;
        let (cgroup, why_no_cgroup) = match &self.cgroups {
            Cgroups::Unused(why) => (None, Some(why.clone())),
            Cgroups::Made(made) => match made.add(self, name, vram_bytes) {
                Ok(cgroup) => (Some(cgroup), None),
                Err(error) if self.cpus.is_some() => {
                    return Err(format!("--engine-cpus needs a cgroup, and none can be made now: {error}"));
                }
                Err(error) => {
                    log::warn!("vGPU {name}: its engines have no cgroup: {error}");
                    (None, Some(error.to_string()))
                }
            },
        };
        Ok(self.held(cgroup, why_no_cgroup, account, namespaces))
    }

    /// The engines of this vGPU have ended.
    pub fn end_vgpu(&self, name: &str) {
        if let Cgroups::Made(made) = &self.cgroups {
            made.remove(name);
        }
    }

    fn held(
        &self,
        cgroup: Option<Arc<Cgroup>>,
        why_no_cgroup: Option<String>,
        account: Option<Arc<Account>>,
        namespaces: bool,
    ) -> Held {
        let memory = self.memory;
        // The keeper of this daemon ends what does not end by itself.
        let outlives = keep::is_kept();
        let containment =
            Containment { memory, cgroup, account, namespaces, outlives, ..Containment::default() };
        Held { containment, cpus: self.cpus, why_no_cgroup, why_account: self.accounts.why().to_owned() }
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What all processes of a vGPU may take together.
fn total(each: u64, processes: u64, vram_bytes: u64) -> u64 {
    each.saturating_mul(processes).saturating_add(VideoMemory::file_bytes_of(vram_bytes))
}

#[cfg(test)]
mod tests {

    use super::Holding;
    use super::total;

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
