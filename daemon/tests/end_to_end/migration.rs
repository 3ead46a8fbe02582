//! A guest that goes from one daemon to another, with its memories by a line between them, or by a side file.

use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use campanile_daemon::migration::file::read;
use campanile_daemon::migration::stage::Shape;
use campanile_daemon::migration::target::arriving::Arriving;
use campanile_daemon::operator::client;
use campanile_daemon::operator::verb::Verb;
use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::context::Context;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use campanile_test_vmm::migration::error::Step;
use campanile_test_vmm::migration::options::MigrateOptions;
use campanile_test_vmm::migration::options::Next;
use campanile_test_vmm::order::Order;
use campanile_test_vmm::vm::LoopbackVm;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::Daemon;
use crate::support::until;

pub(crate) const BYTES: u64 = 8 << 20;

/// Two daemons that reach each other.
pub(crate) struct Hosts {
    pub(crate) folder: TempDir,
    pub(crate) daemons: [Daemon; 2],
}

impl Hosts {
    pub(crate) fn new(more: &[&str]) -> Self {
        Self::with_specs([&["vram=64M"]; 2], more)
    }

    /// With vGPUs named v0, v1, … at each, of these kinds.
    pub(crate) fn with_specs(specs: [&[&str]; 2], more: &[&str]) -> Self {
        Self::each(specs, [more; 2])
    }

    /// The same, each with more arguments of its own.
    pub(crate) fn each(specs: [&[&str]; 2], more: [&[&str]; 2]) -> Self {
        Self::changed(specs, more, |_, _| ())
    }

    /// The same, each started as `change` has it.
    pub(crate) fn changed(
        specs: [&[&str]; 2],
        more: [&[&str]; 2],
        change: impl Fn(usize, &mut Command),
    ) -> Self {
        let folder = TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let doors = ["a", "b"].map(|name| format!("unix:{}", at(name)));
        let daemons = [0, 1].map(|index| {
            let control = at(&format!("control{index}"));
            let mut arguments = vec![
                "--migrate-listen",
                &doors[index],
                "--migrate-to",
                &doors[1 - index],
                "--control",
                &control,
            ];
            arguments.extend(more[index]);
            Daemon::changed(specs[index], &arguments, |command| change(index, command))
        });
        until("both doors", || ["a", "b"].iter().all(|name| folder.path().join(name).exists()));
        Self { folder, daemons }
    }

    /// Two that share a folder, and no line.
    pub(crate) fn with_folder(more: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let shared = at("state");
        let daemons = [0, 1].map(|index| {
            let control = at(&format!("control{index}"));
            Daemon::with(&[&["--state-dir", &shared, "--control", &control], more].concat())
        });
        Self { folder, daemons }
    }

    pub(crate) fn control(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("control{index}"))
    }

    pub(crate) fn ask(&self, index: usize, verb: &Verb) -> Value {
        client::ask(&self.control(index), verb).unwrap()
    }

    /// What a vGPU says of its way out.
    pub(crate) fn departure(&self, index: usize, vgpu: usize) -> Value {
        self.ask(index, &Verb::Migration)["departures"][vgpu].clone()
    }

    /// Has a brownout begin, to the configured peer.
    pub(crate) fn begin(&self, index: usize, vgpu: &str) {
        self.ask(index, &Verb::Migrate { vgpu: vgpu.to_owned(), to: None, rename: None });
    }

    /// Whether the first pass of a vGPU's brownout is under way, and not over.
    pub(crate) fn is_amid_first_pass(&self, index: usize, vgpu: usize) -> bool {
        let told = self.departure(index, vgpu);
        let progress = &told["progress"];
        let has_sent = progress["passes"].as_array().is_some_and(|passes| !passes.is_empty());
        told["phase"] == "brownout" && progress["doing"] == "sending" && !has_sent
    }

    /// Waits until the brownout of a vGPU waits for the pause.
    pub(crate) fn converge(&self, index: usize, vgpu: usize) {
        until("the brownout waits", || {
            let told = self.departure(index, vgpu);
            told["progress"]["doing"].as_str().is_some_and(|doing| doing.starts_with("waiting"))
        });
    }

    pub(crate) fn phase(&self, index: usize) -> Value {
        self.departure(index, 0)["phase"].clone()
    }

    pub(crate) fn bundles(&self, index: usize) -> usize {
        self.ask(index, &Verb::Migration)["arrivals"]["bundles"].as_array().map_or(0, Vec::len)
    }

    fn files(&self) -> usize {
        let bundles: &Path = &self.folder.path().join("state/bundles");
        std::fs::read_dir(bundles).unwrap().count()
    }
}

/// A guest program that knows what its memory holds.
pub(crate) struct Guest {
    pub(crate) vm: Arc<LoopbackVm>,
    pub(crate) buffers: Vec<Buffer>,
    queue: UserQueue,
    _context: Context,
    pub(crate) device: Device,
    pub(crate) expected: Vec<u8>,
}

impl Guest {
    pub(crate) fn new(daemon: &Daemon) -> Self {
        Self::on(daemon, 0)
    }

    pub(crate) fn on(daemon: &Daemon, vgpu: usize) -> Self {
        let vm = daemon.vm(vgpu);
        let device = Device::open(vm.open("test").unwrap()).unwrap();
        let buffers = (0..2).map(|_| device.create_buffer(BYTES).unwrap()).collect();
        let context = device.create_context(Node::Copy).unwrap();
        let queue = context.create_user_queue(&QueueOptions::default()).unwrap();
        let expected = vec![0; usize::try_from(BYTES).unwrap()];
        let mut guest = Self { vm, buffers, queue, _context: context, device, expected };
        guest.work(1);
        guest
    }

    /// The CPU writes here and there, the GPU copies all of it.
    pub(crate) fn work(&mut self, round: u8) {
        for (index, page) in self.expected.chunks_mut(4096).enumerate().step_by(7) {
            page.fill(round.wrapping_add(u8::try_from(index % 256).unwrap()));
            self.buffers[0].write(index as u64 * 4096, page).unwrap();
        }
        let mut commands = CommandBuffer::new();
        commands.copy(self.buffers[0].va(), self.buffers[1].va(), BYTES).unwrap();
        self.queue.submit(&commands).unwrap().wait(None).unwrap();
    }

    /// The CPU writes to the first bytes of these pages.
    pub(crate) fn touch(&mut self, pages: std::ops::Range<usize>, value: u8) {
        for page in pages {
            let bytes = &mut self.expected[page * 4096..page * 4096 + 8];
            bytes.fill(value);
            self.buffers.iter().for_each(|buffer| buffer.write(page as u64 * 4096, bytes).unwrap());
        }
    }

    pub(crate) fn check(&self) {
        for buffer in &self.buffers {
            let mut found = vec![0; self.expected.len()];
            buffer.read(0, &mut found).unwrap();
            assert!(found == self.expected, "memory differs");
        }
    }
}

#[test]
fn lm_63_a_guest_goes_there_and_back_with_all_that_it_has() {
    for (order, more) in [
        (Order::Qemu, &["--migrate-streams", "3", "--migrate-zstd", "1"][..]),
        (Order::CloudHypervisor, &[][..]),
    ] {
        let hosts = Hosts::new(more);
        let mut guest = Guest::new(&hosts.daemons[0]);
        for round in 0..4u8 {
            let (here, there) = (usize::from(round % 2), usize::from(1 - round % 2));
            let mut looks = 0;
            let after_pass = Box::new(|_: &_| {
                looks += 1;
                // Its memories go over while it runs.
                until("the brownout waits", || {
                    let told = hosts.ask(here, &Verb::Migration);
                    let doing =
                        told["departures"][0]["progress"]["doing"].as_str().unwrap_or_default().to_owned();
                    doing.starts_with("waiting")
                });
                Next::Stop
            });
            let options = MigrateOptions { order, live: true, after_pass, ..MigrateOptions::default() };
            guest.vm.migrate(hosts.daemons[there].socket(0), options).unwrap();
            assert_eq!(looks, 1);
            guest.check();
            guest.work(round + 2);
            guest.check();
            until("nothing is left at the source", || hosts.phase(here) == "idle");
            until("nothing is left on its way", || hosts.bundles(there) == 0);
        }
    }
}

#[test]
fn lm_66_without_a_brownout_or_a_line_all_goes_in_the_pause() {
    for order in [Order::Qemu, Order::CloudHypervisor] {
        let hosts = Hosts::with_folder(&[]);
        let mut guest = Guest::new(&hosts.daemons[0]);
        for there in [1, 0] {
            let options = MigrateOptions { order, live: false, ..MigrateOptions::default() };
            guest.vm.migrate(hosts.daemons[there].socket(0), options).unwrap();
            guest.check();
            guest.work(9);
            guest.check();
            assert_eq!(hosts.files(), 0, "the side file went with the right to run");
        }
    }
}

#[test]
fn lm_65_a_vmm_that_changes_its_mind_at_any_step_leaves_the_guest_at_the_source() {
    let hosts = Hosts::new(&[]);
    let mut guest = Guest::new(&hosts.daemons[0]);
    let steps = [Step::Log, Step::Connect, Step::Passes, Step::Pause, Step::Save, Step::Load];
    for (round, step) in (1..).zip(steps) {
        let options = MigrateOptions { give_up_at: Some(step), ..MigrateOptions::default() };
        guest.vm.migrate(hosts.daemons[1].socket(0), options).unwrap_err();
        guest.check();
        guest.work(round);
        guest.check();
        until("the target keeps nothing", || hosts.bundles(1) == 0);
    }
    // And then it goes.
    guest.vm.migrate(hosts.daemons[1].socket(0), MigrateOptions::default()).unwrap();
    guest.check();
    drop(guest.device);
}

#[test]
fn a_guest_whose_peer_is_gone_goes_on() {
    let folder = TempDir::new().unwrap();
    let nobody = format!("unix:{}", folder.path().join("nobody").display());
    let daemon = Daemon::with(&["--migrate-to", &nobody]);
    let other =
        Daemon::with(&["--migrate-listen", &format!("unix:{}", folder.path().join("door").display())]);
    let mut guest = Guest::new(&daemon);
    let error = guest.vm.migrate(other.socket(0), MigrateOptions::default()).unwrap_err();
    assert!(!error.to_string().is_empty());
    guest.check();
    guest.work(3);
    guest.check();
}

#[test]
fn lm_66_a_snapshot_is_there_whole_and_the_guest_goes_on() {
    let hosts = Hosts::new(&[]);
    let mut guest = Guest::new(&hosts.daemons[0]);
    let file = hosts.folder.path().join("snapshot");
    let taken = hosts.ask(0, &Verb::Snapshot { vgpu: "v0".to_owned(), file: file.clone() });
    assert!(taken["pages"].as_u64().unwrap() * 4096 >= 2 * BYTES, "{taken}");
    guest.check();
    let before = guest.expected.clone();
    guest.work(7);
    guest.check();
    // All that the guest had then is in the file, and none of what it did later.
    let contents = read::inspect(&file).unwrap();
    assert!(contents.state.is_some());
    // A session that begins as it has its processes, and its memory.
    let control = hosts.folder.path().join("restored");
    let spec = format!("vram=64M,restore={}", file.display());
    let daemon = Daemon::with_specs(&[&spec], &["--control", &control.display().to_string()]);
    // A front-end that does not reset the device.
    let mut line = None;
    until("the daemon takes a front-end", || {
        line = UnixStream::connect(daemon.socket(0)).ok();
        line.is_some()
    });
    until("the session is there", || {
        let Ok(status) = client::ask(&control, &Verb::Status) else { return false };
        let process = &status["vgpus"][0]["session"]["processes"][0];
        process["mapped_bytes"].as_u64().is_some_and(|mapped| mapped >= 2 * BYTES)
    });
    let again = hosts.folder.path().join("again");
    client::ask(&control, &Verb::Snapshot { vgpu: "v0".to_owned(), file: again.clone() }).unwrap();
    let lengths = contents.hello.memories;
    let arriving = Arriving {
        name: "v0".to_owned(),
        peers: Vec::new(),
        shape: Shape { lengths, limits: lengths },
        check: Box::new(|_| Ok(())),
        compiler: None,
    };
    for file in [file, again] {
        let (_, stage) = read::load(&file, &arriving, None).unwrap();
        let mut bytes = vec![0; usize::try_from(lengths[0]).unwrap()];
        stage.memories().unwrap()[0].file.read_exact_at(&mut bytes, 0).unwrap();
        let page = |index: usize| &before[index * 4096..(index + 1) * 4096];
        for index in [0, 7, 700] {
            assert!(bytes.chunks(4096).filter(|found| *found == page(index)).count() >= 2, "page {index}");
        }
    }
    // Where it cannot be written, nothing is left, and the guest goes on.
    let nowhere = hosts.folder.path().join("no/such/folder");
    let refused = client::ask(&hosts.control(0), &Verb::Snapshot { vgpu: "v0".to_owned(), file: nowhere });
    assert!(refused.unwrap_err().to_string().contains("no/such"));
    guest.work(8);
    guest.check();
}

#[test]
fn lm_01_lm_03_only_a_vgpu_that_can_move_says_so_and_whoever_connects_is_told_the_same() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (door, nobody) = (format!("unix:{}", at("door")), format!("unix:{}", at("nobody")));
    let other = Daemon::with(&["--migrate-listen", &format!("unix:{}", at("other"))]);
    let state = at("state");
    let ways: [(&[&str], Step, Option<Step>); 4] = [
        (&[], Step::Log, Some(Step::Save)),
        (&["--migrate-listen", &door], Step::Pause, None),
        (&["--migrate-to", &nobody], Step::Pause, None),
        // The state is saved; its memories are where the other does not look.
        (&["--state-dir", &state], Step::Pause, Some(Step::Load)),
    ];
    for (arguments, live, quick) in ways {
        let daemon = Daemon::with(arguments);
        // The adapter has started: what it says holds for the first guest and for the next one.
        for _guest in 0..2 {
            let guest = Guest::new(&daemon);
            let options = MigrateOptions { give_up_at: Some(Step::Pause), ..MigrateOptions::default() };
            let error = guest.vm.migrate(other.socket(0), options).unwrap_err();
            assert_eq!(error.step, live, "{arguments:?}: {error}");
            guest.check();
            if let Some(step) = quick {
                let options = MigrateOptions { live: false, ..MigrateOptions::default() };
                let error = guest.vm.migrate(other.socket(0), options).unwrap_err();
                assert_eq!(error.step, step, "{arguments:?}: {error}");
                guest.check();
            }
        }
    }
}
