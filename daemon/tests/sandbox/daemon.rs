//! What the daemon itself gives up, as `/proc` shows it and as it says.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Stdio;
use std::time::Instant;

use rustix::process::Pid;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::outside::Daemon;
use crate::outside::NEVER;
use crate::outside::engines_of;
use crate::outside::run_copies;
use crate::outside::start_program;
use crate::outside::status;

/// An account that no machine has.
pub(crate) const UID: u32 = 54321;
pub(crate) const GID: u32 = 54322;

pub(crate) struct Scene {
    folder: TempDir,
    pub(crate) daemon: Daemon,
}

impl Scene {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::within(tempfile::tempdir().unwrap(), arguments)
    }

    pub(crate) fn within(folder: TempDir, arguments: &[&str]) -> Self {
        Self::of(Path::new(env!("CARGO_BIN_EXE_campanile")), folder, arguments)
    }

    pub(crate) fn of(program: &Path, folder: TempDir, arguments: &[&str]) -> Self {
        let control = folder.path().join("control");
        let mut all = vec!["--control", control.to_str().unwrap()];
        all.extend(arguments);
        let daemon = start_program(program, &folder.path().join("v.sock"), &all);
        let begun = Instant::now();
        while let Err(error) = UnixStream::connect(&control) {
            assert!(begun.elapsed() < NEVER, "the daemon does not listen to its operator: {error}");
            std::thread::yield_now();
        }
        Self { folder, daemon }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("v.sock")
    }

    pub(crate) fn proc(&self) -> PathBuf {
        Path::new("/proc").join(self.daemon.0.id().to_string())
    }

    pub(crate) fn ctl(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
        command.arg("ctl").arg("--control").arg(self.folder.path().join("control")).args(arguments);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// What it says of itself.
    fn said(&self) -> Value {
        let status: Value = serde_json::from_str(&self.ctl(&["status", "--json"])).unwrap();
        status["daemon"].clone()
    }

    /// The `status` files of its threads.
    fn threads(&self) -> Vec<PathBuf> {
        let tasks = fs::read_dir(self.proc().join("task")).unwrap();
        tasks.map(|task| task.unwrap().path()).collect()
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn the_daemon_gains_no_privilege_and_leaves_no_core_and_says_so() {
    let scene = Scene::start(&[]);
    run_copies(&scene.socket(), || {
        for thread in scene.threads() {
            assert_eq!(status(&thread)("NoNewPrivs"), "1", "{}", status(&thread)("Name"));
        }
        let limits = fs::read_to_string(scene.proc().join("limits")).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        assert_eq!(core.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), ["0", "0"]);
        let said = scene.said();
        assert_eq!(said["pid"], scene.daemon.0.id());
        for (what, is) in [("confined", true), ("no_new_privs", true), ("dumpable", false)] {
            assert_eq!(said[what], is, "{what} of {said}");
        }
        let names: Vec<&str> =
            said["threads"].as_array().unwrap().iter().filter_map(|thread| thread["name"].as_str()).collect();
        for name in ["campanile", "supervisor", "vgpu-socket", "vgpu-queues", "control"] {
            assert!(names.contains(&name), "no {name} in {names:?}");
        }
        let roles = said["roles"].as_array().unwrap().iter().map(|role| {
            assert!(role["files"].as_str().unwrap().starts_with("landlock"), "{role}");
            role["role"].as_str().unwrap()
        });
        assert_eq!(roles.collect::<Vec<_>>(), ["schedule", "front", "operator"]);
        for thread in scene.threads() {
            let status = status(&thread);
            let left = match status("Name").as_str() {
                "campanile" | "engines" | "vgpus" => continue,
                // CAP_KILL, CAP_DAC_OVERRIDE.
                name if name.starts_with("vgpu-") => 1 << 5,
                name if name.starts_with("control") => 1 << 1,
                _ => 0,
            };
            for set in ["CapEff", "CapPrm"] {
                let has = u64::from_str_radix(&status(set), 16).unwrap();
                assert_eq!(has & !left, 0, "{set} of {}", status("Name"));
            }
            assert_eq!(status("Seccomp"), "2", "a filter of {}", status("Name"));
        }
        for thread in said["threads"].as_array().unwrap() {
            let is_free = matches!(thread["name"].as_str(), Some("campanile" | "engines" | "vgpus"));
            assert_eq!(thread["seccomp"], !is_free, "{thread}");
        }
        let text = scene.ctl(&["status"]);
        assert!(text.contains("CONFINED") && text.contains("never"), "{text}");
    });
}

#[test]
fn a_vgpu_that_comes_later_is_served_by_threads_as_confined_as_those_of_the_start() {
    let scene = Scene::start(&[]);
    let socket = scene.socket().with_file_name("later.sock");
    scene.ctl(&["vgpu", "add", &format!("name=later,socket={},vram=64M", socket.display())]);
    run_copies(&socket, || {
        let of_fronts = scene.threads().into_iter().map(|thread| status(&thread));
        let of_fronts: Vec<_> = of_fronts.filter(|status| status("Name") == "vgpu-socket").collect();
        let [first, later] = &of_fronts[..] else { panic!("{} threads", of_fronts.len()) };
        for field in ["NoNewPrivs", "CapInh", "CapPrm", "CapEff", "Seccomp", "Seccomp_filters"] {
            assert_eq!(first(field), later(field), "{field}");
        }
        assert_eq!((later("Seccomp"), later("NoNewPrivs")), ("2".to_owned(), "1".to_owned()));
    });
    scene.ctl(&["vgpu", "remove", "later", "--force"]);
}

#[test]
fn a_daemon_that_is_not_confined_says_so() {
    let scene = Scene::start(&["--no-confinement"]);
    run_copies(&scene.socket(), || {
        let said = scene.said();
        for (what, is) in [("confined", false), ("no_new_privs", false), ("dumpable", true)] {
            assert_eq!(said[what], is, "{what} of {said}");
        }
        assert_eq!(said["roles"], Value::Array(Vec::new()));
        assert_eq!(status(&scene.proc())("NoNewPrivs"), "0");
    });
}

#[test]
fn as_another_user_the_daemon_serves_without_any_right_of_root() {
    if !is_root() {
        let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
        command.args(["serve", "--vram", "64M", "--socket", "/nonexistent/v.sock", "--user", "54321:54322"]);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && said.contains("only root can become another user"), "{said}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    chown(folder.path(), Some(UID), Some(GID)).unwrap();
    // Which only root can open; the daemon opens it before it becomes another user, or does not start.
    let latency = Path::new("/dev/cpu_dma_latency");
    let socket = folder.path().join("r.sock");
    let realtime = format!("name=r,socket={},vram=64M,bands=realtime", socket.display());
    let account = format!("{UID}:{GID}");
    let mut arguments = vec!["--user", &account];
    if latency.exists() {
        arguments.extend(["--cpu-latency", "77", "--vgpu", &realtime]);
    }
    let scene = Scene::within(folder, &arguments);
    run_copies(&scene.socket(), || {
        let of_uid = [UID; 4].map(|id| id.to_string());
        let of_gid = [GID; 4].map(|id| id.to_string());
        let daemon_and_engines = scene.threads().into_iter().chain(engines_of(&scene.daemon));
        for process in daemon_and_engines {
            let status = status(&process);
            assert_eq!(status("Uid").split_whitespace().collect::<Vec<_>>(), of_uid);
            assert_eq!(status("Gid").split_whitespace().collect::<Vec<_>>(), of_gid);
            assert_eq!(status("Groups"), GID.to_string());
            for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
                assert_eq!(u64::from_str_radix(&status(set), 16), Ok(0), "{set} of {}", status("Name"));
            }
        }
        for socket in ["v.sock", "control"] {
            let socket = fs::symlink_metadata(scene.folder.path().join(socket)).unwrap();
            assert_eq!((socket.uid(), socket.gid()), (UID, GID));
        }
        if latency.exists() {
            let open = fs::read_dir(scene.proc().join("fd")).unwrap().flatten();
            let mut open = open.filter_map(|entry| fs::read_link(entry.path()).ok());
            assert!(open.any(|file| file == latency), "{} is not open", latency.display());
        }
        // The kernel gives the files of a process that is not dumpable to root.
        assert_eq!(fs::metadata(scene.proc().join("environ")).unwrap().uid(), 0);
        // Its engines are: dirty tracking reads their page maps.
        for engine in engines_of(&scene.daemon) {
            assert_eq!(fs::metadata(engine.join("pagemap")).unwrap().uid(), UID);
        }
        let of_its_user = |file: &str| {
            let mut command = Command::new("cat");
            command.arg(scene.proc().join(file)).uid(UID).gid(GID).stdout(Stdio::null());
            command.stderr(Stdio::null()).status().unwrap().success()
        };
        assert!(of_its_user("status"), "what everybody may read");
        for file in ["environ", "maps", "mem"] {
            assert!(!of_its_user(file), "another process of the user reads {file}");
        }
        let said = scene.said();
        for thread in said["threads"].as_array().unwrap() {
            assert_eq!((&thread["uid"], &thread["gid"]), (&UID.into(), &GID.into()));
            assert_eq!(thread["capabilities"], "0000000000000000");
        }
    });
    let Scene { folder, mut daemon } = scene;
    rustix::process::kill_process(Pid::from_child(&daemon.0), Signal::TERM).unwrap();
    assert!(daemon.0.wait().unwrap().success());
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_user_that_does_not_exist_is_no_start() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.args(["serve", "--vram", "64M", "--user", "no-such-user-here", "--socket"]);
    let output = command.arg(folder.path().join("v.sock")).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("there is no such user"), "{said}");
    assert!(!folder.path().join("v.sock").exists(), "it has begun to serve");
}
