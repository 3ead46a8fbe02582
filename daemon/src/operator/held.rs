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
    /// As JSON.
    pub fn describe(&self) -> Value {
        let by = if self.containment.cgroup.is_some() { "cgroup" } else { "rlimits" };
        let process = self.containment.seen.last().map(|facts| {
            json!({
                "pid": facts.pid,
                "uid": facts.uid,
                "gid": facts.gid,
                "memory_bytes": facts.memory,
                "cgroup": facts.cgroup,
                "namespaces": facts.namespaces,
                "threads": facts.threads,
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
            "last_process": process,
        })
    }
}
