//! Capset, blobs and the window.

use std::sync::atomic::Ordering;

use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_guest_driver::transport::error::TransportError;
use campanile_protocol::PROTOCOL_VERSION;
use campanile_test_vmm::options::BackChannel;
use campanile_test_vmm::options::PageLayout;
use campanile_test_vmm::options::VmOptions;
use vhost::vhost_user::VhostUserProtocolFeatures as Protocol;
use vm_memory::VolatileMemory;

use crate::bench;
use crate::eventually;
use crate::fake_device::FakeDevice;
use crate::fake_device::WINDOW;
use crate::fake_device::vram_word;
use crate::plain;

#[test]
fn a_process_learns_what_the_device_is() {
    let bench = plain();
    let context = bench.vm.open("test").unwrap();
    let capset = context.capset().unwrap();
    assert_eq!((capset.protocol_version, capset.vram_bytes), (PROTOCOL_VERSION, WINDOW));
    assert_eq!(bench.vm.config().num_capsets, 1);
    assert_eq!(bench.vm.window_bytes(), WINDOW);
}

#[test]
fn video_memory_is_shared_both_ways() {
    let bench = plain();
    let context = bench.vm.open("test").unwrap();
    let first = context.create_blob(BlobMemory::Vram, 8192).unwrap();
    let second = context.create_blob(BlobMemory::Vram, 1).unwrap();
    assert_eq!(second.size(), 4096);
    let (one, two) = (context.map(&first).unwrap(), context.map(&second).unwrap());
    one.word(4096).unwrap().store(11, Ordering::Release);
    two.word(0).unwrap().store(22, Ordering::Release);
    assert_eq!((vram_word(&bench.device, 4096), vram_word(&bench.device, 8192)), (11, 22));
    bench.device.vram.get_slice(8, 8).unwrap().copy_from(&33_u64.to_le_bytes());
    assert_eq!(one.word(8).unwrap().load(Ordering::Acquire), 33);
    // Mapped once: the same memory, and no second command.
    let sent = context.commands_sent();
    context.map(&first).unwrap().word(16).unwrap().store(44, Ordering::Relaxed);
    assert_eq!((one.word(16).unwrap().load(Ordering::Relaxed), context.commands_sent()), (44, sent));
}

#[test]
fn guest_memory_is_shared_in_one_run_and_in_many() {
    for (pages, runs) in [(PageLayout::Contiguous, 1), (PageLayout::Scattered { run_pages: 1 }, 5)] {
        let bench = bench(FakeDevice::new(), &VmOptions { pages, ..VmOptions::default() });
        let context = bench.vm.open("test").unwrap();
        let blob = context.create_blob(BlobMemory::GuestRam, 5 * 4096).unwrap();
        let memory = context.map(&blob).unwrap();
        let bytes: Vec<u8> = (0..5 * 4096_u32).map(|i| (i % 251).to_le_bytes()[0]).collect();
        memory.write(0, &bytes).unwrap();
        assert_eq!(bench.device.read_guest_blob(blob.resource_id()), bytes);
        assert_eq!(bench.device.guest_blob_runs(blob.resource_id()), runs);
        memory.word(4096).unwrap().store(7, Ordering::Release);
        assert_eq!(bench.device.read_guest_blob(blob.resource_id())[4096], 7);
    }
}

#[test]
fn a_new_guest_blob_is_zero_even_where_another_was() {
    let bench = plain();
    let context = bench.vm.open("test").unwrap();
    let first = context.create_blob(BlobMemory::GuestRam, 4096).unwrap();
    context.map(&first).unwrap().write(0, &[255; 4096]).unwrap();
    context.destroy_blob(first).unwrap();
    let second = context.create_blob(BlobMemory::GuestRam, 4096).unwrap();
    assert!(bench.device.read_guest_blob(second.resource_id()).iter().all(|byte| *byte == 0));
}

#[test]
fn closing_a_process_gives_everything_back() {
    let bench = plain();
    let pages = bench.vm.free_ram_pages();
    let context = bench.vm.open("test").unwrap();
    let blobs =
        [BlobMemory::Vram, BlobMemory::GuestRam].map(|memory| context.create_blob(memory, 8192).unwrap());
    let held = blobs.each_ref().map(|blob| context.map(blob).unwrap());
    assert_eq!(bench.device.objects(), (1, 2));
    drop(context);
    assert_eq!(bench.device.objects(), (0, 0));
    assert_eq!(bench.vm.free_ram_pages(), pages - 2, "a page that can be reached is not given to another");
    drop(held);
    assert_eq!(bench.vm.free_ram_pages(), pages);
}

#[test]
fn the_window_runs_out_and_comes_back() {
    let bench = plain();
    let context = bench.vm.open("test").unwrap();
    let whole = context.create_blob(BlobMemory::Vram, WINDOW).unwrap();
    let more = context.create_blob(BlobMemory::Vram, 4096).unwrap();
    context.map(&whole).unwrap();
    assert!(matches!(context.map(&more), Err(TransportError::OutOfWindow { bytes: 4096 })));
    context.destroy_blob(whole).unwrap();
    context.map(&more).unwrap();
}

#[test]
fn a_blob_of_another_process_is_refused() {
    let bench = plain();
    let [one, two] = ["one", "two"].map(|name| bench.vm.open(name).unwrap());
    let blob = one.create_blob(BlobMemory::GuestRam, 4096).unwrap();
    assert!(matches!(two.map(&blob), Err(TransportError::ForeignBlob { .. })));
    assert!(matches!(two.destroy_blob(blob), Err(TransportError::ForeignBlob { .. })));
}

#[test]
fn the_window_enters_the_memory_table_by_each_way() {
    let without_slots = || {
        let mut device = FakeDevice::new();
        device.protocol.remove(Protocol::CONFIGURE_MEM_SLOTS);
        device
    };
    for back_channel in [BackChannel::LikeQemu, BackChannel::AnyTime] {
        for device in [FakeDevice::new(), without_slots()] {
            let bench = bench(device, &VmOptions { back_channel, ..VmOptions::default() });
            assert!(eventually(|| bench.device.regions.load(Ordering::Relaxed) == 2));
            assert!(eventually(|| *bench.device.map_results.lock().unwrap() == [true]));
        }
    }
}

#[test]
fn a_device_without_window_says_so() {
    let mut device = FakeDevice::new();
    device.protocol.remove(Protocol::SHMEM);
    let bench = bench(device, &VmOptions::default());
    let context = bench.vm.open("test").unwrap();
    let blob = context.create_blob(BlobMemory::Vram, 4096).unwrap();
    assert!(matches!(context.map(&blob), Err(TransportError::OutOfWindow { .. })));
}
