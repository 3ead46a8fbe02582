//! Doorbells that are connected without end, rung when they are gone, or rung with nonsense.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;
use std::time::Instant;

use campanile_daemon::host::engines::EngineOptions;
use campanile_daemon::host::options::HostOptions;
use campanile_daemon::host::options::VgpuOptions;
use campanile_daemon::host::start::Host;
use campanile_daemon::vgpu::doorbells::rate::BURST;
use campanile_daemon::vgpu::doorbells::rate::EARNED_IN;
use campanile_host_gpu::adapter::program::Program;
use campanile_protocol::capset::NODE_COPY;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateDoorbell;
use campanile_protocol::control::message::DOORBELL_NOTIFY;
use campanile_protocol::control::message::DOORBELL_PRIVATE_BYTES;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::message::Notify;
use campanile_protocol::control::message::QUEUE_USER_MODE_SUBMISSION;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::handle::Handle;
use campanile_protocol::queue::doorbell::global_value;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;
use zerocopy::IntoBytes;

use crate::attacker::Attacker;
use crate::bystander::Bystander;
use crate::daemon::NEVER;
use crate::packets::fill;
use crate::ring::Ring;
use crate::ring::doorbell;
use crate::scene::Scene;

#[test]
fn a_storm_of_connects_is_slowed_to_its_guests_rate_and_slows_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let nothing = |name: &str| (name.to_owned(), "/nonexistent".to_owned());
    let vgpu = |name: &str| VgpuOptions::new(name.to_owned(), folder.path().join(name), 64 << 20);
    let program = Program::new(
        PathBuf::from(env!("CARGO_BIN_EXE_campanile")),
        vec![nothing("VK_DRIVER_FILES"), nothing("VK_ICD_FILENAMES")],
    );
    let vgpus = vec![vgpu("a"), vgpu("b")];
    let host = Host::start(HostOptions {
        engines: EngineOptions {
            doorbells: 1,
            spin: Duration::from_secs(600),
            spares: false,
            ..EngineOptions::new(program.clone())
        },
        ..HostOptions::new(vgpus, program)
    })
    .unwrap();
    let [vm, other_vm] =
        ["a", "b"].map(|name| LoopbackVm::connect(folder.path().join(name), &VmOptions::default()).unwrap());
    let (mut neighbour, mut other) = (Bystander::new(&vm), Bystander::new(&other_vm));
    let attacker = Attacker::new(&vm);
    let rings = [Ring::new(&attacker), Ring::at(&attacker, 1 << 34)];
    let counters = &host.vgpus[0].counters;
    let begun = Instant::now();
    let before = counters.connects.load(Ordering::Relaxed);
    let done = AtomicBool::new(false);
    // As many messages under way as there are places for answers, each for the doorbell that does not have the slot.
    let storm = |attacker: &Attacker| {
        let mut connects = 0u64;
        while !done.load(Ordering::Acquire) {
            let messages: Vec<_> = (0..30u32)
                .map(|slot| {
                    let handle = rings[(slot % 2) as usize].bell.doorbell;
                    attacker.start(message::CONNECT_DOORBELL, slot, Named { handle }.as_bytes())
                })
                .collect();
            for (slot, (sequence, submission)) in (0u32..).zip(messages) {
                submission.wait(Some(NEVER)).unwrap();
                let (status, _) = attacker.response(slot, sequence);
                assert_eq!(status, Status::Ok);
                connects += 1;
            }
        }
        connects
    };
    let stormed = thread::scope(|scope| {
        let honest = scope.spawn(|| {
            for _ in 0..100 {
                neighbour.compute();
                other.compute();
            }
            done.store(true, Ordering::Release);
        });
        let stormed = storm(&attacker);
        honest.join().unwrap();
        stormed
    });
    let made = counters.connects.load(Ordering::Relaxed) - before;
    let earned = begun.elapsed().as_nanos() / EARNED_IN.as_nanos();
    assert!(stormed > 1000 && made > 0, "{stormed}, {made}");
    assert!(u128::from(made) <= u128::from(BURST) + earned + 1, "{made} in {:?}", begun.elapsed());
    assert!(counters.connects_delayed.load(Ordering::Relaxed) > 0, "nothing slowed it");
    assert!(attacker.is_active() && !neighbour.is_lost() && !other.is_lost());
}

#[test]
fn connects_that_nobody_waits_for_are_bounded() {
    let mut scene = Scene::with(&["--doorbells", "1", "--spin", "600000000"]);
    let attacker = scene.attacker();
    let rings = [Ring::new(&attacker), Ring::at(&attacker, 1 << 34)];
    // Far more than there are places for answers, and none is awaited. What is too much is refused at once, so that the
    // answers are out of order.
    let submissions: Vec<_> = (0..20_000u32)
        .map(|round| {
            let handle = rings[(round % 2) as usize].bell.doorbell;
            attacker.start(message::CONNECT_DOORBELL, 2, Named { handle }.as_bytes()).1
        })
        .collect();
    for submission in submissions {
        submission.wait(Some(NEVER)).unwrap();
    }
    assert_eq!(attacker.named(message::CONNECT_DOORBELL, rings[0].bell.doorbell), Status::Ok);
    assert!(attacker.is_active());
    scene.unharmed();
    // A process that ends with connects in line takes them along.
    for slot in 2..30 {
        let handle = rings[(slot % 2) as usize].bell.doorbell;
        attacker.start(message::CONNECT_DOORBELL, slot, Named { handle }.as_bytes());
    }
    drop(attacker);
    scene.unharmed();
}

#[test]
fn a_doorbell_that_was_destroyed_rings_nobody() {
    for model in ["dedicated", "global"] {
        let mut scene = Scene::with(&["--doorbell-model", model]);
        let attacker = scene.attacker();
        let gone = Ring::new(&attacker);
        gone.run_first(&attacker, &fill(gone.va + (64 << 10), 4096, 1));
        gone.reached(&attacker, 1);
        assert_eq!(attacker.named(message::DESTROY_DOORBELL, gone.bell.doorbell), Status::Ok);
        // The engine has looked at its tables when it has let go of this.
        let (_blob, _memory) = attacker.memory(1 << 35, 4096);
        assert_eq!(attacker.unmap(1 << 35, 4096), Status::Ok);
        for write_pointer in [2, 3, u64::MAX] {
            // Its words are still in the page of the process.
            gone.write(write_pointer - 1, &gone.entry(0, write_pointer));
            gone.store_ring(&attacker, write_pointer);
            assert_eq!(attacker.named(message::CONNECT_DOORBELL, gone.bell.doorbell), Status::InvalidHandle);
            let notify = Notify { queue: gone.queue.queue, flags: 0, reserved: 0 };
            assert_eq!(attacker.status(message::NOTIFY, notify.as_bytes()), Status::Ok, "the queue is there");
        }
        scene.unharmed();
        assert_eq!(attacker.word(gone.queue.fence_offset), 1);
        // A new doorbell of the same queue begins where its ring control says, and not where the old one was rung.
        assert_eq!(attacker.named(message::DESTROY_QUEUE, gone.queue.queue), Status::Ok);
        let next = Ring::at(&attacker, 1 << 34);
        next.run_first(&attacker, &fill(next.va + (64 << 10), 4096, 1));
        next.reached(&attacker, 1);
        assert!(attacker.is_active());
        scene.unharmed();
    }
}

#[test]
fn nonsense_in_a_global_cell_harms_nobody() {
    let mut scene = Scene::with(&["--doorbell-model", "global"]);
    let attacker = scene.attacker();
    let ring = Ring::new(&attacker);
    let cell = attacker.page.word(device_page::global_cell(0, NODE_COPY)).unwrap();
    for round in 0..2000u32 {
        let value = match round % 4 {
            0 => global_value(NODE_COPY, 1000 + round),
            1 => global_value(round, 0),
            2 => u64::from(round),
            _ => u64::MAX - u64::from(round),
        };
        cell.store(value, Ordering::Release);
        if round % 200 == 0 {
            scene.unharmed();
        }
    }
    // The cell of the other node belongs to nobody here.
    attacker.page.word(device_page::global_cell(0, 0)).unwrap().store(u64::MAX, Ordering::Release);
    ring.run_first(&attacker, &fill(ring.va + (64 << 10), 4096, 1));
    ring.reached(&attacker, 1);
    assert!(attacker.is_active());
    scene.unharmed();
}

#[test]
fn doorbells_that_cannot_be_are_refused() {
    let mut scene = Scene::new();
    let (attacker, victim) = (scene.attacker(), scene.attacker());
    let theirs = Ring::at(&victim, 1 << 34);
    let (blob, _memory) = attacker.memory(crate::attacker::DATA_VA, crate::ring::BYTES);
    let context = attacker.create_context();
    let queue = attacker.create_queue(context, QUEUE_USER_MODE_SUBMISSION).queue;
    let right = doorbell(queue, &blob, crate::attacker::DATA_VA);
    let create = |create: CreateDoorbell| attacker.status(message::CREATE_DOORBELL, create.as_bytes());
    for private_bytes in [17, 32, 1 << 31, u32::MAX] {
        assert_eq!(create(CreateDoorbell { private_bytes, ..right }), Status::InvalidParameter);
    }
    for bit in 3..32 {
        let flags = 1 << bit;
        assert_eq!(create(CreateDoorbell { flags, ..right }), Status::InvalidParameter);
        assert_eq!(
            create(CreateDoorbell { flags: flags | DOORBELL_NOTIFY, ..right }),
            Status::InvalidParameter
        );
    }
    for reserved in [1, 1 << 31] {
        assert_eq!(create(CreateDoorbell { reserved, ..right }), Status::InvalidParameter);
    }
    // A longer message, with the data that the number promises.
    let longer = [right.as_bytes(), &[0; DOORBELL_PRIVATE_BYTES]].concat();
    assert_eq!(attacker.status(message::CREATE_DOORBELL, &longer), Status::InvalidParameter);
    let (other_queue, other_bell) = (theirs.queue.queue, theirs.bell.doorbell);
    for handle in [Handle::NONE, Handle(u64::MAX), Handle(other_queue.0 ^ (7 << 32)), Handle(queue.0 + 1)] {
        assert_eq!(create(CreateDoorbell { queue: handle, ..right }), Status::InvalidHandle);
        assert_eq!(attacker.named(message::CONNECT_DOORBELL, handle), Status::InvalidHandle);
    }
    assert_eq!(attacker.named(message::CONNECT_DOORBELL, other_bell), Status::InvalidHandle);
    assert_eq!(attacker.named(message::DESTROY_DOORBELL, other_bell), Status::InvalidHandle);
    assert_eq!(create(right), Status::Ok, "nothing was changed by the refused ones");
    theirs.run_first(&victim, &fill(theirs.va + (64 << 10), 4096, 1));
    theirs.reached(&victim, 1);
    scene.unharmed();
}
