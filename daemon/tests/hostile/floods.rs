//! Guests that ask for more and more: each thing has an end that is said in words, and gives back what it took.

use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::control::message::CreateQueue;
use campanile_protocol::control::message::MAP_WRITABLE;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::message::UnmapMemory;
use campanile_protocol::control::reply::QueueCreated;
use campanile_protocol::control::status::Status;
use campanile_protocol::handle::Handle;
use campanile_protocol::virtio_gpu::blob::CreateBlob;
use campanile_protocol::virtio_gpu::blob::MEM_GUEST;
use campanile_protocol::virtio_gpu::blob::MemEntry;
use campanile_protocol::virtio_gpu::command;
use campanile_protocol::virtio_gpu::response::ERR_OUT_OF_MEMORY;
use campanile_protocol::virtio_gpu::response::OK_NODATA;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::attacker::Attacker;
use crate::attacker::DATA_VA;
use crate::attacker::frame;
use crate::blobs::VRAM;
use crate::bystander::Bystander;
use crate::daemon::NEVER;
use crate::daemon::until;
use crate::packets::fill;
use crate::packets::wait;
use crate::processes::lose_engine;
use crate::ring::Ring;
use crate::scene::Scene;
use crate::signals::Stopped;
use crate::wire;
use crate::wire::FIRST_ID;

/// Calls `make` until it is refused for want of room; how often it was not.
fn until_refused(limit: u32, mut make: impl FnMut(u32) -> Status) -> u32 {
    for index in 0..=limit {
        match make(index) {
            Status::Ok => {}
            status => {
                assert_eq!(status, Status::OutOfResources, "at {index}");
                return index;
            }
        }
    }
    panic!("{limit} were given, and there is no end");
}

#[test]
fn commands_that_are_none_are_counted_and_not_logged() {
    let mut scene = Scene::new();
    let before = scene.daemon.log().len();
    for round in 0..20_000 {
        let answer = wire::command(&scene.vm, 0x7000 + round % 7, round, &[&[0; 16]]);
        assert_ne!(answer, OK_NODATA);
    }
    assert_eq!(scene.daemon.log().len(), before, "{}", scene.daemon.log());
    scene.unharmed();
}

#[test]
fn processes_without_end_are_refused() {
    let mut scene = Scene::new();
    let mut made = 0;
    while wire::create_context(&scene.vm, FIRST_ID + made, 24) == OK_NODATA {
        made += 1;
        assert!(made < 300, "there is no end");
    }
    assert_eq!(wire::create_context(&scene.vm, FIRST_ID + made, 24), ERR_OUT_OF_MEMORY);
    assert!(made > 200, "{made}");
    scene.unharmed();
    for context in FIRST_ID..FIRST_ID + made {
        assert_eq!(wire::command(&scene.vm, command::CTX_DESTROY, context, &[]), OK_NODATA);
    }
    Bystander::new(&scene.vm).compute();
    scene.unharmed();
}

#[test]
fn mcdm_06_contexts_and_queues_without_end_are_refused() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let context = attacker.create_context();
    let create = CreateContext { node: 1, engine_affinity: 1, flags: 0, reserved: 0 };
    let contexts = until_refused(2000, |_| attacker.status(message::CREATE_CONTEXT, create.as_bytes()));
    assert_eq!(contexts, 1023);
    let create = CreateQueue { context, flags: 0, reserved: 0 };
    let mut last = Handle::NONE;
    let queues = until_refused(2000, |_| {
        let (status, payload) = attacker.message(message::CREATE_QUEUE, create.as_bytes());
        if let Ok(created) = QueueCreated::read_from_bytes(&payload) {
            last = created.queue;
        }
        status
    });
    assert_eq!(queues, 1024);
    scene.unharmed();
    assert_eq!(attacker.named(message::DESTROY_QUEUE, last), Status::Ok);
    attacker.create_queue(context, 0);
    assert!(attacker.is_active());
}

#[test]
fn page_tables_without_end_are_refused_and_come_back() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let resource = attacker.context.create_blob(BlobMemory::Vram, 4096).unwrap().resource_id();
    let map = |index: u32| {
        // A table of the lowest level each.
        attacker.map(resource, 0, DATA_VA + (u64::from(index) << 21), 4096)
    };
    let first = until_refused(20_000, map);
    assert!(first > 10_000, "{first}");
    scene.unharmed();
    assert_eq!(attacker.status(message::DESTROY_DEVICE, &[]), Status::Ok);
    let again = Attacker::without_device(&scene.vm);
    until("the tables are there again", || again.open_device(&again.create_device()) == Some(Status::Ok));
    Ring::new(&again).run_first(&again, &fill(DATA_VA + (64 << 10), 4096, 1));
    Bystander::new(&scene.vm).compute();
    scene.unharmed();
}

#[test]
fn scattered_page_lists_without_end_are_refused_and_cost_the_daemon_no_mappings() {
    let mut scene = Scene::new();
    let pages = 4096;
    let ram = scene.vm.raw().ram(pages * 4096).unwrap();
    let list: Vec<MemEntry> = (0..pages)
        .rev()
        .map(|page| MemEntry { address: ram.address() + page * 4096, length: 4096, padding: 0 })
        .collect();
    let create = |index| CreateBlob {
        resource_id: FIRST_ID + index,
        memory: MEM_GUEST,
        flags: 0,
        entry_count: list.len().try_into().unwrap(),
        size: pages * 4096,
        ..VRAM
    };
    let before = scene.daemon.footprint();
    let mut made = 0;
    while wire::create_blob(&scene.vm, create(made), &list) == OK_NODATA {
        made += 1;
        assert!(made < 100, "there is no end");
    }
    assert_eq!(made, 11, "48 Ki runs, and the neighbour has some");
    assert_eq!(wire::create_blob(&scene.vm, create(made), &list), ERR_OUT_OF_MEMORY);
    let after = scene.daemon.footprint();
    assert!(after.0 <= before.0 + 4 && after.1 <= before.1 + 16, "{before:?} became {after:?}");
    scene.unharmed();
    for index in 0..made {
        assert_eq!(wire::name(&scene.vm, command::RESOURCE_UNREF, 0, FIRST_ID + index), OK_NODATA);
    }
    assert_eq!(wire::create_blob(&scene.vm, create(0), &list), OK_NODATA);
    Bystander::new(&scene.vm).compute();
    scene.unharmed();
}

#[test]
fn an_engine_that_starts_is_told_of_thousands_of_blobs() {
    let mut scene = Scene::new();
    let ram = scene.vm.raw().ram(4096).unwrap();
    let entry = MemEntry { address: ram.address(), length: 4096, padding: 0 };
    let before = scene.daemon.footprint();
    let mut made = 0;
    loop {
        let resource_id = FIRST_ID + made;
        let create = CreateBlob { resource_id, memory: MEM_GUEST, flags: 0, entry_count: 1, ..VRAM };
        match wire::create_blob(&scene.vm, create, &[entry]) {
            OK_NODATA => made += 1,
            answer => {
                assert_eq!(answer, ERR_OUT_OF_MEMORY);
                break;
            }
        }
    }
    assert!((4000..4096).contains(&made), "{made}");
    scene.unharmed();
    let neighbour = scene.give_neighbour_up();
    lose_engine(&scene.daemon, || neighbour.is_lost());
    drop(neighbour);
    for index in 0..8 {
        assert_eq!(wire::name(&scene.vm, command::RESOURCE_UNREF, 0, FIRST_ID + index), OK_NODATA);
    }
    Bystander::new(&scene.vm).compute();
    let after = scene.daemon.footprint();
    assert!(after.0 <= before.0 + 4 && after.1 <= before.1 + 16, "{before:?} became {after:?}");
    scene.unharmed();
}

/// Sends many messages as few commands, in slot 1; their answers overwrite each other.
fn pour(attacker: &Attacker, opcode: u32, count: u32, body: &[u8]) {
    let one = frame(opcode, 1, 0, body).len();
    let per_command = u32::try_from((64 << 10) / one).unwrap();
    let mut left = count;
    while left > 0 {
        let now = left.min(per_command);
        let frames: Vec<u8> = (0..now).flat_map(|_| frame(opcode, 1, attacker.sequence(), body)).collect();
        attacker.context.submit(&frames, None).unwrap().wait(Some(NEVER)).unwrap();
        left -= now;
    }
}

#[test]
fn mcdm_05_mcdm_06_submissions_without_end_are_refused_and_end_with_their_device() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let (_blob, memory) = attacker.memory(DATA_VA, 64 << 10);
    let packets = wait(DATA_VA + 4096, 1);
    memory.write(0, &packets).unwrap();
    let context = attacker.create_context();
    let queue = attacker.create_queue(context, 0).queue;
    let submit = Submit { queue, buffer_va: DATA_VA, length: packets.len().try_into().unwrap(), flags: 0 };
    // Two more are with the engine.
    pour(&attacker, message::SUBMIT, 65_536 + 2, submit.as_bytes());
    let (sequence, refused) = attacker.start(message::SUBMIT, 2, submit.as_bytes());
    refused.wait(Some(NEVER)).unwrap();
    assert_eq!(attacker.response(2, sequence).0, Status::OutOfResources);
    assert_eq!(attacker.named(message::DESTROY_QUEUE, queue), Status::Busy);
    scene.other_vm.compute();
    assert_eq!(attacker.status(message::DESTROY_DEVICE, &[]), Status::Ok);
    assert_eq!(attacker.open_device(&attacker.create_device()), Some(Status::Ok));
    let ring = Ring::at(&attacker, 1 << 32);
    ring.run_first(&attacker, &fill(ring.va + (64 << 10), 4096, 1));
    ring.reached(&attacker, 1);
    scene.unharmed();
}

#[test]
fn memory_given_back_to_an_engine_that_does_not_look_is_bounded() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    attacker.create_context();
    let resource = attacker.context.create_blob(BlobMemory::Vram, 4096).unwrap().resource_id();
    let engine = scene.daemon.engine(0);
    let stopped = Stopped::new(engine);
    let map = MapMemory { resource, flags: MAP_WRITABLE, offset: 0, va: DATA_VA, size: 4096 };
    let unmap = UnmapMemory { va: DATA_VA, size: 4096 };
    let rounds = until_refused(20_000, |_| {
        let status = attacker.status(message::MAP_MEMORY, map.as_bytes());
        if status == Status::Ok {
            assert_eq!(attacker.status(message::UNMAP_MEMORY, unmap.as_bytes()), Status::Ok);
        }
        status
    });
    assert!(rounds > 1000, "{rounds}");
    scene.other_vm.compute();
    drop(stopped);
    until("the engine lets go", || attacker.status(message::MAP_MEMORY, map.as_bytes()) == Status::Ok);
    assert_eq!(attacker.unmap(DATA_VA, 4096), Status::Ok);
    assert!(attacker.is_active());
    scene.unharmed();
}
