//! Sessions: what a process does with the file, and what becomes of it.

use campanile_daemon::operator::client;
use campanile_daemon::operator::verb::Verb;
use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_guest_driver::transport::error::Refusal;
use campanile_guest_driver::transport::error::TransportError;
use campanile_protocol::capset::Capset;
use campanile_protocol::fs;
use campanile_protocol::fs::body::About;
use campanile_protocol::fs::body::BlobName;
use campanile_protocol::fs::body::CreateBlob;
use campanile_protocol::fs::body::CreatedBlob;
use campanile_protocol::fs::body::MEMORY_APERTURE;
use campanile_protocol::fs::body::MEMORY_VIDEO;
use campanile_protocol::fs::call::Call;
use campanile_protocol::fs::fuse::file::OpenIn;
use campanile_protocol::fs::fuse::file::ReadIn;
use campanile_protocol::fs::fuse::node::AttributesOut;
use campanile_protocol::fs::fuse::node::EntryOut;
use campanile_protocol::fs::fuse::node::StatOut;
use campanile_protocol::fs::fuse::opcode;
use campanile_test_vmm::fuse::file::FuseFile;
use campanile_test_vmm::fuse::request::FuseError;
use campanile_test_vmm::fuse::request::FuseRequest;
use campanile_test_vmm::options::PageLayout;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;
use rustix::io::Errno;
use std::sync::Arc;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::machine::Worker;
use crate::machine::machine;
use crate::machine::options;
use crate::machine::session;
use crate::support::Daemon;
use crate::support::until;

/// A request and its results, or its error number.
pub(crate) fn ask(vm: &Arc<LoopbackVm>, request: &FuseRequest<'_>) -> Result<Vec<u8>, Errno> {
    vm.fuse(request).unwrap().wait().map_err(|error| match error {
        FuseError::Errno(errno) => errno,
        FuseError::Transport(error) => panic!("{error}"),
    })
}

fn of(node: u64, opcode: u32, arguments: &[u8]) -> FuseRequest<'_> {
    FuseRequest { node, ..FuseRequest::new(opcode, arguments, 4096) }
}

#[test]
fn the_file_system_has_one_file() {
    let (_daemon, vm) = machine();
    let entry = ask(&vm, &of(fs::ROOT, opcode::LOOKUP, b"gpu\0")).unwrap();
    let entry = EntryOut::read_from_bytes(&entry).unwrap();
    assert_eq!((entry.node, entry.attributes.inode, entry.attributes.mode), (2, 2, 0o100_666));
    let attributes = ask(&vm, &of(fs::GPU, opcode::GETATTR, &[0; 16])).unwrap();
    assert_eq!(AttributesOut::read_from_bytes(&attributes).unwrap().attributes, entry.attributes);
    assert_eq!(ask(&vm, &of(fs::ROOT, opcode::LOOKUP, b"cpu\0")), Err(Errno::NOENT));
    assert_eq!(ask(&vm, &of(fs::GPU, opcode::LOOKUP, b"gpu\0")), Err(Errno::NOTDIR));
    assert_eq!(ask(&vm, &of(7, opcode::GETATTR, &[0; 16])), Err(Errno::NOENT));
    // `ls`.
    let open = OpenIn { flags: 0, open_flags: 0 };
    ask(&vm, &of(fs::ROOT, opcode::OPENDIR, open.as_bytes())).unwrap();
    let read = ReadIn { size: 4096, ..ReadIn::default() };
    let listed = ask(&vm, &of(fs::ROOT, opcode::READDIR, read.as_bytes())).unwrap();
    assert!(listed.windows(3).any(|name| name == b"gpu"));
    let rest = ReadIn { offset: 3, ..read };
    assert_eq!(ask(&vm, &of(fs::ROOT, opcode::READDIR, rest.as_bytes())), Ok(Vec::new()));
    let statistics = ask(&vm, &of(fs::ROOT, opcode::STATFS, &[])).unwrap();
    assert_eq!(StatOut::read_from_bytes(&statistics).unwrap().files, [2, 0]);
    ask(&vm, &of(fs::GPU, opcode::ACCESS, &[0; 8])).unwrap();
    // And nothing else can be made of it.
    for (request, errno) in [
        (of(fs::ROOT, opcode::MKDIR, b"\0\0\0\0\0\0\0\0new\0"), Errno::ROFS),
        (of(fs::ROOT, opcode::UNLINK, b"gpu\0"), Errno::ROFS),
        (of(fs::ROOT, opcode::CREATE, &[0; 20]), Errno::ROFS),
        (of(fs::GPU, opcode::SETATTR, &[0; 88]), Errno::PERM),
        (of(fs::ROOT, opcode::OPEN, open.as_bytes()), Errno::ISDIR),
        (of(fs::GPU, 4000, &[]), Errno::NOSYS),
        (of(fs::GPU, opcode::OPEN, &[]), Errno::INVAL),
    ] {
        assert_eq!(ask(&vm, &request), Err(errno), "{request:?}");
    }
}

#[test]
fn guests_compute_in_pages_of_their_own() {
    let daemon = Daemon::with_specs(&["vram=64M,front=fs"], &[]);
    let scattered = PageLayout::Scattered { run_pages: 1 };
    // Each page a descriptor of the ring, where there are no indirect ones: half of the ring is for them.
    let layouts = [(PageLayout::Contiguous, true), (scattered, true), (PageLayout::Contiguous, false)];
    for (pages, indirect) in layouts {
        let vm = daemon.vm_with(0, &VmOptions { pages, indirect, ..options() });
        let mut workers = [0, 1].map(|_| Worker::new(&vm, 256 << 10));
        for round in 0..4 {
            workers.iter_mut().for_each(|worker| worker.work(round));
        }
        workers.iter().for_each(Worker::check);
    }
}

/// Guests of this front do not let go of a device: they would be lost.
#[test]
fn a_vgpu_that_its_vmm_migrates_is_not_taken_away() {
    let folder = tempfile::tempdir().unwrap();
    let (control, file) = (folder.path().join("control"), folder.path().join("away"));
    let daemon = Daemon::with_specs(&["vram=64M,front=fs"], &["--control", control.to_str().unwrap()]);
    let vm = daemon.vm_with(0, &options());
    let mut worker = Worker::new(&vm, 256 << 10);
    let detach = Verb::Detach { vgpu: "v0".to_owned(), file: file.clone(), limit: 0 };
    let refused = client::ask(&control, &detach).unwrap_err().to_string();
    assert!(refused.contains("v0") && refused.contains("its front is fs"), "{refused}");
    assert!(!file.exists());
    worker.work(1);
    worker.check();
}

#[test]
fn guests_compute_in_the_aperture_and_ranges_of_it_come_back_cleared() {
    const APERTURE: u64 = 4 << 20;
    let daemon = Daemon::with_specs(&["vram=64M,front=fs,aperture=4M"], &[]);
    let vm = daemon.vm_with(0, &VmOptions { aperture: APERTURE, ..options() });
    for round in 0..3 {
        let mut worker = Worker::new(&vm, 256 << 10);
        worker.work(round);
        worker.work(round + 9);
        drop(worker);
        // Its ranges are free when no engine has them any more.
        let all = || session(&vm).create_blob(BlobMemory::GuestRam, APERTURE).is_ok();
        until("the aperture is free", all);
    }
    let first = session(&vm);
    let mut blob = None;
    until("all of the aperture can be had", || {
        blob = first.create_blob(BlobMemory::GuestRam, APERTURE).ok();
        blob.is_some()
    });
    let blob = blob.unwrap();
    let memory = first.map(&blob).unwrap();
    let mut bytes = vec![1; usize::try_from(APERTURE).unwrap()];
    memory.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0), "what others left there");
    let full = session(&vm).create_blob(BlobMemory::GuestRam, 4096).unwrap_err();
    assert!(matches!(full, TransportError::Refused { refusal: Refusal::OutOfMemory, .. }), "{full}");
    memory.write(0, &bytes).unwrap();
    drop(first);
    until("it is free", || session(&vm).create_blob(BlobMemory::GuestRam, APERTURE).is_ok());
}

#[test]
fn a_vm_without_the_aperture_is_told_so() {
    let daemon = Daemon::with_specs(&["vram=64M,front=fs,aperture=4M"], &[]);
    let vm = daemon.vm_with(0, &VmOptions { aperture: 8 << 20, ..options() });
    let file = FuseFile::open(&vm).unwrap();
    let room = size_of::<About>() + size_of::<Capset>();
    let told = file.call("CAPSET", Call::Capset, &[], room).unwrap();
    let (about, capset) = About::read_from_prefix(&told).unwrap();
    assert_eq!(about.aperture_bytes, 0);
    assert_eq!(Capset::read_from_bytes(capset).unwrap().vram_bytes, 64 << 20);
    let create = CreateBlob { memory: MEMORY_APERTURE, flags: 0, size: 4096 };
    let refused = file.ask::<CreatedBlob, _>("CREATE_BLOB", Call::CreateBlob, &create).unwrap_err();
    assert!(matches!(refused, TransportError::Refused { refusal: Refusal::OutOfMemory, .. }), "{refused}");
}

#[test]
fn frames_that_are_longer_than_an_ioctl_are_written_before() {
    let (_daemon, vm) = machine();
    let guest = crate::raw::RawGuest::over(session(&vm), BlobMemory::GuestRam);
    // A message of 100 KiB that nobody knows, and its answer.
    let body = vec![0u8; 100 << 10];
    let submission = crate::raw::submit_frame(guest.transport(), 0, 1 << 40, 9999, &body);
    submission.wait(Some(crate::support::NEVER)).unwrap();
    assert_eq!(guest.load(campanile_protocol::device_page::response(0)), 1 << 40);
    // What is staged is staged in order, and by this process.
    let file = guest.transport().file();
    let at = campanile_protocol::fs::place::STAGE_BASE;
    file.write(at, &[1; 100]).unwrap();
    file.write(at + 50, &[1; 100]).unwrap_err();
    file.write(at + 100, &[1; 4000]).unwrap();
    file.write(at, &[0; 8]).unwrap();
    file.write(at + 8, &vec![0; 128 << 10]).unwrap_err();
    file.write(0, &[0; 8]).unwrap_err();
    guest.round_trip();
}

#[test]
fn a_blob_is_its_processes_own_and_video_memory_is_never_seen() {
    let (_daemon, vm) = machine();
    let (one, other) = (session(&vm), session(&vm));
    let create = CreateBlob { memory: MEMORY_VIDEO, flags: 0, size: 1 << 20 };
    let made: CreatedBlob = one.file().ask("CREATE_BLOB", Call::CreateBlob, &create).unwrap();
    let name = BlobName { blob: made.blob, reserved: 0 };
    other.file().call("DESTROY_BLOB", Call::DestroyBlob, name.as_bytes(), 0).unwrap_err();
    one.file().call("DESTROY_BLOB", Call::DestroyBlob, name.as_bytes(), 0).unwrap();
    one.file().call("DESTROY_BLOB", Call::DestroyBlob, name.as_bytes(), 0).unwrap_err();
    let huge = CreateBlob { size: 1 << 40, ..create };
    let refused = one.file().ask::<CreatedBlob, _>("CREATE_BLOB", Call::CreateBlob, &huge).unwrap_err();
    assert!(matches!(refused, TransportError::Refused { refusal: Refusal::OutOfMemory, .. }), "{refused}");
}

#[test]
fn files_of_before_a_reset_mean_nothing() {
    let (_daemon, vm) = machine();
    let old = session(&vm);
    let handle = old.file().handle;
    vm.reset_device().unwrap();
    let arguments = campanile_protocol::fs::fuse::file::WriteIn { handle, ..Default::default() };
    assert_eq!(ask(&vm, &of(fs::GPU, opcode::WRITE, arguments.as_bytes())), Err(Errno::NODEV));
    let release = campanile_protocol::fs::fuse::file::ReleaseIn { handle, ..Default::default() };
    ask(&vm, &of(fs::GPU, opcode::RELEASE, release.as_bytes())).unwrap();
    let new = session(&vm);
    assert_ne!(new.file().handle, handle);
    Worker::new(&vm, 64 << 10).work(1);
}
