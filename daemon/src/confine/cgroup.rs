//! Cgroups of version 2 for engines, one a vGPU, where the daemon's own was delegated to it (`Delegate=yes` in a systemd unit).
//!
//! ```text
//!   own cgroup, subtree_control: +memory +pids +cpu
//!     ├── campanile-PID              the daemon: a cgroup with controllers for others has no process, but for the root
//!     ├── campanile-PID-vgpu-a       memory.max, pids.max, cpu.weight, cpu.max
//!     └── campanile-PID-vgpu-b
//! ```
//!
//! Memory of a file counts for the cgroup that touched it first, so video memory is part of `memory.max`.

use std::collections::BTreeSet;
use std::fs;
use std::fs::File;
use std::io;
use std::io::Write;
use std::path::Path;
use std::path::PathBuf;

/// Begins the names of all cgroups that are made here.
const PREFIX: &str = "campanile-";
/// The period of `cpu.max`, in microseconds.
const PERIOD: u64 = 100_000;
/// Threads of one engine process: those of a driver are a few for each CPU.
const THREADS: u64 = 4096;
/// Each vGPU competes for CPUs as one, whatever its engines have for threads.
const WEIGHT: u64 = 100;

/// What the engines of one vGPU may have together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ceiling {
    /// Bytes, video memory included; none for no limit.
    pub memory: Option<u64>,
    /// Processes that there may be.
    pub processes: u64,
    /// CPUs; none for all.
    pub cpus: Option<u32>,
}

/// The daemon's own cgroup, set up for others below it, which go with this.
#[derive(Debug)]
pub struct Delegated {
    folder: PathBuf,
    pid: u32,
    made: Vec<PathBuf>,
}

impl Delegated {
    /// Moves this process one level down.
    ///
    /// # Errors
    /// In words, why this cgroup cannot be used; then the process is where it was.
    pub fn find() -> Result<Self, String> {
        let read = |name: &str| {
            fs::read_to_string(format!("/proc/self/{name}"))
                .map_err(|error| format!("/proc/self/{name}: {error}"))
        };
        let folder = own_folder(&read("mountinfo")?, &read("cgroup")?)?;
        Self::within(above_a_daemon(&folder), std::process::id())
    }

    /// The same in this cgroup, for the process of this number.
    ///
    /// # Errors
    /// As [`Self::find`].
    pub fn within(folder: &Path, pid: u32) -> Result<Self, String> {
        let failed = |what: &str| {
            let what = format!("{}: {what}", folder.display());
            move |error: io::Error| format!("{what}: {error}")
        };
        let controllers = fs::read_to_string(folder.join("cgroup.controllers"));
        let controllers = controllers.map_err(failed("cgroup.controllers"))?;
        let wanted: Vec<_> = ["memory", "pids", "cpu"]
            .into_iter()
            .filter(|name| controllers.split_whitespace().any(|controller| controller == *name))
            .map(|name| format!("+{name}"))
            .collect();
        if !wanted.contains(&"+memory".to_owned()) {
            return Err(format!("{} has no memory controller", folder.display()));
        }
        remove_stale(folder, pid, |other| Path::new(&format!("/proc/{other}")).exists());
        let mut own = Self { folder: folder.to_owned(), pid, made: Vec::new() };
        // The root of the hierarchy has no type, and may have processes.
        if folder.join("cgroup.type").exists() {
            let daemon = folder.join(format!("campanile-{pid}"));
            make(&daemon).map_err(failed("making a cgroup"))?;
            own.made.push(daemon.clone());
            set(&daemon, "cgroup.procs", &pid.to_string()).map_err(failed("moving the daemon"))?;
        }
        if let Err(error) = set(folder, "cgroup.subtree_control", &wanted.join(" ")) {
            set(folder, "cgroup.procs", &pid.to_string()).map_err(failed("moving the daemon back"))?;
            return Err(failed("other processes are in it, or it was not delegated")(error));
        }
        Ok(own)
    }

    /// Makes the cgroup of a vGPU; its folder.
    ///
    /// # Errors
    /// The kernel refuses a limit, or this process may not set it.
    pub fn make_vgpu(&mut self, name: &str, ceiling: Ceiling) -> io::Result<PathBuf> {
        let folder = self.vgpu_folder(name);
        make(&folder)?;
        self.made.push(folder.clone());
        if let Some(memory) = ceiling.memory {
            set(&folder, "memory.max", &memory.to_string())?;
            // Else what passes the limit would be swapped out.
            set_where_there(&folder, "memory.swap.max", "0")?;
        }
        set_where_there(&folder, "pids.max", &(ceiling.processes * THREADS).to_string())?;
        set_where_there(&folder, "cpu.weight", &WEIGHT.to_string())?;
        if let Some(cpus) = ceiling.cpus {
            set(&folder, "cpu.max", &format!("{} {PERIOD}", u64::from(cpus) * PERIOD))?;
        }
        Ok(folder)
    }

    /// Removes the cgroup of a vGPU whose engines have ended.
    pub fn remove_vgpu(&mut self, name: &str) {
        let folder = self.vgpu_folder(name);
        self.made.retain(|made| *made != folder);
        if let Err(error) = fs::remove_dir(&folder) {
            log::warn!("removing {}: {error}", folder.display());
        }
    }

    fn vgpu_folder(&self, name: &str) -> PathBuf {
        self.folder.join(format!("campanile-{}-vgpu-{}", self.pid, file_name(name)))
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        for folder in self.made.iter().rev() {
            // A cgroup goes when its last process has; that of the daemon stays until then, as the unit's do.
            if let Err(error) = fs::remove_dir(folder) {
                log::debug!("removing {}: {error}", folder.display());
            }
        }
    }
}

/// Removes what daemons have left here that were killed. A daemon sits in its own cgroup, and the kernel removes none that has
/// a process: what can be removed has no owner. Where daemons have none of their own, only those of numbers that no process has.
fn remove_stale(folder: &Path, own: u32, is_alive: impl Fn(u32) -> bool) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    let of_a_daemon = |name: &str| -> Option<u32> {
        let rest = name.strip_prefix(PREFIX)?;
        rest.split_once("-vgpu-").map_or(rest, |(pid, _)| pid).parse().ok()
    };
    let daemons: BTreeSet<u32> = names.iter().filter_map(|name| of_a_daemon(name)).collect();
    for pid in daemons.into_iter().filter(|&pid| pid != own && !is_alive(pid)) {
        let daemon = folder.join(format!("{PREFIX}{pid}"));
        // One that is not seen from this pid namespace is in it.
        if daemon.exists() && fs::remove_dir(&daemon).is_err() {
            continue;
        }
        let its = format!("{PREFIX}{pid}-vgpu-");
        for name in names.iter().filter(|name| name.starts_with(&its)) {
            match fs::remove_dir(folder.join(name)) {
                Ok(()) => log::info!("removed {name}, which a daemon has left in {}", folder.display()),
                Err(error) => log::debug!("{name} stays in {}: {error}", folder.display()),
            }
        }
    }
}

fn make(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

fn set(folder: &Path, file: &str, value: &str) -> io::Result<()> {
    let path = folder.join(file);
    let written =
        File::options().write(true).open(&path).and_then(|mut file| file.write_all(value.as_bytes()));
    written.map_err(|error| io::Error::new(error.kind(), format!("{} = {value}: {error}", path.display())))
}

/// A controller that the kernel does not have limits nothing.
fn set_where_there(folder: &Path, file: &str, value: &str) -> io::Result<()> {
    match set(folder, file, value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// A name of a file or folder that no other name has.
pub(crate) fn file_name(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02x}")),
        }
    }
    text
}

/// Where a daemon started this process, to be its successor, it is in that daemon's own cgroup: the delegated one is above.
fn above_a_daemon(folder: &Path) -> &Path {
    let name = folder.file_name().and_then(|name| name.to_str());
    let is_of_a_daemon = name
        .and_then(|name| name.strip_prefix(PREFIX))
        .is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()));
    folder.parent().filter(|_| is_of_a_daemon).unwrap_or(folder)
}

/// The folder of this process's cgroup, from `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn own_folder(mounts: &str, cgroups: &str) -> Result<PathBuf, String> {
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::"));
    let path = path.ok_or("this process is in no cgroup of version 2")?;
    let mount = mounts.lines().find_map(|line| {
        let (fields, of) = line.split_once(" - ")?;
        let mut fields = fields.split(' ').skip(3);
        of.starts_with("cgroup2 ").then_some((fields.next()?, fields.next()?))
    });
    let (root, mount) = mount.ok_or("no cgroup hierarchy of version 2 is mounted")?;
    let below = Path::new(path).strip_prefix(root);
    let below = below.map_err(|_| format!("its cgroup {path} is outside of what is mounted at {mount}"))?;
    Ok(Path::new(mount).join(below))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::path::PathBuf;

    use super::Ceiling;
    use super::Delegated;
    use super::above_a_daemon;
    use super::own_folder;
    use super::remove_stale;

    const MOUNTS: &str = "24 1 0:22 / /proc rw - proc proc rw\n29 1 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                          30 1 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";

    #[test]
    fn the_own_folder_is_where_the_hierarchy_is_mounted_and_below_it() {
        let folder = own_folder(MOUNTS, "4:memory:/x\n0::/system.slice/campanile.service\n").unwrap();
        assert_eq!(folder, PathBuf::from("/sys/fs/cgroup/system.slice/campanile.service"));
        let inside = MOUNTS.replace("0:27 / ", "0:27 /box ");
        assert_eq!(own_folder(&inside, "0::/box/a\n").unwrap(), PathBuf::from("/sys/fs/cgroup/a"));
        assert!(own_folder(&inside, "0::/other\n").unwrap_err().contains("outside"));
        assert!(own_folder(MOUNTS, "4:memory:/x\n").unwrap_err().contains("version 2"));
        assert!(own_folder("", "0::/\n").unwrap_err().contains("mounted"));
    }

    /// Files as the kernel makes them in a cgroup.
    fn files(folder: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(folder).unwrap();
        for (file, text) in files {
            fs::write(folder.join(file), text).unwrap();
        }
    }

    const OWN: [(&str, &str); 4] = [
        ("cgroup.controllers", "cpuset cpu io memory pids\n"),
        ("cgroup.type", "domain\n"),
        ("cgroup.procs", ""),
        ("cgroup.subtree_control", ""),
    ];

    #[test]
    fn a_delegated_cgroup_gets_one_for_the_daemon_and_one_a_vgpu() {
        let own = tempfile::tempdir().unwrap();
        files(own.path(), &OWN);
        let daemon = own.path().join("campanile-7");
        files(&daemon, &[("cgroup.procs", "")]);
        let of_vgpu = own.path().join("campanile-7-vgpu-a%2fb");
        let limits = ["memory.max", "memory.swap.max", "pids.max", "cpu.weight", "cpu.max"];
        files(&of_vgpu, &limits.map(|file| (file, "")));
        let mut delegated = Delegated::within(own.path(), 7).unwrap();
        let ceiling = Ceiling { memory: Some(5 << 30), processes: 4, cpus: Some(3) };
        assert_eq!(delegated.make_vgpu("a/b", ceiling).unwrap(), of_vgpu);
        let read = |folder: &Path, file| fs::read_to_string(folder.join(file)).unwrap();
        assert_eq!(read(&daemon, "cgroup.procs"), "7");
        assert_eq!(read(own.path(), "cgroup.subtree_control"), "+memory +pids +cpu");
        assert_eq!(
            limits.map(|file| read(&of_vgpu, file)),
            ["5368709120", "0", "16384", "100", "300000 100000"]
        );
    }

    /// What daemons have made, of which the second one is alive and the third one is in a pid namespace of its own.
    fn leave(folder: &Path, busy: impl Fn(&Path)) {
        for name in ["campanile-11", "campanile-11-vgpu-a", "campanile-11-vgpu-b%2fc", "campanile-12"] {
            fs::create_dir(folder.join(name)).unwrap();
        }
        for name in ["campanile-12-vgpu-a", "campanile-13", "campanile-13-vgpu-a", "campanile-14-vgpu-a"] {
            fs::create_dir(folder.join(name)).unwrap();
        }
        for name in ["campanile-7-vgpu-a", "campanile-x", "campanile-11x-vgpu-a", "other-11"] {
            fs::create_dir(folder.join(name)).unwrap();
        }
        busy(&folder.join("campanile-13"));
    }

    fn left(folder: &Path) -> Vec<String> {
        let folders = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        let folders = folders.filter(|entry| entry.file_type().unwrap().is_dir());
        let mut names: Vec<String> = folders.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }

    const STAY: [&str; 8] = [
        "campanile-11x-vgpu-a",
        "campanile-12",
        "campanile-12-vgpu-a",
        "campanile-13",
        "campanile-13-vgpu-a",
        "campanile-7-vgpu-a",
        "campanile-x",
        "other-11",
    ];

    #[test]
    fn a_successor_begins_in_the_cgroup_of_its_predecessor_and_uses_the_one_above() {
        for (folder, delegated) in [
            ("/sys/fs/cgroup/unit/campanile-4711", "/sys/fs/cgroup/unit"),
            ("/sys/fs/cgroup/unit", "/sys/fs/cgroup/unit"),
            ("/sys/fs/cgroup/campanile-", "/sys/fs/cgroup/campanile-"),
            ("/sys/fs/cgroup/campanile-new", "/sys/fs/cgroup/campanile-new"),
        ] {
            assert_eq!(above_a_daemon(Path::new(folder)), Path::new(delegated));
        }
    }

    #[test]
    fn cgroups_of_daemons_that_were_killed_are_removed_and_those_of_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        leave(folder.path(), |busy| fs::write(busy.join("cgroup.procs"), "99").unwrap());
        remove_stale(folder.path(), 7, |pid| pid == 12);
        assert_eq!(left(folder.path()), STAY);
    }

    #[test]
    fn the_kernel_removes_no_cgroup_of_a_daemon_that_is_there() {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let Ok(folder) = own_folder(&mounts, &own) else { return };
        let folder = folder.join(format!("campanile-test-{}", std::process::id()));
        if fs::create_dir(&folder).is_err() {
            // Not this user's to arrange.
            return;
        }
        let mut process = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = process.id().to_string();
        leave(&folder, |busy| fs::write(busy.join("cgroup.procs"), &pid).unwrap());
        remove_stale(&folder, 7, |pid| pid == 12);
        let names = left(&folder);
        process.kill().unwrap();
        process.wait().unwrap();
        names.iter().for_each(|name| fs::remove_dir(folder.join(name)).unwrap());
        fs::remove_dir(&folder).unwrap();
        assert_eq!(names, STAY);
    }

    #[test]
    fn a_limit_that_cannot_be_set_is_an_error_and_no_silence() {
        let own = tempfile::tempdir().unwrap();
        files(own.path(), &OWN);
        fs::remove_file(own.path().join("cgroup.type")).unwrap();
        let mut delegated = Delegated::within(own.path(), 7).unwrap();
        assert!(!own.path().join("campanile-7").exists(), "the root may have processes");
        let folder = own.path().join("campanile-7-vgpu-a");
        files(&folder, &[("memory.max", "")]);
        let no_cpu = Ceiling { memory: Some(1 << 30), processes: 1, cpus: Some(1) };
        assert!(
            delegated.make_vgpu("a", no_cpu).unwrap_err().to_string().contains("cpu.max = 100000 100000")
        );
        delegated.make_vgpu("a", Ceiling { cpus: None, ..no_cpu }).unwrap();
        fs::remove_file(folder.join("memory.max")).unwrap();
        assert!(delegated.make_vgpu("a", Ceiling { cpus: None, ..no_cpu }).is_err());
    }

    #[test]
    fn what_is_not_delegated_is_left_as_it_was_with_the_reason() {
        let own = tempfile::tempdir().unwrap();
        files(own.path(), &OWN[..1]);
        let daemon = own.path().join("campanile-7");
        files(own.path(), &OWN[1..3]);
        files(&daemon, &[("cgroup.procs", "")]);
        let why = Delegated::within(own.path(), 7).unwrap_err();
        assert!(why.contains("not delegated") && why.contains("subtree_control"), "{why}");
        assert_eq!(fs::read_to_string(own.path().join("cgroup.procs")).unwrap(), "7", "it is moved back");
        files(own.path(), &[("cgroup.controllers", "hugetlb\n")]);
        assert!(Delegated::within(own.path(), 7).unwrap_err().ends_with("has no memory controller"));
    }
}
