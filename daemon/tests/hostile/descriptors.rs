//! What engine processes and the daemon hold open, as `/proc` shows it with two VMs attached: a bug in a driver must not
//! reach the memory of another VM through a descriptor that the engine was started with.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use crate::bystander::Bystander;
use crate::daemon::until;
use crate::packets::fill;
use crate::packets::wait;
use crate::ring::Ring;
use crate::scene::Scene;
use crate::signals::stop_at_rest;

/// Close-on-exec among the flags of `/proc/PID/fdinfo`.
const O_CLOEXEC: u32 = 0o2_000_000;

/// What every copy engine holds, in the order of the names. The channel is standard input, and a second name of it; the
/// pipe is standard error, and not the daemon's. The eventfds: something to report, a grant, a wake-up of the engine and its
/// second name for the control thread; the report's second name for signals of native fences.
const OWN: [&str; 14] = [
    "/dev/null",
    "eventfd",
    "eventfd",
    "eventfd",
    "eventfd",
    "eventfd",
    "memfd:campanile-engine-block",
    "memfd:campanile-fences",
    "memfd:campanile-page-tables",
    "memfd:campanile-vram",
    "memfd:campanile-written",
    "pipe",
    "socket",
    "socket",
];

/// One descriptor of a process.
#[derive(Debug)]
struct Descriptor {
    number: u32,
    kind: String,
    /// Device and inode, where they name one file and no other, or the kernel's number of an eventfd.
    file: Option<(u64, u64)>,
    flags: u32,
}

fn descriptors(pid: u32) -> Vec<Descriptor> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    entries
        .filter_map(|entry| {
            let entry = entry.unwrap();
            let number: u32 = entry.file_name().to_str().unwrap().parse().unwrap();
            // The daemon goes on, and may have closed one of those that were listed.
            let target = fs::read_link(entry.path()).ok()?;
            let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).ok()?;
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
            let flags = u32::from_str_radix(flags, 8).unwrap();
            let kind = kind(&target);
            let is_one = kind.starts_with("memfd:") || kind == "socket";
            let metadata = fs::metadata(entry.path()).ok()?;
            // All eventfds are one inode: the kernel numbers them.
            let eventfd = info.lines().find_map(|line| line.strip_prefix("eventfd-id:"));
            let eventfd = eventfd.map(|id| (u64::MAX, id.trim().parse().unwrap()));
            let file = if is_one { Some((metadata.dev(), metadata.ino())) } else { eventfd };
            Some(Descriptor { number, kind, file, flags })
        })
        .collect()
}

/// Without what differs from run to run.
fn kind(target: &Path) -> String {
    let target = target.to_str().unwrap();
    if let Some(name) = target.strip_prefix("/memfd:") {
        return format!("memfd:{}", name.trim_end_matches(" (deleted)"));
    }
    match target {
        _ if target.starts_with("socket:[") => "socket".to_owned(),
        _ if target.starts_with("pipe:[") => "pipe".to_owned(),
        "anon_inode:[eventfd]" => "eventfd".to_owned(),
        _ if target.ends_with("/log") => "log".to_owned(),
        _ => target.to_owned(),
    }
}

fn kinds(pid: u32) -> Vec<String> {
    let mut kinds: Vec<String> = descriptors(pid).into_iter().map(|descriptor| descriptor.kind).collect();
    kinds.sort();
    kinds
}

fn files(pid: u32) -> BTreeSet<(u64, u64)> {
    descriptors(pid).into_iter().filter_map(|descriptor| descriptor.file).collect()
}

/// An engine opens nothing more once it has its system call filter.
fn is_sealed(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| status.contains("\nSeccomp:\t2\n"))
}

/// Both engines and both spares hold what they need, guest RAM mapped but not open, and engines of different VMs have no file
/// in common.
fn check_all(scene: &Scene, when: &str) {
    let engines = [0, 1].map(|vgpu| scene.daemon.engine(vgpu));
    let is_spare = |pid: &u32| !engines.contains(pid);
    until("each engine has a spare that came up", || {
        let children = scene.daemon.children();
        children.len() == 4 && children.into_iter().all(is_sealed)
    });
    let children = scene.daemon.children();
    let mut pipes = BTreeSet::new();
    for pid in &children {
        let stderr = fs::read_link(format!("/proc/{pid}/fd/2")).unwrap();
        assert_eq!(kind(&stderr), "pipe", "{when}: standard error of {pid}");
        assert!(pipes.insert(stderr), "{when}: two engines share a pipe");
        let name = if is_spare(pid) { "a spare" } else { "an engine" };
        assert_eq!(kinds(*pid), OWN, "{when}: {name}");
        assert_eq!(environment(*pid), ENVIRONMENT, "{when}: {name}");
    }
    let [first, second] = engines.map(files);
    // Signals of one must not be taken, or made, by another.
    let eventfds =
        |files: &BTreeSet<(u64, u64)>| files.iter().filter(|(device, _)| *device == u64::MAX).count();
    assert_eq!((eventfds(&first), eventfds(&second)), (3, 3), "{when}: report, grant and wake-up");
    assert!(first.is_disjoint(&second), "{when}: {first:?} and {second:?}");
    // A spare has files of one of the two, and of that one only.
    for spare in children.iter().filter(|pid| is_spare(pid)).map(|pid| files(*pid)) {
        assert!(first.is_disjoint(&spare) != second.is_disjoint(&spare), "{when}: {spare:?} of a spare");
    }
}

/// What [`crate::daemon::Daemon`] and the daemon itself name for engines.
const ENVIRONMENT: [&str; 5] = [
    "MALLOC_ARENA_MAX=8",
    "MESA_SHADER_CACHE_DISABLE=true",
    "RUST_LOG=info",
    "VK_DRIVER_FILES=/nonexistent",
    "VK_ICD_FILENAMES=/nonexistent",
];

fn environment(pid: u32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap();
    let variables = bytes.split(|byte| *byte == 0).filter(|variable| !variable.is_empty());
    let mut variables: Vec<_> =
        variables.map(|variable| String::from_utf8(variable.to_vec()).unwrap()).collect();
    variables.sort();
    variables
}

#[test]
fn engines_spares_and_replacements_hold_files_of_their_own_vm_only() {
    let mut scene = Scene::with(&["--tdr-debug", "3", "--spares", "on", "--dirty-tracking", "bound-ranges"]);
    check_all(&scene, "at first");

    // The engine of the first VM stops while it has the node and another VM wants it.
    let attacker = scene.attacker();
    let ring = Ring::new(&attacker);
    let (mark, word) = (64 << 10, 65 << 10);
    ring.run_first(&attacker, &[fill(ring.va + mark, 8, 7), wait(ring.va + word, 1)].concat());
    until("the engine has the node", || {
        ring.memory.word(mark).unwrap().load(Ordering::Acquire) == 7 << 32 | 7
    });
    let engine = scene.daemon.engine(0);
    let _stopped = stop_at_rest(engine);
    scene.other_vm.compute();
    scene.unharmed();
    until("the process that stopped is gone", || !scene.daemon.children().contains(&engine));
    ring.memory.word(word).unwrap().store(1, Ordering::Release);
    ring.reached(&attacker, 1);
    drop((ring, attacker));
    scene.unharmed();
    check_all(&scene, "after a hang");
}

#[test]
fn no_descriptor_of_the_daemon_passes_to_another_program() {
    let scene = Scene::new();
    // A third guest process, so that memory comes and goes.
    Bystander::new(&scene.vm).compute();
    let all = descriptors(scene.daemon.pid());
    let names = |name: &str| all.iter().filter(|descriptor| descriptor.kind.starts_with(name)).count();
    assert!(names("memfd:campanile-vram") >= 2 && names("eventfd") > 4 && names("socket") > 4, "{all:?}");
    let passed: Vec<_> = all.iter().filter(|one| one.number > 2 && one.flags & O_CLOEXEC == 0).collect();
    assert!(passed.is_empty(), "{passed:?}");
}
