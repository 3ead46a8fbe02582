//! Whether this machine can compute: asked once, of an engine process, since the daemon itself never calls a
//! GPU driver.

use std::io;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::adapter::process::EngineProcess;
use campanile_host_gpu::adapter::program::Memory;
use campanile_host_gpu::adapter::program::Program;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::engine::message::Response;
use campanile_host_gpu::engine::message::Start;
use campanile_host_gpu::event::Event;
use campanile_host_gpu::memory::vram::create_memfd;
use campanile_host_gpu::scheduling::choice::Choice;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::engine::fences::MAX_FENCES;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;

use crate::session::config::Compute;

/// How long a driver may take to start and pass its self-test.
const LIMIT: Duration = Duration::from_secs(30);

/// Starts a compute engine over a scrap of memory, and tells how that went.
pub fn probe_compute(program: &Program, vulkan_device: Option<String>, sandbox: bool) -> io::Result<Compute> {
    let bytes = 16 * PAGE_SIZE;
    let (vram, tables) = (create_memfd("campanile-probe", bytes)?, create_memfd("campanile-probe", bytes)?);
    let grant = Event::new()?;
    let start = Start {
        node: NodeKind::Compute,
        vram_bytes: bytes,
        table_bytes: bytes,
        spin_microseconds: 0,
        slice_microseconds: 0,
        sandbox,
        policy: Choice::default().to_string(),
        vulkan_device,
        is_spare: false,
    };
    let fences = create_memfd("campanile-probe", u64::from(MAX_FENCES) * PAGE_SIZE)?;
    let memory = Memory { vram: &vram, tables: &tables, fences: &fences, grant: &grant };
    let engine = EngineProcess::spawn(program, &start, memory)?;
    let begun = Instant::now();
    loop {
        let left = LIMIT.saturating_sub(begun.elapsed());
        let timeout = Timespec::try_from(left).unwrap_or_default();
        let channel = engine.channel_fd();
        let mut fds = [PollFd::new(&channel, PollFlags::IN)];
        if rustix::event::poll(&mut fds, Some(&timeout))? == 0 {
            return Ok(Compute::Refused(format!(
                "the Vulkan driver did not start within {} s",
                LIMIT.as_secs()
            )));
        }
        match engine.receive() {
            Ok(Some(Response::Started { device })) => return Ok(Compute::Available(device)),
            Ok(Some(Response::Refused { reason })) => return Ok(Compute::Refused(reason)),
            Ok(_) => {}
            Err(_) => {
                return Ok(Compute::Refused(
                    "the Vulkan driver ended its process while it started".to_owned(),
                ));
            }
        }
    }
}
