//! Claims about what is offered, and what is refused.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::fd::OwnedFd;

use campanile_daemon::frontend::vhost::counters::Count;
use vhost::VhostBackend;
use vhost::vhost_user::Frontend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostTransferStateDirection;
use vhost::vhost_user::message::VhostTransferStatePhase;
use vhost::vhost_user::message::VhostUserConfigFlags;
use vhost::vhost_user::message::VhostUserProtocolFeatures;

use crate::bench::Bench;
use crate::bench::Vm;
use crate::bench::region;
use crate::device::APERTURE;
use crate::device::CONFIG;
use crate::device::DEVICE_FEATURES;
use crate::device::ECHO;
use crate::device::Script;
use crate::guest::RAM;

const NONE: VhostUserProtocolFeatures = VhostUserProtocolFeatures::empty();

#[test]
fn offer_is_the_devices_bits_and_the_transports() {
    let bench = Bench::new();
    let mut front = Frontend::connect(&bench.path, 2).unwrap();
    assert_eq!(front.get_features().unwrap(), DEVICE_FEATURES | 1 << 28 | 1 << 29 | 1 << 30 | 1 << 32);
    let protocol = front.get_protocol_features().unwrap();
    let expected = VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::BACKEND_REQ
        | VhostUserProtocolFeatures::BACKEND_SEND_FD
        | VhostUserProtocolFeatures::SHMEM
        | VhostUserProtocolFeatures::RESET_DEVICE;
    assert_eq!(protocol, expected);
}

#[test]
fn device_without_an_aperture_offers_no_window() {
    let bench = Bench::with(Script::new(false, false));
    let mut front = Frontend::connect(&bench.path, 2).unwrap();
    front.get_features().unwrap();
    let protocol = front.get_protocol_features().unwrap();
    assert!(!protocol.contains(VhostUserProtocolFeatures::SHMEM));
    assert!(protocol.contains(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS));
}

#[test]
fn queues_and_window_are_told() {
    let bench = Bench::new();
    let mut front = bench.front_end(NONE, 0);
    assert_eq!(front.get_queue_num().unwrap(), 2);
    let windows = front.get_shmem_config().unwrap();
    assert_eq!(windows.nregions, 1);
    assert_eq!(windows.memory_sizes[1], APERTURE);
    assert_eq!(windows.memory_sizes.iter().filter(|size| **size != 0).count(), 1);
}

#[test]
fn config_answers_any_offset_and_size() {
    let bench = Bench::new();
    let mut front = bench.front_end(NONE, 0);
    let mut shown = CONFIG.to_vec();
    shown.resize(4096, 0);
    let places = [0, 1, 4, 12, 14, 15, 16, 17, 255, 256, 4000, 4092, 4095];
    let sizes = [1, 2, 4, 8, 16, 64, 256, 1024, 4000];
    for (offset, size) in places.into_iter().flat_map(|place| sizes.map(|size| (place, size))) {
        if offset + size > 4096 {
            continue;
        }
        let garbage = vec![0xaa; size];
        let place = u32::try_from(offset).unwrap();
        let asked = u32::try_from(size).unwrap();
        let (_, bytes) = front.get_config(place, asked, VhostUserConfigFlags::empty(), &garbage).unwrap();
        assert_eq!(bytes, shown[offset..offset + size], "{offset} {size}");
    }
}

#[test]
fn set_config_never_fails() {
    let bench = Bench::new();
    let mut front = bench.front_end(NONE, 0);
    for (offset, size) in [(0, 4), (4, 4), (8, 1), (0, 16), (100, 8), (4095, 1)] {
        front.set_config(offset, VhostUserConfigFlags::WRITABLE, &vec![0xff; size]).unwrap();
    }
    let (_, bytes) = front.get_config(0, 16, VhostUserConfigFlags::empty(), &[0; 16]).unwrap();
    assert_eq!(bytes, CONFIG);
}

#[test]
fn queue_sizes_that_cannot_be_are_refused() {
    let bench = Bench::new();
    for (session, size) in [0u16, 3, 1000, 1025, 2048, 32768, 65535].into_iter().enumerate() {
        let front = bench.front_end(NONE, 0);
        assert!(front.set_vring_num(0, size).is_err(), "{size}");
        drop(front);
        assert_eq!(bench.count(Count::Sessions), u64::try_from(session).unwrap() + 1);
    }
    let front = bench.front_end(NONE, 0);
    for size in [1, 2, 128, 256, 1024] {
        front.set_vring_num(0, size).unwrap();
    }
}

#[test]
fn size_and_base_cannot_change_while_a_ring_runs() {
    for change in
        [|vm: &Vm| vm.front.set_vring_num(0, 128).is_err(), |vm: &Vm| vm.front.set_vring_base(0, 7).is_err()]
    {
        let bench = Bench::new();
        let vm = Vm::started(&bench);
        assert!(change(&vm));
    }
}

#[test]
fn queue_that_is_not_there_is_refused() {
    let bench = Bench::new();
    let mut front = Frontend::connect(&bench.path, 9).unwrap();
    front.get_features().unwrap();
    front.get_protocol_features().unwrap();
    front.set_protocol_features(VhostUserProtocolFeatures::REPLY_ACK).unwrap();
    front.set_features(1 << 30 | 1 << 32).unwrap();
    assert!(front.get_vring_base(2).is_err());
}

#[test]
fn ring_outside_memory_is_refused() {
    let bench = Bench::new();
    let mut vm = Vm::plain(&bench);
    vm.set_memory();
    vm.control.index = 500_000;
    let mut data = Vm::addresses(&vm.control);
    data.desc_table_addr = 0x1000;
    assert!(vm.front.set_vring_addr(0, &data).is_err());
}

/// A guest of cloud-hypervisor can acknowledge bit 26, which vhost uses and we do not offer.
#[test]
fn log_all_from_the_guest_is_harmless() {
    let bench = Bench::new();
    let mut vm = Vm::plain(&bench);
    vm.front.set_features(vm.front.get_features().unwrap() | 1 << 26).unwrap();
    vm.start([0, 0]);
    assert_eq!(vm.control.round(0, &[ECHO; 32]), [ECHO; 32]);
}

#[test]
fn features_that_were_not_offered_are_refused() {
    let bench = Bench::new();
    let front = bench.front_end(NONE, 0);
    assert!(front.set_features(1 << 34 | 1 << 32 | 1 << 30).is_err());
}

#[test]
fn rings_run_at_once_without_protocol_features() {
    let bench = Bench::new();
    let mut vm = Vm::plain(&bench);
    let features = vm.front.get_features().unwrap();
    vm.front.set_hdr_flags(vhost::vhost_user::message::VhostUserHeaderFlag::empty());
    vm.front.set_features(features & !(1 << 30)).unwrap();
    vm.prepare([0, 0]);
    assert_eq!(vm.control.round(0, &[ECHO; 32]), [ECHO; 32]);
}

/// cloud-hypervisor enables every ring twice at power-off, and sends nothing more.
#[test]
fn rings_may_be_enabled_again_and_after_a_stop() {
    let bench = Bench::new();
    let mut vm = Vm::started(&bench);
    vm.enable(true);
    vm.control.round(0, &[ECHO; 32]);
    vm.stop();
    vm.enable(true);
    vm.enable(true);
    vm.control.assert_silent();
}

#[test]
fn device_state_is_refused_without_losing_the_session() {
    let bench = Bench::new();
    let mut vm = Vm::started(&bench);
    // The crate's front-end looks at its own idea of what was agreed, so that only the request itself is left.
    let pipe = OwnedFd::from(File::open("/dev/null").unwrap());
    let save = VhostTransferStateDirection::SAVE;
    assert!(vm.front.set_device_state_fd(save, VhostTransferStatePhase::STOPPED, pipe).is_err());
    assert!(vm.front.check_device_state().is_err());
    assert_eq!(vm.control.round(0, &[ECHO; 32]), [ECHO; 32]);
}

#[test]
fn region_past_the_end_of_its_file_is_refused() {
    let bench = Bench::new();
    let vm = Vm::plain(&bench);
    let past = region(0, RAM + 4096, 0, 0, vm.guest.file.as_raw_fd());
    assert!(vm.front.set_mem_table(&[past]).is_err());
}

#[test]
fn regions_may_come_in_any_order_and_may_not_overlap() {
    let bench = Bench::new();
    let vm = Vm::plain(&bench);
    let fd = vm.guest.file.as_raw_fd();
    let high = region(1 << 32, 1 << 20, 1 << 40, 0, fd);
    vm.front.set_mem_table(&[high, vm.region()]).unwrap();
    let mut front = vm.front.clone();
    assert!(front.add_mem_region(&region((1 << 32) + 4096, 4096, 0, 0, fd)).is_err());
}

#[test]
fn slots_can_be_filled_to_the_number_told() {
    let bench = Bench::with(Script::new(false, false));
    let vm = Vm::plain(&bench);
    let mut front = vm.front.clone();
    assert!(front.get_max_mem_slots().unwrap() >= 509);
    let fd = vm.guest.file.as_raw_fd();
    let slot_region = |slot: u64| region(slot << 20, 4096, slot << 20, 0, fd);
    for slot in 0..front.get_max_mem_slots().unwrap() {
        front.add_mem_region(&slot_region(slot)).unwrap();
    }
    front.remove_mem_region(&slot_region(7)).unwrap();
    front.add_mem_region(&slot_region(7)).unwrap();
    assert!(front.add_mem_region(&slot_region(1000)).is_err());
}
