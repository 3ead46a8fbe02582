//! The virtio-gpu device: its commands, and its blobs of guest memory and of video memory.

use campanile_protocol::capset::CAPSET_ID;
use campanile_protocol::capset::Capset;
use campanile_protocol::virtio_gpu::CONTROL_QUEUE;
use campanile_protocol::virtio_gpu::CURSOR_QUEUE;
use campanile_protocol::virtio_gpu::blob;
use campanile_protocol::virtio_gpu::blob::CreateBlob;
use campanile_protocol::virtio_gpu::blob::MemEntry;
use campanile_protocol::virtio_gpu::command;
use campanile_protocol::virtio_gpu::command::ContextCreate;
use campanile_protocol::virtio_gpu::command::GetCapset;
use campanile_protocol::virtio_gpu::command::Header;
use campanile_protocol::virtio_gpu::command::ResourceName;
use campanile_protocol::virtio_gpu::command::Submit3d;
use campanile_protocol::virtio_gpu::config::Config;
use campanile_protocol::virtio_gpu::response::ERR_UNSPEC;
use zerocopy::FromZeros;
use zerocopy::IntoBytes;

use crate::arena::Arena;
use crate::fault::Fault;
use crate::memory::Memory;
use crate::virtio::Device;
use crate::virtqueue::VirtQueue;

/// How long a command may take: kernels are compiled meanwhile, and engines started.
const PATIENCE_MS: u32 = 20_000;
/// How long one that is answered at once may take.
const SHORT_PATIENCE_MS: u32 = 2_000;

/// The control queue of the device.
pub(crate) struct Gpu {
    control: VirtQueue,
    resources: u32,
}

impl Gpu {
    /// Sets the queues of a device up.
    pub(crate) fn begin(device: &Device, arena: &mut Arena) -> Result<Self, Fault> {
        let control = device.queue(CONTROL_QUEUE, arena)?;
        // There is no cursor, but some VMMs start queues by their number.
        let _cursor = device.queue(CURSOR_QUEUE, arena)?;
        Ok(Self { control, resources: 0 })
    }

    /// That the device still says what it is.
    pub(crate) fn check_config(device: &Device) -> Result<(), Fault> {
        let words = [0, 4, 8, 12].map(|offset| device.config(offset));
        let expected = Config::COMPUTE_ONLY;
        let same = words
            == [expected.events_read, expected.events_clear, expected.num_scanouts, expected.num_capsets];
        if same {
            Ok(())
        } else {
            Err(Fault::Device("its configuration is not that of a GPU without displays"))
        }
    }

    /// Sends a command; its answer, header included.
    fn command(
        &mut self,
        name: &'static str,
        header: Header,
        parts: [&[u8]; 3],
        milliseconds: u32,
    ) -> Result<Memory, Fault> {
        let command = [header.as_bytes(), parts[0], parts[1], parts[2]];
        let (answer, length) = self.control.call(&command, milliseconds).ok_or(Fault::Silence(name))?;
        if length < size_of::<Header>() as u64 {
            return Err(Fault::Command(name, 0));
        }
        let kind = answer.read_as::<Header>(0).kind;
        if kind >= ERR_UNSPEC { Err(Fault::Command(name, kind)) } else { Ok(answer) }
    }

    /// What the device can do.
    pub(crate) fn capset(&mut self) -> Result<Capset, Fault> {
        let header = Header { kind: command::GET_CAPSET, ..Header::default() };
        let body = GetCapset { id: CAPSET_ID, version: 1 };
        let answer = self.command("GET_CAPSET", header, [body.as_bytes(), &[], &[]], SHORT_PATIENCE_MS)?;
        Ok(answer.read_as(size_of::<Header>() as u64))
    }

    /// Opens a context.
    pub(crate) fn create_context(&mut self, context_id: u32) -> Result<(), Fault> {
        let header = Header { kind: command::CTX_CREATE, context_id, ..Header::default() };
        let mut body = ContextCreate::new_zeroed();
        body.context_init = CAPSET_ID;
        self.command("CTX_CREATE", header, [body.as_bytes(), &[], &[]], SHORT_PATIENCE_MS).map(drop)
    }

    /// Makes a blob of this machine's own memory, or of video memory where there is none, for a context; its number.
    pub(crate) fn create_blob(
        &mut self,
        context_id: u32,
        size: u64,
        memory: Option<Memory>,
    ) -> Result<u32, Fault> {
        self.resources += 1;
        let resource_id = self.resources;
        let length = u32::try_from(size).map_err(|_| Fault::Device("a blob of 4 GiB"))?;
        let entry = memory.map(|memory| MemEntry { address: memory.address(), length, padding: 0 });
        let kind = if entry.is_some() { blob::MEM_GUEST } else { blob::MEM_HOST3D };
        let entry_count = u32::from(entry.is_some());
        let body = CreateBlob { resource_id, memory: kind, flags: 0, entry_count, blob_id: 0, size };
        let header = Header { kind: command::RESOURCE_CREATE_BLOB, context_id, ..Header::default() };
        let entry = entry.as_ref().map_or(&[][..], IntoBytes::as_bytes);
        self.command("RESOURCE_CREATE_BLOB", header, [body.as_bytes(), entry, &[]], PATIENCE_MS)?;
        let header = Header { kind: command::CTX_ATTACH_RESOURCE, context_id, ..Header::default() };
        let body = ResourceName { resource_id, padding: 0 };
        self.command("CTX_ATTACH_RESOURCE", header, [body.as_bytes(), &[], &[]], PATIENCE_MS)?;
        Ok(resource_id)
    }

    /// Sends a control message, and waits until it and its work are done.
    pub(crate) fn submit(
        &mut self,
        name: &'static str,
        context_id: u32,
        frame_header: &[u8],
        body: &[u8],
    ) -> Result<(), Fault> {
        let flags = command::FLAG_FENCE | command::FLAG_INFO_RING_IDX;
        let header = Header {
            kind: command::SUBMIT_3D,
            flags,
            fence_id: 1,
            context_id,
            ring_index: 1,
            padding: [0; 3],
        };
        let size = u32::try_from(frame_header.len() + body.len()).unwrap_or(u32::MAX);
        let submit = Submit3d { size, padding: 0 };
        self.command(name, header, [submit.as_bytes(), frame_header, body], PATIENCE_MS).map(drop)
    }
}
