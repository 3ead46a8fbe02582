//! What threads of each role of the daemon can reach, tried from inside.

use std::fs;
use std::fs::File;
use std::io;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::Duration;

use campanile_daemon::confine::Confinement;
use campanile_daemon::confine::confiner::Confiner;
use campanile_daemon::confine::files;
use campanile_daemon::confine::files::Enforced;
use campanile_daemon::confine::roles::Peering;
use campanile_daemon::confine::roles::Ports;
use campanile_daemon::confine::roles::Reach;
use campanile_daemon::confine::roles::Role;
use campanile_daemon::confine::roles::Setting;
use campanile_daemon::sched::turns::EngineId;
use campanile_daemon::sched::wake_sources::WakeSources;
use campanile_host_gpu::event::Event;
use campanile_host_gpu::memory::vram::create_memfd;
use campanile_host_gpu::outside;
use rustix::thread::CapabilitySet;

const NO_STATE: Setting<'_> = Setting { state_dir: None, peering: Peering::None };

/// With all that confines a role.
fn attempt<T: Send>(
    role: Role,
    reach: &Reach,
    attempt: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    Confiner::new(Confinement::On).within(role, reach, attempt).unwrap()
}

/// With the Landlock domain of this reach alone.
fn in_domain<T: Send>(reach: &Reach, attempt: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let confined = || {
            files::restrict(reach).unwrap();
            attempt()
        };
        scope.spawn(confined).join().unwrap()
    })
}

fn is_refused<T: Send>(role: Role, reach: &Reach, what: &str, wants: impl FnOnce() -> io::Result<T> + Send) {
    match in_domain(reach, wants) {
        Ok(_) => panic!("{what} as {role:?}"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{what} as {role:?}: {error}"),
    }
}

/// What the daemon's own options leave it.
fn reach(role: Role) -> Reach {
    Reach::of(role, NO_STATE)
}

#[test]
fn no_role_but_the_operators_opens_a_file() {
    for role in [Role::Schedule, Role::Turns, Role::Front, Role::Arrivals, Role::Metrics] {
        is_refused(role, &reach(role), "reads a file", || File::open("/etc/passwd"));
        is_refused(role, &reach(role), "looks into a process", || File::open("/proc/self/maps"));
        is_refused(role, &reach(role), "lists a folder", || fs::read_dir("/dev").map(drop));
        let new = tempfile::tempdir().unwrap();
        is_refused(role, &reach(role), "writes a file", || File::create(new.path().join("new")));
        is_refused(role, &reach(role), "makes a socket file", || UnixListener::bind(new.path().join("new")));
    }
    attempt(Role::Operator, &reach(Role::Operator), || File::open("/etc/passwd")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("snapshot");
    attempt(Role::Operator, &reach(Role::Operator), || fs::write(&file, "pages")).unwrap();
}

/// A wait that the kernel refuses returns at once, with nothing: a thread that waits so spins.
#[test]
fn the_threads_that_wait_for_engines_hear_them() {
    for role in [Role::Schedule, Role::Turns, Role::Front] {
        let waits = || {
            let (sources, asks) = (WakeSources::new()?, Event::new()?);
            sources.watch(EngineId(1), &asks)?;
            asks.signal();
            Ok(sources.wait(Some(Duration::ZERO)))
        };
        assert_eq!(attempt(role, &reach(role), waits).unwrap(), [EngineId(1)], "{role:?}");
    }
}

#[test]
fn no_role_executes_a_program_or_listens_to_a_port() {
    for role in Role::ALL {
        is_refused(role, &reach(role), "executes", || Command::new("/bin/true").status());
        is_refused(role, &reach(role), "listens", || TcpListener::bind("127.0.0.1:0"));
    }
}

#[test]
fn a_front_connects_to_the_port_of_its_peer_and_no_other() {
    let [peer, other] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [peer, other] = [peer, other].map(|listener| (listener.local_addr().unwrap(), listener));
    let with_peer = Setting { peering: Peering::Port(peer.0.port()), ..NO_STATE };
    let reach_of_peer = Reach::of(Role::Front, with_peer);
    attempt(Role::Front, &reach_of_peer, || TcpStream::connect(peer.0)).unwrap();
    is_refused(Role::Front, &reach_of_peer, "connects to another", || TcpStream::connect(other.0));
    for role in [Role::Schedule, Role::Turns, Role::Front, Role::Arrivals, Role::Metrics] {
        is_refused(role, &reach(role), "connects", || TcpStream::connect(peer.0));
    }
    assert_eq!(reach(Role::Operator).ports, Ports::Any);
    attempt(Role::Operator, &reach(Role::Operator), || TcpStream::connect(other.0)).unwrap();
}

/// Replaces a file as reports and side files are.
fn replace(folder: &Path) -> io::Result<()> {
    let (draft, file) = (folder.join(".draft"), folder.join("file"));
    fs::write(&draft, "1")?;
    fs::rename(&draft, &file)?;
    File::create(&file)?;
    File::open(folder)?.sync_all()?;
    fs::read_dir(folder)?.count();
    fs::remove_file(&file)
}

#[test]
fn a_front_keeps_reports_and_side_files_in_the_state_directory_and_makes_no_socket_there() {
    let [state, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let state_dir: PathBuf = state.path().to_owned();
    fs::create_dir(state_dir.join("bundles")).unwrap();
    let reach = Reach::of(Role::Front, Setting { state_dir: Some(&state_dir), ..NO_STATE });
    attempt(Role::Front, &reach, || replace(&state_dir).and_then(|()| replace(&state_dir.join("bundles"))))
        .unwrap();
    is_refused(Role::Front, &reach, "writes elsewhere", || replace(other.path()));
    is_refused(Role::Front, &reach, "makes a socket file", || UnixListener::bind(state_dir.join("s")));
    let link = state_dir.join("link");
    std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
    is_refused(Role::Front, &reach, "follows a link", || File::open(link));
}

#[test]
fn a_front_opens_memory_of_its_own_again() {
    let file = create_memfd("test", 4096).unwrap();
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    attempt(Role::Front, &reach(Role::Front), || File::open(again)).unwrap();
}

#[test]
fn what_engines_need_is_done_outside_of_every_role() {
    outside::start().unwrap();
    for role in Role::ALL {
        attempt(role, &reach(role), || outside::run(|| File::open("/etc/passwd"))?).unwrap();
        let status = attempt(role, &reach(role), || outside::run(|| Command::new("/bin/true").status())?);
        assert!(status.unwrap().success(), "{role:?}");
    }
}

#[test]
fn threads_of_a_role_inherit_it_and_the_thread_that_begins_it_stays_free() {
    let within =
        attempt(Role::Front, &reach(Role::Front), || Ok(thread::spawn(|| File::open("/etc/passwd"))));
    let refused = within.unwrap().join().unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    File::open("/etc/passwd").unwrap();
}

#[test]
fn a_role_keeps_the_capabilities_that_it_needs_of_those_that_there_are() {
    outside::start().unwrap();
    let has = rustix::thread::capabilities(None).unwrap().permitted;
    for (role, needs) in [
        (Role::Schedule, CapabilitySet::empty()),
        (Role::Turns, CapabilitySet::empty()),
        (Role::Front, CapabilitySet::KILL),
        (Role::Operator, CapabilitySet::DAC_OVERRIDE),
        (Role::Arrivals, CapabilitySet::empty()),
        (Role::Metrics, CapabilitySet::empty()),
    ] {
        // The role cannot ask itself.
        let left = attempt(role, &reach(role), || {
            let thread = rustix::thread::gettid();
            outside::run(move || rustix::thread::capabilities(Some(thread)).map_err(io::Error::from))?
        });
        let left = left.unwrap();
        assert_eq!((left.effective, left.permitted), (has & needs, has & needs), "{role:?}");
        assert_eq!(left.inheritable, CapabilitySet::empty());
    }
    assert_eq!(rustix::thread::capabilities(None).unwrap().permitted, has);
}

#[test]
fn what_is_enforced_is_known_and_nothing_is_where_confinement_is_off() {
    let on = Confiner::new(Confinement::On);
    on.within(Role::Front, &reach(Role::Front), || ()).unwrap();
    let files = on.files();
    assert!(matches!(files.get(&Role::Front), Some(Enforced::Fully | Enforced::Partly)) && files.len() == 1);
    let off = Confiner::new(Confinement::Off);
    off.within(Role::Front, &reach(Role::Front), || File::open("/etc/passwd")).unwrap().unwrap();
    assert!(off.files().is_empty());
}
