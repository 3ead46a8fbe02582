//! Engines of the compute node that lie about kernels, in a whole daemon.

use campanile_guest_driver::transport::submission::Submission;
use campanile_protocol::control::message::CREATE_KERNEL;
use campanile_protocol::control::message::CreateKernel;
use campanile_protocol::control::message::LANGUAGE_WGSL;
use campanile_protocol::control::reply::KernelCreated;
use campanile_protocol::control::status::Status;
use campanile_protocol::engine::message as wire;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::daemon::NEVER;
use crate::daemon::until;
use crate::liars::Lying;
use crate::liars::Stage;
use crate::lies::packet;

/// The slot of the message that creates it.
const SLOT: u32 = 3;

/// A kernel that an engine was asked to compile, and has not answered.
struct Asked {
    root: u64,
    handle: u64,
    sequence: u64,
    submission: Submission,
}

impl Asked {
    fn of(lying: &Lying) -> Self {
        let source = b"@compute @workgroup_size(1) fn main() {}";
        let source_bytes = u32::try_from(source.len()).unwrap();
        let create = CreateKernel { language: LANGUAGE_WGSL, entry_bytes: 0, source_bytes, reserved: 0 };
        let mut body = [create.as_bytes(), source].concat();
        body.resize(body.len().next_multiple_of(8), 0);
        let (sequence, submission) = lying.attacker.start(CREATE_KERNEL, SLOT, &body);
        let mut named = String::new();
        until("the engine is asked for the kernel", || {
            named = lying.puppet.order("kernel").unwrap();
            !named.is_empty()
        });
        lying.puppet.order("honest 0").unwrap();
        let (root, handle) = named.split_once(' ').unwrap();
        Self { root: root.parse().unwrap(), handle: handle.parse().unwrap(), sequence, submission }
    }

    fn created(&self) -> Vec<u8> {
        created(self.root, self.handle, 1)
    }

    fn refused(&self, reason: &[u8]) -> Vec<u8> {
        let reason_bytes = u32::try_from(reason.len()).unwrap();
        let refused = wire::KernelRefused { root: self.root, handle: self.handle, reason_bytes, reserved: 0 };
        packet(wire::KERNEL_REFUSED, 0, &[refused.as_bytes(), reason].concat())
    }

    fn destroyed(&self) -> Vec<u8> {
        let destroyed = wire::KernelDestroyed { root: self.root, handle: self.handle };
        packet(wire::KERNEL_DESTROYED, 0, destroyed.as_bytes())
    }

    /// What the guest is answered.
    fn answer(self, lying: &Lying) -> (Status, Vec<u8>) {
        self.submission.wait(Some(NEVER)).unwrap();
        lying.attacker.response(SLOT, self.sequence)
    }
}

fn created(root: u64, handle: u64, number: u32) -> Vec<u8> {
    let created = wire::KernelCreated {
        root,
        handle,
        workgroup: [number; 3],
        binding_count: number,
        constant_bytes: number,
        reserved: 0,
    };
    packet(wire::KERNEL_CREATED, 0, created.as_bytes())
}

/// What an engine says that was asked for a kernel, packet by packet.
type Lie = (&'static str, fn(&Asked) -> Vec<Vec<u8>>);

const REFUSAL: &str = "it is refused for a reason that no terminal should see";

const LIES: [Lie; 9] = [
    ("another kernel is compiled", |asked| vec![created(asked.root, asked.handle + 1, 1)]),
    ("a kernel of another process is compiled", |asked| vec![created(asked.root + 1, asked.handle, 1)]),
    (REFUSAL, |asked| vec![asked.refused(b"\x1b[2J")]),
    ("it is gone", |asked| vec![asked.destroyed()]),
    ("it is compiled twice", |asked| vec![asked.created(), asked.created()]),
    ("it is compiled, and refused", |asked| vec![asked.created(), asked.refused(b"no")]),
    ("it is refused, and compiled", |asked| vec![asked.refused(b"no"), asked.created()]),
    ("it is refused twice", |asked| vec![asked.refused(b"no"), asked.refused(b"no")]),
    ("it is compiled, and gone", |asked| vec![asked.created(), asked.destroyed()]),
];

#[test]
fn a_compute_engine_that_lies_about_a_kernel_is_ended_and_no_other() {
    let mut stage = Stage::new();
    let before = stage.footprint();
    for (name, lie) in LIES {
        let lying = stage.honest_on(wire::NODE_COMPUTE);
        let asked = Asked::of(&lying);
        let logged = stage.log().len();
        for bytes in lie(&asked) {
            lying.puppet.packet(&bytes, &[]);
        }
        stage.ends(&lying, name);
        // For what it said, and not for the kernel that it still owed when its time was over.
        let log = stage.log().split_off(logged);
        assert_eq!(log.contains("it answers what was not asked"), name != REFUSAL, "{name}: {log}");
        let (status, _) = asked.answer(&lying);
        assert_ne!(status, Status::InvalidHandle, "{name}: it is answered");
    }
    stage.has_not_grown(before);
}

#[test]
fn what_a_compute_engine_says_of_a_kernel_that_it_was_asked_for_goes_to_its_own_guest_and_nowhere_else() {
    let mut stage = Stage::new();
    let lying = stage.honest_on(wire::NODE_COMPUTE);
    for number in [0, 1, u32::MAX] {
        let asked = Asked::of(&lying);
        lying.puppet.packet(&created(asked.root, asked.handle, number), &[]).unwrap();
        lying.puppet.order("honest 1").unwrap();
        let (status, payload) = asked.answer(&lying);
        let said = KernelCreated::read_from_bytes(&payload).unwrap();
        assert_eq!((status, said.workgroup, said.constant_bytes), (Status::Ok, [number; 3], number));
        stage.unharmed("a kernel of strange measures");
    }
    let asked = Asked::of(&lying);
    lying.puppet.packet(&asked.refused(&[b'x'; wire::MAX_REASON_BYTES as usize]), &[]).unwrap();
    lying.puppet.order("honest 1").unwrap();
    assert_eq!(asked.answer(&lying).0, Status::KernelRefused);
    stage.unharmed("a reason as long as can be");
}
