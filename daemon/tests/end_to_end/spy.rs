//! The driver's transport with somebody who listens.

use std::sync::Arc;
use std::sync::Mutex;

use campanile_guest_driver::device::Device;
use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::blob::Blob;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_guest_driver::transport::error::TransportError;
use campanile_guest_driver::transport::shared_memory::SharedMemory;
use campanile_guest_driver::transport::submission::Submission;
use campanile_protocol::capset::Capset;
use campanile_protocol::control::frame;
use campanile_test_vmm::context::LoopbackContext;
use campanile_test_vmm::vm::LoopbackVm;

/// What a driver did.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    page: Mutex<Option<SharedMemory>>,
    opcodes: Mutex<Vec<u32>>,
}

impl Seen {
    /// The device page: what a driver maps first.
    pub(crate) fn page(&self) -> SharedMemory {
        self.page.lock().unwrap().clone().unwrap()
    }

    /// The control messages since the last call.
    pub(crate) fn take_opcodes(&self) -> Vec<u32> {
        std::mem::take(&mut self.opcodes.lock().unwrap())
    }
}

struct Spy {
    inner: LoopbackContext,
    seen: Arc<Seen>,
}

/// A device of the driver's, overheard.
pub(crate) fn open_overheard(vm: &Arc<LoopbackVm>) -> (Device, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let spy = Spy { inner: vm.open("overheard").unwrap(), seen: Arc::clone(&seen) };
    (Device::open(spy).unwrap(), seen)
}

impl Transport for Spy {
    fn capset(&self) -> Result<Capset, TransportError> {
        self.inner.capset()
    }

    fn sees_video_memory(&self) -> bool {
        self.inner.sees_video_memory()
    }

    fn create_blob(&self, memory: BlobMemory, size: u64) -> Result<Blob, TransportError> {
        self.inner.create_blob(memory, size)
    }

    fn map(&self, blob: &Blob) -> Result<SharedMemory, TransportError> {
        let memory = self.inner.map(blob)?;
        self.seen.page.lock().unwrap().get_or_insert_with(|| memory.clone());
        Ok(memory)
    }

    fn destroy_blob(&self, blob: Blob) -> Result<(), TransportError> {
        self.inner.destroy_blob(blob)
    }

    fn submit(&self, frames: &[u8], fence: Option<u8>) -> Result<Submission, TransportError> {
        let opcodes = frame::frames(frames).map(|frame| frame.unwrap().header.opcode);
        self.seen.opcodes.lock().unwrap().extend(opcodes);
        self.inner.submit(frames, fence)
    }

    fn commands_sent(&self) -> u64 {
        self.inner.commands_sent()
    }

    fn is_connected(&self) -> bool {
        self.inner.is_connected()
    }
}
