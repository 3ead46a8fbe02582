//! A guest whose local memory is a device's own goes elsewhere, or is saved, with all that it has there.

use std::sync::Arc;

use campanile_daemon::operator::client;
use campanile_daemon::operator::verb::Verb;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::residency::LocalBuffer;
use campanile_test_vmm::migration::options::MigrateOptions;
use campanile_test_vmm::migration::options::Next;
use campanile_test_vmm::order::Order;
use campanile_test_vmm::vm::LoopbackVm;
use rustix::process::Signal;

use crate::dirty_costly::passes;
use crate::dirty_costly::progress;
use crate::dirty_costly::steps;
use crate::dirty_costly::waits;
use crate::linked::queue_on;
use crate::local_memory::Guest;
use crate::migration::Hosts;
use crate::processes::engines;
use crate::raw_queue::copy;
use crate::raw_queue::fill;
use crate::signals::try_signal;
use crate::support::Daemon;
use crate::support::until;

const MIB: u64 = 1 << 20;
const PLAIN: &[&str] = &["vram=64M"];
const DEVICE: &[&str] = &["--local-memory", "device"];
const HOST: &[&str] = &["--local-memory", "host"];

/// A guest with buffers in local memory, of which it knows what they hold.
struct Traveller {
    vm: Arc<LoopbackVm>,
    guest: Guest,
    /// Each with the value of all its words, but for the first MiB, which has the sum of those values.
    buffers: Vec<(LocalBuffer, u32)>,
}

impl Traveller {
    fn new(daemon: &Daemon, count: usize, bytes: u64) -> Self {
        Self::on(0, daemon, count, bytes)
    }

    /// With its work on this linked adapter.
    fn on(adapter: u32, daemon: &Daemon, count: usize, bytes: u64) -> Self {
        let vm = daemon.vm(0);
        let mut guest = Guest::on(Device::open(vm.open("traveller").unwrap()).unwrap(), Node::Copy);
        if adapter > 0 {
            (_, guest.queue) = queue_on(&guest.device, Node::Copy, adapter);
        }
        let buffers = (0..count).map(|_| (guest.device.create_local_buffer(bytes).unwrap(), 0)).collect();
        let mut this = Self { vm, guest, buffers };
        this.work(1);
        this
    }

    fn value(round: u32, index: usize) -> u32 {
        (round << 16) + u32::try_from(index).unwrap() + 1
    }

    /// Writes all of every second buffer, and the head of the others.
    fn work(&mut self, round: u32) {
        for (index, (buffer, value)) in self.buffers.iter_mut().enumerate() {
            if index % 2 == 0 {
                *value = Self::value(round, index);
                self.guest.run(&fill(buffer.va() + MIB, buffer.size() - MIB, *value));
            }
            self.guest.run(&fill(buffer.va(), MIB, *value ^ round));
            // One page amid the rest, by a copy within local memory, which changes nothing.
            self.guest.run(&copy(buffer.va() + MIB, buffer.va() + MIB + 4096, 4096));
        }
    }

    fn check(&mut self, round: u32) {
        for (index, (buffer, value)) in self.buffers.iter().enumerate() {
            let words = self.guest.words(buffer);
            let (head, rest) = words.split_at(usize::try_from(MIB / 4).unwrap());
            let found = head.iter().position(|word| *word != value ^ round).map(|at| (at, head[at]));
            assert_eq!(found, None, "head of {index} in round {round}, which is {:#x}", value ^ round);
            assert!(rest.iter().all(|word| word == value), "buffer {index} in round {round}");
        }
    }

    fn migrate(&self, to: &Daemon, options: MigrateOptions<'_>) {
        self.vm.migrate(to.socket(0), options).unwrap();
    }
}

fn local_in(hosts: &Hosts, index: usize) -> String {
    let status = hosts.ask(index, &Verb::Status);
    status["vgpus"][0]["session"]["memory"]["local_in"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn lm_63_what_a_linked_adapter_has_written_to_the_devices_memory_that_all_share_moves_along() {
    let linked = [DEVICE, &["--engines", "2"]].concat();
    let hosts = Hosts::each([PLAIN; 2], [&linked; 2]);
    let mut traveller = Traveller::on(1, &hosts.daemons[0], 4, 2 * MIB);
    for (round, there) in [(2, 1), (3, 0)] {
        traveller.work(round);
        traveller.migrate(&hosts.daemons[there], MigrateOptions::default());
        traveller.check(round);
    }
}

#[test]
fn lm_63_a_guest_goes_between_daemons_whose_local_memory_is_the_devices_own_or_the_hosts_and_back() {
    for (places, order) in [
        ([DEVICE, DEVICE], Order::Qemu),
        ([DEVICE, HOST], Order::CloudHypervisor),
        ([HOST, DEVICE], Order::Qemu),
    ] {
        let pause = &["--migrate-pause", "0", "--migrate-streams", "2"];
        let more = places.map(|place| [place, &pause[..]].concat());
        let hosts = Hosts::each([PLAIN; 2], [&more[0], &more[1]]);
        let mut traveller = Traveller::new(&hosts.daemons[0], 5, 3 * MIB);
        for round in 2..6 {
            let (here, there) = (usize::from(round % 2 == 1), usize::from(round % 2 == 0));
            assert_eq!(local_in(&hosts, here), places[here][1]);
            let vm = Arc::clone(&traveller.vm);
            let options = MigrateOptions {
                order,
                after_pass: Box::new(|_| {
                    until("a pass", || passes(&hosts, here) >= 1);
                    // What is written while it goes, and read at the target.
                    for more in 1..4 {
                        traveller.work(round + 16 * more);
                        until("another pass", || passes(&hosts, here) > usize::try_from(more).unwrap());
                    }
                    traveller.work(round);
                    Next::Stop
                }),
                ..MigrateOptions::default()
            };
            vm.migrate(hosts.daemons[there].socket(0), options).unwrap();
            traveller.check(round);
            // Memory that it is given there is zero, as everywhere.
            let fresh = traveller.guest.device.create_local_buffer(4 * MIB).unwrap();
            assert!(traveller.guest.is_all(&fresh, 0));
            traveller.guest.run(&fill(fresh.va(), fresh.size(), 0x5a5a_5a5a));
        }
    }
}

#[test]
fn dirty_31_only_what_was_written_of_a_devices_memory_goes_where_tracking_is_cheap() {
    let hosts = Hosts::each([PLAIN; 2], [DEVICE; 2]);
    let mut traveller = Traveller::new(&hosts.daemons[0], 2, 2 * MIB);
    traveller.migrate(&hosts.daemons[1], MigrateOptions::default());
    traveller.check(1);
    let told = progress(&hosts, 0);
    let (_, first) = &steps(&told)[0];
    assert!((4 * MIB..16 * MIB).contains(first), "of 32 MiB of local memory, 4 were written: {told}");
}

#[test]
fn lm_66_without_a_brownout_or_a_line_a_devices_memory_goes_in_the_pause() {
    for method in ["bound-ranges", "shadow-compare", "off"] {
        let hosts = Hosts::with_folder(&[DEVICE, &["--dirty-tracking", method]].concat());
        let mut traveller = Traveller::new(&hosts.daemons[0], 4, 4 * MIB);
        for (round, there) in [(2, 1), (3, 0)] {
            traveller.work(round);
            traveller
                .migrate(&hosts.daemons[there], MigrateOptions { live: false, ..MigrateOptions::default() });
            traveller.check(round);
        }
    }
}

#[test]
fn dirty_30_dirty_61_a_devices_memory_is_compared_with_what_was_sent_in_the_brownout_only() {
    let costly = [DEVICE, &["--dirty-tracking", "shadow-compare", "--migrate-pause", "0"]].concat();
    let queries =
        |hosts: &Hosts| steps(&progress(hosts, 0)).iter().filter(|(name, _)| name == "query").count();
    let hosts = Hosts::each([PLAIN; 2], [&costly; 2]);
    let mut traveller = Traveller::new(&hosts.daemons[0], 4, 4 * MIB);
    let shadow = |hosts: &Hosts, index| {
        let status = hosts.ask(index, &Verb::Status);
        status["vgpus"][0]["session"]["memory"]["tracking"]["shadow_bytes"].as_u64()
    };
    let before = shadow(&hosts, 0);
    let vm = Arc::clone(&traveller.vm);
    let options = MigrateOptions {
        after_pass: Box::new(|_| {
            until("all was sent", || waits(&hosts, 0));
            let (asked, done) = (queries(&hosts), passes(&hosts, 0));
            let whole = steps(&progress(&hosts, 0))[0].1;
            // The same again, of which nothing is to be sent, and then something else.
            traveller.work(1);
            until("what was sent is compared", || queries(&hosts) > asked + 1);
            let sent: u64 = steps(&progress(&hosts, 0))[1..]
                .iter()
                .filter(|(name, _)| name == "pass")
                .map(|(_, bytes)| *bytes)
                .sum();
            assert!(sent < whole + MIB, "rings, and what was read back: {}", progress(&hosts, 0));
            traveller.work(2);
            until("another pass", || passes(&hosts, 0) > done);
            Next::Stop
        }),
        ..MigrateOptions::default()
    };
    vm.migrate(hosts.daemons[1].socket(0), options).unwrap();
    traveller.check(2);
    let told = progress(&hosts, 0);
    let steps = steps(&told);
    assert!(steps[0].1 >= 64 * MIB, "all of it first: {steps:?}");
    assert_eq!(before, shadow(&hosts, 1), "nothing is kept but while it goes");
}

#[test]
fn lm_64_memory_that_a_device_moves_when_a_guest_is_to_stand_still_arrives_first() {
    let specs: &[&str] = &["vram=32M,vram-max=96M"];
    let hosts = Hosts::each([specs; 2], [DEVICE; 2]);
    // More than fits: with each round some is evicted, and some comes back.
    let mut traveller = Traveller::new(&hosts.daemons[0], 8, 5 * MIB);
    for round in 2..6 {
        let (here, there) = (usize::from(round % 2 == 1), usize::from(round % 2 == 0));
        let mut points = Vec::new();
        for (index, (buffer, value)) in traveller.buffers.iter_mut().enumerate() {
            *value = Traveller::value(round, index);
            let commands = fill(buffer.va() + MIB, buffer.size() - MIB, *value);
            points.push(traveller.guest.queue.submit(&commands).unwrap());
            let commands = fill(buffer.va(), MIB, *value ^ round);
            points.push(traveller.guest.queue.submit(&commands).unwrap());
        }
        // Nothing was waited for.
        let options = MigrateOptions { live: round % 2 == 0, ..MigrateOptions::default() };
        traveller.migrate(&hosts.daemons[there], options);
        points.iter().for_each(|point| point.wait(None).unwrap());
        traveller.check(round);
        until("nothing is left at the source", || hosts.phase(here) == "idle");
    }
    traveller.guest.device.check().unwrap();
}

#[test]
fn lm_66_a_snapshot_has_a_devices_memory_and_the_guest_goes_on() {
    let hosts = Hosts::each([PLAIN; 2], [DEVICE, HOST]);
    let mut traveller = Traveller::new(&hosts.daemons[0], 4, 4 * MIB);
    let at = |name: &str| hosts.folder.path().join(name);
    let take = |file: &str| {
        hosts.ask(0, &Verb::Snapshot { vgpu: "v0".to_owned(), file: at(file) });
    };
    take("snapshot");
    traveller.check(1);
    traveller.work(2);
    traveller.check(2);
    // What begins as it has the same, wherever its local memory lies: its own snapshot says so.
    let taken = contents(&at("snapshot"));
    for place in [DEVICE, HOST] {
        let control = at(place[1]);
        let spec = format!("vram=64M,restore={}", at("snapshot").display());
        let daemon =
            Daemon::with_specs(&[&spec], &[place, &["--control", control.to_str().unwrap()]].concat());
        // Its file is there a moment before it listens.
        let mut line = None;
        until("the vGPU's socket", || {
            line = std::os::unix::net::UnixStream::connect(daemon.socket(0)).ok();
            line.is_some()
        });
        let again = at("again");
        until("its own snapshot", || {
            let verb = Verb::Snapshot { vgpu: "v0".to_owned(), file: again.clone() };
            client::ask(&control, &verb).is_ok()
        });
        let found = contents(&again);
        for ((buffer, _), index) in traveller.buffers.iter().zip(0..) {
            let value = if index % 2 == 0 { Traveller::value(1, index) } else { 0 };
            let pages = usize::try_from(buffer.size() / 4096).unwrap();
            let same = |bytes: &[u8]| {
                let page = value.to_le_bytes().repeat(1024);
                bytes.chunks(4096).filter(|found| *found == page).count()
            };
            assert!(same(&taken) >= pages - 256 && same(&found) >= pages - 256, "buffer {index}");
        }
    }
}

/// All bytes of the video memory in a file.
fn contents(file: &std::path::Path) -> Vec<u8> {
    use std::os::unix::fs::FileExt;

    use campanile_daemon::migration::file::read;
    use campanile_daemon::migration::stage::Shape;
    use campanile_daemon::migration::target::arriving::Arriving;

    let lengths = read::inspect(file).unwrap().hello.memories;
    let shape = Shape { lengths, limits: lengths };
    let arriving = Arriving {
        name: "v0".to_owned(),
        peers: Vec::new(),
        shape,
        check: Box::new(|_| Ok(())),
        compiler: None,
    };
    let (_, stage) = read::load(file, &arriving, None).unwrap();
    let mut bytes = vec![0; usize::try_from(lengths[0]).unwrap()];
    stage.memories().unwrap()[0].file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn lm_65_a_process_that_reads_a_devices_memory_and_ends_is_replaced_and_the_guest_goes() {
    let hosts = Hosts::each([PLAIN; 2], [&[DEVICE, &["--migrate-pause", "0"]].concat(); 2]);
    let mut traveller = Traveller::new(&hosts.daemons[0], 4, 4 * MIB);
    let own = engines(&hosts.daemons[0]);
    let vm = Arc::clone(&traveller.vm);
    let options = MigrateOptions {
        after_pass: Box::new(|_| {
            until("a pass", || passes(&hosts, 0) >= 1);
            for round in 2..4 {
                let done = passes(&hosts, 0);
                let readers = || engines(&hosts.daemons[0]).into_iter().filter(|pid| !own.contains(pid));
                until("a process that reads", || readers().count() > 0);
                for pid in readers() {
                    // It may have ended by itself.
                    let _gone = try_signal(pid, Signal::KILL);
                }
                traveller.work(round);
                until("one more pass", || passes(&hosts, 0) > done);
            }
            Next::Stop
        }),
        ..MigrateOptions::default()
    };
    vm.migrate(hosts.daemons[1].socket(0), options).unwrap();
    traveller.check(3);
    until("none is left", || engines(&hosts.daemons[0]).is_empty());
}
