//! What is in force, as the kernel says it.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use rustix::process::DumpableBehavior;
use serde_json::Value;
use serde_json::json;

use super::Confinement;
use super::confiner::Confiner;
use super::files::Enforced;
use super::roles::Role;

/// What the kernel says of one thread.
#[derive(Debug, PartialEq, Eq)]
struct Thread {
    name: String,
    uid: u32,
    gid: u32,
    no_new_privs: bool,
    capabilities: u64,
    has_filter: bool,
}

impl Thread {
    /// From the text of its `status` file; none where a line is missing, as of a thread that has just ended.
    fn parse(text: &str) -> Option<Self> {
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
        // Real, effective, saved, file system.
        let effective = |name| field(name)?.split_ascii_whitespace().nth(1)?.parse().ok();
        Some(Self {
            name: field("Name")?.to_owned(),
            uid: effective("Uid")?,
            gid: effective("Gid")?,
            no_new_privs: field("NoNewPrivs")? == "1",
            capabilities: u64::from_str_radix(field("CapEff")?, 16).ok()?,
            has_filter: field("Seccomp")? == "2",
        })
    }
}

/// What confines this process, thread by thread, for `campanile ctl status`.
///
/// # Errors
/// `/proc` cannot be read.
pub fn describe(confiner: &Confiner) -> io::Result<Value> {
    let mut threads = Vec::new();
    for task in fs::read_dir("/proc/self/task")? {
        match fs::read_to_string(task?.path().join("status")) {
            Ok(text) => threads.extend(Thread::parse(&text)),
            // It has ended.
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    let dumpable = rustix::process::dumpable_behavior()? == DumpableBehavior::Dumpable;
    Ok(summary(confiner.confinement(), dumpable, &threads, &confiner.files()))
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

fn summary(
    confinement: Confinement,
    dumpable: bool,
    threads: &[Thread],
    files: &BTreeMap<Role, Enforced>,
) -> Value {
    let roles = Role::ALL.into_iter().filter_map(|role| {
        let enforced = match files.get(&role)? {
            Enforced::Fully => "landlock",
            Enforced::Partly => "landlock, in part",
        };
        Some(json!({ "role": role.name(), "files": enforced }))
    });
    let rows = threads.iter().map(|thread| {
        json!({
            "name": thread.name,
            "uid": thread.uid,
            "gid": thread.gid,
            "no_new_privs": thread.no_new_privs,
            "capabilities": format!("{:016x}", thread.capabilities),
            "seccomp": thread.has_filter,
        })
    });
    json!({
        "pid": std::process::id(),
        "confined": confinement == Confinement::On,
        "dumpable": dumpable,
        "no_new_privs": threads.iter().all(|thread| thread.no_new_privs),
        "roles": roles.collect::<Vec<_>>(),
        "threads": rows.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::Confinement;
    use super::Confiner;
    use super::Enforced;
    use super::Role;
    use super::Thread;
    use super::summary;

    const STATUS: &str = "Name:\tvgpu-queues\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nCapEff:\t0000000000080000\n\
                          NoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n";

    #[test]
    fn a_status_file_is_read_by_its_effective_ids() {
        let expected = Thread {
            name: "vgpu-queues".to_owned(),
            uid: 2,
            gid: 6,
            no_new_privs: true,
            capabilities: 1 << 19,
            has_filter: true,
        };
        assert_eq!(Thread::parse(STATUS), Some(expected));
        assert_eq!(Thread::parse(""), None);
    }

    #[test]
    fn one_thread_that_may_gain_privileges_shows() {
        let threads =
            |second: &str| [STATUS, second].map(Thread::parse).into_iter().flatten().collect::<Vec<_>>();
        let files = BTreeMap::from([(Role::Front, Enforced::Partly), (Role::Schedule, Enforced::Fully)]);
        let all = summary(Confinement::On, false, &threads(STATUS), &files);
        let roles = json!([{ "role": "schedule", "files": "landlock" },
                           { "role": "front", "files": "landlock, in part" }]);
        assert_eq!(all["roles"], roles);
        assert_eq!(
            (&all["no_new_privs"], &all["confined"], &all["dumpable"]),
            (&json!(true), &json!(true), &json!(false))
        );
        let one = summary(
            Confinement::Off,
            true,
            &threads(&STATUS.replace("NoNewPrivs:\t1", "NoNewPrivs:\t0")),
            &BTreeMap::new(),
        );
        assert_eq!(
            (&one["no_new_privs"], &one["confined"], &one["dumpable"]),
            (&json!(false), &json!(false), &json!(true))
        );
        assert_eq!(one["threads"][1]["no_new_privs"], false);
        assert_eq!(one["threads"][0]["capabilities"], "0000000000080000");
    }

    #[test]
    fn this_process_is_as_the_kernel_says() {
        let said = super::describe(&Confiner::default()).unwrap();
        let threads = said["threads"].as_array().unwrap();
        assert!(!threads.is_empty());
        assert!(threads.iter().all(|thread| thread["uid"] == rustix::process::geteuid().as_raw()));
    }
}
