//! A daemon that is replaced by another, or killed, under guests whose local memory is a device's own.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;

use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::residency::LocalBuffer;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use serde_json::json;

use crate::checkpoints;
use crate::killed::Kept;
use crate::killed::occupy;
use crate::served::NEVER;
use crate::served::until;
use crate::upgrade::Line;
use crate::upgrade::connect;
use crate::upgrade::table;

const MIB: u64 = 1 << 20;
const DEVICE: &str = "local-memory = \"device\"\n";

/// A guest that fills local memory and looks at it.
struct Guest {
    device: Device,
    queue: UserQueue,
    seen: Buffer,
}

impl Guest {
    fn on(device: Device) -> Self {
        let context = device.create_context(Node::Copy).unwrap();
        let queue = context.create_user_queue(&QueueOptions::default()).unwrap();
        let seen = device.create_buffer(MIB).unwrap();
        Self { device, queue, seen }
    }

    /// The same process, with a device in place of the one that is lost.
    fn again(self) -> Self {
        let Self { device, queue, seen } = self;
        drop((queue, seen));
        Self::on(device.recreate().unwrap())
    }

    fn fill(&mut self, buffer: &LocalBuffer, value: u32) {
        let mut commands = CommandBuffer::new();
        commands.fill(buffer.va(), buffer.size(), value).unwrap();
        self.queue.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
    }

    fn is_all(&mut self, buffer: &LocalBuffer, value: u32) -> bool {
        (0..buffer.size() / MIB).all(|mib| {
            let mut commands = CommandBuffer::new();
            commands.copy(buffer.va() + mib * MIB, self.seen.va(), MIB).unwrap();
            self.queue.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
            let mut bytes = vec![0; usize::try_from(MIB).unwrap()];
            self.seen.read(0, &mut bytes).unwrap();
            bytes.chunks_exact(4).all(|word| word == value.to_le_bytes())
        })
    }
}

/// The files without names that a process has open, but for the daemon's own.
fn drivers_files(pid: u64) -> BTreeSet<u64> {
    let all = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().map(|entry| entry.unwrap().path());
    let of_a_driver = all.filter(|path| {
        let name = fs::read_link(path).map(|to| to.to_string_lossy().into_owned()).unwrap_or_default();
        name.contains("memfd:") && !name.contains("campanile")
    });
    of_a_driver.filter_map(|path| Some(fs::metadata(path).ok()?.ino())).collect()
}

#[test]
fn cont_01_what_guests_have_in_a_devices_memory_is_there_after_upgrades() {
    let mut line = Line::begin(&format!("{DEVICE}{}{}", table("a", ""), table("idle", "")));
    let own = drivers_files(line.pid());
    assert_eq!(own.len(), 2, "one of each vGPU");
    let vm = connect(&line.served, "a");
    let mut guest = Guest::on(Device::open(vm.open("test").unwrap()).unwrap());
    let buffers: Vec<LocalBuffer> =
        (0..3).map(|_| guest.device.create_local_buffer(6 * MIB).unwrap()).collect();
    for (value, buffer) in (1..).zip(&buffers) {
        guest.fill(buffer, value);
    }
    for round in 0..3 {
        let done = line.upgrade();
        assert_eq!((&done["vms"], &done["lost"]), (&json!(1), &json!([])));
        assert!(own.is_subset(&drivers_files(line.pid())), "the same memory, also of the vGPU without a VM");
        for (value, buffer) in (1..).zip(&buffers) {
            assert!(guest.is_all(buffer, value + round), "buffer {value} after upgrade {round}");
            guest.fill(buffer, value + round + 1);
        }
        // What is given back is zero before another has it, whichever daemon sees to that.
        let fresh = guest.device.create_local_buffer(8 * MIB).unwrap();
        assert!(guest.is_all(&fresh, 0));
        guest.fill(&fresh, 0x5a5a_5a5a);
    }
    let idle = connect(&line.served, "idle");
    let mut other = Guest::on(Device::open(idle.open("test").unwrap()).unwrap());
    let all: Vec<LocalBuffer> = (0..4).map(|_| other.device.create_local_buffer(7 * MIB).unwrap()).collect();
    assert!(all.iter().all(|buffer| other.is_all(buffer, 0)));
}

#[test]
fn cont_02_where_local_memory_lies_does_not_change_under_a_vm() {
    for (first, then) in [(DEVICE, "local-memory = \"host\"\n"), ("local-memory = \"host\"\n", DEVICE)] {
        let mut line = Line::begin(&format!("{first}{}", table("a", "")));
        let vm = connect(&line.served, "a");
        let mut guest = Guest::on(Device::open(vm.open("test").unwrap()).unwrap());
        let buffer = guest.device.create_local_buffer(2 * MIB).unwrap();
        guest.fill(&buffer, 7);
        let config = fs::read_to_string(line.served.folder.file("campanile.toml")).unwrap();
        line.served.folder.write("campanile.toml", &config.replace(first, then));
        let said = line.refused(&[]);
        assert!(said.contains("vGPU a: a VM has it, and its local memory cannot lie elsewhere"), "{said}");
        assert!(guest.is_all(&buffer, 7));
        line.served.folder.write("campanile.toml", &config);
        line.upgrade();
        assert!(guest.is_all(&buffer, 7));
    }
}

/// The process of the daemon of a keeper.
fn daemon_of(kept: &Kept) -> u64 {
    u64::try_from(kept.daemon().unwrap().as_raw_nonzero().get()).unwrap()
}

#[test]
fn cont_21_what_guests_have_in_a_devices_memory_is_there_after_their_daemon_was_killed() {
    let kept = Kept::begin(&format!("{DEVICE}{}", table("a", "")));
    let own = drivers_files(daemon_of(&kept));
    assert_eq!(own.len(), 1);
    let vm = kept.connect("a");
    let mut guest = Guest::on(Device::open(vm.open("test").unwrap()).unwrap());
    let buffers: Vec<LocalBuffer> =
        (0..3).map(|_| guest.device.create_local_buffer(6 * MIB).unwrap()).collect();
    for (value, buffer) in (1..).zip(&buffers) {
        guest.fill(buffer, value);
    }
    for round in 0..3 {
        checkpoints::kill(&kept);
        assert_eq!(checkpoints::lost(&kept, 0), 0, "round {round}");
        assert!(own.is_subset(&drivers_files(daemon_of(&kept))), "the same memory");
        for (value, buffer) in (1..).zip(&buffers) {
            assert!(guest.is_all(buffer, value + round), "buffer {value} after kill {round}");
            guest.fill(buffer, value + round + 1);
        }
        let fresh = guest.device.create_local_buffer(8 * MIB).unwrap();
        assert!(guest.is_all(&fresh, 0), "what was given back is zero, round {round}");
        guest.fill(&fresh, 0x5a5a_5a5a);
    }
}

#[test]
fn cont_12_a_device_that_is_lost_with_its_daemon_leaves_nothing_in_a_devices_memory() {
    let kept = Kept::begin(&format!("{DEVICE}{}", table("a", "")));
    let vm = kept.connect("a");
    let mut guest = Guest::on(Device::open(vm.open("test").unwrap()).unwrap());
    let buffers: Vec<LocalBuffer> =
        (0..3).map(|_| guest.device.create_local_buffer(8 * MIB).unwrap()).collect();
    buffers.iter().for_each(|buffer| guest.fill(buffer, 0x5a5a_5a5a));
    let occupied = occupy(&guest.device);
    kept.kill();
    until("a lost device", || guest.device.check().is_err());
    drop((occupied, buffers));
    let mut again = guest.again();
    let all: Vec<LocalBuffer> = (0..3).map(|_| again.device.create_local_buffer(8 * MIB).unwrap()).collect();
    assert!(all.iter().all(|buffer| again.is_all(buffer, 0)));
}

#[test]
fn cont_21_a_vm_goes_on_where_its_local_memory_is_to_lie_elsewhere_and_loses_its_devices() {
    for (first, then) in [(DEVICE, "local-memory = \"host\"\n"), ("local-memory = \"host\"\n", DEVICE)] {
        let kept = Kept::begin(&format!("{first}{}", table("a", "")));
        let vm = kept.connect("a");
        let mut guest = Guest::on(Device::open(vm.open("test").unwrap()).unwrap());
        let buffer = guest.device.create_local_buffer(8 * MIB).unwrap();
        guest.fill(&buffer, 7);
        let config = fs::read_to_string(kept.0.folder.file("campanile.toml")).unwrap();
        kept.0.folder.write("campanile.toml", &config.replace(first, then));
        kept.kill();
        assert!(vm.is_connected() && guest.device.check().is_err());
        drop(buffer);
        let mut again = guest.again();
        let all: Vec<LocalBuffer> =
            (0..3).map(|_| again.device.create_local_buffer(8 * MIB).unwrap()).collect();
        assert!(all.iter().all(|buffer| again.is_all(buffer, 0)));
        all.iter().for_each(|buffer| again.fill(buffer, 9));
        // And it goes on with that where it lies now.
        checkpoints::kill(&kept);
        assert!(all.iter().all(|buffer| again.is_all(buffer, 9)));
    }
}
