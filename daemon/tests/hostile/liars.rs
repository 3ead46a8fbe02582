//! Engines that lie, in a whole daemon: every message of the channel at the wrong time, broken, and with descriptors; every
//! word of the shared block with values that it should not have. Each ends at the most its own VM's work.

use std::env;
use std::fs;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use campanile_daemon::confine::Confinement;
use campanile_daemon::host::engines::EngineOptions;
use campanile_daemon::host::options::HostOptions;
use campanile_daemon::host::options::VgpuOptions;
use campanile_daemon::host::start::Host;
use campanile_daemon::vgpu::tdr::policy::DebugMode;
use campanile_daemon::vgpu::tdr::policy::Policy;
use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_host_gpu::adapter::program::Program;
use campanile_protocol::control::message::CREATE_CONTEXT;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::control::message::QUERY_CAPS;
use campanile_protocol::control::status::Status;
use campanile_protocol::engine::block;
use campanile_protocol::engine::message as wire;
use campanile_test_vmm::vm::LoopbackVm;
use zerocopy::IntoBytes;

use crate::attacker::Attacker;
use crate::attacker::DATA_VA;
use crate::bystander::Bystander;
use crate::daemon::Daemon;
use crate::daemon::until;
use crate::lies::NO_TYPES;
use crate::lies::messages;
use crate::lies::packet;
use crate::puppet;
use crate::puppet::Puppet;
use crate::words;

/// Where the daemon below has its sockets.
const FOLDER: &str = "CAMPANILE_TEST_LIARS";
/// How much more of its own memory a daemon may have after many lies.
const GROWTH: u64 = 48 << 20;

/// The daemon: a process of its own, with this test program in the place of the engine program.
#[test]
#[ignore = "a daemon: run by the tests of this module"]
fn daemon() {
    let folder = PathBuf::from(env::var_os(FOLDER).unwrap());
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    let vgpu =
        |name: &str, vram: u64| VgpuOptions::new(name.to_owned(), folder.join(format!("{name}.sock")), vram);
    let nothing = |name: &str| (name.to_owned(), "/nonexistent".to_owned());
    let socket = folder.join("puppet.sock").to_string_lossy().into_owned();
    let environment =
        vec![nothing("VK_DRIVER_FILES"), nothing("VK_ICD_FILENAMES"), (puppet::SOCKET.to_owned(), socket)];
    let program = Program::new(folder.join("program"), environment);
    let liars = VgpuOptions { timeouts: [Some(Duration::from_secs(2)); 2], ..vgpu("v0", puppet::VRAM) };
    let options = HostOptions::new(vec![liars, vgpu("v1", puppet::VRAM / 4)], program);
    let host = Host::start(HostOptions {
        timeouts: [Duration::from_secs(60); 2],
        engines: EngineOptions { spares: false, ..options.engines.clone() },
        policy: Policy { debug: DebugMode::RecoverAlways, ..Policy::default() },
        confinement: Confinement::On,
        ..options
    })
    .unwrap();
    // Until the test ends.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    drop(host);
}

/// The program that engines are started from: this one, as a puppet.
fn write_program(path: &Path) {
    let puppet = env::current_exe().unwrap();
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = engine ] || exit 0\nexec {} --ignored --exact puppet::engine --nocapture\n",
        puppet.display()
    );
    fs::write(path, script).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    until("no process that another test starts has the script open", || {
        Command::new(path).status().is_ok_and(|status| status.success())
    });
}

/// The daemon, a VM whose engines may be puppets, and another VM.
pub(crate) struct Stage {
    other: Bystander,
    other_vm: Arc<LoopbackVm>,
    daemon: Daemon,
}

/// One guest of v0 one of whose engines is a puppet.
pub(crate) struct Lying {
    pub(crate) attacker: Attacker,
    vm: Arc<LoopbackVm>,
    pub(crate) puppet: Puppet,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        write_program(&folder.path().join("program"));
        let log = File::create(folder.path().join("log")).unwrap();
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "liars::daemon", "--nocapture"]);
        command.env(FOLDER, folder.path()).env("RUST_LOG", "info").env_remove("RUST_BACKTRACE");
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let daemon = Daemon::listening(child, folder, 2);
        let other_vm = daemon.vm(1);
        let mut other = Bystander::new(&other_vm);
        other.compute();
        let stage = Self { other, other_vm, daemon };
        // What is made once, by the first of them, is there.
        drop(stage.honest());
        stage
    }

    /// A guest whose copy engine has said nothing yet.
    fn silent(&self) -> Lying {
        self.silent_on(wire::NODE_COPY)
    }

    fn silent_on(&self, node: u32) -> Lying {
        let vm = self.daemon.vm(0);
        let attacker = Attacker::new(&vm);
        let puppet = Puppet::of(&self.daemon.folder().join("puppet.sock"), || {
            let create = CreateContext { node, engine_affinity: 1, flags: 0, reserved: 0 };
            let _asked = attacker.start(CREATE_CONTEXT, 2, create.as_bytes());
        });
        Lying { puppet, attacker, vm }
    }

    /// One whose engine has come up, and does as it should.
    fn honest(&self) -> Lying {
        self.honest_on(wire::NODE_COPY)
    }

    pub(crate) fn honest_on(&self, node: u32) -> Lying {
        let lying = self.silent_on(node);
        lying.puppet.order("started").unwrap();
        lying.puppet.order("honest 1").unwrap();
        lying.attacker.create_context_on(node);
        lying
    }

    /// What the daemon has logged.
    pub(crate) fn log(&self) -> String {
        self.daemon.log()
    }

    /// One VM does what it wants, whatever the other's engine has said.
    pub(crate) fn unharmed(&mut self, lie: &str) {
        self.other.compute();
        assert!(!self.other.is_lost() && self.daemon.is_alive(), "{lie}: the daemon ended");
        let log = self.daemon.log();
        // Engines' own lines are under their name.
        let panicked = log.lines().find(|line| line.contains("panicked") && !line.contains("engine process"));
        assert_eq!(panicked, None, "{lie}");
    }

    /// The daemon's descriptors and mappings, and bytes of its memory that are there, while the liars' VM is not.
    pub(crate) fn footprint(&self) -> (usize, usize, u64) {
        until("the engines of the VM that left are gone", || self.daemon.children().len() == 1);
        let (descriptors, mappings) = self.daemon.footprint();
        let status = fs::read_to_string(format!("/proc/{}/status", self.daemon.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        let resident = line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
        (descriptors, mappings, resident)
    }

    pub(crate) fn has_not_grown(&self, before: (usize, usize, u64)) {
        until("the daemon has let go of what lies had it hold", || {
            let now = self.footprint();
            now.0 <= before.0 + 2 && now.1 <= before.1 + 16
        });
        let now = self.footprint();
        assert!(now.2 <= before.2 + GROWTH, "{before:?} descriptors, mappings, bytes became {now:?}");
    }

    /// The engine that says this is ended, and the next one of its VM computes.
    pub(crate) fn ends(&mut self, lying: &Lying, lie: &str) {
        lying.puppet.has_ended(lie);
        let status = lying.attacker.status(QUERY_CAPS, &[]);
        assert!(matches!(status, Status::Ok | Status::DeviceLost), "{lie}: {status:?}");
        Bystander::new(&lying.vm).compute();
        self.unharmed(lie);
    }
}

#[test]
fn every_message_of_the_channel_is_lied_about() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../protocol/src/engine/message.rs");
    let source = fs::read_to_string(path).unwrap();
    let names = source.lines().filter_map(|line| line.strip_prefix("pub const ")?.split(':').next());
    let types: Vec<&str> = names.filter(|name| !NO_TYPES.contains(name)).collect();
    let listed: Vec<&str> = messages().iter().map(|(name, _, _)| *name).collect();
    assert_eq!(types, listed, "types of the protocol, and those that these tests send");
}

#[test]
fn a_message_that_nobody_asked_for_or_that_is_broken_ends_its_engine_and_no_other() {
    are_not_asked_for(wire::NODE_COPY);
}

#[test]
fn a_message_of_a_compute_engine_that_nobody_asked_for_or_that_is_broken_ends_it_and_no_other() {
    are_not_asked_for(wire::NODE_COMPUTE);
}

/// Each message, right and broken, of an engine that was not asked for it.
fn are_not_asked_for(node: u32) {
    let mut stage = Stage::new();
    let before = stage.footprint();
    for (name, kind, behind) in messages() {
        let right = packet(kind, 0, &behind);
        let mut short = right.clone();
        short.pop();
        let long = [right.as_slice(), &[0]].concat();
        for (how, bytes) in [("right", right), ("cut off", short), ("too long", long)] {
            let lie = format!("{name}, {how}");
            let lying = stage.honest_on(node);
            lying.puppet.order("honest 0").unwrap();
            lying.puppet.packet(&bytes, &[]);
            stage.ends(&lying, &lie);
        }
    }
    stage.has_not_grown(before);
}

#[test]
fn an_engine_that_answers_before_it_has_started_or_starts_twice_is_ended() {
    let mut stage = Stage::new();
    for (name, kind, behind) in messages().into_iter().filter(|(_, kind, _)| *kind > wire::REFUSED) {
        let lying = stage.silent();
        lying.puppet.packet(&packet(kind, 0, &behind), &[]);
        stage.ends(&lying, &format!("{name} before the start"));
    }
    let [started, refused] = [7, 8].map(|at| {
        let (_, kind, behind) = messages().swap_remove(at);
        packet(kind, 0, &behind)
    });
    for (first, second) in [(&started, &started), (&started, &refused), (&refused, &started)] {
        let lying = stage.silent();
        lying.puppet.packet(first, &[]);
        lying.puppet.packet(second, &[]);
        stage.ends(&lying, "two starts");
    }
    // One that says nothing more stalls no other VM.
    let lying = stage.silent();
    lying.puppet.order("close").unwrap();
    stage.ends(&lying, "closed before the start");
    drop(lying);
    let lying = stage.honest();
    lying.puppet.order("close").unwrap();
    stage.ends(&lying, "closed");
}

#[test]
fn an_engine_that_falls_silent_is_replaced() {
    let mut stage = Stage::new();
    let lying = stage.honest();
    lying.puppet.order("honest 0").unwrap();
    stage.unharmed("silence");
    stage.ends(&lying, "silence");
}

#[test]
fn descriptors_beside_a_message_are_closed_and_end_its_engine() {
    let mut stage = Stage::new();
    let before = stage.footprint();
    let kinds = ["null", "folder", "pipe", "socket", "channel", "empty", "unsealed", "block"];
    let (_, kind, behind) = messages().pop().unwrap();
    for file in kinds {
        for said in [0, 1] {
            let lying = stage.honest();
            lying.puppet.packet(&packet(kind, said, &behind), &[file]);
            stage.ends(&lying, &format!("a {file}, and {said} in the header"));
        }
    }
    // As many as a packet may have, one more, and as many as the kernel sends.
    for count in [32, 33, 250] {
        let lying = stage.honest();
        lying.puppet.packet(&packet(kind, count, &behind), &vec!["null"; usize::try_from(count).unwrap()]);
        stage.ends(&lying, &format!("{count} descriptors"));
    }
    stage.has_not_grown(before);
}

#[test]
fn no_word_of_the_block_hurts_the_daemon_or_another_vm() {
    let mut stage = Stage::new();
    let before = stage.footprint();
    let mut lying = stage.honest();
    for words in words::ALL {
        for index in [0, 1, words.count - 1].into_iter().take(usize::try_from(words.count.min(3)).unwrap()) {
            for number in 0..words::HOSTILE {
                let place = words.place(index);
                let lie = || -> Option<()> {
                    lying.puppet.order("honest 0")?;
                    let now = lying.puppet.order(&format!("load {place}"))?.parse().ok()?;
                    let value = words::hostile(number, now);
                    lying.puppet.order(&format!("store {place} {value}"))?;
                    lying.puppet.order("signal 0")?;
                    lying.puppet.order("signal 1")?;
                    Some(())
                };
                let is_there = lie().is_some();
                // Its session looks at what was signalled before it reads this.
                let status = lying.attacker.status(QUERY_CAPS, &[]);
                assert!(matches!(status, Status::Ok | Status::DeviceLost), "{}: {status:?}", words.name);
                if !is_there {
                    drop(lying);
                    lying = stage.honest();
                }
            }
        }
        stage.unharmed(words.name);
        let _goes_on = lying.puppet.order("honest 1");
    }
    let Lying { puppet, attacker, vm } = lying;
    drop((puppet, attacker));
    Bystander::new(&vm).compute();
    stage.unharmed("all words");
    drop(vm);
    stage.has_not_grown(before);
}

#[test]
fn an_engine_that_claims_all_words_at_once_is_no_more_than_a_lost_one() {
    let mut stage = Stage::new();
    for value in [0, u64::MAX, 1 << 63] {
        let lying = stage.honest();
        lying.puppet.order("honest 0").unwrap();
        for place in (0..block::BLOCK_BYTES).step_by(8).filter(|place| *place < 0x1000 || place % 4096 == 0) {
            if lying.puppet.order(&format!("store {place} {value}")).is_none() {
                break;
            }
        }
        let _signalled = lying.puppet.order("signal 0").and_then(|_| lying.puppet.order("signal 1"));
        // Asked for something, it is found out at the latest when its time is over.
        let blob = lying.attacker.context.create_blob(BlobMemory::Vram, 4096).unwrap();
        let status = lying.attacker.map(blob.resource_id(), 0, DATA_VA, 4096);
        assert!(matches!(status, Status::Ok | Status::DeviceLost), "{status:?}");
        drop(lying);
        let vm = stage.daemon.vm(0);
        Bystander::new(&vm).compute();
        stage.unharmed(&format!("{value:#x} everywhere"));
    }
}

#[test]
fn nothing_that_an_engine_has_holds_a_byte_of_another_vm() {
    let mut stage = Stage::new();
    let [secret, own, pages] = ["of v1: ", "of v0: ", "RAM of v0: "]
        .map(|name| format!("{name}{}", "0123456789abcdef".repeat(4)).into_bytes());
    let victim = Attacker::new(&stage.other_vm);
    let (_blob, video) = victim.memory(DATA_VA, 4096);
    video.write(0, &secret).unwrap();
    let ram = victim.context.create_blob(BlobMemory::GuestRam, 4096).unwrap();
    victim.context.map(&ram).unwrap().write(0, &secret).unwrap();
    assert_eq!(victim.map(ram.resource_id(), 0, DATA_VA * 2, 4096), Status::Ok);
    let lying = stage.honest();
    let (_blob, video) = lying.attacker.memory(DATA_VA, 4096);
    video.write(64, &own).unwrap();
    let ram = lying.attacker.context.create_blob(BlobMemory::GuestRam, 4096).unwrap();
    lying.attacker.context.map(&ram).unwrap().write(0, &pages).unwrap();
    assert_eq!(lying.attacker.map(ram.resource_id(), 0, DATA_VA * 2, 4096), Status::Ok);
    let count = |pattern: &[u8]| lying.puppet.scan(pattern).iter().map(|(_, count)| count).sum::<u64>();
    assert!(count(&own) > 0, "what is its VM's is found: {:?}", lying.puppet.scan(&own));
    until("its VM's pages are found, once it was told of them", || count(&pages) > 0);
    assert_eq!(count(&secret), 0, "{:?}", lying.puppet.scan(&secret));
    stage.unharmed("a search");
}
