//! Kernels: compiled in the engine process, never here (design §3).

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

/// A kernel that an engine compiles.
#[derive(Debug, Clone, Copy)]
pub struct PendingKernel {
    /// Where the answer goes.
    pub origin: Origin,
    /// The name that it will have.
    pub handle: Handle,
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
        let device = self.device_mut(origin.context)?;
        let handle = device.kernels.insert(()).ok_or(Status::OutOfResources)?;
        let kernel = Self::kernel_name(device.root.0, handle);
        let origin = if origin.item.is_some() { origin } else { self.park(origin) };
        let slot = &mut self.engines[node_index(NodeKind::Compute)];
        slot.compiling.insert((kernel.root, kernel.handle), PendingKernel { origin, handle });
        let request = Request::CreateKernel { kernel, language: head.language, entry };
        self.post(NodeKind::Compute, request, source);
        Ok(Handled::Parked)
    }

    fn take_pending(&mut self, kernel: KernelName) -> Option<PendingKernel> {
        self.engines[node_index(NodeKind::Compute)].compiling.remove(&(kernel.root, kernel.handle))
    }

    /// The engine has compiled a kernel.
    pub(super) fn kernel_created(
        &mut self,
        kernel: KernelName,
        workgroup: [u32; 3],
        binding_count: u32,
        constant_bytes: u32,
    ) {
        let Some(pending) = self.take_pending(kernel) else { return };
        let reply =
            KernelCreated { kernel: pending.handle, workgroup, binding_count, constant_bytes, reserved: 0 };
        self.answer(pending.origin, Ok(reply.as_bytes().to_vec()));
    }

    /// The engine has refused a kernel.
    pub(super) fn kernel_refused(&mut self, kernel: KernelName, reason: String) {
        let Some(pending) = self.take_pending(kernel) else { return };
        if let Ok(device) = self.device_mut(pending.origin.context) {
            device.kernels.remove(pending.handle);
        }
        self.answer(pending.origin, Err(Refused { status: Status::KernelRefused, text: reason }));
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
        self.device_mut(origin.context)?.kernels.remove(message.handle);
        Ok(Handled::done())
    }

    /// Has the engine forget all kernels of a device that ended.
    pub(super) fn forget_kernels(&mut self, device: &Device) {
        for (handle, ()) in device.kernels.iter() {
            let kernel = Self::kernel_name(device.root.0, handle);
            self.post(NodeKind::Compute, Request::DestroyKernel { kernel }, &[]);
        }
    }
}
