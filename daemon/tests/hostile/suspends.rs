//! Suspends that come in floods, of what is not there, and around ends.

use campanile_protocol::control::message;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::message::Submit;
use campanile_protocol::control::status::Status;
use campanile_protocol::handle::Handle;
use zerocopy::IntoBytes;

use crate::attacker::Attacker;
use crate::daemon::NEVER;
use crate::packets::fill;
use crate::packets::wait;
use crate::ring::PACKETS;
use crate::ring::Ring;
use crate::scene::Scene;

fn start(attacker: &Attacker, opcode: u32, slot: u32, handle: Handle) {
    let _sent = attacker.start(opcode, slot, Named { handle }.as_bytes());
}

#[test]
fn a_context_that_is_not_there_or_is_another_process_s_is_not_suspended() {
    let mut scene = Scene::new();
    let (attacker, other) = (scene.attacker(), scene.attacker());
    let its_context = other.create_context();
    let theirs = other.create_context();
    assert_eq!(other.named(message::DESTROY_CONTEXT, its_context), Status::Ok);
    for handle in [Handle(0), Handle(u64::MAX), Handle::new(5000, 1), theirs] {
        for opcode in [message::SUSPEND_CONTEXT, message::RESUME_CONTEXT] {
            assert_eq!(attacker.named(opcode, handle), Status::InvalidHandle);
        }
    }
    assert_eq!(other.named(message::SUSPEND_CONTEXT, its_context), Status::InvalidHandle);
    assert_eq!(attacker.status(message::SUSPEND_CONTEXT, &[0; 16]), Status::InvalidParameter);
    scene.unharmed();
}

#[test]
fn a_flood_of_suspends_and_resumes_is_survived_and_work_runs_once_after_it() {
    let mut scene = Scene::new();
    let attacker = scene.attacker();
    let ring = Ring::new(&attacker);
    ring.run_first(&attacker, &fill(ring.va + (64 << 10), 4096, 1));
    let queue = attacker.create_queue(ring.context, 0).queue;
    ring.write(1, &ring.entry(0, 2));
    ring.ring(&attacker, 2);
    for round in 0..2000 {
        let slot = 1 + round % 8;
        start(&attacker, message::SUSPEND_CONTEXT, slot, ring.context);
        if round % 3 != 0 {
            start(&attacker, message::RESUME_CONTEXT, 9, ring.context);
        }
        if round % 50 == 0 {
            let submit = Submit { queue, buffer_va: ring.va + PACKETS, length: 0, flags: 0 };
            let _sent = attacker.start(message::SUBMIT, 10, submit.as_bytes());
            scene.neighbour.as_mut().unwrap().compute();
        }
    }
    assert_eq!(attacker.named(message::RESUME_CONTEXT, ring.context), Status::Ok);
    ring.reached(&attacker, 2);
    assert!(attacker.is_active());
    scene.unharmed();
}

#[test]
fn contexts_that_end_while_they_are_suspended_leave_nothing_open() {
    let mut scene = Scene::new();
    for round in 0..20 {
        let attacker = scene.attacker();
        let ring = Ring::new(&attacker);
        ring.run_first(&attacker, &wait(ring.va + (64 << 10), 1));
        let queue = attacker.create_queue(ring.context, 0).queue;
        let (sequence, suspended) =
            attacker.start(message::SUSPEND_CONTEXT, 20, Named { handle: ring.context }.as_bytes());
        for slot in 2..6 {
            let submit = Submit { queue, buffer_va: ring.va + PACKETS, length: 8, flags: 0 };
            let _sent = attacker.start(message::SUBMIT, slot, submit.as_bytes());
        }
        if round % 2 == 0 {
            suspended.wait(Some(NEVER)).unwrap();
            assert_eq!(attacker.response(20, sequence).0, Status::Ok);
            assert_eq!(
                attacker.named(message::DESTROY_QUEUE, queue),
                Status::Ok,
                "what it held is cancelled"
            );
        }
        assert_eq!(attacker.status(message::DESTROY_DEVICE, &[]), Status::Ok);
    }
    scene.unharmed();
}
