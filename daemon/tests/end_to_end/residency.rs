//! More memory than there is: eviction to host memory and back, residency requests, priorities, quotas.

use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::residency::Eviction;
use campanile_guest_driver::residency::LocalBuffer;
use campanile_guest_driver::residency::WhenFull;
use campanile_guest_driver::transport::error::TransportError;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use campanile_protocol::control::memory::PRIORITY_HIGH;
use campanile_protocol::control::memory::PRIORITY_LOW;
use campanile_protocol::control::status::Status;

use crate::operator::Operated;
use crate::raw_queue::copy;
use crate::raw_queue::fill;
use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;

const MIB: u64 = 1 << 20;
/// 16 MiB that the CPU sees, 16 that it does not, and up to 96 in all.
const SMALL: &str = "vram=32M,vram-max=96M";

/// A guest with a user-mode queue on the copy node, and a buffer that the CPU sees.
struct Guest {
    device: Device,
    queue: UserQueue,
    staging: Buffer,
}

impl Guest {
    fn new(device: Device) -> Self {
        let context = device.create_context(Node::Copy).unwrap();
        let queue = context.create_user_queue(&QueueOptions::default()).unwrap();
        let staging = device.create_buffer(4 * MIB).unwrap();
        Self { device, queue, staging }
    }

    fn local(&self, bytes: u64) -> LocalBuffer {
        self.device.create_local_buffer(bytes).unwrap()
    }

    fn fill(&mut self, buffer: &LocalBuffer, value: u32) {
        self.queue.submit(&fill(buffer.va(), buffer.size(), value)).unwrap().wait(Some(NEVER)).unwrap();
    }

    /// Whether all of a buffer is `value`.
    fn is_all(&mut self, buffer: &LocalBuffer, value: u32) -> bool {
        let mut at = 0;
        let mut bytes = vec![0; usize::try_from(self.staging.size()).unwrap()];
        while at < buffer.size() {
            let length = self.staging.size().min(buffer.size() - at);
            let commands = copy(buffer.va() + at, self.staging.va(), length);
            self.queue.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
            let part = &mut bytes[..usize::try_from(length).unwrap()];
            self.staging.read(0, part).unwrap();
            if !part.chunks_exact(4).all(|word| word == value.to_le_bytes()) {
                return false;
            }
            at += length;
        }
        true
    }

    fn faults(&self) -> u64 {
        self.device.memory_info().unwrap().residency_faults
    }
}

fn small() -> (Daemon, Guest) {
    let daemon = Daemon::with_specs(&[SMALL], &["--spin", "600000000"]);
    let device = Device::open(daemon.vm(0).open("test").unwrap()).unwrap();
    (daemon, Guest::new(device))
}

fn status(outcome: Result<(), DriverError>) -> Status {
    match outcome {
        Err(DriverError::Refused { status, .. }) => status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn more_than_there_is_lies_in_host_memory_and_comes_back_as_it_was() {
    let (_daemon, mut guest) = small();
    let buffers: Vec<LocalBuffer> = (0..14).map(|_| guest.local(5 * MIB)).collect();
    for (value, buffer) in (1u32..).zip(&buffers) {
        assert!(guest.is_all(buffer, 0), "all memory begins as zeroes");
        guest.fill(buffer, value * 0x0101_0101);
    }
    for _round in 0..2 {
        for (value, buffer) in (1u32..).zip(&buffers) {
            assert!(guest.is_all(buffer, value * 0x0101_0101), "buffer {value}");
        }
    }
    let info = guest.device.memory_info().unwrap();
    assert!(info.evicted >= 14 * 5 * MIB - 16 * MIB, "{info:?}");
    assert!(info.evictions >= 11 && info.restores >= 11 && info.residency_faults >= 11, "{info:?}");
    drop(buffers);
    guest.device.check().unwrap();
}

#[test]
fn kernel_mode_work_finds_its_memory_too() {
    let (_daemon, guest) = small();
    let context = guest.device.create_context(Node::Copy).unwrap();
    let mut queue = context.create_kernel_queue().unwrap();
    let buffers: Vec<LocalBuffer> = (0..6).map(|_| guest.local(5 * MIB)).collect();
    for (value, buffer) in (1u32..).zip(&buffers) {
        let ticket = queue.submit(&fill(buffer.va(), buffer.size(), value)).unwrap();
        queue.wait(ticket, Some(NEVER)).unwrap();
    }
    for (value, buffer) in (1u32..).zip(&buffers) {
        let ticket = queue.submit(&copy(buffer.va() + 4 * MIB, guest.staging.va(), MIB)).unwrap();
        queue.wait(ticket, Some(NEVER)).unwrap();
        let mut bytes = vec![0; 1 << 20];
        guest.staging.read(0, &mut bytes).unwrap();
        assert!(bytes.chunks_exact(4).all(|word| word == value.to_le_bytes()));
    }
}

#[test]
fn every_byte_is_zero_after_another_guest_wrote_secrets_everywhere() {
    let daemon = Daemon::with_specs(&[SMALL], &[]);
    for _ in 0..2 {
        let vm = daemon.vm(0);
        let mut thief = Guest::new(Device::open(vm.open("thief").unwrap()).unwrap());
        let victim = Device::open(vm.open("victim").unwrap()).unwrap();
        let mut victim = Guest::new(victim);
        // The victim's memory is more than there is, so secrets are in video memory and in host memory.
        let secrets: Vec<LocalBuffer> = (0..12).map(|_| victim.local(5 * MIB)).collect();
        secrets.iter().for_each(|secret| victim.fill(secret, 0x5ec2_e75e));
        drop(secrets);
        drop(victim);
        let loot: Vec<LocalBuffer> = (0..13).map(|_| thief.local(5 * MIB)).collect();
        for buffer in &loot {
            assert!(thief.is_all(buffer, 0), "secrets of another process");
        }
        drop(loot);
        // What the CPU sees, too.
        let visible = thief.device.create_buffer(8 * MIB).unwrap();
        let mut bytes = vec![1; 8 << 20];
        visible.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
        visible.write(0, &vec![0x5e; 8 << 20]).unwrap();
    }
}

#[test]
fn what_is_held_stays_and_requests_fail_or_wait() {
    let (_daemon, mut guest) = small();
    let buffers: Vec<LocalBuffer> = (0..5).map(|_| guest.local(4 * MIB)).collect();
    let [a, b, c, d, e] = &buffers[..] else { panic!() };
    guest.device.make_resident(&[a, b], WhenFull::Fail).unwrap();
    guest.device.make_resident(&[c, d, a], WhenFull::Fail).unwrap();
    assert_eq!(guest.device.memory_info().unwrap().held, 16 * MIB);
    assert_eq!(status(guest.device.make_resident(&[e], WhenFull::Fail)), Status::OutOfResources);
    assert_eq!(status(guest.device.make_resident(&[a, b, c, d, e], WhenFull::Wait)), Status::OutOfResources);
    // A hold is as often let go as it was asked for.
    guest.device.evict(&[a], Eviction::Now).unwrap();
    assert_eq!(status(guest.device.make_resident(&[e], WhenFull::Fail)), Status::OutOfResources);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| guest.device.make_resident(&[e], WhenFull::Wait));
        while guest.device.memory_info().unwrap().held < 20 * MIB {
            std::thread::yield_now();
        }
        assert!(!waits.is_finished());
        guest.device.evict(&[a], Eviction::WhenNeeded).unwrap();
        waits.join().unwrap().unwrap();
    });
    let before = guest.faults();
    for (value, buffer) in (7..).zip([b, c, d, e]) {
        guest.fill(buffer, value);
    }
    assert_eq!(guest.faults(), before, "all that is held is there");
    assert!(guest.is_all(e, 10));
    guest.device.check().unwrap();
}

#[test]
fn what_is_held_moves_so_that_there_is_room_in_one_piece() {
    let operated = Operated::with_specs(&[SMALL], &["--spin", "600000000"]);
    let mut guest = Guest::new(Device::open(operated.daemon.vm(0).open("test").unwrap()).unwrap());
    let [a, b, c, d] = [0; 4].map(|_| guest.local(4 * MIB));
    for (value, buffer) in (1..).zip([&a, &b, &c, &d]) {
        guest.fill(buffer, value);
    }
    guest.device.make_resident(&[&a, &c], WhenFull::Fail).unwrap();
    drop((b, d));
    let info = || guest.device.memory_info().unwrap();
    until("engines let go of what was freed", || info().local_free == 8 * MIB);
    assert_eq!(info().local_longest, 4 * MIB, "in two pieces, and nothing can leave");
    let long = guest.local(8 * MIB);
    guest.device.make_resident(&[&long], WhenFull::Fail).unwrap();
    assert_eq!(operated.counter(0, "relocations"), 1);
    assert_eq!(operated.counter(0, "evictions"), 0);
    let faults = guest.faults();
    assert!(guest.is_all(&long, 0), "zero where others lay before");
    guest.fill(&long, 5);
    assert!(guest.is_all(&a, 1) && guest.is_all(&c, 3) && guest.is_all(&long, 5));
    assert_eq!(guest.faults(), faults);
    guest.device.check().unwrap();
}

#[test]
fn a_request_that_waits_ends_with_its_device() {
    let daemon = Daemon::with_specs(&[SMALL], &[]);
    let vm = daemon.vm(0);
    let [holder, waiter] = ["holder", "waiter"].map(|name| Device::open(vm.open(name).unwrap()).unwrap());
    let held = holder.create_local_buffer(16 * MIB).unwrap();
    holder.make_resident(&[&held], WhenFull::Fail).unwrap();
    let wanted = waiter.create_local_buffer(4 * MIB).unwrap();
    let context = waiter.create_context(Node::Copy).unwrap();
    let mut queue = context.create_kernel_queue().unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.make_resident(&[&wanted], WhenFull::Wait));
        while waiter.memory_info().unwrap().held < 20 * MIB {
            std::thread::yield_now();
        }
        // It breaks a rule meanwhile.
        let ticket = queue.submit(&fill(1 << 37, 4096, 0)).unwrap();
        assert!(queue.wait(ticket, Some(NEVER)).is_err());
        assert!(matches!(waits.join().unwrap(), Err(DriverError::DeviceLost(_))));
    });
    drop((wanted, queue, context, waiter));
    assert_eq!(holder.memory_info().unwrap().held, 16 * MIB, "a device that ends lets go");
}

#[test]
fn pre_41_priorities_are_hints_to_who_leaves_first() {
    let (_daemon, mut guest) = small();
    let [low, normal, high, other] = [0; 4].map(|_| guest.local(4 * MIB));
    guest.device.set_priority(&[&low], PRIORITY_LOW).unwrap();
    guest.device.set_priority(&[&high], PRIORITY_HIGH).unwrap();
    assert_eq!(status(guest.device.set_priority(&[&low], 7)), Status::InvalidParameter);
    for (value, buffer) in (1..).zip([&high, &normal, &other, &low]) {
        guest.fill(buffer, value);
    }
    let press = guest.local(4 * MIB);
    guest.fill(&press, 9);
    let before = guest.faults();
    assert!(guest.is_all(&high, 1) && guest.is_all(&normal, 2) && guest.is_all(&other, 3));
    assert_eq!(guest.faults(), before, "the least important has left, though it was used last");
    assert!(guest.is_all(&low, 4));
    assert!(guest.faults() > before);
}

#[test]
fn of_equals_what_was_not_used_for_longest_leaves_first() {
    let (_daemon, mut guest) = small();
    let [a, b, c, d] = [0; 4].map(|_| guest.local(4 * MIB));
    for (value, buffer) in (1..).zip([&a, &b, &c, &d]) {
        guest.fill(buffer, value);
    }
    // Each pressure is a decision, and what is used after it is newer than what is not.
    let first = guest.local(4 * MIB);
    guest.fill(&first, 5);
    let before = guest.faults();
    for (value, buffer) in (2..).zip([&b, &c, &d]) {
        assert!(guest.is_all(buffer, value));
    }
    assert_eq!(guest.faults(), before, "a was the oldest");
    drop(first);
    assert!(guest.is_all(&a, 1), "and is back, since there is room again");
}

#[test]
fn a_buffer_that_needs_more_than_there_is_ends_its_device_and_no_other() {
    let daemon = Daemon::with_specs(&[SMALL], &[]);
    let vm = daemon.vm(0);
    let [mut greedy, mut other] =
        ["greedy", "other"].map(|name| Guest::new(Device::open(vm.open(name).unwrap()).unwrap()));
    let bystander = other.local(2 * MIB);
    other.fill(&bystander, 3);
    let [source, target] = [0; 2].map(|_| greedy.local(12 * MIB));
    greedy.fill(&source, 1);
    let lost = greedy.queue.submit(&copy(source.va(), target.va(), MIB)).unwrap().wait(Some(NEVER));
    assert!(
        matches!(&lost, Err(DriverError::DeviceLost(loss)) if loss.status == campanile_protocol::device_page::DEVICE_OUT_OF_MEMORY),
        "{lost:?}"
    );
    assert!(other.is_all(&bystander, 3));
    other.device.check().unwrap();
}

#[test]
fn two_queues_whose_memory_does_not_fit_together_both_get_on() {
    let daemon = Daemon::with_specs(&[SMALL], &["--spin", "600000000"]);
    let vm = daemon.vm(0);
    std::thread::scope(|scope| {
        for name in ["one", "two"] {
            let device = Device::open(vm.open(name).unwrap()).unwrap();
            scope.spawn(move || {
                let mut guest = Guest::new(device);
                let [source, target] = [0; 2].map(|_| guest.local(6 * MIB));
                for value in 1..6 {
                    guest.fill(&source, value);
                    let commands = copy(source.va(), target.va(), 6 * MIB);
                    guest.queue.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
                    assert!(guest.is_all(&target, value));
                }
            });
        }
    });
}

#[test]
fn pre_28_pre_30_what_a_running_queue_uses_leaves_at_a_boundary_and_nothing_is_lost() {
    let (_daemon, mut guest) = small();
    let [source, target] = [0; 2].map(|_| guest.local(6 * MIB));
    guest.fill(&source, 0x1234_5678);
    for round in 0..20u32 {
        guest.fill(&target, round);
        let point = guest.queue.submit(&copy(source.va(), target.va(), 6 * MIB)).unwrap();
        // There is no null context to switch to: the queue stops at its next chunk, and lets go.
        while !point.is_reached() {
            guest.device.evict(&[&source, &target], Eviction::Now).unwrap();
        }
        point.wait(Some(NEVER)).unwrap();
        assert!(guest.is_all(&target, 0x1234_5678), "round {round}");
    }
    assert!(guest.device.memory_info().unwrap().evictions > 20);
}

fn is_out_of_memory(outcome: Result<LocalBuffer, DriverError>) -> bool {
    matches!(outcome, Err(DriverError::Transport(TransportError::Refused { .. })))
}

#[test]
fn quotas_hold_for_a_vgpu_and_for_the_host() {
    let specs = ["vram=32M,vram-min=16M,vram-max=64M", "vram=32M,vram-min=8M"];
    let daemon = Daemon::with_specs(&specs, &["--vram-total", "72M"]);
    let [a, b] = [0, 1].map(|index| Device::open(daemon.vm(index).open("test").unwrap()).unwrap());
    let info = |device: &Device| device.memory_info().unwrap();
    let page = info(&a).committed;
    assert_eq!((info(&a).guaranteed, info(&a).limit), (16 * MIB, 64 * MIB));
    assert_eq!(info(&a).available, 64 * MIB - page);
    assert_eq!(b.budget(), 32 * MIB);
    let most: Vec<LocalBuffer> = (0..15).map(|_| a.create_local_buffer(4 * MIB).unwrap()).collect();
    assert!(is_out_of_memory(a.create_local_buffer(4 * MIB)), "its own limit");
    // What it has beyond its minimum is not there for the other, but that one's minimum is.
    until("the other guest to be told", || b.budget() < 32 * MIB);
    assert!(info(&b).available < 32 * MIB - page);
    let guaranteed = b.create_local_buffer(7 * MIB).unwrap();
    assert!(is_out_of_memory(b.create_local_buffer(20 * MIB)), "the host's limit");
    drop(most);
    until("the other guest to be told", || b.budget() == 32 * MIB);
    let rest = b.create_local_buffer(20 * MIB).unwrap();
    drop((guaranteed, rest));
    assert_eq!(info(&b).available, 32 * MIB - page);
    a.check().unwrap();
}
