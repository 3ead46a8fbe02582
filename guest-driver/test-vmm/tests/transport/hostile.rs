//! The raw access that hostile tests of the daemon use.

use std::time::Duration;

use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::error::TransportError;
use campanile_protocol::virtio_gpu::command::Header;
use campanile_protocol::virtio_gpu::response;
use campanile_test_vmm::raw::RawDescriptor;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::plain;

#[test]
fn any_bytes_can_be_sent() {
    let bench = plain();
    let answer = bench.vm.raw().command(&[0xff; 40], 24).unwrap();
    assert_eq!(Header::read_from_bytes(&answer).unwrap().kind, response::ERR_UNSPEC);
    assert_eq!(bench.vm.raw().command(&[1, 2, 3], 24).unwrap(), []);
    assert_eq!(bench.vm.raw().command(&[0xff; 24], 4).unwrap().len(), 4);
    assert!(matches!(bench.vm.raw().command(&[], 24), Err(TransportError::Size { .. })));
}

#[test]
fn any_chain_can_be_sent_and_the_driver_lives() {
    let bench = plain();
    let free = bench.vm.free_descriptors();
    let ram = bench.vm.raw().ram(4096).unwrap();
    ram.memory().write(0, Header { kind: 1, ..Default::default() }.as_bytes()).unwrap();
    let read = RawDescriptor { address: ram.address(), length: 24, flags: 1, next: 1 };
    let write = RawDescriptor { address: ram.address() + 64, length: 24, flags: 2, next: 0 };
    let chain = bench.vm.raw().chain(0, &[read, write]).unwrap();
    assert_eq!(chain.wait(Some(Duration::from_secs(5))).unwrap(), 24);
    let mut answer = [0; 24];
    ram.memory().read(64, &mut answer).unwrap();
    assert_eq!(Header::read_from_bytes(&answer).unwrap().kind, response::ERR_UNSPEC);
    // A loop: the library beneath the device gives up on it, and it comes back as used.
    let looped = bench.vm.raw().chain(0, &[RawDescriptor { next: 0, ..read }]).unwrap();
    let _outcome = looped.wait(Some(Duration::from_millis(100)));
    let cursor = bench.vm.raw().chain(1, &[read, write]).unwrap();
    cursor.wait(Some(Duration::from_secs(5))).unwrap();
    assert!(bench.vm.raw().chain(2, &[read]).is_err());
    assert!(matches!(bench.vm.raw().chain(0, &[]), Err(TransportError::ChainTooLong { .. })));
    bench.vm.open("after").unwrap().capset().unwrap();
    bench.vm.reset_device().unwrap();
    assert_eq!(bench.vm.free_descriptors(), free);
}

#[test]
fn a_ring_that_no_driver_writes_ends_with_a_reset() {
    let bench = plain();
    bench.vm.raw().kick(0).unwrap();
    bench.vm.raw().head(0, 3).unwrap();
    bench.vm.raw().head(0, 60_000).unwrap();
    bench.vm.raw().advance(0, 5_000).unwrap();
    assert!(bench.vm.raw().head(9, 0).is_err());
    bench.vm.reset_device().unwrap();
    bench.vm.open("after").unwrap().capset().unwrap();
}
