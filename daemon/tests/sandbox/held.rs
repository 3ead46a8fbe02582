//! What holds engine processes from outside, as `/proc` shows it and as the operator is told.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::process::Stdio;

use rustix::thread::CapabilitySet;
use serde_json::Value;

use crate::daemon::GID;
use crate::daemon::Scene;
use crate::daemon::UID;
use crate::daemon::is_root;
use crate::outside::engines_of;
use crate::outside::run_copies;
use crate::outside::status;

const NAMESPACES: [&str; 3] = ["ipc", "net", "pid"];

fn namespace(process: &Path, name: &str) -> PathBuf {
    fs::read_link(process.join("ns").join(name)).unwrap()
}

/// Soft and hard, as text.
fn limit(process: &Path, name: &str) -> [String; 2] {
    let limits = fs::read_to_string(process.join("limits")).unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let mut words = line.split_whitespace().map(ToOwned::to_owned);
    [words.next().unwrap(), words.next().unwrap()]
}

/// What the operator is told of the engines of vGPU `index`.
fn told(scene: &Scene, index: usize) -> Value {
    let status: Value = serde_json::from_str(&scene.ctl(&["status", "--json"])).unwrap();
    status["vgpus"][index]["engine_processes"].clone()
}

/// The entries of a list; of anything else, none.
fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Whether this user may make namespaces, as the daemon then may.
fn may_make_namespaces() -> bool {
    rustix::thread::capabilities(None).unwrap().effective.contains(CapabilitySet::SYS_ADMIN)
}

#[test]
fn engines_are_held_as_the_operator_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let second = folder.path().join("b.sock");
    let vgpu = format!("name=b,socket={},vram=64M", second.display());
    let scene = Scene::within(folder, &["--engine-memory", "1G", "--vgpu", &vgpu]);
    let both = |check: &dyn Fn()| run_copies(&scene.socket(), || run_copies(&second, check));
    both(&|| {
        let engines = engines_of(&scene.daemon);
        assert_eq!(engines.len(), 2);
        for engine in &engines {
            for (name, most) in [
                ("Max data size", "1073741824"),
                ("Max file size", "1073741824"),
                ("Max core file size", "0"),
            ] {
                assert_eq!(limit(engine, name), [most, most], "{name}");
            }
        }
        // The daemon's are this test's, which may not look into it where neither is root.
        let own = PathBuf::from("/proc/self");
        for name in NAMESPACES {
            let of_all: BTreeSet<_> =
                engines.iter().chain([&own]).map(|process| namespace(process, name)).collect();
            let expected = if may_make_namespaces() { 3 } else { 1 };
            assert_eq!(of_all.len(), expected, "{name} namespaces of the daemon and two engines: {of_all:?}");
        }
        let mut pids = Vec::new();
        for index in 0..2 {
            let told = told(&scene, index);
            let last = &told["last_process"];
            let engine = Path::new("/proc").join(last["pid"].to_string());
            assert!(engines.contains(&engine), "{told}");
            pids.push(engine.clone());
            assert_eq!(
                (&told["memory_bytes"], &last["memory_bytes"]),
                (&(1 << 30).into(), &(1 << 30).into())
            );
            let differ =
                NAMESPACES.into_iter().filter(|name| namespace(&engine, name) != namespace(&own, name));
            assert_eq!(last["namespaces"], Value::from_iter(differ));
            if !last["threads"].is_null() {
                assert_eq!(last["threads"], 4095, "{told}");
                assert_ne!(namespace(&engine, "pid"), namespace(&own, "pid"));
            }
            let cgroup = fs::read_to_string(engine.join("cgroup")).unwrap();
            let cgroup = cgroup.lines().find_map(|line| line.strip_prefix("0::"));
            assert_eq!(last["cgroup"], cgroup.map_or(Value::Null, Value::from));
            let autogroup = "/proc/sys/kernel/sched_autogroup_enabled";
            let is_autogroup = fs::read_to_string(autogroup).is_ok_and(|text| text.trim() == "1");
            match told["limits"].as_str() {
                Some("cgroup") => {
                    assert!(cgroup.unwrap().contains("campanile-") && told["why"].is_null());
                    assert_eq!(
                        (&told["memory_by"], &told["cpu_by"]),
                        (&"cgroup and RLIMIT_DATA".into(), &"cgroup".into())
                    );
                }
                Some("rlimits") => {
                    assert!(!told["why"].as_str().unwrap().is_empty());
                    assert_eq!(told["memory_by"], "RLIMIT_DATA, and looks at shared memory");
                    assert!(
                        told["cpu_by"] == "nothing" || is_autogroup && told["cpu_by"] == "autogroup",
                        "{told}"
                    );
                }
                _ => panic!("{told}"),
            }
            // Process, parent, group and session stand behind the name.
            let stat = fs::read_to_string(engine.join("stat")).unwrap();
            let session = stat.rsplit(") ").next().unwrap().split(' ').nth(3).unwrap().to_owned();
            assert_eq!(session, last["pid"].to_string(), "a session of its own");
            let ids = ["Uid", "Gid"]
                .map(|name| status(&engine)(name).split_whitespace().nth(1).unwrap().to_owned());
            assert_eq!(ids, ["uid", "gid"].map(|name| last[name].to_string()));
        }
        assert_ne!(pids[0], pids[1]);
        let text = scene.ctl(&["status"]);
        assert!(text.contains("ENGINE LIMITS") && text.matches("1024 MiB each").count() == 2, "{text}");
    });
}

#[test]
fn without_limits_and_sandbox_engines_have_the_daemons() {
    let scene = Scene::start(&["--engine-memory", "0", "--no-sandbox"]);
    run_copies(&scene.socket(), || {
        for engine in engines_of(&scene.daemon) {
            assert_eq!(limit(&engine, "Max data size"), limit(&scene.proc(), "Max data size"));
            for name in NAMESPACES {
                assert_eq!(namespace(&engine, name), namespace(Path::new("/proc/self"), name));
            }
        }
        assert_eq!(told(&scene, 0)["memory_bytes"], Value::Null);
    });
}

#[test]
fn engines_of_a_daemon_that_is_root_have_an_account_of_their_own() {
    let account = format!("{UID}:{GID}");
    if !is_root() {
        let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
        command.args([
            "serve",
            "--vram",
            "64M",
            "--socket",
            "/nonexistent/v.sock",
            "--engine-user",
            &account,
        ]);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && said.contains("only root can start engines as another"),
            "{said}"
        );
        return;
    }
    let scene = Scene::start(&["--engine-user", &account]);
    run_copies(&scene.socket(), || {
        // Others may have that user: a limit of it would be one of theirs, too.
        let told = told(&scene, 0);
        assert!(!list(&told["threads_by"]).contains(&"RLIMIT_NPROC".into()), "{told}");
        for engine in engines_of(&scene.daemon) {
            assert_eq!(limit(&engine, "Max processes"), limit(&scene.proc(), "Max processes"));
            let status = status(&engine);
            for (name, id) in [("Uid", UID), ("Gid", GID)] {
                let ids = status(name);
                assert_eq!(
                    ids.split_whitespace().collect::<Vec<_>>(),
                    [id; 4].map(|id| id.to_string()),
                    "{name}"
                );
            }
            assert_eq!(status("Groups"), GID.to_string());
            for set in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
                assert_eq!(u64::from_str_radix(&status(set), 16), Ok(0), "{set}");
            }
        }
        assert_eq!(status(&scene.proc())("Uid").split_whitespace().next(), Some("0"));
        let last = &told["last_process"];
        assert_eq!((&last["uid"], &last["gid"]), (&UID.into(), &GID.into()));
        // Its pages are seen although they are another user's.
        let said: Value = serde_json::from_str(&scene.ctl(&["status", "--json"])).unwrap();
        assert!(said["vgpus"][0]["session"].is_object(), "{said}");
    });
}

/// Supplementary groups of a process.
fn groups(process: &Path) -> BTreeSet<u32> {
    status(process)("Groups").split_whitespace().map(|group| group.parse().unwrap()).collect()
}

/// Those of GPU device nodes that this machine has, by name.
fn gpu_groups() -> BTreeSet<u32> {
    let all = fs::read_to_string("/etc/group").unwrap();
    let found = all.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let is_one = matches!(fields.next(), Some("render" | "video"));
        fields.nth(1).filter(|_| is_one).map(|gid| gid.parse().unwrap())
    });
    found.collect()
}

#[test]
fn where_the_operator_says_nothing_engines_of_each_vgpu_have_a_user_that_is_neither_root_nor_the_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let second = folder.path().join("b.sock");
    let vgpu = format!("name=b,socket={},vram=64M", second.display());
    let scene = Scene::within(folder, &["--vgpu", &vgpu]);
    let own =
        |name: &str| status(Path::new("/proc/self"))(name).split_whitespace().next().unwrap().to_owned();
    let mut users = BTreeSet::new();
    let mut check = |index: usize| {
        let told = told(&scene, index);
        let process = Path::new("/proc").join(told["last_process"]["pid"].to_string());
        let status = status(&process);
        if !is_root() {
            assert_eq!(told["account"], "daemon");
            assert!(told["why_account"].as_str().unwrap().contains("not root"), "{told}");
            assert_eq!(status("Uid").split_whitespace().next(), Some(own("Uid").as_str()));
            return;
        }
        assert_eq!(told["account"], "own", "{told}");
        for (name, field) in [("Uid", "uid"), ("Gid", "gid")] {
            let ids: BTreeSet<String> = status(name).split_whitespace().map(ToOwned::to_owned).collect();
            assert_eq!(ids, BTreeSet::from([told["last_process"][field].to_string()]), "{name}");
            assert!(!ids.contains("0") && !ids.contains(&own(name)), "{name}: {ids:?}");
        }
        assert_eq!(limit(&process, "Max processes"), ["4096"; 2]);
        assert_eq!(told["last_process"]["user_threads"], 4096, "{told}");
        assert!(list(&told["threads_by"]).contains(&"RLIMIT_NPROC".into()), "{told}");
        let groups = groups(&process);
        assert!(!groups.contains(&0) && groups.is_superset(&gpu_groups()), "{groups:?}");
        users.insert(status("Uid"));
    };
    run_copies(&scene.socket(), || check(1));
    run_copies(&second, || check(0));
    let text = fs::read_to_string("/etc/passwd").unwrap();
    if is_root() && !text.contains("campanile-engine:") {
        assert_eq!(users.len(), 2, "each vGPU its own: {users:?}");
    }
    let text = scene.ctl(&["status"]);
    assert!(text.contains("WHY USER") && text.contains("THREADS BY"), "{text}");
    assert_eq!(text.contains("RLIMIT_NPROC"), is_root(), "{text}");
}

#[test]
fn engines_have_the_daemons_user_where_the_operator_wants_it() {
    let scene = Scene::start(&["--engine-user", "none"]);
    run_copies(&scene.socket(), || {
        let told = told(&scene, 0);
        assert_eq!(
            (&told["account"], &told["why_account"]),
            (&"daemon".into(), &"--engine-user none".into())
        );
        for engine in engines_of(&scene.daemon) {
            for name in ["Uid", "Gid", "Groups"] {
                assert_eq!(status(&engine)(name), status(&scene.proc())(name), "{name}");
            }
        }
    });
}

#[test]
fn where_no_user_but_root_can_start_engines_they_are_roots_and_the_operator_is_told_why() {
    if !is_root() {
        return;
    }
    let Ok(driver) = env::var("CAMPANILE_VULKAN_DRIVER") else { return };
    let folder = tempfile::tempdir().unwrap();
    // A folder of root's, as a home folder is; the driver below only root finds.
    let manifest = fs::read_to_string(&driver).unwrap();
    let beside = format!("\"{}/", Path::new(&driver).parent().unwrap().display());
    let hidden = folder.path().join("driver.json");
    fs::write(&hidden, manifest.replace("\"./", &beside)).unwrap();
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let scene = Scene::within(folder, &["--vulkan-driver", hidden.to_str().unwrap()]);
    run_copies(&scene.socket(), || {
        let told = told(&scene, 0);
        assert_eq!((&told["account"], &told["last_process"]["uid"]), (&"daemon".into(), &0.into()), "{told}");
        assert!(told["why_account"].as_str().unwrap().contains("engines do not start as user"), "{told}");
    });
}

#[test]
fn engines_are_the_program_that_the_daemon_is_even_when_its_file_was_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("campanile");
    fs::copy(env!("CARGO_BIN_EXE_campanile"), &program).unwrap();
    let next = folder.path().join("next");
    fs::write(&next, "no program").unwrap();
    let scene = Scene::of(&program, folder, &[]);
    fs::rename(&next, &program).unwrap();
    run_copies(&scene.socket(), || {
        let of = |process: &Path| fs::metadata(process.join("exe")).unwrap().ino();
        let name = |process: &Path| fs::read_to_string(process.join("comm")).unwrap();
        for engine in engines_of(&scene.daemon) {
            assert_eq!((of(&engine), name(&engine).trim()), (of(&scene.proc()), "campanile"));
        }
    });
}

#[test]
fn cpus_are_limited_by_a_cgroup_or_not_promised() {
    let by = {
        let scene = Scene::start(&[]);
        told(&scene, 0)["limits"].clone()
    };
    if by == "cgroup" {
        let scene = Scene::start(&["--engine-cpus", "1"]);
        assert_eq!(told(&scene, 0)["cpus"], 1);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command
        .args(["serve", "--vram", "64M", "--engine-cpus", "1", "--socket"])
        .arg(folder.path().join("v.sock"));
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("--engine-cpus needs a cgroup"), "{said}");
    assert!(!folder.path().join("v.sock").exists(), "it has begun to serve");
}
