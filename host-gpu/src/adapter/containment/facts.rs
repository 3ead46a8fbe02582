//! What the kernel says of an engine process.

use std::fs;
use std::io;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use super::isolation::MAX_THREADS;
use super::isolation::has_own_pid_max;

/// The namespaces that an engine is to have of its own.
const NAMESPACES: [&str; 3] = ["ipc", "net", "pid"];

static HAS_WARNED: AtomicBool = AtomicBool::new(false);

/// What is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// The process.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
    /// `RLIMIT_DATA` in bytes; none where it is unlimited.
    pub memory: Option<u64>,
    /// Its cgroup of version 2, as seen from the root of that hierarchy; none where there is no such hierarchy.
    pub cgroup: Option<String>,
    /// The namespaces that it does not have in common with the daemon.
    pub namespaces: Vec<&'static str>,
    /// Processes and threads that it may have, where its pid namespace is limited; else they are not.
    pub threads: Option<u64>,
    /// `RLIMIT_NPROC`: processes and threads that its user may have; none where they are unlimited.
    pub tasks: Option<u64>,
    /// Whether its shared memory can be looked at.
    pub seen: bool,
    /// Whether the kernel shares CPU time among sessions, and this is one of its own.
    pub autogroup: bool,
}

/// What was seen of the last process that was started.
#[derive(Debug, Default)]
pub struct Seen(Mutex<Option<Facts>>);

impl Seen {
    /// None where no process was started yet.
    pub fn last(&self) -> Option<Facts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes it; says once what was wanted and is not there.
    pub(super) fn note(&self, facts: Facts, wants_namespaces: bool) {
        let missing: Vec<_> =
            NAMESPACES.into_iter().filter(|name| !facts.namespaces.contains(name)).collect();
        if wants_namespaces && !missing.is_empty() && !HAS_WARNED.swap(true, Ordering::Relaxed) {
            log::warn!(
                "engine processes share these namespaces with the daemon: {}; its own need CAP_SYS_ADMIN",
                missing.join(", ")
            );
        }
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(facts);
    }
}

impl Facts {
    /// Of a process that is there, which this thread may look into.
    pub(super) fn of(pid: u32) -> io::Result<Self> {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}"));
        let (status, limits, cgroups) = (read("status")?, read("limits")?, read("cgroup")?);
        let id = |name: &str| effective_id(&status, name).ok_or_else(|| missing("status", name));
        let limit = |name: &str| {
            let found = limits.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
            Ok::<Option<u64>, io::Error>(found.ok_or_else(|| missing("limits", name))?.parse().ok())
        };
        let (memory, tasks) = (limit("Max data size")?, limit("Max processes")?);
        let mut namespaces = Vec::new();
        for name in NAMESPACES {
            // Where this may not be seen, as without the kernel's support, it does not count.
            let link = |of: &str| fs::read_link(format!("/proc/{of}/ns/{name}"));
            if let (Ok(its), Ok(own)) = (link(&pid.to_string()), link("self"))
                && its != own
            {
                namespaces.push(name);
            }
        }
        let cgroup = cgroups.lines().find_map(|line| line.strip_prefix("0::")).map(ToOwned::to_owned);
        let threads = (namespaces.contains(&"pid") && has_own_pid_max()).then_some(MAX_THREADS);
        let autogroup = has_autogroup(&cgroups, &read("autogroup").unwrap_or_default());
        let seen = fs::File::open(format!("/proc/{pid}/maps")).is_ok();
        let (uid, gid) = (id("Uid")?, id("Gid")?);
        Ok(Self { pid, uid, gid, memory, cgroup, namespaces, threads, tasks, seen, autogroup })
    }
}

/// Autogroups are those of the root of the cpu controller only, and of no effect where the machine's switch is off.
fn has_autogroup(cgroups: &str, autogroup: &str) -> bool {
    let is_on = |name: &str| fs::read_to_string(name).is_ok_and(|text| text.trim() == "1");
    let own = fs::read_to_string("/proc/self/autogroup").unwrap_or_default();
    let number = |text: &str| text.split(' ').next().map(ToOwned::to_owned);
    is_on("/proc/sys/kernel/sched_autogroup_enabled")
        && is_at_root_of_cpu(cgroups)
        && !autogroup.is_empty()
        && number(autogroup) != number(&own)
}

/// Version 1 names the controller; of version 2 it is the unnamed hierarchy, where no other has it.
fn is_at_root_of_cpu(cgroups: &str) -> bool {
    let lines = || cgroups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
    let of_cpu = lines().find(|(controllers, _)| controllers.split(',').any(|name| name == "cpu"));
    of_cpu
        .or_else(|| lines().find(|(controllers, _)| controllers.is_empty()))
        .is_some_and(|(_, path)| path == "/")
}

fn missing(file: &str, line: &str) -> io::Error {
    io::Error::other(format!("/proc/PID/{file} without {line}"))
}

/// Real, effective, saved, file system.
fn effective_id(status: &str, name: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"))?;
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::is_at_root_of_cpu;

    #[test]
    fn autogroups_are_those_of_the_root_of_the_cpu_controller() {
        for (cgroups, is_root) in [
            ("2:cpuacct:/a\n1:cpu:/\n0::/a\n", true),
            ("4:cpu,cpuacct:/a\n0::/\n", false),
            ("3:cpuset:/\n0::/system.slice/campanile.service\n", false),
            ("0::/\n", true),
            ("", false),
        ] {
            assert_eq!(is_at_root_of_cpu(cgroups), is_root, "{cgroups}");
        }
    }
}
