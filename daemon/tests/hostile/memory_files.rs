//! VMMs that cut the files of their guest's memory short.

use std::fs::File;
use std::os::fd::AsRawFd;

use rustix::fs::MemfdFlags;
use rustix::fs::memfd_create;
use vhost::VhostBackend;
use vhost::VhostUserMemoryRegionInfo;
use vhost::VringConfigData;
use vhost::vhost_user::Frontend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vmm_sys_util::eventfd::EFD_NONBLOCK;
use vmm_sys_util::eventfd::EventFd;

use crate::bystander::Bystander;
use crate::daemon::until;
use crate::scene::Scene;

const RAM: u64 = 1 << 20;
const USER: u64 = 0x7f00_0000_0000;
const RING: u64 = 0x1_0000;

/// A VMM with a control queue, empty, in memory that it can cut short.
struct Vmm {
    memory: File,
    kick: EventFd,
    front: Frontend,
}

impl Vmm {
    /// One whose queue runs.
    fn connect(scene: &Scene) -> Self {
        let mut vmm = Self::prepare(scene);
        vmm.front.set_vring_kick(0, &vmm.kick).unwrap();
        vmm.front.set_vring_enable(0, true).unwrap();
        // Answered after all of that was done.
        vmm.front.get_vring_base(1).unwrap();
        vmm
    }

    /// One that has not started its queue.
    fn prepare(scene: &Scene) -> Self {
        let memory = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        memory.set_len(RAM).unwrap();
        let [kick, call] = [(); 2].map(|()| EventFd::new(EFD_NONBLOCK).unwrap());
        let mut front = Frontend::connect(scene.daemon.socket(0), 2).unwrap();
        front.set_owner().unwrap();
        let features = front.get_features().unwrap();
        let offered = front.get_protocol_features().unwrap();
        front.set_protocol_features(offered & VhostUserProtocolFeatures::CONFIG).unwrap();
        front.set_features(features).unwrap();
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: RAM,
            userspace_addr: USER,
            mmap_offset: 0,
            mmap_handle: memory.as_raw_fd(),
        };
        front.set_mem_table(&[region]).unwrap();
        front.set_vring_num(0, 256).unwrap();
        let addresses = VringConfigData {
            queue_max_size: 256,
            queue_size: 256,
            flags: 0,
            desc_table_addr: USER + RING,
            used_ring_addr: USER + RING + 0x4000,
            avail_ring_addr: USER + RING + 0x8000,
            log_addr: None,
        };
        front.set_vring_addr(0, &addresses).unwrap();
        front.set_vring_base(0, 0).unwrap();
        front.set_vring_call(0, &call).unwrap();
        front.get_vring_base(1).unwrap();
        Self { memory, kick, front }
    }
}

/// Waits until the sessions of as many front-ends of v0 have ended as said, since memory at `address` was gone.
fn have_ended(scene: &Scene, address: &str, count: usize) {
    until("the session has ended, and says why", || {
        let log = scene.daemon.log();
        let ended = log.lines().filter(|line| line.contains("session ended: guest memory"));
        ended.filter(|line| line.contains("v0.sock") && line.contains(address)).count() == count
    });
}

#[test]
fn a_vmm_that_cuts_its_memory_short_ends_its_own_session_and_is_named() {
    let mut scene = Scene::new();
    let old = scene.give_neighbour_up();
    scene.vm.hang_up();
    drop(old);
    for turn in 1..=3 {
        let vmm = Vmm::connect(&scene);
        vmm.memory.set_len(0).unwrap();
        vmm.kick.write(1).unwrap();
        have_ended(&scene, "guest memory at 0x18", turn);
        scene.unharmed();
    }
    scene.vm = scene.daemon.vm(0);
    scene.neighbour = Some(Bystander::new(&scene.vm));
    scene.unharmed();
}

#[test]
fn a_vmm_that_starts_a_queue_in_memory_that_is_gone_has_no_session_although_no_queue_runs() {
    let mut scene = Scene::new();
    let old = scene.give_neighbour_up();
    scene.vm.hang_up();
    drop(old);
    let vmm = Vmm::prepare(&scene);
    // With its answer the worker has read its mail, and rests.
    vmm.front.set_vring_kick(0, &vmm.kick).unwrap();
    vmm.front.get_vring_base(0).unwrap();
    vmm.memory.set_len(0).unwrap();
    // Its used ring is looked at, and the queue is not enabled: nothing wakes the worker at once.
    vmm.front.set_vring_kick(0, &vmm.kick).unwrap();
    assert!(vmm.front.get_features().is_err(), "no request after that is answered");
    have_ended(&scene, "guest memory at 0x14", 1);
    scene.vm = scene.daemon.vm(0);
    scene.neighbour = Some(Bystander::new(&scene.vm));
    scene.unharmed();
}
