//! What holds the engines of a vGPU, for the operator.

use campanile_host_gpu::adapter::containment::Containment;
use serde_json::Value;
use serde_json::json;

/// The limits that are in force, and what was seen of an engine process.
#[derive(Debug, Clone, Default)]
pub struct Held {
    /// What its engines are started with.
    pub containment: Containment,
    /// CPUs that they may use; none for all.
    pub cpus: Option<u32>,
    /// Why they have no cgroup of their own, where they have none.
    pub why_no_cgroup: Option<String>,
    /// Why they have the account that they have.
    pub why_account: String,
}

impl Held {
    /// The user as which engines run; none for the daemon's.
    pub fn uid(&self) -> Option<u32> {
        Some(self.containment.account.as_ref()?.uid)
    }

    /// As JSON.
    pub fn describe(&self) -> Value {
        let has_cgroup = self.containment.cgroup.is_some();
        let by = if has_cgroup { "cgroup" } else { "rlimits" };
        let last = self.containment.seen.last();
        let memory_by = match (self.containment.memory, &last) {
            (None, _) => "nothing",
            (Some(_), _) if has_cgroup => "cgroup and RLIMIT_DATA",
            (Some(_), Some(facts)) if !facts.seen => "RLIMIT_DATA",
            (Some(_), _) => "RLIMIT_DATA, and looks at shared memory",
        };
        let is_autogroup = last.as_ref().is_some_and(|facts| facts.autogroup);
        let cpu_by = match (has_cgroup, is_autogroup) {
            (true, _) => "cgroup",
            (false, true) => "autogroup",
            (false, false) => "nothing",
        };
        let has_own_user = self.containment.account.as_ref().is_some_and(|account| account.tasks.is_some());
        let has_own_pids = last.as_ref().is_some_and(|facts| facts.threads.is_some());
        let thread_limits =
            [(has_cgroup, "cgroup"), (has_own_user, "RLIMIT_NPROC"), (has_own_pids, "pid namespace")];
        let threads_by: Vec<&str> =
            thread_limits.into_iter().filter_map(|(is, name)| is.then_some(name)).collect();
        let process = last.map(|facts| {
            json!({
                "pid": facts.pid,
                "uid": facts.uid,
                "gid": facts.gid,
                "memory_bytes": facts.memory,
                "cgroup": facts.cgroup,
                "namespaces": facts.namespaces,
                "threads": facts.threads,
                "user_threads": facts.tasks,
            })
        });
        let account = self.containment.account.as_ref().map_or("daemon", |_| "own");
        json!({
            "account": account,
            "why_account": self.why_account,
            "limits": by,
            "why": self.why_no_cgroup,
            "memory_bytes": self.containment.memory,
            "cpus": self.cpus,
            "memory_by": memory_by,
            "cpu_by": cpu_by,
            "threads_by": threads_by,
            "last_process": process,
        })
    }
}
