//! Guests that send whatever they like: each request is answered or parked, and others go on.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use campanile_protocol::fs;
use campanile_protocol::fs::call::Call;
use campanile_protocol::fs::fuse::InHeader;
use campanile_protocol::fs::fuse::OutHeader;
use campanile_protocol::fs::fuse::file::IoctlIn;
use campanile_protocol::fs::fuse::opcode;
use campanile_test_vmm::fuse::file::FuseFile;
use campanile_test_vmm::raw::RawDescriptor;
use campanile_test_vmm::vm::LoopbackVm;
use proptest::collection::vec;
use proptest::prelude::Just;
use proptest::prelude::Strategy;
use proptest::prelude::any;
use proptest::prop_oneof;
use proptest::test_runner::Config;
use proptest::test_runner::TestRunner;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::machine::Worker;
use crate::machine::machine;
use crate::support::until;

/// Stands for the handle of a file that is open.
const HANDLE: u64 = 0xfeed_f00d_cafe_0001;

/// Numbers that are likelier to mean something than others.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..16u64,
        Just(u64::MAX),
        Just(fs::SIZE),
        Just(fs::place::STAGE_BASE),
        (0..40u32).prop_map(fs::place::registration),
        (0..64u32).prop_map(|bit| 1 << bit),
    ]
}

/// The ioctl of any call, with any buffer that is near to right.
fn ioctl(handle: u64) -> impl Strategy<Value = Vec<u8>> {
    let calls = [
        Call::Capset,
        Call::CreateBlob,
        Call::Submit,
        Call::Wait,
        Call::DestroyBlob,
        Call::ReleaseAll,
        Call::Key,
        Call::Join,
        Call::AwaitBlob,
    ];
    let handle = prop_oneof![9 => Just(handle), 1 => word()];
    (0..calls.len(), handle, vec(word(), 0..8), 8..2048usize, any::<bool>()).prop_map(
        move |(call, handle, words, room, lies)| {
            let size = 8 + words.len() * 8;
            let room = room.max(size);
            let small = u32::try_from(room).unwrap();
            let out_size = if lies { small / 2 } else { small };
            let number = calls[call].number(room).unwrap();
            let ioctl = IoctlIn { handle, number, in_size: small, out_size, ..IoctlIn::default() };
            let mut bytes = ioctl.as_bytes().to_vec();
            bytes.extend(u64::try_from(size).unwrap().to_le_bytes());
            words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
            bytes.resize(size_of::<IoctlIn>() + room, 0);
            bytes
        },
    )
}

/// A request: which, of what, its arguments, and whether its header says how long it is.
fn request(handle: u64) -> impl Strategy<Value = (u32, u64, Vec<u8>, bool)> {
    let words = |first: u64| {
        (Just(first), vec(word(), 0..8)).prop_map(|(first, words)| {
            let mut bytes = first.to_le_bytes().to_vec();
            words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
            bytes
        })
    };
    let honest = prop_oneof![19 => Just(true), 1 => Just(false)];
    let node = prop_oneof![8 => Just(fs::GPU), 2 => Just(fs::ROOT), 1 => word()];
    let codes = prop_oneof![
        0..52u32,
        Just(opcode::OPEN),
        Just(opcode::WRITE),
        Just(opcode::READ),
        Just(opcode::READDIR),
        any::<u32>(),
    ];
    prop_oneof![
        (codes, node, words(handle), honest.clone()),
        (Just(opcode::IOCTL), Just(fs::GPU), ioctl(handle), honest),
    ]
}

/// Sends one, and waits for its answer, or for those after it where it may be parked.
fn send(
    vm: &Arc<LoopbackVm>,
    handle: u64,
    (opcode, node, mut arguments, honest): (u32, u64, Vec<u8>, bool),
    room: u32,
) {
    if let Some(first) = arguments.first_chunk_mut::<8>().filter(|first| **first == HANDLE.to_le_bytes()) {
        *first = handle.to_le_bytes();
    }
    let length = size_of::<InHeader>() + arguments.len();
    let header = InHeader {
        length: u32::try_from(length).unwrap() + u32::from(!honest),
        opcode,
        unique: 5,
        node,
        user: 1000,
        ..InHeader::default()
    };
    let bytes = [header.as_bytes(), &arguments].concat();
    let ram = vm.raw().ram(16 << 10).unwrap();
    ram.memory().write(0, &bytes).unwrap();
    let (request, answer) = (u32::try_from(bytes.len()).unwrap(), ram.address() + (8 << 10));
    let mut chain = vec![RawDescriptor { address: ram.address(), length: request, flags: 0, next: 0 }];
    if room > 0 {
        chain[0].flags = 1;
        chain[0].next = 1;
        chain.push(RawDescriptor { address: answer, length: room, flags: 2, next: 0 });
    }
    let chain = vm.raw().chain(fs::REQUEST_QUEUE, &chain).unwrap();
    // A wait of a second is the longest that may be parked; reads register nothing here.
    let written = chain.wait(Some(Duration::from_secs(20))).unwrap();
    let mut answer = [0; 16];
    ram.memory().read(8 << 10, &mut answer).unwrap();
    let header = OutHeader::read_from_bytes(&answer).unwrap();
    let is_forget = matches!(opcode, opcode::FORGET | opcode::BATCH_FORGET);
    if room >= 16 && !is_forget {
        assert_eq!((header.unique, header.error <= 0), (5, true), "{opcode}");
        assert!(written >= 16 && header.error > -4096);
    } else {
        assert_eq!(written, 0);
    }
}

#[test]
fn every_request_is_answered_and_harms_nobody() {
    let (_daemon, vm) = machine();
    let other = crate::support::Daemon::with_specs(&["vram=64M,front=fs"], &[]);
    let other_vm = other.vm_with(0, &crate::machine::options());
    let mut neighbour = Worker::new(&other_vm, 64 << 10);
    let file = RefCell::new(FuseFile::open(&vm).unwrap());
    let cases =
        std::env::var("CAMPANILE_FUZZ_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(600);
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let room = prop_oneof![8 => Just(4096u32), 1 => 0..64u32];
    runner
        .run(&(request(HANDLE), room), |(request, room)| {
            let mut file = file.borrow_mut();
            // Whatever the one before has closed.
            let is_open = file.call("KEY", Call::Key, &[], 16).is_ok();
            if !is_open {
                *file = FuseFile::open(&vm).unwrap();
            }
            send(&vm, file.handle, request, room);
            Ok(())
        })
        .unwrap();
    neighbour.work(1);
    // The guest's own kernel mounts anew, and its processes work.
    vm.reset_device().unwrap();
    Worker::new(&vm, 64 << 10).work(2);
}

#[test]
fn files_are_bounded() {
    let (_daemon, vm) = machine();
    let files: Vec<FuseFile> = std::iter::from_fn(|| FuseFile::open(&vm).ok()).take(5000).collect();
    assert_eq!(files.len(), 4096);
    drop(files);
    until("they can be opened again", || FuseFile::open(&vm).is_ok());
    // And sessions, which the device has 1024 or fewer of.
    let sessions: Vec<FuseFile> = std::iter::from_fn(|| {
        let file = FuseFile::open(&vm).ok()?;
        file.call("KEY", Call::Key, &[], 16).ok()?;
        Some(file)
    })
    .take(5000)
    .collect();
    assert!(sessions.len() < 4096);
    drop(sessions);
    Worker::new(&vm, 64 << 10).work(1);
}

#[test]
fn forgets_on_the_first_queue_need_no_room() {
    let (_daemon, vm) = machine();
    let header = InHeader { length: 48, opcode: opcode::FORGET, unique: 3, node: 2, ..InHeader::default() };
    let ram = vm.raw().ram(4096).unwrap();
    ram.memory().write(0, &[header.as_bytes(), &[1, 0, 0, 0, 0, 0, 0, 0]].concat()).unwrap();
    for _ in 0..300 {
        let forget = RawDescriptor { address: ram.address(), length: 48, flags: 0, next: 0 };
        let chain = vm.raw().chain(fs::HIPRIO_QUEUE, &[forget]).unwrap();
        assert_eq!(chain.wait(Some(crate::support::NEVER)).unwrap(), 0);
    }
    Worker::new(&vm, 64 << 10).work(1);
}
