//! Kernels: compiled in the engine process, never here (design §3).

use std::sync::Arc;
use std::time::Instant;

use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::engine::message::Request;
use campanile_host_gpu::kernel::name::KernelName;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateKernel;
use campanile_protocol::control::message::LANGUAGE_SPIRV;
use campanile_protocol::control::message::LANGUAGE_WGSL;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::reply::KernelCreated;
use campanile_protocol::control::status::Status;
use campanile_protocol::handle::Handle;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use super::control::Checked;
use super::objects::Device;
use super::objects::node_index;
use super::reply::Handled;
use super::reply::Origin;
use super::reply::Outcome;
use super::reply::Refused;
use super::state::Session;

/// Bytes of the kernel sources of one VM: they are kept for the next process of an engine (MCDM-06).
pub const MAX_KERNEL_BYTES: usize = 64 << 20;

/// What a kernel is compiled from, should its engine be replaced.
#[derive(Debug, Clone)]
pub struct KernelSource {
    /// `LANGUAGE_*` of the protocol.
    pub language: u32,
    /// Entry point, where there are several.
    pub entry: Option<String>,
    /// Text or words.
    pub bytes: Arc<[u8]>,
}

/// A kernel that an engine compiles.
#[derive(Debug, Clone, Copy)]
pub struct PendingKernel {
    /// Where the answer goes.
    pub origin: Origin,
    /// The name that it will have.
    pub handle: Handle,
    /// Its place in the order of compilation.
    pub number: u64,
}

impl Session {
    /// CREATE_KERNEL: answered when it is compiled and warm, or refused.
    pub(super) fn create_kernel(&mut self, origin: Origin, bytes: &[u8]) -> Outcome {
        let (head, rest) = CreateKernel::read_from_prefix(bytes).map_err(|_| Status::InvalidParameter)?;
        (head.reserved == 0).or(Status::InvalidParameter)?;
        matches!(head.language, LANGUAGE_WGSL | LANGUAGE_SPIRV).or(Status::NotSupported)?;
        let (entry_bytes, source_bytes) = (head.entry_bytes as usize, head.source_bytes as usize);
        let used = entry_bytes.checked_add(source_bytes).ok_or(Status::InvalidParameter)?;
        let fits = rest.len() >= used && rest.len() - used < 8 && source_bytes > 0;
        fits.or(Status::InvalidParameter)?;
        let entry = if entry_bytes == 0 {
            None
        } else {
            Some(std::str::from_utf8(&rest[..entry_bytes]).map_err(|_| Status::InvalidParameter)?.to_owned())
        };
        let source = &rest[entry_bytes..used];
        self.device(origin.context)?.kernels.has_room().or(Status::OutOfResources)?;
        if !self.ensure_engine(NodeKind::Compute)? {
            return Ok(self.wait_for_engine(origin, NodeKind::Compute, message::CREATE_KERNEL, bytes));
        }
        if !self.engines[node_index(NodeKind::Compute)].outbox.has_room(source.len()) {
            let text = "the engine has not read the kernels before this one yet".to_owned();
            return Err(Refused { status: Status::OutOfResources, text });
        }
        (self.kernel_bytes + source.len() <= MAX_KERNEL_BYTES).or(Status::OutOfResources)?;
        let device = self.device_mut(origin.context)?;
        let kept = KernelSource { language: head.language, entry: entry.clone(), bytes: source.into() };
        let handle = device.kernels.insert(kept).ok_or(Status::OutOfResources)?;
        let kernel = Self::kernel_name(device.root.0, handle);
        self.kernel_bytes += source.len();
        let origin = if origin.item.is_some() { origin } else { self.park(origin) };
        let slot = &mut self.engines[node_index(NodeKind::Compute)];
        slot.kernels_asked += 1;
        if slot.compiling.is_empty() && slot.rebuilding.is_empty() {
            slot.stirred = Instant::now();
        }
        let pending = PendingKernel { origin, handle, number: slot.kernels_asked };
        slot.compiling.insert((kernel.root, kernel.handle), pending);
        let request = Request::CreateKernel { kernel, language: head.language, entry };
        self.post(NodeKind::Compute, request, source);
        Ok(Handled::Parked)
    }

    fn take_pending(&mut self, kernel: KernelName) -> Option<PendingKernel> {
        let slot = &mut self.engines[node_index(NodeKind::Compute)];
        slot.stirred = Instant::now();
        slot.compiling.remove(&(kernel.root, kernel.handle))
    }

    /// The engine has compiled a kernel.
    pub(super) fn kernel_created(
        &mut self,
        kernel: KernelName,
        workgroup: [u32; 3],
        binding_count: u32,
        constant_bytes: u32,
    ) {
        let Some(pending) = self.take_pending(kernel) else { return self.kernel_rebuilt(kernel) };
        let reply =
            KernelCreated { kernel: pending.handle, workgroup, binding_count, constant_bytes, reserved: 0 };
        self.answer(pending.origin, Ok(reply.as_bytes().to_vec()));
    }

    /// The engine has refused a kernel.
    pub(super) fn kernel_refused(&mut self, kernel: KernelName, reason: String) {
        let Some(pending) = self.take_pending(kernel) else { return self.kernel_rebuilt(kernel) };
        self.drop_kernel(pending.origin.context, pending.handle);
        self.answer(pending.origin, Err(Refused { status: Status::KernelRefused, text: reason }));
    }

    /// The next process of an engine has compiled a kernel again, or could not: then a buffer that names it faults.
    fn kernel_rebuilt(&mut self, kernel: KernelName) {
        let slot = &mut self.engines[node_index(NodeKind::Compute)];
        if slot.rebuilding.remove(&(kernel.root, kernel.handle)) {
            self.retry_waiting(NodeKind::Compute);
        }
    }

    /// Forgets a kernel and its source.
    pub(super) fn drop_kernel(&mut self, context: u32, handle: Handle) {
        let Ok(device) = self.device_mut(context) else { return };
        let bytes = device.kernels.remove(handle).map_or(0, |source| source.bytes.len());
        self.kernel_bytes -= bytes;
    }

    /// DESTROY_KERNEL. A buffer that names it later faults.
    pub(super) fn destroy_kernel(&mut self, origin: Origin, message: &Named) -> Outcome {
        let device = self.device_mut(origin.context)?;
        let root = device.root.0;
        device.kernels.get(message.handle).ok_or(Status::InvalidHandle)?;
        let kernel = Self::kernel_name(root, message.handle);
        let slot = &self.engines[node_index(NodeKind::Compute)];
        (!slot.compiling.contains_key(&(kernel.root, kernel.handle))).or(Status::Busy)?;
        self.post(NodeKind::Compute, Request::DestroyKernel { kernel }, &[]);
        self.drop_kernel(origin.context, message.handle);
        Ok(Handled::done())
    }

    /// Has the engine forget all kernels of a device that ended.
    pub(super) fn forget_kernels(&mut self, device: &Device) {
        for (handle, source) in device.kernels.iter() {
            self.kernel_bytes -= source.bytes.len();
            let kernel = Self::kernel_name(device.root.0, handle);
            self.post(NodeKind::Compute, Request::DestroyKernel { kernel }, &[]);
        }
    }
}
