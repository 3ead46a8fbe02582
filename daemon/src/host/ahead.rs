//! Engines that a successor opens while its predecessor's still work: guests then wait for no driver.
//!
//! ```text
//!   predecessor ── which engines there are ──▶ successor: as many at a time as there are CPUs, while there is time and memory
//!               ◀───────── opened ──────────   ── VMs stand still, their devices are restored ──▶ each takes those of its vGPU
//! ```
//!
//! What is not open by then is started after the standstill, as if nothing had been said.

use campanile_protocol::named_profile::GpuProfile;
use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::adapter::ahead::Ahead;
use campanile_host_gpu::adapter::ahead::OpenedEngines;
use campanile_host_gpu::adapter::program::Program;
use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::engine::message::Local;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::engine::message::Start;
use campanile_host_gpu::memory::local::LocalMemory;

use super::ground::code_mib;
use super::local_choice::LocalPlace;
use super::options::HostOptions;
use super::options::VgpuOptions;
use super::source::Source;
use super::upgrade::inheritance::Inheritance;
use super::upgrade::message::HandedEngines;
use crate::operator::held::Held;

/// How long all of it may take: guests still work meanwhile.
const LIMIT: Duration = Duration::from_secs(10);
/// Memory of this machine that is to be left for each process that opens a driver.
const ROOM: u64 = 256 << 20;
/// Where the kernel says how much there is.
const MEMORY: &str = "/proc/meminfo";

/// What all engines of this daemon open.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opening<'a> {
    pub(super) options: &'a HostOptions,
    /// What reads the operator's words.
    pub(super) source: Option<&'a dyn Source>,
    pub(super) tracking: Method,
    pub(super) local: LocalPlace,
}

/// What the vGPU of an engine has to say of what it opens.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    profile: GpuProfile,
    is_realtime: bool,
}

impl Opening<'_> {
    /// What this engine opens for a vGPU that wants this. The rest is known when its device is restored.
    fn message(&self, at: EngineAddress, Wanted { profile, is_realtime }: Wanted) -> Start {
        let engines = &self.options.engines;
        Start {
            node: at.node,
            vram_bytes: 0,
            table_bytes: 0,
            spin_microseconds: 0,
            slice_microseconds: u64::try_from(engines.slice.as_micros()).unwrap_or(u64::MAX),
            sandbox: engines.sandbox,
            policy: self.options.scheduling.policy.to_string(),
            vulkan_device: engines.vulkan_devices.of(at.engine).map(str::to_owned),
            profile,
            tracking: self.tracking,
            local: match self.local {
                LocalPlace::Host => Local::Host,
                LocalPlace::Device => Local::Device(LocalMemory::default()),
            },
            code_mib: if at.node == NodeKind::Compute { code_mib(self.options) } else { 0 },
            is_realtime,
            is_ahead: true,
        }
    }

    /// Opens the engines of these vGPUs, as far as there is time and room. Their processes.
    pub(super) fn open(&self, all: Vec<HandedEngines>, inheritance: &Inheritance) -> Vec<u32> {
        let until = Instant::now() + LIMIT;
        let (mut vgpus, mut wanted) = (Vec::new(), Vec::new());
        let HostOptions { vgpus: known, holding, engines, .. } = self.options;
        let configured = known.iter().enumerate();
        let mut users: BTreeSet<u32> = configured
            .filter_map(|(index, vgpu)| holding.of_vgpu(index, &vgpu.name, engines.sandbox).uid())
            .collect();
        for HandedEngines { vgpu, engines, made } in all {
            let (held, wants) = match self.hold(&vgpu, made.as_deref(), &users) {
                Ok(held) => held,
                Err(why) => {
                    log::warn!("vGPU {vgpu}: its engines are not open ahead: {why}");
                    continue;
                }
            };
            users.extend(held.uid());
            let program = self.options.engines.program.of(&vgpu, held.containment.clone());
            let places = engines
                .into_iter()
                .filter_map(|place| EngineAddress::from_index(usize::try_from(place).ok()?));
            wanted.extend(places.map(|at| (vgpus.len(), at)));
            vgpus.push((vgpu, held, (program, wants), Vec::new()));
        }
        let mut processes = Vec::new();
        for some in wanted.chunks(thread::available_parallelism().map_or(1, usize::from)) {
            let start =
                |(vgpu, at): &(usize, EngineAddress)| Some((*vgpu, self.start(&vgpus[*vgpu].2, *at, until)?));
            let started: Vec<(usize, Ahead)> = some.iter().filter_map(start).collect();
            for (vgpu, ahead) in started {
                let (name, .., opened) = &mut vgpus[vgpu];
                match ahead.wait(until) {
                    Ok(()) => {
                        processes.push(ahead.id());
                        opened.push(ahead);
                    }
                    Err(why) => log::warn!("{name}: an engine is not open ahead: {why}"),
                }
            }
        }
        log::info!("upgrade: {} of {} engines are open ahead", processes.len(), wanted.len());
        for (name, held, (program, _), opened) in vgpus {
            inheritance.add_opened(name, held, Arc::new(OpenedEngines::new(Arc::new(program), opened)));
        }
        processes
    }

    /// How the engines of a vGPU are held, and what they open for it. One that was `made` at run time begins with that, where no other has the `users`.
    fn hold(&self, name: &str, made: Option<&str>, users: &BTreeSet<u32>) -> Result<(Held, Wanted), String> {
        let HostOptions { vgpus, holding, engines, .. } = self.options;
        let wanted = |vgpu: &VgpuOptions| Wanted {
            profile: self.options.profile_of(vgpu),
            is_realtime: vgpu.share.has_realtime(),
        };
        if let Some((index, vgpu)) = vgpus.iter().enumerate().find(|(_, vgpu)| vgpu.name == name) {
            let held = holding.of_vgpu(index, name, engines.sandbox);
            return Ok((held, wanted(vgpu)));
        }
        let (spec, source) = made.zip(self.source).ok_or("the configuration does not name it")?;
        let vgpu: VgpuOptions = source.parse(spec)?;
        let held = holding.begin_vgpu((name, vgpu.vram_bytes), &vgpu.socket, users, engines.sandbox)?;
        Ok((held, wanted(&vgpu)))
    }

    /// Starts one, where there is time and room.
    fn start(
        &self,
        (program, wants): &(Program, Wanted),
        at: EngineAddress,
        until: Instant,
    ) -> Option<Ahead> {
        if Instant::now() >= until || !has_room(&fs::read_to_string(MEMORY).unwrap_or_default()) {
            return None;
        }
        let started = Ahead::start(program, &self.message(at, *wants));
        started.inspect_err(|error| log::warn!("{}: {at} engine: {error}", program.owner)).ok()
    }
}

/// Whether the machine whose account of its memory this is has room for another process. One that says nothing is believed to have.
fn has_room(account: &str) -> bool {
    let line = account.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.is_none_or(|kib| kib << 10 >= ROOM)
}

#[cfg(test)]
mod tests {
    use super::has_room;

    #[test]
    fn no_process_is_started_where_its_machine_has_no_memory_for_it() {
        let account = |kib: u64| format!("MemTotal: 8000000 kB\nMemFree: 10 kB\nMemAvailable:   {kib} kB\n");
        assert!(has_room(&account(256 << 10)));
        assert!(!has_room(&account((256 << 10) - 1)));
        assert!(has_room("") && has_room("MemAvailable: much\n"));
    }
}
