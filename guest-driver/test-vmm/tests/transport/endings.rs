//! Hang-ups, resets and sockets that no daemon serves.

use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_guest_driver::transport::error::TransportError;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;
use vhost::vhost_user::VhostUserProtocolFeatures as Protocol;

use crate::bench;
use crate::eventually;
use crate::fake_device::FakeDevice;
use crate::fake_device::vram_word;
use crate::plain;
use crate::socket;

#[test]
fn a_socket_that_nobody_serves_is_named() {
    let (_folder, path) = socket();
    let error = LoopbackVm::connect(&path, &VmOptions::default()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(path.to_str().unwrap()) && text.contains("campanile serve"), "{text}");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(matches!(LoopbackVm::connect(&path, &VmOptions::default()), Err(TransportError::Connect { .. })));
}

#[test]
fn a_daemon_that_accepts_and_says_nothing_is_left() {
    let (_folder, path) = socket();
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let options = VmOptions { message_timeout: Duration::from_millis(100), ..VmOptions::default() };
    let error = LoopbackVm::connect(&path, &options).unwrap_err();
    assert!(matches!(error, TransportError::Timeout { what: "GET_FEATURES", .. }), "{error:?}");
}

#[test]
fn a_device_that_lacks_something_is_told_so() {
    let mut device = FakeDevice::new();
    device.offer &= !campanile_protocol::virtio_gpu::F_CONTEXT_INIT;
    let (_folder, path) = socket();
    let _server = crate::fake_device::serve(std::sync::Arc::new(device), &path);
    let error = LoopbackVm::connect(&path, &VmOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), "the device does not offer the feature CONTEXT_INIT");
}

#[test]
fn every_wait_ends_when_the_daemon_hangs_up() {
    let bench = plain();
    let context = bench.vm.open("test").unwrap();
    let blob = context.create_blob(BlobMemory::Vram, 4096).unwrap();
    let memory = context.map(&blob).unwrap();
    let held: Vec<_> = (0..6).map(|_| context.submit(b"HOLD", Some(0)).unwrap()).collect();
    std::thread::scope(|scope| {
        for submission in &held {
            scope.spawn(move || assert!(matches!(submission.wait(None), Err(TransportError::Disconnected))));
        }
        std::thread::sleep(Duration::from_millis(20));
        assert!(context.is_connected());
        let last = context.submit(b"DIE!", None).unwrap();
        assert!(matches!(last.wait(None), Err(TransportError::Disconnected)));
    });
    assert!(held.iter().all(|submission| submission.is_done()));
    assert!(!context.is_connected());
    assert!(matches!(context.submit(b"WORK", None), Err(TransportError::Disconnected)));
    assert!(matches!(context.create_blob(BlobMemory::Vram, 1), Err(TransportError::Disconnected)));
    drop(context);
    drop(bench.vm);
    bench.server.join().unwrap();
    memory.word(0).unwrap().store(5, Ordering::Relaxed);
    assert_eq!(memory.word(0).unwrap().load(Ordering::Relaxed), 5);
}

#[test]
fn a_hang_up_of_this_side_ends_every_wait_too() {
    let bench = plain();
    let context = bench.vm.open("test").unwrap();
    let held = context.submit(b"HOLD", Some(0)).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| assert!(matches!(held.wait(None), Err(TransportError::Disconnected))));
        }
        std::thread::sleep(Duration::from_millis(20));
        bench.vm.hang_up();
    });
    bench.server.join().unwrap();
}

#[test]
fn the_last_holder_disconnects_in_order() {
    let bench = plain();
    let context = bench.vm.open("test").unwrap();
    let held = context.submit(b"HOLD", Some(0)).unwrap();
    drop(bench.vm);
    assert!(context.is_connected());
    drop(context);
    bench.server.join().unwrap();
    assert!(matches!(held.wait(None), Err(TransportError::Disconnected)));
    assert_eq!(bench.device.objects(), (0, 0));
}

#[test]
fn a_reset_ends_contexts_and_boots_a_fresh_device() {
    for slots in [true, false] {
        let mut device = FakeDevice::new();
        device.protocol.set(Protocol::CONFIGURE_MEM_SLOTS, slots);
        let bench = bench(device, &VmOptions::default());
        let old = bench.vm.open("old").unwrap();
        let blob = old.create_blob(BlobMemory::Vram, 4096).unwrap();
        let stale = old.map(&blob).unwrap();
        let held = old.submit(b"HOLD", Some(0)).unwrap();
        for boots in 2..5 {
            bench.vm.reset_device().unwrap();
            assert!(matches!(held.wait(None), Err(TransportError::DeviceReset)));
            assert!(matches!(old.submit(b"WORK", None), Err(TransportError::DeviceReset)));
            assert!(!old.is_connected() && bench.vm.is_connected());
            assert_eq!(bench.device.objects(), (0, 0));
            let new = bench.vm.open("new").unwrap();
            let blob = new.create_blob(BlobMemory::Vram, 4096).unwrap();
            let memory = new.map(&blob).unwrap();
            memory.word(0).unwrap().store(boots, Ordering::Release);
            assert_eq!(vram_word(&bench.device, 4096), boots, "the first page is still the stale view's");
            new.submit(b"WORK", Some(0)).unwrap().wait(None).unwrap();
            let expected = vec![true; usize::try_from(boots).unwrap()];
            assert_eq!(*bench.device.map_results.lock().unwrap(), expected, "the device maps at each boot");
            assert!(eventually(|| bench.device.regions.load(Ordering::Relaxed) == 2));
        }
        stale.word(0).unwrap().store(1, Ordering::Relaxed);
    }
}
