//! Why an engine process is gone.

use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::process::Pid;
use rustix::process::PidfdFlags;
use rustix::process::WaitId;
use rustix::process::WaitIdOptions;
use rustix::process::pidfd_open;
use rustix::process::waitid;

use super::settings::Containment;

/// How long a process whose channel is closed may take to be gone.
const TIMEOUT: Duration = Duration::from_millis(100);

/// How a process ended whose channel is closed, in words. It is not reaped by that.
pub(in crate::adapter) fn ending(child: &Child, containment: &Containment) -> String {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let Some(pid) = pid else { return "the engine process ended".to_owned() };
    describe(status_of(pid), containment)
}

/// None where it is still there.
fn status_of(pid: Pid) -> Option<ExitStatus> {
    let ends = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    let timeout = Timespec::try_from(TIMEOUT).unwrap_or_default();
    poll(&mut [PollFd::new(&ends, PollFlags::IN)], Some(&timeout)).ok()?;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let status = waitid(WaitId::Pid(pid), options).ok()??;
    let exit = status.exit_status().map(|code| code << 8);
    exit.or(status.terminating_signal()).map(ExitStatus::from_raw)
}

fn describe(status: Option<ExitStatus>, containment: &Containment) -> String {
    // The kernel counts it before the process is gone, which takes long where it has much memory.
    let ran_out = containment.cgroup.as_ref().is_some_and(|cgroup| {
        cgroup.has_new_kill().unwrap_or_else(|error| {
            log::warn!("reading memory.events of a vGPU: {error}");
            false
        })
    });
    let signal = status.and_then(|status| status.signal());
    let limit = match (containment.memory, signal) {
        _ if ran_out => "; the memory of its vGPU's cgroup was used up (--engine-memory)".to_owned(),
        (Some(memory), Some(_)) => {
            format!("; its memory was limited to {} MiB (--engine-memory)", memory >> 20)
        }
        _ => String::new(),
    };
    match status {
        Some(status) => format!("the engine process ended: {status}{limit}"),
        None => format!("the engine process closed its channel{limit}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test stops here")]

    use std::fs;
    use std::process::Command;
    use std::sync::Arc;

    use rustix::process::Pid;

    use super::Containment;
    use super::describe;
    use super::status_of;
    use crate::adapter::containment::Cgroup;

    fn ends(script: &str, containment: &Containment) -> String {
        let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let text = loop {
            // It may take longer than a session would wait for it.
            match status_of(Pid::from_child(&child)) {
                None => {}
                some => break describe(some, containment),
            }
        };
        assert!(child.try_wait().unwrap().is_some(), "it is still to be reaped");
        text
    }

    #[test]
    fn the_reason_names_the_end_and_the_limit_that_it_may_have_been() {
        let free = Containment::default();
        assert_eq!(ends("exit 3", &free), "the engine process ended: exit status: 3");
        assert_eq!(ends("kill -9 $$", &free), "the engine process ended: signal: 9 (SIGKILL)");
        let limited = Containment { memory: Some(64 << 20), ..Containment::default() };
        assert_eq!(ends("exit 0", &limited), "the engine process ended: exit status: 0");
        let text = ends("kill -6 $$", &limited);
        assert!(text.contains("SIGABRT") && text.contains("64 MiB (--engine-memory)"), "{text}");
        assert_eq!(describe(None, &limited), "the engine process closed its channel");
    }

    #[test]
    fn a_process_that_its_cgroup_has_no_memory_for_ended_of_that() {
        let folder = tempfile::tempdir().unwrap();
        let events = folder.path().join("memory.events");
        fs::write(folder.path().join("cgroup.procs"), "").unwrap();
        fs::write(&events, "oom_kill 0\n").unwrap();
        let cgroup = Some(Arc::new(Cgroup::open(folder.path()).unwrap()));
        let contained = Containment { cgroup, ..Containment::default() };
        assert!(!ends("kill -9 $$", &contained).contains("used up"));
        fs::write(&events, "oom_kill 1\n").unwrap();
        assert!(ends("kill -9 $$", &contained).ends_with("cgroup was used up (--engine-memory)"));
        fs::write(&events, "oom_kill 2\n").unwrap();
        let text = describe(None, &contained);
        assert!(
            text.ends_with(
                "closed its channel; the memory of its vGPU's cgroup was used up (--engine-memory)"
            )
        );
    }
}
