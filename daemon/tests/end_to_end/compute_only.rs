//! What the device declares itself to be.

use std::fs;
use std::path::Path;

use campanile_guest_driver::device::Device;
use campanile_protocol::capset;
use campanile_protocol::driver_caps;
use campanile_protocol::driver_caps::Segment;

use crate::operator::Operated;
use crate::support::Daemon;

// conformance: one declaration is read, and each line is a field or flag of it
#[test]
fn mcdm_45_mcdm_46_mcdm_48_mcdm_49_mcdm_53_the_declaration_is_of_a_compute_device() {
    let daemon = Daemon::start();
    let (_vm, device) = daemon.device();
    let capset = device.capset();
    let driver = &capset.driver;
    assert!(driver.flags & driver_caps::DRIVER_COMPUTE_ONLY != 0);
    assert!(driver.flags & driver_caps::DRIVER_PARAVIRTUALIZATION_SUPPORTED != 0);
    assert!(driver.model_version >= 2600);
    assert_eq!((driver.displays, driver.display_caps), (0, 0));
    let required = capset::SCHEDULING_MULTI_ENGINE_AWARE
        | capset::SCHEDULING_PREEMPTION_AWARE
        | capset::SCHEDULING_LOW_IRQL_PREEMPT_COMMAND;
    let forbidden = capset::SCHEDULING_VSYNC_POWER_SAVE_AWARE | capset::SCHEDULING_NO_DMA_PATCHING;
    assert_eq!(capset.scheduling_caps & (required | forbidden), required);
    assert_eq!(driver.hw_queue_packet_cap, 0);
    assert_eq!((driver.power_components, driver.power_states), (2, 2), "each engine is one, with F0 and F1");
    assert_eq!((driver.history_buffer_bits, driver.invalid_blocks), (64, 0));
    assert!(driver.flags & driver_caps::DRIVER_GPU_MMU != 0);
    assert_eq!((driver.page_table_levels, driver.address_bits, driver.page_bytes), (3, 39, 4096));
    assert_eq!(driver.root_page_table_bytes, 4096);
    assert!(driver.segment_count > 0);
}

#[test]
fn mcdm_50_segments_are_linear_memory_and_one_linear_aperture() {
    let daemon = Daemon::with_specs(&["vram=64M,vram-max=96M"], &[]);
    let vm = daemon.vm(0);
    let device = Device::open(vm.open("test").unwrap()).unwrap();
    let capset = device.capset();
    let count = usize::try_from(capset.driver.segment_count).unwrap();
    let (described, rest) = capset.segments.split_at(count);
    assert!(described.iter().all(|segment| segment.flags & driver_caps::SEGMENT_LINEAR != 0));
    assert!(rest.iter().all(|segment| *segment == Segment::default()));
    let of_kind = |kind| described.iter().filter(move |segment| segment.kind == kind);
    let local: u64 = of_kind(driver_caps::SEGMENT_KIND_LOCAL).map(|segment| segment.bytes).sum();
    let visible: u64 = of_kind(driver_caps::SEGMENT_KIND_VISIBLE).map(|segment| segment.bytes).sum();
    assert_eq!((local, visible), (32 << 20, 32 << 20));
    assert!(
        of_kind(driver_caps::SEGMENT_KIND_VISIBLE).all(|it| it.flags & driver_caps::SEGMENT_CPU_VISIBLE != 0)
    );
    assert_eq!(of_kind(driver_caps::SEGMENT_KIND_APERTURE).count(), 1);
    assert_eq!(
        of_kind(driver_caps::SEGMENT_KIND_APERTURE).next().unwrap().group,
        driver_caps::GROUP_NON_LOCAL
    );
    let limits = described.iter().filter(|segment| segment.group == driver_caps::GROUP_LOCAL);
    assert!(limits.into_iter().all(|segment| segment.commit_limit == 96 << 20));
    assert_eq!(capset.vram_bytes, 96 << 20);
}

#[test]
fn mcdm_47_both_resets_are_declared_and_there() {
    let operated = Operated::with(1, &[]);
    let (_vm, device) = operated.daemon.device();
    let flags = device.capset().driver.flags;
    assert!(flags & driver_caps::DRIVER_ENGINE_RESET != 0 && flags & driver_caps::DRIVER_ADAPTER_RESET != 0);
    assert!(device.capset().scheduling_caps & capset::SCHEDULING_PER_ENGINE_TDR != 0);
    let context = device.create_context(campanile_guest_driver::node::Node::Copy).unwrap();
    assert_eq!(operated.ask(&["reset", "--vgpu", "v0", "--node", "copy"])["engines_reset"][0], "copy");
    device.check().unwrap();
    assert_eq!(operated.ask(&["reset-adapter", "--vgpu", "v0"])["devices_lost"], 1);
    assert!(device.check().is_err());
    drop(context);
}

/// All Rust files below a folder of the workspace.
fn sources(folder: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(folder);
    let mut folders = vec![root];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push((path.display().to_string(), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found
}

#[test]
fn mcdm_56_nothing_that_schedules_reads_a_buffer() {
    // Packets are read where they run: node and engine. Neither the daemon nor a policy can.
    for folder in ["daemon/src/vgpu", "daemon/src/sched", "host-gpu/src/sched", "host-gpu/src/adapter"] {
        let sources = sources(folder);
        assert!(!sources.is_empty());
        for (path, text) in sources {
            let (shipped, _tests) = text.split_once("\n#[cfg(test)]\nmod tests {").unwrap_or((&text, ""));
            for reader in ["packet::decode", "packet::Packet", "node::buffer", "RingEntry"] {
                assert!(!shipped.contains(reader), "{path} uses {reader}");
            }
        }
    }
}
