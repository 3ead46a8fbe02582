//! Global priorities of queues: asked for where work may be in the realtime band and the device offers any, as far as they are permitted.

#![allow(clippy::unwrap_used, reason = "a failing test stops here")]

use ash::vk::QueueGlobalPriorityKHR as Raw;
use campanile_host_gpu::vulkan::check::devices::Devices;
use campanile_host_gpu::vulkan::driver::Driver;
use campanile_host_gpu::vulkan::info::Kind;
use campanile_host_gpu::vulkan::options::Options;
use campanile_host_gpu::vulkan::priority::GlobalPriority;

use crate::faults::with_faults;

const EXTENSION: &str = "VK_KHR_global_priority";
const ALL: [Raw; 4] = [Raw::LOW, Raw::MEDIUM, Raw::HIGH, Raw::REALTIME];

/// Opens a device, and has it compute.
fn open(is_realtime: bool) -> Driver {
    let mut driver = Driver::open(&Options { is_realtime, ..Options::default() }).unwrap();
    driver.self_test().unwrap();
    driver
}

#[test]
fn realtime_work_asks_for_the_highest_priority_that_is_offered_and_other_work_for_none() {
    with_faults(|faults| {
        faults.offer(&ALL, &ALL);
        let driver = open(true);
        assert_eq!(
            (driver.global_priority(), faults.asked()),
            (Some(GlobalPriority::Realtime), vec![Raw::REALTIME])
        );
        faults.offer(&ALL[..3], &ALL);
        let driver = open(true);
        assert_eq!((driver.global_priority(), faults.asked()), (Some(GlobalPriority::High), vec![Raw::HIGH]));
        faults.offer(&ALL, &ALL);
        assert_eq!((open(false).global_priority(), faults.asked()), (None, vec![]));
    });
}

#[test]
fn a_priority_that_is_not_permitted_is_followed_by_the_next_lower_one_and_at_last_by_none() {
    with_faults(|faults| {
        faults.offer(&ALL, &ALL[..3]);
        let driver = open(true);
        let asked = vec![Raw::REALTIME, Raw::HIGH];
        assert_eq!((driver.global_priority(), faults.asked()), (Some(GlobalPriority::High), asked.clone()));
        faults.offer(&ALL, &ALL[..2]);
        let driver = open(true);
        assert_eq!((driver.global_priority(), faults.asked()), (None, asked));
    });
}

#[test]
fn no_priority_is_asked_for_where_the_device_offers_none_above_medium() {
    with_faults(|faults| {
        faults.offer(&ALL[..2], &ALL);
        assert_eq!((open(true).global_priority(), faults.asked()), (None, vec![]));
        faults.offer(&[], &[]);
        faults.hide(&[EXTENSION]).unwrap();
        assert_eq!((open(true).global_priority(), faults.asked()), (None, vec![]), "without the extension");
        faults.hide(&[]).unwrap();
    });
}

#[test]
fn another_queue_of_a_device_has_its_priority_or_none_where_there_is_no_more_of_it() {
    with_faults(|faults| {
        faults.offer(&ALL, &ALL[..3]);
        let driver = open(true);
        faults.offer(&ALL, &ALL[..3]);
        let second = driver.secondary().unwrap();
        assert_eq!((second.global_priority(), faults.asked()), (Some(GlobalPriority::High), vec![Raw::HIGH]));
        faults.offer(&ALL, &[]);
        let mut third = driver.secondary().unwrap();
        assert_eq!((third.global_priority(), faults.asked()), (None, vec![Raw::HIGH]));
        third.self_test().unwrap();
        // One that has none asks for none.
        assert_eq!((third.secondary().unwrap().global_priority(), faults.asked().len()), (None, 1));
    });
}

#[test]
fn each_family_is_told_with_the_priorities_that_its_queues_can_have_and_looking_asks_for_none() {
    with_faults(|faults| {
        let told = || {
            let found = Devices::find().unwrap().found();
            let families = found.iter().flat_map(|found| found.hardware.families.clone());
            families.map(|family| family.priorities.iter().collect::<Vec<_>>()).collect::<Vec<_>>()
        };
        faults.hide(&[EXTENSION]).unwrap();
        assert!(!told().is_empty() && told().iter().all(Vec::is_empty), "{:?}", told());
        faults.hide(&[]).unwrap();
        faults.offer(&ALL[..3], &ALL);
        assert!(told().iter().all(|family| family[..] == GlobalPriority::ALL[..3]), "{:?}", told());
        assert_eq!(faults.asked(), []);
    });
}

#[test]
fn what_the_driver_of_the_tests_says_of_its_priorities_is_so() {
    with_faults(|faults| {
        let found = Devices::find().unwrap().found();
        let hardware = &found[0].hardware;
        let offered: Vec<_> = hardware.families[hardware.used as usize].priorities.iter().collect();
        let highest = offered.last().copied().filter(|highest| *highest > GlobalPriority::Medium);
        let name = Some(found[0].info.name.clone());
        let driver = Driver::open(&Options { name, is_realtime: true, ..Options::default() }).unwrap();
        // A driver that refuses what it offers is one of a GPU, and asks for a privilege.
        let is_as_offered =
            driver.global_priority() == highest && faults.asked().len() == usize::from(highest.is_some());
        assert!(
            is_as_offered || found[0].info.kind != Kind::Cpu,
            "{:?} of {offered:?}",
            driver.global_priority()
        );
    });
}
