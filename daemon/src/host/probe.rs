//! What this machine can do: asked once, of engine processes, since the daemon itself never calls a GPU driver.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::adapter::launcher::Memory;
use campanile_host_gpu::adapter::process::EngineProcess;
use campanile_host_gpu::adapter::program::Program;
use campanile_host_gpu::dirty::method::Method;
use campanile_host_gpu::dirty::tracker::Tracker;
use campanile_host_gpu::engine::message::Local;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::engine::message::Response;
use campanile_host_gpu::engine::message::Start;
use campanile_host_gpu::memory::local::Passport;
use campanile_host_gpu::memory::vram::create_memfd;
use campanile_host_gpu::sched::choice::Choice;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::engine::fences::MAX_FENCES;
use campanile_protocol::named_profile::GpuProfile;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;

use crate::vgpu::config::Compute;
use crate::vgpu::config::ComputeDevice;
use crate::vgpu::memory::vidmm::device_local::DeviceLocal;

/// How long a driver may take to start and pass its self-test.
const LIMIT: Duration = Duration::from_secs(30);
/// Memory of an engine that is only asked.
const BYTES: u64 = 16 * PAGE_SIZE;

/// An engine that came up.
struct CameUp {
    device: ComputeDevice,
    is_cpu: bool,
    tracker: Arc<Tracker>,
    /// Kept as long as it is to be asked.
    _engine: EngineProcess,
}

/// What became of a process.
enum Outcome {
    CameUp(CameUp),
    Allocated(DeviceLocal),
}

impl Outcome {
    fn engine(self) -> Result<CameUp, String> {
        match self {
            Self::CameUp(engine) => Ok(engine),
            Self::Allocated(_) => Err("it has allocated memory, and was not asked to".to_owned()),
        }
    }
}

/// Starts an engine over a scrap of memory; why not, where it does not come up.
fn bring_up(
    program: &Program,
    node: NodeKind,
    tracking: Method,
    vulkan_device: Option<String>,
    sandbox: bool,
    local: Local,
) -> io::Result<Result<Outcome, String>> {
    let (vram, tables) = (create_memfd("campanile-probe", BYTES)?, create_memfd("campanile-probe", BYTES)?);
    let start = Start {
        node,
        vram_bytes: BYTES,
        table_bytes: BYTES,
        spin_microseconds: 0,
        slice_microseconds: 0,
        sandbox,
        policy: Choice::default().to_string(),
        vulkan_device,
        profile: GpuProfile::Host,
        tracking,
        local,
        code_mib: 0,
        is_realtime: false,
        is_ahead: false,
    };
    let fences = create_memfd("campanile-probe", u64::from(MAX_FENCES) * PAGE_SIZE)?;
    let tracker = Arc::new(Tracker::new(0, &vram, BYTES, PAGE_SIZE, tracking)?);
    let memory = Memory {
        vram: &vram,
        local: None,
        code: None,
        tables: &tables,
        fences: &fences,
        tracker: Some(&tracker),
    };
    let mut engine = EngineProcess::spawn(program, &start, memory)?;
    let begun = Instant::now();
    loop {
        let left = LIMIT.saturating_sub(begun.elapsed());
        let timeout = Timespec::try_from(left).unwrap_or_default();
        let channel = engine.channel_fd();
        let mut fds = [PollFd::new(&channel, PollFlags::IN)];
        if rustix::event::poll(&mut fds, Some(&timeout))? == 0 {
            return Ok(Err(format!("the Vulkan driver did not start within {} s", LIMIT.as_secs())));
        }
        match engine.receive() {
            Ok(Some(Response::Started { device: name, is_cpu, profile, .. })) => {
                let device = ComputeDevice { name, profile };
                return Ok(Ok(Outcome::CameUp(CameUp { device, is_cpu, tracker, _engine: engine })));
            }
            Ok(Some(Response::Allocated { passport })) => {
                return Ok(allocated(engine.take_allocated(), passport).map(Outcome::Allocated));
            }
            Ok(Some(Response::Refused { reason })) => return Ok(Err(reason)),
            Ok(_) => {}
            Err(_) => {
                let ending = engine.ending();
                return Ok(Err(format!("the Vulkan driver ended its process while it started: {ending}")));
            }
        }
    }
}

/// What an engine says that it has allocated; why it cannot be that.
fn allocated(descriptor: Option<OwnedFd>, passport: Passport) -> Result<DeviceLocal, String> {
    let descriptor = descriptor.ok_or("memory was allocated, and did not come")?;
    let local = DeviceLocal::new(descriptor, passport);
    match local.objection() {
        Some(why) => Err(why),
        None => Ok(local),
    }
}

/// Starts a compute engine, and tells how that went, and whether it computes on a GPU.
pub fn probe_compute(
    program: &Program,
    vulkan_device: Option<String>,
    sandbox: bool,
) -> io::Result<(Compute, bool)> {
    let came_up = bring_up(program, NodeKind::Compute, Method::Off, vulkan_device, sandbox, Local::Host)?;
    Ok(match came_up.and_then(Outcome::engine) {
        Ok(engine) => (Compute::Available(engine.device), !engine.is_cpu),
        Err(reason) => (Compute::Refused(reason), false),
    })
}

/// Starts an engine whose stores the kernel notes, and looks at what it noted; why not, where that does not work.
pub fn probe_tracking(program: &Program, sandbox: bool) -> io::Result<Result<(), String>> {
    let came_up = bring_up(program, NodeKind::Copy, Method::WriteProtect, None, sandbox, Local::Host)?;
    let engine = match came_up.and_then(Outcome::engine) {
        Ok(engine) => engine,
        Err(reason) => return Ok(Err(reason)),
    };
    let mut bits = [0; 2];
    let asked = engine.tracker.query_dirty_bit_data(engine.tracker.whole(), None, &mut bits, false);
    Ok(match asked {
        Ok(()) if bits == [0; 2] => Ok(()),
        Ok(()) => Err("the pages of an engine process cannot be seen".to_owned()),
        Err(error) => Err(error.to_string()),
    })
}

/// Has a process allocate `bytes` of a device's own memory, zero and export them, and end; why not, where that cannot be.
///
/// # Errors
/// No process could be started.
pub fn allocate_local(
    program: &Program,
    vulkan_device: Option<String>,
    sandbox: bool,
    bytes: u64,
) -> io::Result<Result<DeviceLocal, String>> {
    let local = Local::Allocate(bytes);
    let outcome = bring_up(program, NodeKind::Compute, Method::Off, vulkan_device, sandbox, local)?;
    Ok(outcome.and_then(|outcome| match outcome {
        Outcome::Allocated(local) => Ok(local),
        Outcome::CameUp(_) => Err("an engine came up, and no memory".to_owned()),
    }))
}

#[cfg(test)]
mod tests {
    use campanile_host_gpu::memory::local::Passport;
    use campanile_host_gpu::memory::vram::create_memfd;

    use super::allocated;

    #[test]
    fn memory_that_an_engine_has_allocated_came_and_is_as_long_as_it_says() {
        let of = |length| Passport { length, ..Passport::default() };
        let file = || Some(create_memfd("opaque", 0x4000).unwrap().into());
        assert!(allocated(file(), of(0x4000)).is_ok());
        assert!(allocated(file(), of(0x5000)).unwrap_err().contains("16384 bytes, and 20480 were promised"));
        assert!(allocated(None, of(0x4000)).unwrap_err().contains("did not come"));
    }
}
