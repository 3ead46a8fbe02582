//! The control socket, and `campanile ctl` on it.

use std::io::BufRead;
use std::io::BufReader;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::process::Output;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_protocol::device_page::DEVICE_ACTIVE;
use campanile_protocol::device_page::DEVICE_RESET;
use campanile_protocol::device_page::LOSS;
use campanile_protocol::device_page::LOSS_COLLATERAL;
use serde_json::Value;
use tempfile::TempDir;

use crate::processes::engine;
use crate::raw_queue::ABORT;
use crate::raw_queue::CONNECTED;
use crate::raw_queue::RawQueue;
use crate::raw_queue::copy_guest;
use crate::support::Daemon;
use crate::support::NEVER;
use crate::support::until;

/// A daemon with a control socket.
pub(crate) struct Operated {
    pub(crate) daemon: Daemon,
    folder: TempDir,
}

impl Operated {
    /// With `vgpus` vGPUs, and more arguments.
    pub(crate) fn with(vgpus: usize, arguments: &[&str]) -> Self {
        Self::with_shares(&vec![""; vgpus], arguments)
    }

    /// As [`Daemon::with_shares`].
    pub(crate) fn with_shares(shares: &[&str], arguments: &[&str]) -> Self {
        Self::start(arguments, |all| Daemon::with_shares(shares, all))
    }

    /// As [`Daemon::with_specs`].
    pub(crate) fn with_specs(specs: &[&str], arguments: &[&str]) -> Self {
        Self::start(arguments, |all| Daemon::with_specs(specs, all))
    }

    /// With a daemon that is started so.
    pub(crate) fn start(arguments: &[&str], daemon: impl FnOnce(&[&str]) -> Daemon) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let control = folder.path().join("control");
        let mut all = vec!["--control", control.to_str().unwrap()];
        all.extend(arguments);
        let operated = Self { daemon: daemon(&all), folder };
        until("the control socket", || UnixStream::connect(operated.control()).is_ok());
        operated
    }

    pub(crate) fn control(&self) -> PathBuf {
        self.folder.path().join("control")
    }

    /// Runs `campanile ctl`.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
        command.arg("ctl").arg("--control").arg(self.control()).args(arguments).output().unwrap()
    }

    /// As [`Self::run`] with `--json`; the answer of a command that succeeds.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[&["--json"], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {said}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// What was counted of a vGPU.
    pub(crate) fn counter(&self, vgpu: usize, name: &str) -> u64 {
        self.ask(&["metrics"])["vgpus"][vgpu]["counters"][name].as_u64().unwrap()
    }

    /// Why a command is refused.
    pub(crate) fn refusal(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{arguments:?} was not refused");
        String::from_utf8(output.stderr).unwrap()
    }
}

#[test]
fn the_operator_sees_who_uses_which_vgpu() {
    let operated = Operated::with(2, &["--spin", "600000000"]);
    let vm = operated.daemon.vm(1);
    let (guest, context) = copy_guest(&vm);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());
    let status = operated.ask(&["status"]);
    let [unused, used] = &status["vgpus"].as_array().unwrap()[..] else { panic!("{status}") };
    assert_eq!((&unused["name"], &unused["vm_connected"]), (&"v0".into(), &false.into()));
    assert_eq!((&used["name"], &used["vm_connected"]), (&"v1".into(), &true.into()));
    let copy = &used["session"]["engines"][1];
    assert_eq!((&copy["node"], &copy["state"]), (&"copy".into(), &"running".into()));
    assert_eq!((&copy["pid"], &copy["doorbells_in_use"]), (&engine(&operated.daemon).into(), &1.into()));
    // Tests ask for none.
    assert_eq!(copy["spare"], "none");
    let process = &used["session"]["processes"][0];
    assert_eq!((&process["device"], &process["queues"]), (&"active".into(), &1.into()));
    let text = String::from_utf8(operated.run(&["status"]).stdout).unwrap();
    assert!(text.contains("v1") && text.contains("running") && text.contains("active"), "{text}");
    let metrics = operated.ask(&["metrics"]);
    assert_eq!(metrics["vgpus"][1]["counters"]["connects"], 1);
}

#[test]
fn tdr_29_tdr_71_tdr_74_a_reset_by_the_operator_is_forced_of_one_node_or_of_the_whole_adapter() {
    let state = tempfile::tempdir().unwrap();
    let folder = state.path().to_str().unwrap();
    let operated = Operated::with(2, &["--spin", "600000000", "--state-dir", folder]);
    let recorded = |number: u64| {
        let path = state.path().join("reports").join(format!("{number:012}.json"));
        let report: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        (report["reason"].as_u64(), report["code"].clone())
    };
    let vms = [operated.daemon.vm(0), operated.daemon.vm(1)];
    let (guest, context) = copy_guest(&vms[0]);
    let mut queue = RawQueue::new(&guest, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());
    let before = engine(&operated.daemon);
    let (other, context) = copy_guest(&vms[1]);
    let mut its_queue = RawQueue::new(&other, context);
    assert_eq!(its_queue.connect(), Ok(CONNECTED));

    let reset = operated.ask(&["reset", "--vgpu", "v0", "--node", "copy"]);
    assert_eq!(reset["engines_reset"], serde_json::json!(["copy"]));
    assert_eq!(recorded(1), (Some(1), "0x141".into()));
    queue.run(&CommandBuffer::new());
    let status = operated.ask(&["status"]);
    assert_ne!(status["vgpus"][0]["session"]["engines"][1]["pid"], before, "another process");
    assert_eq!((guest.device_status(), queue.status()), (DEVICE_ACTIVE, CONNECTED), "it ran nothing");

    let reset = operated.ask(&["reset-adapter", "--vgpu", "v0"]);
    assert_eq!(reset["devices_lost"], 1);
    assert_eq!(recorded(2), (Some(1), "0x117".into()));
    // What follows needs the GPU, which is there again (TDR-80).
    assert_eq!(guest.load(LOSS), LOSS_COLLATERAL << 32 | 1);
    assert_eq!((guest.device_status(), queue.status()), (DEVICE_RESET, ABORT));
    its_queue.run(&CommandBuffer::new());
    assert_eq!(other.device_status(), DEVICE_ACTIVE, "the adapter of another guest is another");
    drop((queue, guest));
    let (again, context) = copy_guest(&vms[0]);
    let mut queue = RawQueue::new(&again, context);
    assert_eq!(queue.connect(), Ok(CONNECTED));
    queue.run(&CommandBuffer::new());

    assert_eq!(operated.ask(&["reset-adapter"])["v1"]["devices_lost"], 1);
    assert_eq!((again.device_status(), other.device_status()), (DEVICE_RESET, DEVICE_RESET));
}

#[test]
fn what_cannot_be_done_is_refused_in_words() {
    let operated = Operated::with(1, &[]);
    assert!(operated.refusal(&["reset", "--vgpu", "x"]).contains("there is no vGPU x; there are: v0"));
    assert!(operated.refusal(&["reset", "--vgpu", "v0"]).contains("vGPU v0: no VM is connected"));
    let _vm = operated.daemon.vm(0);
    until("a VM", || operated.ask(&["status"])["vgpus"][0]["vm_connected"] == true);
    assert!(operated.refusal(&["reset", "--vgpu", "v0"]).contains("nothing to reset"));
    let nobody = operated.folder.path().join("nobody");
    let output = Command::new(env!("CARGO_BIN_EXE_campanile"))
        .args(["ctl", "--control", nobody.to_str().unwrap(), "status"])
        .output()
        .unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("no daemon answers at"));
}

#[test]
fn bad_clients_of_the_control_socket_harm_nobody() {
    let operated = Operated::with(1, &[]);
    let mode = std::fs::metadata(operated.control()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let connect = || {
        let stream = UnixStream::connect(operated.control()).unwrap();
        stream.set_read_timeout(Some(NEVER)).unwrap();
        stream
    };
    let line_after = |bytes: &[u8]| {
        let mut stream = connect();
        // It may be dropped before it has said all.
        let _dropped = stream.write_all(bytes);
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).map(|_| line).unwrap_or_default()
    };
    for wrong in
        [&b"\n"[..], b"{}\n", b"\xff\xfe\n", b"[[[[[[\n", b"{\"verb\":\"status\",\"verb\":\"reset\"}\n"]
    {
        assert!(line_after(wrong).contains("this is no command"), "{wrong:?}");
    }
    let nested = [&[b'['; 60_000][..], b"\n"].concat();
    assert!(line_after(&nested).contains("this is no command"));
    line_after(&vec![b'x'; 1 << 20]);
    // Some say nothing, some say half a line, some do not read what they asked for.
    let mut idle: Vec<UnixStream> = Vec::new();
    for index in 0..40 {
        let mut stream = connect();
        if index % 2 == 0 {
            let _dropped = stream.write_all(b"{\"verb\":");
        } else {
            // As much as the daemon takes without being read.
            stream.set_nonblocking(true).unwrap();
            while stream.write(b"{\"verb\":\"metrics\"}\n").is_ok() {}
        }
        idle.push(stream);
    }
    assert_eq!(operated.ask(&["status"])["vgpus"][0]["name"], "v0");
    drop(idle);
}
