//! What well-behaved guests say to either front, as inputs of [`super::front`].

use campanile_protocol::PROTOCOL_VERSION;
use campanile_protocol::capset::CAPSET_ID;
use campanile_protocol::control::frame::FrameHeader;
use campanile_protocol::control::frame::MAGIC;
use campanile_protocol::control::memory;
use campanile_protocol::control::message;
use campanile_protocol::control::native_fence;
use campanile_protocol::control::native_fence::CreateNativeFence;
use campanile_protocol::device_page::DEVICE_PAGE_BYTES;
use campanile_protocol::fs;
use campanile_protocol::fs::body;
use campanile_protocol::fs::call::Call;
use campanile_protocol::fs::call::RequestHeader;
use campanile_protocol::fs::fuse::InHeader;
use campanile_protocol::fs::fuse::file::IoctlIn;
use campanile_protocol::fs::fuse::file::OpenIn;
use campanile_protocol::fs::fuse::file::ReadIn;
use campanile_protocol::fs::fuse::file::ReleaseIn;
use campanile_protocol::fs::fuse::file::WriteIn;
use campanile_protocol::fs::fuse::opcode;
use campanile_protocol::fs::fuse::start::InitIn;
use campanile_protocol::handle::Handle;
use campanile_protocol::virtio_gpu::blob;
use campanile_protocol::virtio_gpu::command;
use zerocopy::IntoBytes;

use super::front;
use super::input::piece;

/// Request: to this queue, with this room.
fn request(queue: u8, room: u16, bytes: &[u8]) -> Vec<u8> {
    [vec![front::COMMAND, queue], room.to_le_bytes().to_vec(), piece(bytes)].concat()
}

/// The n-th number of an answer.
fn word(number: u64) -> u64 {
    front::STANDS_FOR | number
}

fn fuse(queue: u8, opcode: u32, node: u64, arguments: &[u8]) -> Vec<u8> {
    let length = u32::try_from(size_of::<InHeader>() + arguments.len()).unwrap();
    let header = InHeader { length, opcode, unique: 4, node, user: 1000, ..InHeader::default() };
    request(queue, 4096, &[header.as_bytes(), arguments].concat())
}

fn call(handle: u64, call: Call, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(size_of::<RequestHeader>() + body.len()).unwrap();
    // The capability set is the longest answer; inputs are best short.
    let room = body.len().max(if call == Call::Capset { 1024 } else { 24 }) + 8;
    let (number, bytes) = (call.number(room).unwrap(), u32::try_from(room).unwrap());
    let ioctl = IoctlIn { handle, number, in_size: bytes, out_size: bytes, ..IoctlIn::default() };
    let mut arguments = [ioctl.as_bytes(), RequestHeader { size, reserved: 0 }.as_bytes(), body].concat();
    arguments.resize(size_of::<IoctlIn>() + room, 0);
    fuse(1, opcode::IOCTL, fs::GPU, &arguments)
}

fn open() -> Vec<u8> {
    fuse(1, opcode::OPEN, fs::GPU, OpenIn { flags: 2, open_flags: 0 }.as_bytes())
}

fn frame(slot: u32, opcode: u32, body: &[u8]) -> Vec<u8> {
    let size = (size_of::<FrameHeader>() + body.len()).next_multiple_of(8);
    let header = FrameHeader { magic: MAGIC, size: u32::try_from(size).unwrap(), opcode, slot, sequence: 1 };
    let mut frame = [header.as_bytes(), body].concat();
    frame.resize(size, 0);
    frame
}

/// What a process says that has a device page in this resource: messages, each for a submission of its own.
fn process(page: u32, memory: u32) -> Vec<Vec<u8>> {
    const PAGE_VA: u64 = 0x10_0000;
    const VA: u64 = 0x100_0000;
    let device = message::CreateDevice {
        protocol_version: PROTOCOL_VERSION,
        page_resource: page,
        page_offset: 0,
        page_va: PAGE_VA,
    };
    let map = message::MapMemory {
        resource: memory,
        flags: message::MAP_WRITABLE,
        offset: 0,
        va: VA,
        size: 64 << 10,
    };
    let copy = message::CreateContext { node: 1, engine_affinity: 1, flags: 0, reserved: 0 };
    let (first, second) = (Handle::new(0, 1), Handle::new(1, 1));
    let kernel = message::CreateQueue { context: first, flags: 0, reserved: 0 };
    let user = message::CreateQueue { flags: message::QUEUE_USER_MODE_SUBMISSION, ..kernel };
    let doorbell = message::CreateDoorbell {
        queue: second,
        ring_va: VA,
        control_va: VA + 0x1000,
        ring_resource: memory,
        control_resource: memory,
        ring_entries: 16,
        flags: 0,
        private_bytes: 0,
        reserved: 0,
        private_data: [0; message::DOORBELL_PRIVATE_BYTES],
    };
    let submit = message::Submit { queue: first, buffer_va: VA + 0x2000, length: 64, flags: 0 };
    let fence = CreateNativeFence {
        kind: native_fence::NATIVE_FENCE_DEFAULT,
        reserved: 0,
        initial_value: 0,
        va: VA + 0x10_0000,
    };
    let source = b"@compute @workgroup_size(1) fn main() { }";
    let wgsl = message::CreateKernel {
        language: message::LANGUAGE_WGSL,
        entry_bytes: 4,
        source_bytes: u32::try_from(source.len()).unwrap(),
        reserved: 0,
    };
    let wait = message::WaitFence { queue: first, value: 1 };
    let named = message::Named { handle: first };
    let unmap = message::UnmapMemory { va: VA, size: 64 << 10 };
    vec![
        frame(0, message::CREATE_DEVICE, device.as_bytes()),
        frame(1, message::QUERY_CAPS, &[]),
        frame(2, message::MAP_MEMORY, map.as_bytes()),
        frame(3, message::CREATE_CONTEXT, copy.as_bytes()),
        [
            frame(4, message::CREATE_QUEUE, kernel.as_bytes()),
            frame(5, message::CREATE_QUEUE, user.as_bytes()),
        ]
        .concat(),
        frame(6, message::CREATE_DOORBELL, doorbell.as_bytes()),
        frame(7, message::CONNECT_DOORBELL, named.as_bytes()),
        frame(8, native_fence::CREATE_NATIVE_FENCE, fence.as_bytes()),
        frame(9, message::CREATE_KERNEL, &[wgsl.as_bytes(), b"main", source].concat()),
        frame(10, message::SUBMIT, submit.as_bytes()),
        frame(11, message::WAIT_FENCE, wait.as_bytes()),
        frame(12, memory::QUERY_MEMORY, &[]),
        frame(13, message::SUSPEND_CONTEXT, named.as_bytes()),
        frame(14, message::RESUME_CONTEXT, named.as_bytes()),
        frame(15, message::DESTROY_DOORBELL, named.as_bytes()),
        frame(16, message::UNMAP_MEMORY, unmap.as_bytes()),
        frame(17, message::DESTROY_CONTEXT, named.as_bytes()),
        frame(18, message::DESTROY_DEVICE, &[]),
    ]
}

/// One request, which is answered.
pub(crate) fn hello(is_fs: bool) -> Vec<u8> {
    if is_fs {
        fuse(1, opcode::LOOKUP, fs::ROOT, b"gpu\0")
    } else {
        gpu_command(command::GET_CAPSET_INFO, 0, &[0; 8])
    }
}

/// A guest kernel that mounts, and a process that works, of whose blobs one is its own pages.
fn fs_set_up() -> Vec<u8> {
    let init = InitIn { major: 7, minor: 45, max_readahead: 1 << 17, flags: u32::MAX };
    let create = |memory, size| body::CreateBlob { memory, flags: 0, size };
    // INIT's answer has 6 words that are known, and OPEN's 2; a key stands behind 3 others.
    let (session, registrar) = (word(6), word(8));
    let key = [word(13), word(14)].map(u64::to_le_bytes).concat();
    let mut said = vec![fuse(1, opcode::INIT, 0, init.as_bytes()), open(), open()];
    said.push(call(session, Call::Key, &[]));
    said.push(call(registrar, Call::Join, &key));
    said.push(call(session, Call::Capset, &[]));
    said.push(call(session, Call::CreateBlob, create(body::MEMORY_APERTURE, 256 << 10).as_bytes()));
    said.push(call(session, Call::CreateBlob, create(body::MEMORY_VIDEO, 64 << 10).as_bytes()));
    said.push(call(session, Call::CreateBlob, create(body::MEMORY_PAGES, 8192).as_bytes()));
    let register = [
        InHeader {
            length: u32::try_from(size_of::<InHeader>() + size_of::<ReadIn>()).unwrap(),
            opcode: opcode::READ,
            unique: 4,
            node: fs::GPU,
            ..InHeader::default()
        }
        .as_bytes(),
        ReadIn { handle: registrar, offset: fs::place::registration(3), size: 8192, ..ReadIn::default() }
            .as_bytes(),
    ]
    .concat();
    said.push([vec![front::PAGES, 2, 16, 0], piece(&[7, 9]), piece(&register)].concat());
    said.push(vec![front::EVENT]);
    let awaits = body::AwaitBlob { blob: 3, reserved: 0, timeout: 1_000_000_000 };
    said.push(call(session, Call::AwaitBlob, awaits.as_bytes()));
    for frames in process(1, 2) {
        let submit = body::Submit {
            flags: body::SUBMIT_FENCE,
            ring: 1,
            length: u32::try_from(frames.len()).unwrap(),
            reserved: 0,
        };
        said.push(call(session, Call::Submit, &[submit.as_bytes(), &frames].concat()));
    }
    said.concat()
}

/// A few requests that are answered at once.
pub(crate) fn few() -> Vec<u8> {
    let list = ReadIn { size: 4096, ..ReadIn::default() };
    [
        hello(true),
        fuse(1, opcode::GETATTR, fs::GPU, &[0; 16]),
        fuse(1, opcode::READDIR, fs::ROOT, list.as_bytes()),
        open(),
        call(word(14), Call::Capset, &[]),
    ]
    .concat()
}

/// All that a guest kernel and its processes say to the fs front, which moves meanwhile.
pub(crate) fn fs() -> Vec<u8> {
    let (session, registrar) = (word(6), word(8));
    let wait = body::Wait { sequence: 3, timeout: 1_000_000_000 };
    let staged = frame(1, message::QUERY_CAPS, &[]);
    let write = WriteIn {
        handle: session,
        offset: fs::place::STAGE_BASE,
        size: u32::try_from(staged.len()).unwrap(),
        ..WriteIn::default()
    };
    let all = body::Submit { flags: body::SUBMIT_STAGED, ring: 0, length: write.size, reserved: 0 };
    let release = |handle| ReleaseIn { handle, ..ReleaseIn::default() };
    let list = ReadIn { size: 4096, ..ReadIn::default() };
    [
        fs_set_up(),
        fuse(3, opcode::WRITE, fs::GPU, &[write.as_bytes(), &staged].concat()),
        call(session, Call::Submit, all.as_bytes()),
        call(session, Call::Wait, wait.as_bytes()),
        vec![front::MOVE, front::EVENT],
        fuse(2, opcode::LOOKUP, fs::ROOT, b"gpu\0"),
        fuse(2, opcode::GETATTR, fs::GPU, &[0; 16]),
        fuse(2, opcode::READDIR, fs::ROOT, list.as_bytes()),
        fuse(2, opcode::STATFS, fs::ROOT, &[]),
        call(session, Call::DestroyBlob, body::BlobName { blob: 1, reserved: 0 }.as_bytes()),
        vec![front::MEMORY, front::PAUSE, front::MEMORY | 16],
        fuse(2, opcode::INTERRUPT, 0, &4u64.to_le_bytes()),
        call(session, Call::ReleaseAll, body::ReleaseAll { scope: 0, reserved: 0 }.as_bytes()),
        fuse(4, opcode::RELEASE, fs::GPU, release(registrar).as_bytes()),
        fuse(4, opcode::RELEASE, fs::GPU, release(session).as_bytes()),
        request(0, 0, InHeader { length: 40, opcode: opcode::FORGET, ..InHeader::default() }.as_bytes()),
        fuse(1, opcode::DESTROY, 0, &[]),
        vec![front::RESET],
    ]
    .concat()
}

fn gpu_command(kind: u32, ring: u8, arguments: &[u8]) -> Vec<u8> {
    let fence = if ring == 0 { 0 } else { command::FLAG_FENCE | command::FLAG_INFO_RING_IDX };
    let header =
        command::Header { kind, flags: fence, fence_id: 9, context_id: 3, ring_index: ring, padding: [0; 3] };
    request(0, 4096, &[header.as_bytes(), arguments].concat())
}

/// A guest kernel, and a process that works: request by request.
pub(crate) fn gpu_parts() -> Vec<Vec<u8>> {
    let create = command::ContextCreate {
        name_length: 4,
        context_init: CAPSET_ID,
        debug_name: [b'a'; command::DEBUG_NAME_BYTES],
    };
    let vram = |resource_id, size| blob::CreateBlob {
        resource_id,
        memory: blob::MEM_HOST3D,
        flags: blob::FLAG_MAPPABLE,
        entry_count: 0,
        blob_id: 0,
        size,
    };
    let guest = blob::CreateBlob { memory: blob::MEM_GUEST, flags: 0, entry_count: 2, ..vram(3, 8192) };
    let entries = [5u64, 8].map(|page| blob::MemEntry { address: page << 12, length: 4096, padding: 0 });
    let name = |resource_id| command::ResourceName { resource_id, padding: 0 };
    let map = |resource_id, offset| blob::MapBlob { resource_id, padding: 0, offset };
    let mut said = vec![
        gpu_command(command::GET_CAPSET_INFO, 0, &[0; 8]),
        gpu_command(command::GET_CAPSET, 0, command::GetCapset { id: CAPSET_ID, version: 0 }.as_bytes()),
        gpu_command(command::CTX_CREATE, 0, create.as_bytes()),
        gpu_command(
            command::RESOURCE_CREATE_BLOB,
            0,
            vram(1, DEVICE_PAGE_BYTES.next_multiple_of(4096)).as_bytes(),
        ),
        gpu_command(command::RESOURCE_CREATE_BLOB, 0, vram(2, 64 << 10).as_bytes()),
        gpu_command(command::RESOURCE_MAP_BLOB, 0, map(1, 0).as_bytes()),
        vec![front::WINDOW],
        gpu_command(command::RESOURCE_MAP_BLOB, 0, map(2, 1 << 20).as_bytes()),
        gpu_command(
            command::RESOURCE_CREATE_BLOB,
            0,
            &[guest.as_bytes(), entries[0].as_bytes(), entries[1].as_bytes()].concat(),
        ),
    ];
    said.extend(
        (1..4).map(|resource| gpu_command(command::CTX_ATTACH_RESOURCE, 0, name(resource).as_bytes())),
    );
    for frames in process(1, 2) {
        let submit = command::Submit3d { size: u32::try_from(frames.len()).unwrap(), padding: 0 };
        said.push(gpu_command(command::SUBMIT_3D, 2, &[submit.as_bytes(), &frames].concat()));
    }
    said
}

fn gpu_set_up() -> Vec<u8> {
    gpu_parts().concat()
}

/// All that a guest kernel and its processes say to the gpu front, which moves meanwhile.
pub(crate) fn gpu() -> Vec<u8> {
    let name = |resource_id| command::ResourceName { resource_id, padding: 0 };
    [
        gpu_set_up(),
        vec![front::MOVE, front::EVENT, front::WINDOW, front::PAUSE],
        gpu_command(command::RESOURCE_UNMAP_BLOB, 0, name(2).as_bytes()),
        gpu_command(command::CTX_DETACH_RESOURCE, 0, name(2).as_bytes()),
        gpu_command(command::RESOURCE_UNREF, 0, name(2).as_bytes()),
        gpu_command(command::CTX_DESTROY, 0, &[]),
        gpu_command(command::GET_DISPLAY_INFO, 0, &[]),
        vec![front::RESET],
    ]
    .concat()
}

/// The state of a device to which much was said.
pub(crate) fn moved(is_fs: bool) -> Vec<u8> {
    if is_fs {
        front::state_after::<campanile_daemon::frontend::fs::state::Fs>(&fs_set_up())
    } else {
        front::state_after::<campanile_daemon::frontend::gpu::device::Gpu>(&gpu_set_up())
    }
}
