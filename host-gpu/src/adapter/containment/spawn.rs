//! Starting a process that is held.

use std::io;
use std::process::Child;
use std::process::Command;

use super::facts::Facts;
use super::isolation;
use super::settings::Containment;
use super::watch;

/// Starts the program. Call it on a thread that nothing confines.
///
/// # Errors
/// It cannot be started, limited, or given its account.
pub(in crate::adapter) fn spawn(mut command: Command, containment: &Containment) -> io::Result<Child> {
    let Containment { memory, namespaces, account, outlives, .. } = containment.clone();
    isolation::before_exec(&mut command, memory, namespaces, account, outlives);
    let mut child = isolation::spawn(&mut command, containment.namespaces)?;
    let pid = child.id();
    let taken = containment.cgroup.as_ref().map_or(Ok(()), |cgroup| cgroup.take(pid));
    // Where there is one, the kernel counts all of its memory.
    let unwatched = containment.memory.filter(|_| containment.cgroup.is_none());
    let watched = taken.and_then(|()| unwatched.map_or(Ok(()), |limit| watch::begin(pid, limit)));
    match watched.and_then(|()| Facts::of(pid)) {
        Ok(facts) => {
            containment.seen.note(facts, containment.namespaces);
            Ok(child)
        }
        Err(error) => {
            child.kill()?;
            child.wait()?;
            Err(io::Error::new(error.kind(), format!("holding an engine process: {error}")))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test stops here")]

    use std::fs;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;
    use std::process::Stdio;
    use std::sync::Arc;

    use super::Containment;
    use super::spawn;
    use crate::adapter::containment::Account;

    /// Runs a shell script that ends by itself; what it printed, and whether it succeeded.
    fn run(script: &str, containment: &Containment) -> (String, bool) {
        let mut command = Command::new("sh");
        // It begins when the limits are there, as an engine does with its first message.
        command.args(["-c", &format!("read begin; {script}")]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawn(command, containment).unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"begin\n").unwrap();
        let output = child.wait_with_output().unwrap();
        (String::from_utf8(output.stdout).unwrap(), output.status.success())
    }

    #[test]
    fn an_engine_with_a_pid_namespace_of_its_own_has_no_more_threads_than_it_is_said() {
        let own = Containment { namespaces: true, ..Containment::default() };
        let limit = "cat /proc/sys/kernel/pid_max";
        let of_all = fs::read_to_string("/proc/sys/kernel/pid_max").unwrap();
        let (said, _) = run(limit, &own);
        match own.seen.last().unwrap().threads {
            Some(threads) => assert_eq!(said.trim().parse(), Ok(threads + 1)),
            None => assert_eq!(said, of_all),
        }
        assert_eq!(fs::read_to_string("/proc/sys/kernel/pid_max").unwrap(), of_all, "that of this machine");
        let shared = Containment::default();
        assert_eq!(run(limit, &shared).0, of_all);
        assert_eq!(shared.seen.last().unwrap().threads, None);
        // Where it may be done, and the kernel can, it is.
        let may = rustix::thread::capabilities(None).unwrap().effective;
        if may.contains(rustix::thread::CapabilitySet::SYS_ADMIN) && super::isolation::has_own_pid_max() {
            assert_eq!(said.trim(), "4096");
        }
    }

    #[test]
    fn a_user_that_is_one_vgpus_has_no_more_processes_and_threads_than_it_is_said() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        // Eight that are there at once; each ends by itself.
        let crowd = "for one in 1 2 3 4 5 6 7 8; do sleep 3 & done; echo all";
        for (tasks, can) in [(Some(4), false), (Some(4096), true), (None, true)] {
            // One that nothing else has.
            let account = Account { uid: 61_300, gid: 61_300, groups: Vec::new(), tasks };
            let held = Containment { account: Some(Arc::new(account)), ..Containment::default() };
            let (said, succeeded) = run(crowd, &held);
            assert_eq!((said.trim() == "all", succeeded), (can, can), "{tasks:?}");
            let seen = held.seen.last().unwrap().tasks;
            assert!(tasks.is_none() || seen == tasks, "{seen:?}");
        }
    }

    /// Takes 64 MiB, which `tail` keeps, as it is one line.
    const HOG: &str = "head -c 67108864 /dev/zero | tail -n 1 | wc -c";

    #[test]
    fn a_process_that_takes_more_memory_than_its_limit_fails_and_with_less_it_does_not() {
        let limited = |mib: u64| Containment { memory: Some(mib << 20), ..Containment::default() };
        assert_eq!(run(HOG, &limited(512)).0.trim(), "67108864");
        assert_ne!(run(HOG, &limited(16)).0.trim(), "67108864");
        assert_eq!(run(HOG, &Containment::default()).0.trim(), "67108864");
    }

    #[test]
    fn a_process_makes_no_file_larger_than_its_memory() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let script = format!("truncate -s 2M {}", file.display());
        let limited = |mib: u64| Containment { memory: Some(mib << 20), ..Containment::default() };
        assert!(!run(&script, &limited(1)).1);
        assert_eq!(fs::metadata(&file).map_or(0, |metadata| metadata.len()), 0);
        assert!(run(&script, &limited(2)).1);
        assert_eq!(fs::metadata(&file).unwrap().len(), 2 << 20);
    }

    #[test]
    fn a_process_ends_with_the_thread_that_started_it_whatever_program_account_and_namespaces_it_has() {
        let account = Account { uid: 65_534, gid: 65_534, groups: Vec::new(), tasks: None };
        let other_user = Containment { account: Some(Arc::new(account)), ..Containment::default() };
        let mut all =
            vec![Containment::default(), Containment { namespaces: true, ..Containment::default() }];
        if rustix::process::geteuid().is_root() {
            all.extend([other_user.clone(), Containment { namespaces: true, ..other_user }]);
        }
        for containment in all {
            // It asks for nothing, and ends by itself much later than its thread.
            let starts = containment.clone();
            let start = move || {
                let mut command = Command::new("sleep");
                command.arg("20");
                spawn(command, &starts).unwrap()
            };
            let mut child = std::thread::spawn(start).join().unwrap();
            assert_eq!(child.wait().unwrap().signal(), Some(9), "{containment:?}");
        }
    }

    #[test]
    fn what_was_seen_is_what_the_process_says_of_itself() {
        let contained = Containment { memory: Some(512 << 20), namespaces: true, ..Containment::default() };
        let (said, _) = run("ulimit -d; ulimit -c; readlink /proc/self/ns/net", &contained);
        let mut said = said.lines();
        assert_eq!((said.next(), said.next()), (Some("524288"), Some("0")));
        let facts = contained.seen.last().unwrap();
        assert_eq!(facts.memory, Some(512 << 20));
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        let has_own = said.next().unwrap() != own.to_str().unwrap();
        assert_eq!(facts.namespaces.contains(&"net"), has_own);
        // Where it may be done it is.
        let may = rustix::thread::capabilities(None).unwrap().effective;
        if may.contains(rustix::thread::CapabilitySet::SYS_ADMIN) {
            assert_eq!(facts.namespaces, ["ipc", "net", "pid"]);
        }
        // The thread that started it can go on as it was.
        std::thread::spawn(|| ()).join().unwrap();
        let shared = Containment::default();
        run("true", &shared);
        assert!(shared.seen.last().unwrap().namespaces.is_empty());
    }
}
