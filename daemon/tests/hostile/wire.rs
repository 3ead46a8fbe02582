//! Commands of the control queue, unchecked.

use campanile_protocol::virtio_gpu::blob::CreateBlob;
use campanile_protocol::virtio_gpu::blob::MapBlob;
use campanile_protocol::virtio_gpu::blob::MemEntry;
use campanile_protocol::virtio_gpu::command;
use campanile_protocol::virtio_gpu::command::ContextCreate;
use campanile_protocol::virtio_gpu::command::DEBUG_NAME_BYTES;
use campanile_protocol::virtio_gpu::command::Header;
use campanile_protocol::virtio_gpu::command::ResourceName;
use campanile_protocol::virtio_gpu::command::Submit3d;
use campanile_test_vmm::vm::LoopbackVm;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

/// Numbers that the loopback VM does not give out by itself.
pub(crate) const FIRST_ID: u32 = 0x1000_0000;

/// Sends a command; the response code.
pub(crate) fn send(vm: &LoopbackVm, header: Header, parts: &[&[u8]]) -> u32 {
    let bytes = [&[header.as_bytes()], parts].concat().concat();
    let answer = vm.raw().command(&bytes, 1024).unwrap();
    Header::read_from_prefix(&answer).unwrap().0.kind
}

/// Sends a command in the name of a context.
pub(crate) fn command(vm: &LoopbackVm, kind: u32, context_id: u32, parts: &[&[u8]]) -> u32 {
    send(vm, Header { kind, context_id, ..Header::default() }, parts)
}

/// CTX_CREATE.
pub(crate) fn create_context(vm: &LoopbackVm, context: u32, context_init: u32) -> u32 {
    let create = ContextCreate { name_length: 0, context_init, debug_name: [0; DEBUG_NAME_BYTES] };
    command(vm, command::CTX_CREATE, context, &[create.as_bytes()])
}

/// A command that names a resource.
pub(crate) fn name(vm: &LoopbackVm, kind: u32, context: u32, resource_id: u32) -> u32 {
    command(vm, kind, context, &[ResourceName { resource_id, padding: 0 }.as_bytes()])
}

/// RESOURCE_CREATE_BLOB.
pub(crate) fn create_blob(vm: &LoopbackVm, create: CreateBlob, entries: &[MemEntry]) -> u32 {
    command(vm, command::RESOURCE_CREATE_BLOB, 0, &[create.as_bytes(), entries.as_bytes()])
}

/// RESOURCE_MAP_BLOB.
pub(crate) fn map_blob(vm: &LoopbackVm, resource_id: u32, offset: u64) -> u32 {
    command(vm, command::RESOURCE_MAP_BLOB, 0, &[MapBlob { resource_id, padding: 0, offset }.as_bytes()])
}

/// SUBMIT_3D that says that it carries `size` bytes.
pub(crate) fn submit(vm: &LoopbackVm, context: u32, size: usize, frames: &[u8]) -> u32 {
    let size = u32::try_from(size).unwrap();
    command(vm, command::SUBMIT_3D, context, &[Submit3d { size, padding: 0 }.as_bytes(), frames])
}
