//! Engines without processes.

use std::sync::Arc;

use campanile_host_gpu::adapter::process::GrantHandle;
use campanile_host_gpu::engine::address::EngineAddress;
use campanile_host_gpu::event::Event;
use campanile_host_gpu::memory::mapping::Access;
use campanile_host_gpu::memory::mapping::Mapping;
use campanile_host_gpu::memory::vram::create_memfd;
use campanile_protocol::engine::block::BLOCK_BYTES;

use super::alarm::Alarm;
use super::schedule::Participant;
use super::share::Share;

/// The shared block of an engine.
pub(super) fn block() -> GrantHandle {
    let file = create_memfd("block", BLOCK_BYTES).unwrap();
    let mapping = Mapping::new(file.try_clone().unwrap(), 0, BLOCK_BYTES, Access::ReadWrite).unwrap();
    let [wake, asks] = [(); 2].map(|()| Arc::new(Event::new().unwrap()));
    GrantHandle { shared: Arc::new(mapping), file: Arc::new(file), wake, asks, process: None }
}

/// An engine that never hangs.
pub(super) fn participant(at: EngineAddress) -> Participant {
    let alarm = Arc::new(Alarm::new().unwrap());
    Participant { at, handle: block(), alarm, timeout: None, share: Share::default() }
}
