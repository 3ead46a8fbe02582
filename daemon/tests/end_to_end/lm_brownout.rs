//! What goes over while a guest runs and while it stands still, between two daemons, and what the guest notices of it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use campanile_guest_driver::device::Device;
use campanile_guest_driver::native_fence::FenceKind;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::scheduling::Band;
use campanile_guest_driver::scheduling::Properties;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_test_vmm::migration::options::MigrateOptions;
use campanile_test_vmm::order::Order;
use serde_json::Value;

use crate::migration::BYTES;
use crate::migration::Guest;
use crate::migration::Hosts;
use crate::processes::engines;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy;
use crate::raw_queue::copy_guest;
use crate::raw_queue::fill;
use crate::support::NEVER;
use crate::support::until;

/// What [`full_guest`] has written takes minutes at this rate: a first pass does not end within a test.
const SLOW: [&str; 2] = ["--migrate-bandwidth", "64K"];
/// Whatever is dirty fits the pause: one pass, and then nothing but queries.
const PATIENT: [&str; 2] = ["--migrate-pause", "3600000"];
/// Pages that it has written at least.
const WRITTEN: u64 = 2 * BYTES / 4096;

/// A guest at the first host, which has written to every page of both of its buffers.
fn full_guest(hosts: &Hosts) -> Guest {
    let mut guest = Guest::new(&hosts.daemons[0]);
    guest.touch(0..usize::try_from(BYTES / 4096).unwrap(), 5);
    guest
}

/// The passes of the last migration of a source's first vGPU.
fn passes(hosts: &Hosts, index: usize) -> Vec<Value> {
    hosts.departure(index, 0)["progress"]["passes"].as_array().unwrap().clone()
}

fn pages(pass: &Value) -> u64 {
    pass["pages"].as_u64().unwrap()
}

/// As a VMM that has all in order for a migration, and stops the guest at once.
fn go(hosts: &Hosts, guest: &Guest, to: usize, live: bool) {
    let options = MigrateOptions { live, ..MigrateOptions::default() };
    guest.vm.migrate(hosts.daemons[to].socket(0), options).unwrap();
}

#[test]
fn lm_22_work_fences_doorbells_and_scheduling_stay_as_they_are_in_a_brownout() {
    let more = [&SLOW[..], &["--spin", "600000000"]].concat();
    let hosts = Hosts::new(&more);
    let guest = full_guest(&hosts);
    let (raw, context) = copy_guest(&guest.vm);
    let mark = raw.vram(4096);
    let marked = || mark.word(0).load(Ordering::Acquire);
    let mut queue = RawQueue::new(&raw, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    let device = Device::open(guest.vm.open("another").unwrap()).unwrap();
    let fence = device.create_fence(FenceKind::Default, 0).unwrap();
    let contexts = [(); 2].map(|()| device.create_context(Node::Copy).unwrap());
    let mut kernel_mode = [0, 1].map(|index| contexts[index].create_kernel_queue().unwrap());
    let target = device.create_buffer(4096).unwrap();

    hosts.begin(0, "v0");
    until("pages are on their way", || hosts.is_amid_first_pass(0, 0));
    // The doorbell is never taken away, and what it delivers is done.
    for round in 1..=20_u32 {
        queue.run(&fill(mark.va, 4, round));
        assert_eq!((marked(), queue.status()), (u64::from(round), CONNECTED));
    }
    // Fences: a GPU signals, a CPU waits, and the other way round.
    let mut signals = campanile_guest_driver::commands::CommandBuffer::new();
    signals.wait(fence.va(), 1).unwrap().signal(fence.va(), 2).unwrap();
    let behind = kernel_mode[0].submit(&signals).unwrap();
    assert!(!kernel_mode[0].is_done(behind), "the fence is not there");
    fence.signal(1).unwrap();
    fence.wait(2, Some(NEVER)).unwrap();
    kernel_mode[0].wait(behind, Some(NEVER)).unwrap();
    // Scheduling: what is suspended stands still while others go on, and priorities are taken.
    contexts[0].suspend().unwrap();
    let held = kernel_mode[0].submit(&fill(target.va(), 4, 1)).unwrap();
    contexts[1].set_scheduling(&Properties { band: Band::Normal, ..Properties::default() }).unwrap();
    let free = kernel_mode[1].submit(&fill(target.va() + 8, 4, 2)).unwrap();
    kernel_mode[1].wait(free, Some(NEVER)).unwrap();
    assert!(!kernel_mode[0].is_done(held));
    contexts[0].resume().unwrap();
    kernel_mode[0].wait(held, Some(NEVER)).unwrap();
    // Objects are made, connected and used.
    let more = raw.context(Node::Copy);
    let mut another = RawQueue::new(&raw, more);
    assert_eq!(another.connect(), Ok(CONNECTED));
    another.run(&fill(mark.va, 4, 99));
    assert_eq!((marked(), queue.status()), (99, CONNECTED));
    // All of that was within one pass, which is still under way.
    assert!(hosts.is_amid_first_pass(0, 0), "{}", hosts.departure(0, 0));

    go(&hosts, &guest, 1, true);
    guest.check();
    assert_eq!(marked(), 99);
    assert_eq!(fence.value().unwrap(), 2);
    while queue.submit(&fill(mark.va, 4, 100)) != CONNECTED {
        queue.connect().unwrap();
    }
    queue.wait(queue.value);
    assert_eq!(marked(), 100);
}

/// Nice values of the threads of a process, with their names.
fn threads(pid: u32) -> BTreeMap<u32, (String, i64)> {
    let folder = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let each = folder.filter_map(|thread| {
        let name = std::fs::read_to_string(thread.path().join("comm")).ok()?;
        let stat = std::fs::read_to_string(thread.path().join("stat")).ok()?;
        // Behind the name, which may have anything in it, it is the 17th field.
        let nice = stat.rsplit(')').next()?.split_whitespace().nth(16)?.parse().ok()?;
        Some((thread.file_name().to_str()?.parse().ok()?, (name.trim_end().to_owned(), nice)))
    });
    each.collect()
}

#[test]
fn lm_13_lm_62_of_all_threads_of_both_daemons_and_their_engines_only_those_that_send_change_their_weight() {
    let more = [&SLOW[..], &["--migrate-streams", "3"]].concat();
    let hosts = Hosts::new(&more);
    let mut guest = full_guest(&hosts);
    let mut others: Vec<u32> = hosts.daemons.iter().map(|daemon| daemon.pid()).collect();
    others.extend(engines(&hosts.daemons[0]));
    assert!(others.len() > 2, "an engine runs");
    let before: Vec<_> = others.iter().map(|pid| threads(*pid)).collect();
    let senders = || {
        let all = threads(hosts.daemons[0].pid()).into_values();
        all.filter(|(name, _)| name == "migrate").map(|(_, nice)| nice).collect::<Vec<_>>()
    };
    assert!(senders().is_empty());
    hosts.begin(0, "v0");
    until("a sender for each line, with the least weight", || senders() == [19; 3]);
    guest.work(2);
    for (pid, before) in others.iter().zip(before) {
        let now = threads(*pid);
        let same = before.iter().filter(|(thread, _)| now.contains_key(thread));
        same.for_each(|(thread, was)| assert_eq!(now[thread].1, was.1, "{} of {pid}", was.0));
        let fresh = now.iter().filter(|(thread, it)| !before.contains_key(thread) && it.0 != "migrate");
        fresh.for_each(|(_, it)| assert_eq!(it.1, now[pid].1, "{} of {pid}", it.0));
    }
    assert!(hosts.is_amid_first_pass(0, 0), "{}", hosts.departure(0, 0));
    hosts.ask(0, &campanile_daemon::operator::verb::Verb::CallOff { vgpu: "v0".to_owned() });
    until("they end", || senders().is_empty());
    guest.check();
}

#[test]
fn lm_24_lm_36_in_the_pause_all_that_is_left_goes_whatever_bandwidth_a_brownout_may_have() {
    let hosts = Hosts::new(&SLOW);
    let mut guest = full_guest(&hosts);
    for (round, there) in (2..).zip([1, 0]) {
        let here = 1 - there;
        hosts.begin(here, "v0");
        until("pages are on their way", || hosts.is_amid_first_pass(here, 0));
        go(&hosts, &guest, there, true);
        guest.check();
        guest.work(round);
        guest.check();
        let passes = passes(&hosts, here);
        let last = passes.last().unwrap();
        assert_eq!(last["is_last"], true);
        assert!(pages(last) > WRITTEN / 2, "most was left: {last}");
    }
}

#[test]
fn lm_07_a_quick_move_is_the_same_steps_with_all_of_it_in_the_pause() {
    for order in [Order::Qemu, Order::CloudHypervisor] {
        let hosts = Hosts::new(&[]);
        let mut guest = full_guest(&hosts);
        for (round, there) in (2..).zip([1, 0]) {
            let here = 1 - there;
            let looked = std::cell::Cell::new(false);
            let options = MigrateOptions {
                order,
                live: false,
                while_paused: Box::new(|| {
                    assert_eq!(hosts.phase(here), "idle", "nothing was begun before the pause");
                    assert_eq!(hosts.bundles(there), 0);
                    looked.set(true);
                }),
                ..MigrateOptions::default()
            };
            guest.vm.migrate(hosts.daemons[there].socket(0), options).unwrap();
            assert!(looked.get());
            guest.check();
            let passes = passes(&hosts, here);
            assert_eq!(passes.len(), 1, "{passes:?}");
            assert_eq!(passes[0]["is_last"], true);
            assert!(pages(&passes[0]) >= WRITTEN, "{passes:?}");
            guest.work(round);
        }
    }
}

#[test]
fn lm_21_a_pass_sends_what_the_queries_since_the_last_one_reported_and_no_more() {
    let hosts = Hosts::new(&PATIENT);
    let guest = full_guest(&hosts);
    let context = guest.device.create_context(Node::Copy).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    // Memory that engines alone write to.
    let local = guest.device.create_local_buffer(BYTES).unwrap();
    queue.submit(&fill(local.va(), BYTES, 7)).unwrap().wait(Some(NEVER)).unwrap();
    hosts.begin(0, "v0");
    hosts.converge(0, 0);
    let first = passes(&hosts, 0);
    assert_eq!(first.len(), 1);
    assert!(pages(&first[0]) >= WRITTEN + BYTES / 4096, "{first:?}");
    let left = || hosts.departure(0, 0)["progress"]["left_bytes"].as_u64().unwrap() / 4096;
    // What engines wrote before was sent, and is dirty no more. Rings and pages of devices change as the guest lives.
    let (before, few) = (left(), 64);
    assert!(before + BYTES / 4096 <= pages(&first[0]) + few, "{before} pages: {first:?}");
    // Some pages at either end and in between.
    let written = [(0, 10), (700, 90), (2000, 48)];
    for (page, count) in written {
        let commands = fill(local.va() + page * 4096, count * 4096, 8);
        queue.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
    }
    let count: u64 = written.iter().map(|written| written.1).sum();
    until("what was written is reported", || left() >= before + count);
    let told = left();
    assert!(told < before + count + few, "{told} pages, {before} before {count} were written");
    go(&hosts, &guest, 1, true);
    let all = passes(&hosts, 0);
    assert_eq!(all.len(), 2, "{all:?}");
    assert!((told..told + few).contains(&pages(&all[1])), "{told} pages were reported: {all:?}");
    guest.check();
    let staging = guest.device.create_buffer(BYTES).unwrap();
    queue.submit(&copy(local.va(), staging.va(), BYTES)).unwrap().wait(Some(NEVER)).unwrap();
    let mut bytes = vec![0; usize::try_from(BYTES).unwrap()];
    staging.read(0, &mut bytes).unwrap();
    for (page, found) in (0..).zip(bytes.chunks(4096)) {
        let is_new = written.iter().any(|(first, count)| (*first..first + count).contains(&page));
        let expected = if is_new { 8_u32 } else { 7 };
        assert!(found.chunks(4).all(|word| word == expected.to_le_bytes()), "page {page}");
    }
}

#[test]
fn lm_35_what_came_with_a_move_lies_where_it_lay_and_counts_as_written_at_the_next_one() {
    let small: &[&str] = &["vram=32M,vram-max=96M"];
    let hosts = Hosts::with_specs([small; 2], &[]);
    let vm = hosts.daemons[0].vm(0);
    let device = Device::open(vm.open("test").unwrap()).unwrap();
    let context = device.create_context(Node::Copy).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let staging = device.create_buffer(1 << 20).unwrap();
    // More than there is, so that some of it lies in the other memory.
    let buffers: Vec<_> = (0..6).map(|_| device.create_local_buffer(6 << 20).unwrap()).collect();
    for (value, buffer) in (1u32..).zip(&buffers) {
        queue.submit(&fill(buffer.va(), buffer.size(), value)).unwrap().wait(Some(NEVER)).unwrap();
    }
    let before = device.memory_info().unwrap();
    assert!(before.evicted > 0 && before.evicted < 36 << 20, "{before:?}");
    // Nothing is written on the way: at each host but the first, all that is there has come with a move.
    for (hop, live) in [(1, true), (0, true), (1, false), (0, false)] {
        let options = MigrateOptions { live, ..MigrateOptions::default() };
        vm.migrate(hosts.daemons[hop].socket(0), options).unwrap();
        let sent: u64 = passes(&hosts, 1 - hop).iter().map(pages).sum();
        assert!(sent >= (36 << 20) / 4096, "{sent} pages at the way to host {hop}");
    }
    let after = device.memory_info().unwrap();
    assert_eq!((after.evicted, after.local_free), (before.evicted, before.local_free));
    for (value, buffer) in (1u32..).zip(&buffers) {
        for at in (0..buffer.size()).step_by(1 << 20) {
            let commands = copy(buffer.va() + at, staging.va(), staging.size());
            queue.submit(&commands).unwrap().wait(Some(NEVER)).unwrap();
            let mut bytes = vec![0; 1 << 20];
            staging.read(0, &mut bytes).unwrap();
            assert!(bytes.chunks_exact(4).all(|word| word == value.to_le_bytes()), "buffer {value} at {at}");
        }
    }
}
