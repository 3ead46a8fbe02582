//! What threads of each role of the daemon can call. Each attempt runs in this test program, started again.

use std::env;
use std::io;
use std::io::Read;
use std::io::Write;
use std::net::TcpStream;
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::process::ExitStatus;
use std::thread;

use campanile_daemon::confine::Confinement;
use campanile_daemon::confine::confiner::Confiner;
use campanile_daemon::confine::roles::Peering;
use campanile_daemon::confine::roles::Reach;
use campanile_daemon::confine::roles::Role;
use campanile_daemon::confine::roles::Setting;
use campanile_host_gpu::memory::vram::create_memfd;
use rustix::fs::inotify;
use rustix::thread::CapabilitySet;
use rustix::thread::CapabilitySets;
use vm_memory::MmapRegion;

const ATTEMPT: &str = "CAMPANILE_TEST_ROLE_ATTEMPT";
const ROLE: &str = "CAMPANILE_TEST_ROLE";
/// What the child says when the attempt succeeded, or failed with `ENOSYS`.
const SUCCEEDED: i32 = 10;
const NO_SUCH_CALL: i32 = 11;

/// Not a test of its own: what the started program does.
#[test]
fn attempt() {
    let (Ok(attempt), Ok(role)) = (env::var(ATTEMPT), env::var(ROLE)) else { return };
    let (role, peering) = match role.strip_suffix(" with a peer") {
        Some(role) => (role, Peering::Port(9)),
        None => (role.as_str(), Peering::None),
    };
    let role = Role::ALL.into_iter().find(|known| known.name() == role).unwrap();
    let reach = Reach::of(role, Setting { state_dir: None, peering });
    let outcome = Confiner::new(Confinement::On).within(role, &reach, || perform(&attempt)).unwrap();
    let code = match outcome {
        Ok(()) => SUCCEEDED,
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => NO_SUCH_CALL,
        Err(error) => panic!("{attempt}: {error}"),
    };
    std::process::exit(code);
}

fn perform(attempt: &str) -> io::Result<()> {
    let map = |protection| {
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        MmapRegion::<()>::build(None, 4096, protection, anonymous).map_err(io::Error::other).map(drop)
    };
    match attempt {
        "work" => {
            let mut file = create_memfd("test", 4096)?;
            map(libc::PROT_READ | libc::PROT_WRITE)?;
            file.write_all(&[7])?;
            let read = thread::spawn(move || file.read(&mut [0])).join().unwrap()?;
            assert_eq!(read, 1);
            Ok(())
        }
        "execute" => Err(Command::new("/bin/true").exec()),
        "fork" => Command::new("/bin/true").status().map(drop),
        "write code" => map(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC),
        "become another user" => {
            rustix::thread::set_thread_uid(rustix::process::getuid()).map_err(Into::into)
        }
        "change the root" => rustix::process::chroot("/").map_err(Into::into),
        "raise capabilities" => {
            let all = CapabilitySet::all();
            let sets = CapabilitySets { effective: all, permitted: all, inheritable: all };
            rustix::thread::set_capabilities(None, sets).map_err(Into::into)
        }
        "make a channel" => UnixStream::pair().map(drop),
        "make a socket" => UdpSocket::bind("127.0.0.1:0").map(drop),
        "connect" => match TcpStream::connect("127.0.0.1:9") {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            other => other.map(drop),
        },
        "watch files" => inotify::init(inotify::CreateFlags::empty()).map(drop).map_err(Into::into),
        other => panic!("no attempt {other}"),
    }
}

fn outcome(attempt: &str, role: &str) -> ExitStatus {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "role_calls::attempt", "--nocapture", "--test-threads=1"]);
    command.env(ATTEMPT, attempt).env(ROLE, role).env_remove("RUST_BACKTRACE").output().unwrap().status
}

fn comes_to(attempt: &str, role: &str, code: i32) {
    let status = outcome(attempt, role);
    assert_eq!(status.code(), Some(code), "{attempt} as {role}: {status}");
}

#[test]
fn every_role_can_wait_write_and_start_threads() {
    for role in Role::ALL {
        comes_to("work", role.name(), SUCCEEDED);
    }
}

#[test]
fn what_only_an_attacker_calls_ends_the_daemon_whatever_the_role() {
    for role in Role::ALL {
        for attempt in
            ["execute", "fork", "write code", "become another user", "change the root", "raise capabilities"]
        {
            let status = outcome(attempt, role.name());
            assert_eq!(status.signal(), Some(libc::SIGSYS), "{attempt} as {role:?}: {status}");
        }
    }
}

#[test]
fn what_a_role_does_not_need_fails_as_a_call_that_does_not_exist() {
    for role in Role::ALL {
        comes_to("watch files", role.name(), NO_SUCH_CALL);
    }
    for role in ["schedule", "arrivals", "metrics", "front"] {
        comes_to("make a socket", role, NO_SUCH_CALL);
        comes_to("connect", role, NO_SUCH_CALL);
    }
    for role in ["schedule", "arrivals", "metrics", "operator"] {
        comes_to("make a channel", role, NO_SUCH_CALL);
    }
}

#[test]
fn channels_are_a_fronts_and_connections_those_of_roles_with_peers() {
    comes_to("make a channel", "front", SUCCEEDED);
    comes_to("connect", "front with a peer", SUCCEEDED);
    comes_to("connect", "operator", SUCCEEDED);
}
