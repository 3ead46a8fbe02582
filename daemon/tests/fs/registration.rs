//! Pages of processes: registered by reads that the daemon holds, and let go when nobody uses them.

use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_protocol::fs;
use campanile_protocol::fs::body;
use campanile_protocol::fs::body::AwaitBlob;
use campanile_protocol::fs::body::CreateBlob;
use campanile_protocol::fs::body::CreatedBlob;
use campanile_protocol::fs::body::Key;
use campanile_protocol::fs::body::ReleaseAll;
use campanile_protocol::fs::body::Waited;
use campanile_protocol::fs::call::Call;
use campanile_protocol::fs::fuse::InHeader;
use campanile_protocol::fs::fuse::OutHeader;
use campanile_protocol::fs::fuse::file::ReadIn;
use campanile_protocol::fs::fuse::file::ReleaseIn;
use campanile_protocol::fs::fuse::opcode;
use campanile_test_vmm::fuse::context::FuseContext;
use campanile_test_vmm::fuse::file::FuseFile;
use campanile_test_vmm::fuse::request::FuseReply;
use campanile_test_vmm::fuse::request::FuseRequest;
use campanile_test_vmm::raw::RawDescriptor;
use campanile_test_vmm::vm::LoopbackVm;
use rustix::io::Errno;
use std::sync::Arc;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::machine::Worker;
use crate::machine::machine;
use crate::machine::raw;
use crate::machine::session;
use crate::sessions::ask;
use crate::support::NEVER;
use crate::support::until;
use crate::waits::errno;

const NEXT: u16 = 1;
const WRITE: u16 = 2;

fn assert_all_end(reads: &[FuseReply]) {
    for read in reads {
        assert_eq!(read.wait().unwrap(), [0u8; 0]);
    }
}

fn release(vm: &Arc<LoopbackVm>, file: &FuseFile) {
    let release = ReleaseIn { handle: file.handle, ..ReleaseIn::default() };
    ask(vm, &FuseRequest::new(opcode::RELEASE, release.as_bytes(), 0)).unwrap();
}

#[test]
fn reads_are_held_as_long_as_the_gpu_has_the_pages() {
    let (_daemon, vm) = machine();
    let guest = raw(&vm);
    let memory = guest.memory(BlobMemory::GuestRam, 1 << 20);
    let reads = guest.transport().reads(memory.resource());
    assert_eq!(reads.len(), 3);
    let va = memory.va;
    let size = memory.size();
    guest.free(memory);
    guest.round_trip();
    assert!(reads.iter().all(|read| !read.is_done()), "the GPU sees them");
    let unmap = campanile_protocol::control::message::UnmapMemory { va, size };
    guest.call(campanile_protocol::control::message::UNMAP_MEMORY, &unmap).unwrap();
    assert_all_end(&reads);
}

#[test]
fn reads_end_with_the_session_though_their_own_file_is_open() {
    let (_daemon, vm) = machine();
    let mut other = Worker::new(&vm, 64 << 10);
    let guest = raw(&vm);
    let memory = guest.memory(BlobMemory::GuestRam, 1 << 20);
    let reads = guest.transport().reads(memory.resource());
    other.work(1);
    release(&vm, guest.transport().file());
    assert_all_end(&reads);
    other.work(2);
}

#[test]
fn reads_end_when_the_file_system_goes() {
    let (_daemon, vm) = machine();
    let guest = raw(&vm);
    let memory = guest.memory(BlobMemory::GuestRam, 64 << 10);
    let reads = guest.transport().reads(memory.resource());
    ask(&vm, &FuseRequest { node: 0, ..FuseRequest::new(opcode::DESTROY, &[], 0) }).unwrap();
    assert_all_end(&reads);
}

#[test]
fn whoever_powers_off_has_all_reads_answered() {
    let (_daemon, vm) = machine();
    let (one, other) = (raw(&vm), raw(&vm));
    let blobs = [&one, &other].map(|guest| guest.memory(BlobMemory::GuestRam, 64 << 10));
    let reads = [one.transport().reads(blobs[0].resource()), other.transport().reads(blobs[1].resource())];
    let tool = FuseFile::open(&vm).unwrap();
    let all = ReleaseAll { scope: body::RELEASE_VM, reserved: 0 };
    let refused = tool.begin(Call::ReleaseAll, all.as_bytes(), 0, 1000).unwrap();
    assert_eq!(errno(&refused), Errno::PERM, "not for everyone");
    let own = ReleaseAll { scope: body::RELEASE_SESSION, reserved: 0 };
    one.transport().file().call("RELEASE_ALL", Call::ReleaseAll, own.as_bytes(), 0).unwrap();
    assert!(reads[1].iter().all(|read| !read.is_done()));
    tool.begin(Call::ReleaseAll, all.as_bytes(), 0, 0).unwrap().wait().unwrap();
    assert_all_end(&reads[0]);
    assert_all_end(&reads[1]);
    assert!(other.transport().capset().is_err());
}

/// A session that registers by hand.
struct Registrant {
    vm: Arc<LoopbackVm>,
    context: FuseContext,
    blob: u32,
    offset: u64,
}

impl Registrant {
    fn new(vm: &Arc<LoopbackVm>, bytes: u64) -> Self {
        let context = session(vm);
        context.registrar().unwrap();
        let create = CreateBlob { memory: body::MEMORY_PAGES, flags: 0, size: bytes };
        let CreatedBlob { blob, offset, .. } =
            context.file().ask("CREATE_BLOB", Call::CreateBlob, &create).unwrap();
        Self { vm: Arc::clone(vm), context, blob, offset }
    }

    /// A read of `size` bytes, by what it says, into `pages`; its error, if it is answered.
    fn read(&self, handle: u64, offset: u64, size: u32, pages: &[(u64, u32)]) -> Option<i32> {
        let read = ReadIn { handle, offset, size, ..ReadIn::default() };
        let header =
            InHeader { length: 80, opcode: opcode::READ, unique: 77, node: fs::GPU, ..InHeader::default() };
        let own = self.vm.raw().ram(4096).unwrap();
        own.memory().write(0, &[header.as_bytes(), read.as_bytes()].concat()).unwrap();
        let mut descriptors = vec![
            RawDescriptor { address: own.address(), length: 80, flags: NEXT, next: 1 },
            RawDescriptor { address: own.address() + 128, length: 16, flags: NEXT | WRITE, next: 2 },
        ];
        for ((address, length), next) in pages.iter().zip(3..) {
            let last = usize::from(next) == pages.len() + 2;
            let flags = if last { WRITE } else { NEXT | WRITE };
            descriptors.push(RawDescriptor { address: *address, length: *length, flags, next });
        }
        if pages.is_empty() {
            descriptors[1].flags = WRITE;
        }
        let chain = self.vm.raw().chain(fs::REQUEST_QUEUE, &descriptors).unwrap();
        // What comes after it is answered after it, or it is parked.
        self.context.capset().unwrap();
        chain.is_done().then(|| {
            chain.wait(Some(NEVER)).unwrap();
            let mut bytes = [0; 16];
            own.memory().read(128, &mut bytes).unwrap();
            OutHeader::read_from_bytes(&bytes).unwrap().error
        })
    }

    fn is_ready(&self) -> bool {
        let ask = AwaitBlob { blob: self.blob, reserved: 0, timeout: 0 };
        let waited: Waited = self.context.file().ask("AWAIT_BLOB", Call::AwaitBlob, &ask).unwrap();
        waited.done != 0
    }
}

#[test]
fn a_registration_that_lies_is_refused_and_nothing_of_it_is_kept() {
    let (_daemon, vm) = machine();
    let mut bystander = Worker::new(&vm, 64 << 10);
    let one = Registrant::new(&vm, 4 * 4096);
    let stranger = Registrant::new(&vm, 4 * 4096);
    let pages = vm.raw().ram(8 * 4096).unwrap();
    let at = |page: u64| pages.address() + page * 4096;
    let handle = one.context.registrar().unwrap().handle;
    let base = one.offset;
    let invalid = -Errno::INVAL.raw_os_error();
    for (what, handle, offset, size, list) in [
        ("more bytes than pages", handle, base, 8192, vec![(at(0), 4096)]),
        ("more pages than bytes", handle, base, 4096, vec![(at(0), 8192)]),
        ("no pages", handle, base, 4096, vec![]),
        ("nothing", handle, base, 0, vec![(at(0), 4096)]),
        ("half a page", handle, base, 2048, vec![(at(0), 2048)]),
        ("crooked pages", handle, base, 4096, vec![(at(0) + 8, 4096)]),
        ("two halves", handle, base, 4096, vec![(at(0), 2048), (at(0) + 2048, 2048)]),
        ("a crooked place", handle, base + 8, 4096, vec![(at(0), 4096)]),
        ("past the end", handle, base + 3 * 4096, 8192, vec![(at(0), 8192)]),
        ("no blob", handle, base + (9 << 32), 4096, vec![(at(0), 4096)]),
        ("another's blob", handle, stranger.offset, 4096, vec![(at(0), 4096)]),
        ("no place", handle, 0, 4096, vec![(at(0), 4096)]),
        ("by the session's file", one.context.file().handle, base, 4096, vec![(at(0), 4096)]),
    ] {
        assert_eq!(one.read(handle, offset, size, &list), Some(invalid), "{what}");
    }
    let gone = -Errno::NODEV.raw_os_error();
    assert_eq!(one.read(handle ^ 1 << 40, base, 4096, &[(at(0), 4096)]), Some(gone), "no file");
    assert!(!one.is_ready());
    assert_eq!(one.read(handle, base + 4096, 8192, &[(at(1), 4096), (at(2), 4096)]), None);
    let there = -Errno::EXIST.raw_os_error();
    for (offset, size) in [(4096, 4096), (0, 8192), (8192, 8192), (8192, 4096)] {
        let list = [(at(4), size)];
        assert_eq!(one.read(handle, base + offset, size, &list), Some(there), "registered twice: {offset}");
    }
    assert_eq!(one.read(handle, base, 4096, &[(at(0), 4096)]), None);
    assert!(!one.is_ready());
    assert_eq!(one.read(handle, base + 3 * 4096, 4096, &[(at(3), 4096)]), None);
    until("all pages are there", || one.is_ready());
    assert_eq!(one.read(handle, base, 4096, &[(at(0), 4096)]), Some(invalid), "it is ready already");
    bystander.work(5);
}

#[test]
fn pages_that_are_no_memory_are_refused() {
    let (_daemon, vm) = machine();
    let one = Registrant::new(&vm, 4096);
    let handle = one.context.registrar().unwrap().handle;
    // The chain itself cannot be read: EIO.
    assert!(one.read(handle, one.offset, 4096, &[(1 << 50, 4096)]).is_some_and(|errno| errno < 0));
    assert!(!one.is_ready());
    Worker::new(&vm, 64 << 10).work(1);
}

#[test]
fn more_reads_than_a_ring_has_room_for_are_refused_and_calls_go_on() {
    let (_daemon, vm) = machine();
    let one = Registrant::new(&vm, 200 * 4096);
    let pages = vm.raw().ram(200 * 4096).unwrap();
    let handle = one.context.registrar().unwrap().handle;
    // Raw chains are not indirect: three descriptors each, of a ring of 256.
    let read = |page: u64| {
        one.read(handle, one.offset + page * 4096, 4096, &[(pages.address() + page * 4096, 4096)])
    };
    let held = (0..60).take_while(|page| read(*page).is_none()).count();
    assert_eq!(held, 128 / 3);
    assert_eq!(read(100), Some(-Errno::NOMEM.raw_os_error()));
    let guest = session(&vm);
    for _ in 0..100 {
        guest.capset().unwrap();
    }
    drop(one);
    until("others have room", || vm.free_descriptors() > 250);
    Worker::new(&vm, 64 << 10).work(1);
}

#[test]
fn keys_are_for_those_who_have_them() {
    let (_daemon, vm) = machine();
    let one = session(&vm);
    let key: Key = one.file().ask("KEY", Call::Key, &()).unwrap();
    let again: Key = one.file().ask("KEY", Call::Key, &()).unwrap();
    assert_eq!(key, again);
    let file = FuseFile::open(&vm).unwrap();
    for wrong in [Key::default(), Key { words: [key.words[0], !key.words[1]] }] {
        file.call("JOIN", Call::Join, wrong.as_bytes(), 0).unwrap_err();
    }
    file.call("JOIN", Call::Join, key.as_bytes(), 0).unwrap();
    file.call("JOIN", Call::Join, key.as_bytes(), 0).unwrap_err();
    one.file().call("JOIN", Call::Join, key.as_bytes(), 0).unwrap_err();
    file.call("KEY", Call::Key, &[], 16).unwrap_err();
}

#[test]
fn a_process_that_dies_between_two_parts_leaves_nothing() {
    let (_daemon, vm) = machine();
    let free = vm.free_descriptors();
    let one = Registrant::new(&vm, 8192);
    let pages = vm.raw().ram(4096).unwrap();
    let handle = one.context.registrar().unwrap().handle;
    assert_eq!(one.read(handle, one.offset, 4096, &[(pages.address(), 4096)]), None);
    let ask = AwaitBlob { blob: one.blob, reserved: 0, timeout: body::MAX_TIMEOUT };
    let wait = one.context.file().begin(Call::AwaitBlob, ask.as_bytes(), 8, 1000).unwrap();
    release(&vm, one.context.file());
    assert!(wait.wait().is_ok() || errno(&wait) == Errno::NODEV, "refused, or a call of nobody");
    drop(one);
    until("every descriptor came back", || vm.free_descriptors() == free);
}
