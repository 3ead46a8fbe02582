//! What code that has taken over an engine would try. Each attempt runs in this test program, started again.

use std::env;
use std::fs;
use std::fs::File;
use std::io;
use std::io::IsTerminal;
use std::net::TcpStream;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::process::ExitStatus;
use std::time::Duration;

use campanile_host_gpu::dirty::protect::Guard;
use campanile_host_gpu::engine::sandbox::Workload;
use campanile_host_gpu::engine::sandbox::driver_profiles::requests_of;
use campanile_host_gpu::engine::sandbox::files::Needs;
use campanile_host_gpu::engine::sandbox::files::restrict_files;
use campanile_host_gpu::engine::sandbox::process::drop_capabilities;
use campanile_host_gpu::engine::sandbox::process::harden_process;
use campanile_host_gpu::engine::sandbox::system_calls::restrict_system_calls;
use campanile_host_gpu::event::Event;
use campanile_host_gpu::memory::vram::create_memfd;
use rustix::fs::CWD;
use rustix::fs::Mode;
use rustix::fs::OFlags;
use rustix::fs::ResolveFlags;
use rustix::process::Pid;
use vm_memory::MmapRegion;

const ATTEMPT: &str = "CAMPANILE_TEST_SANDBOX_ATTEMPT";
const SEAL: &str = "CAMPANILE_TEST_SANDBOX_SEAL";
/// What the child says when the attempt succeeded, or failed as a refusal.
const SUCCEEDED: i32 = 10;
const REFUSED: i32 = 11;

const SEALS: [(&str, Workload); 3] =
    [("copies", Workload::Copies), ("cpu", Workload::KernelsOnCpu), ("gpu", Workload::KernelsOnGpu)];

/// Not a test of its own: what the started program does.
#[test]
fn attempt() {
    let (Ok(attempt), Ok(seal)) = (env::var(ATTEMPT), env::var(SEAL)) else { return };
    // Not in the first thread, so that libc's allocator gives it an arena of its own, as it does an engine's threads.
    std::thread::spawn(move || seal_and_perform(&attempt, &seal)).join().unwrap();
}

fn seal_and_perform(attempt: &str, seal: &str) -> ! {
    // Asked before the seal: it is the signal that must kill, not this.
    let parent = rustix::process::getppid().unwrap();
    // As engines have it whose stores the kernel notes; none where it cannot.
    let guard = Guard::new().ok();
    let outcome = match seal {
        "files of copies" => restrict_files(Needs::Nothing, None),
        "files of kernels" => restrict_files(Needs::Driver, None),
        "nothing" => Ok(()),
        seal => {
            harden_process().and_then(|()| drop_capabilities()).unwrap();
            // A GPU's, of any driver or of one.
            let (name, driver) = seal.split_once(" of ").unwrap_or((seal, "any"));
            let (_, workload) = SEALS.into_iter().find(|(known, _)| *known == name).unwrap();
            let requests = requests_of(driver).unwrap();
            restrict_system_calls(workload, guard.as_ref().map(Guard::number), None, &requests)
        }
    };
    outcome.unwrap();
    let code = match perform(attempt, parent, guard.as_ref()) {
        Ok(()) => SUCCEEDED,
        Err(error) => {
            eprintln!("{attempt} under {seal}: {error}");
            REFUSED
        }
    };
    std::process::exit(code);
}

fn perform(attempt: &str, parent: Pid, guard: Option<&Guard>) -> io::Result<()> {
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let map = |protection| {
        MmapRegion::<()>::build(None, 4096, protection, anonymous).map_err(io::Error::other).map(drop)
    };
    match attempt {
        "sleep and allocate" => {
            std::thread::sleep(Duration::from_millis(1));
            let bytes = std::hint::black_box(vec![1u8; 8 << 20]);
            map(libc::PROT_READ | libc::PROT_WRITE)?;
            assert_eq!(bytes.len(), 8 << 20);
            Ok(())
        }
        "free much" => {
            // Too small for mappings of their own, and together more than an arena keeps.
            let blocks = std::hint::black_box(vec![vec![1u8; 64 << 10]; 64]);
            assert_eq!(blocks.len(), 64);
            Ok(())
        }
        "execute" => Err(Command::new("/bin/true").exec()),
        "fork" => Command::new("/bin/true").status().map(drop),
        "thread" => std::thread::Builder::new().spawn(|| ()).map(drop),
        "socket" => UdpSocket::bind("127.0.0.1:0").map(drop),
        "connect" => TcpStream::connect("127.0.0.1:9").map(drop),
        "open" => File::open("/etc/hostname").map(drop),
        "open a secret" => fs::read("/etc/shadow").map(drop),
        "open a library" => fs::read_dir("/usr/lib").map(drop),
        "open devices" => fs::read_dir("/dev").map(drop),
        "open by another call" => {
            let (flags, mode, resolve) = (OFlags::RDONLY, Mode::empty(), ResolveFlags::empty());
            rustix::fs::openat2(CWD, "/dev/null", flags, mode, resolve).map(drop).map_err(Into::into)
        }
        "create" => File::create(env::temp_dir().join("campanile-sandbox-test")).map(drop),
        "make executable memory" => map(libc::PROT_READ | libc::PROT_EXEC),
        "allocate shared memory" => {
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
            MmapRegion::<()>::build(None, 4096, libc::PROT_READ | libc::PROT_WRITE, flags)
                .map_err(io::Error::other)
                .map(drop)
        }
        "make writable code" => map(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC),
        "signal the parent" => rustix::process::test_kill_process(parent).map_err(Into::into),
        "protect memory" => {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let mapped =
                MmapRegion::<()>::build(None, 4096, protection, anonymous).map_err(io::Error::other)?;
            guard.map_or(Ok(()), |guard| guard.protect(mapped.as_ptr().addr() as u64, 4096))
        }
        "print to nowhere" => {
            // C's stdio asks whether that is a terminal, as `isatty` does, at the first line.
            let is_terminal = io::stdout().is_terminal();
            let error = io::Error::last_os_error();
            assert_eq!((is_terminal, error.raw_os_error()), (false, Some(libc::ENOTTY)));
            Ok(())
        }
        "another ioctl" => rustix::io::ioctl_fionread(io::stdin()).map(drop).map_err(Into::into),
        "ask drivers of GPUs" => {
            requests_of("any").unwrap().iter().try_for_each(|requests| ask(requests.family, 1))
        }
        "ask NVIDIA's driver" => ask(b'F', 200),
        "ask amdgpu" => ask(b'd', 0x44),
        "ask nouveau for objects" => ask(b'd', 0x81),
        "keep an eventfd from waiting" => {
            rustix::fs::fcntl_setfl(&Event::new()?, OFlags::NONBLOCK).map_err(Into::into)
        }
        "have an eventfd wait" => {
            rustix::fs::fcntl_setfl(&Event::new()?, OFlags::empty()).map_err(Into::into)
        }
        "have an eventfd wait by ioctl" => {
            rustix::io::ioctl_fionbio(&Event::new()?, false).map_err(Into::into)
        }
        "create memory" => create_memfd("test", 4096).map(drop),
        other => panic!("no attempt {other}"),
    }
}

/// Asks `/dev/null`, which knows no request, by `ioctl`: an error where the request does not reach it.
fn ask(family: u8, number: u8) -> io::Result<()> {
    let nowhere = File::open("/dev/null")?;
    let request = (libc::c_ulong::from(family) << 8) | libc::c_ulong::from(number);
    // SAFETY: `/dev/null` knows no request, and this one has no argument.
    #[allow(unsafe_code)]
    let _asked = unsafe { libc::ioctl(nowhere.as_raw_fd(), request) };
    let error = io::Error::last_os_error();
    if error.raw_os_error() == Some(libc::ENOTTY) { Ok(()) } else { Err(error) }
}

fn outcome(attempt: &str, seal: &str) -> ExitStatus {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "attempts::attempt", "--nocapture", "--test-threads=1"]);
    command.env(ATTEMPT, attempt).env(SEAL, seal).env_remove("RUST_BACKTRACE").output().unwrap().status
}

fn is_killed(attempt: &str, seal: &str) {
    let status = outcome(attempt, seal);
    assert_eq!(status.signal(), Some(libc::SIGSYS), "{attempt} under {seal}: {status}");
}

fn is_refused(attempt: &str, seal: &str) {
    let status = outcome(attempt, seal);
    assert_eq!(status.code(), Some(REFUSED), "{attempt} under {seal}: {status}");
}

fn succeeds(attempt: &str, seal: &str) {
    let status = outcome(attempt, seal);
    assert_eq!(status.code(), Some(SUCCEEDED), "{attempt} under {seal}: {status}");
}

#[test]
fn attempts_succeed_where_nothing_is_sealed() {
    for attempt in
        ["sleep and allocate", "fork", "thread", "socket", "open devices", "create", "create memory"]
            .into_iter()
            .chain(["open by another call", "free much"])
    {
        succeeds(attempt, "nothing");
    }
    for attempt in
        ["make executable memory", "make writable code", "signal the parent", "allocate shared memory"]
    {
        succeeds(attempt, "nothing");
    }
}

/// An eventfd that both sides hold has one `O_NONBLOCK` for both. Without it, a wake-up of one engine would stop the supervisor.
#[test]
fn an_engine_cannot_have_the_daemon_wait_for_it_to_read_an_eventfd() {
    for attempt in ["have an eventfd wait", "have an eventfd wait by ioctl"] {
        succeeds(attempt, "nothing");
        is_refused(attempt, "gpu");
    }
    succeeds("keep an eventfd from waiting", "gpu");
}

#[test]
fn what_an_engine_does_all_day_is_allowed() {
    for (seal, _) in SEALS {
        succeeds("sleep and allocate", seal);
        succeeds("free much", seal);
        succeeds("print to nowhere", seal);
    }
    // What a GPU writes by itself is not noted so.
    for seal in ["copies", "cpu"] {
        succeeds("protect memory", seal);
    }
}

#[test]
fn a_sealed_cpu_engine_dies_of_what_it_has_no_use_for() {
    let attempts = ["execute", "socket", "open by another call", "make executable memory", "create memory"];
    for seal in ["copies", "cpu"] {
        for attempt in attempts.into_iter().chain([
            "make writable code",
            "signal the parent",
            "another ioctl",
            "allocate shared memory",
        ]) {
            is_killed(attempt, seal);
        }
    }
}

/// A driver asks for more threads late, and does without.
#[test]
fn a_sealed_cpu_engine_starts_nothing_and_one_that_copies_dies_of_it() {
    for attempt in ["fork", "thread"] {
        is_killed(attempt, "copies");
        is_refused(attempt, "cpu");
    }
}

/// It fails and does not kill, as libraries look for files late: libc at the first "free much".
#[test]
fn a_sealed_cpu_engine_opens_no_file_and_goes_on() {
    for attempt in ["open devices", "create", "open"] {
        for seal in ["copies", "cpu"] {
            is_refused(attempt, seal);
        }
    }
}

#[test]
fn a_sealed_gpu_engine_is_refused_processes_and_sockets() {
    for attempt in ["execute", "fork", "socket", "connect", "signal the parent", "another ioctl"] {
        is_refused(attempt, "gpu");
    }
    succeeds("ask drivers of GPUs", "gpu");
    // Drivers start threads and load compilers late.
    for attempt in ["thread", "open devices", "make executable memory"] {
        succeeds(attempt, "gpu");
    }
}

#[test]
fn an_engine_with_a_gpu_asks_its_own_driver_and_no_other() {
    let all = ["ask NVIDIA's driver", "ask amdgpu", "ask nouveau for objects"];
    for (driver, own) in [("NVIDIA", &all[..2]), ("radv", &all[1..2]), ("NVK", &all[1..])] {
        let seal = format!("gpu of {driver}");
        for attempt in all {
            if own.contains(&attempt) { succeeds(attempt, &seal) } else { is_refused(attempt, &seal) }
        }
    }
    for attempt in all {
        succeeds(attempt, "gpu");
        is_refused(attempt, "gpu of llvmpipe");
    }
}

#[test]
fn a_copy_engine_opens_no_file() {
    for attempt in ["open", "open a library", "open a secret", "open devices", "create", "connect"] {
        is_refused(attempt, "files of copies");
    }
}

#[test]
fn a_compute_engine_opens_what_drivers_are_made_of() {
    succeeds("open a library", "files of kernels");
    for attempt in ["open a secret", "open devices", "create", "connect"] {
        is_refused(attempt, "files of kernels");
    }
}
