//! A daemon that is killed under running guests, and the one that its keeper starts in its place.

use std::fs;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::thread;

use campanile_guest_driver::buffer::Buffer;
use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::kernel::Kernel;
use campanile_guest_driver::kernel::KernelSource;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_guest_driver::user_queue::UserQueue;
use campanile_test_vmm::fuse::context::FuseContext;
use campanile_test_vmm::options::DeviceKind;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;
use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::kill_process;
use serde_json::json;

use crate::served::Folder;
use crate::served::NEVER;
use crate::served::QUIET;
use crate::served::Served;
use crate::served::campanile;
use crate::served::text;
use crate::served::until;
use crate::upgrade::Over;

const BYTES: u64 = 1 << 20;

pub(crate) fn table(name: &str, more: &str) -> String {
    format!("[[vgpu]]\nname = \"{name}\"\nsocket = \"@/{name}.sock\"\nvram = \"64M\"\n{more}")
}

/// A keeper, and the daemon that it has.
pub(crate) struct Kept(pub(crate) Served);

impl Kept {
    pub(crate) fn begin(config: &str) -> Self {
        Self::by(Command::new(env!("CARGO_BIN_EXE_campanile")), config)
    }

    fn by(command: Command, config: &str) -> Self {
        let folder = Folder::with(&format!("{QUIET}{config}"));
        Self(Served::run(folder, command, &["--respawn"], Stdio::inherit()))
    }

    pub(crate) fn connect(&self, name: &str) -> Arc<LoopbackVm> {
        LoopbackVm::connect(self.0.folder.file(&format!("{name}.sock")), &VmOptions::default()).unwrap()
    }

    /// The keeper is a process that was not waited for yet.
    fn has_ended(&self) -> bool {
        fs::read_to_string(format!("/proc/{}/stat", self.0.pid()))
            .map_or(true, |state| state.contains(") Z "))
    }

    pub(crate) fn daemon(&self) -> Option<Pid> {
        let output = self.0.ctl(&["--json", "status"]);
        let status: Option<serde_json::Value> = serde_json::from_slice(&output.stdout).ok();
        Pid::from_raw(i32::try_from(status?["daemon"]["pid"].as_u64()?).unwrap())
    }

    /// Kills the daemon, and waits until the next one serves.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Has the daemon be followed by another by a signal.
    fn signal(&self, signal: Signal) {
        let before = self.daemon().unwrap();
        assert_ne!(
            u32::try_from(before.as_raw_nonzero().get()).unwrap(),
            self.0.pid(),
            "it is not the keeper"
        );
        kill_process(before, signal).unwrap();
        until("the next daemon", || self.daemon().is_some_and(|daemon| daemon != before));
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // Its daemon ends with it only when it is asked.
        let keeper = Pid::from_raw(i32::try_from(self.0.pid()).unwrap()).unwrap();
        let daemon = self.daemon();
        let _ended = kill_process(keeper, Signal::TERM);
        if let Some(daemon) = daemon {
            until("the daemon's end", || rustix::process::test_kill_process(daemon).is_err());
        }
    }
}

/// A fill that a guest sees end.
pub(crate) fn fill(device: &Device, value: u32, by_doorbell: bool) -> Result<(), DriverError> {
    let buffer = device.create_buffer(BYTES)?;
    let mut commands = CommandBuffer::new();
    commands.fill(buffer.va(), BYTES, value)?;
    let context = device.create_context(Node::Copy)?;
    if by_doorbell {
        context.create_user_queue(&QueueOptions::default())?.submit(&commands)?.wait(Some(NEVER))?;
    } else {
        let mut queue = context.create_kernel_queue()?;
        let ticket = queue.submit(&commands)?;
        queue.wait(ticket, Some(NEVER))?;
    }
    let mut word = [0; 4];
    buffer.read(BYTES - 4, &mut word)?;
    assert_eq!(u32::from_le_bytes(word), value);
    Ok(())
}

/// Counts up for ever, in one thread group.
const ENDLESS: &str = "
    @group(0) @binding(0) var<storage, read_write> data: array<u32>;
    @compute @workgroup_size(1) fn main() {
        loop {
            data[1] = data[1] + 1u;
            if (data[0] == 77u) { break; }
        }
    }";

/// What keeps an engine busy.
pub(crate) type Occupied = (UserQueue, Buffer, Kernel);

/// Has an engine run a kernel that never ends: when the daemon is killed it does not stop in time, so that the device is lost.
pub(crate) fn occupy(device: &Device) -> Occupied {
    let kernel = device.create_kernel(&KernelSource::wgsl(ENDLESS)).unwrap();
    let data = device.create_buffer(4096).unwrap();
    let context = device.create_context(Node::Compute).unwrap();
    let mut queue = context.create_user_queue(&QueueOptions::default()).unwrap();
    let mut commands = CommandBuffer::new();
    commands.dispatch(&kernel, [1, 1, 1], &[data.binding(0)], &[]).unwrap();
    queue.submit(&commands).unwrap();
    until("a kernel that never ends", || {
        let mut word = [0; 4];
        data.read(4, &mut word).unwrap();
        word != [0; 4]
    });
    (queue, data, kernel)
}

#[test]
fn cont_12_guests_of_a_daemon_that_is_killed_see_lost_devices_and_go_on_with_new_ones() {
    let kept = Kept::begin(&format!("{}{}", table("a", ""), table("b", "")));
    let vms = [kept.connect("a"), kept.connect("b")];
    for round in 0..3 {
        let devices: Vec<Device> =
            vms.iter().map(|vm| Device::open(vm.open("test").unwrap()).unwrap()).collect();
        for device in &devices {
            fill(device, 10 + round, true).unwrap();
        }
        let occupied = occupy(&devices[round as usize % 2]);
        kept.kill();
        until("a lost device", || devices[round as usize % 2].check().is_err());
        drop(occupied);
        for device in devices {
            // The one that was asked nothing may go on.
            let again = match device.check() {
                Ok(()) => device,
                Err(DriverError::DeviceLost(_)) => device.recreate().unwrap(),
                Err(other) => panic!("{other}"),
            };
            fill(&again, 20 + round, true).unwrap();
            fill(&again, 30 + round, false).unwrap();
        }
        for vm in &vms {
            assert!(vm.is_connected());
            fill(&Device::open(vm.open("new").unwrap()).unwrap(), 40 + round, true).unwrap();
        }
    }
}

#[test]
fn a_daemon_that_follows_one_that_was_killed_takes_what_that_one_has_found_of_the_machine() {
    let folder = Folder::with(&format!("{QUIET}{}", table("a", "")));
    let log = folder.file("log");
    let command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    let file = fs::File::create(&log).unwrap();
    let kept = Kept(Served::run(folder, command, &["--respawn"], file.into()));
    let times =
        || fs::read_to_string(&log).unwrap().matches("what was found of the machine before holds").count();
    assert_eq!(times(), 0, "the first one asks it");
    for round in 1..=2 {
        kept.kill();
        assert_eq!(times(), round);
    }
    fill(&Device::open(kept.connect("a").open("test").unwrap()).unwrap(), 1, true).unwrap();
}

#[test]
fn cont_12_files_of_the_fs_front_go_on_and_no_memory_that_a_process_has_mapped_is_handed_out() {
    let kept = Kept::begin(&table("f", "front = \"fs\"\naperture = \"16M\"\n"));
    let options = VmOptions { device: DeviceKind::Fs, aperture: 16 << 20, ..VmOptions::default() };
    let vm = LoopbackVm::connect(kept.0.folder.file("f.sock"), &options).unwrap();
    let open = || Device::open(FuseContext::open(&vm).unwrap()).unwrap();
    for round in 0..3 {
        let old = open();
        let mapped = old.create_buffer(BYTES).unwrap();
        mapped.write(0, &[7; 4096]).unwrap();
        let occupied = occupy(&old);
        kept.kill();
        until("a lost device", || old.check().is_err());
        drop(occupied);
        let new = open();
        let others: Vec<_> = (0..4).map(|_| new.create_buffer(BYTES).unwrap()).collect();
        others.iter().for_each(|other| other.write(0, &[9; 4096]).unwrap());
        fill(&new, 2, true).unwrap();
        let mut bytes = [0; 4096];
        mapped.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 4096], "another process was given its memory");
        drop(mapped);
        fill(&old.recreate().unwrap(), 3, round % 2 == 0).unwrap();
    }
    // What was lost three times is free again, all of it.
    let all = open();
    let buffers: Vec<_> = (0..14).map(|_| all.create_buffer(BYTES).unwrap()).collect();
    assert_eq!(buffers.len(), 14);
}

#[test]
fn cont_10_a_daemon_that_is_stopped_or_panics_is_followed_by_another() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.env("WATCHDOG_USEC", "2000000");
    let kept = Kept::by(command, &table("a", ""));
    let vm = kept.connect("a");
    let device = Device::open(vm.open("test").unwrap()).unwrap();
    fill(&device, 1, true).unwrap();
    let _occupied = occupy(&device);
    // The second ends it as a panic of the supervisor does.
    for signal in [Signal::STOP, Signal::ABORT] {
        kept.signal(signal);
        fill(&Device::open(vm.open("new").unwrap()).unwrap(), 2, true).unwrap();
    }
    assert!(matches!(device.check(), Err(DriverError::DeviceLost(_))));
}

/// A program of a guest that fills buffers over and over, with a new device where one is lost.
pub(crate) struct Program {
    rounds: Arc<AtomicU32>,
    thread: thread::JoinHandle<u32>,
}

impl Program {
    pub(crate) fn begin(vm: &Arc<LoopbackVm>, is_over: &Arc<AtomicBool>, by_doorbell: bool) -> Self {
        let vm = Arc::clone(vm);
        Self::of(move || Device::open(vm.open("test")?), is_over, by_doorbell)
    }

    /// With devices that are opened so.
    pub(crate) fn of(
        open: impl Fn() -> Result<Device, DriverError> + Send + 'static,
        is_over: &Arc<AtomicBool>,
        by_doorbell: bool,
    ) -> Self {
        let rounds = Arc::new(AtomicU32::new(0));
        let (is_over, done) = (Arc::clone(is_over), Arc::clone(&rounds));
        let thread = thread::spawn(move || {
            let mut losses = 0;
            let mut device = open().unwrap();
            while !is_over.load(Ordering::Relaxed) {
                match fill(&device, done.load(Ordering::Relaxed), by_doorbell) {
                    Ok(()) => {
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(DriverError::DeviceLost(_)) => {
                        losses += 1;
                        drop(device);
                        // A message that was on its way when the daemon was killed may be refused.
                        device = loop {
                            match open() {
                                Ok(device) => break device,
                                Err(error) => assert!(!is_over.load(Ordering::Relaxed), "{error}"),
                            }
                        };
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            losses
        });
        Self { rounds, thread }
    }

    pub(crate) fn rounds(&self) -> u32 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Waits for its end; how many devices it has lost.
    pub(crate) fn end(self) -> u32 {
        // Not without a bound: a message that is lost leaves it waiting for ever.
        until("the end of a program", || self.thread.is_finished());
        self.thread.join().unwrap()
    }
}

#[test]
fn cont_15_programs_at_work_while_daemons_are_killed_lose_devices_and_nothing_else() {
    let kept = Kept::begin(&table("a", ""));
    let vm = kept.connect("a");
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Over(&is_over);
    // None of these threads is waited for without a bound: a message that is lost leaves one of them waiting for ever.
    let programs: Vec<Program> = (0..4).map(|index| Program::begin(&vm, &is_over, index % 2 == 0)).collect();
    let rounds = || programs.iter().map(Program::rounds).collect::<Vec<u32>>();
    for _ in 0..4 {
        let before = rounds();
        until("work on all queues", || rounds().iter().zip(&before).all(|(now, before)| now > before));
        kept.kill();
    }
    drop(over);
    let losses: Vec<u32> = programs.into_iter().map(Program::end).collect();
    assert!(losses.iter().all(|losses| *losses <= 4), "{losses:?}");
    assert!(vm.is_connected());
}

#[test]
fn cont_16_what_the_operator_made_and_set_outlives_the_daemon() {
    let kept = Kept::begin(&table("a", ""));
    let spec = format!("name=b,socket={},vram=64M", kept.0.folder.file("b.sock").display());
    kept.0.ask(&["vgpu", "add", &spec]);
    kept.0.ask(&["vgpu", "set", "b", "weight=700"]);
    let vm = kept.connect("b");
    fill(&Device::open(vm.open("test").unwrap()).unwrap(), 1, true).unwrap();
    for _ in 0..2 {
        kept.kill();
        let status = kept.0.ask(&["status"]);
        let b = &status["vgpus"][1];
        assert_eq!(
            (&b["name"], &b["tuning"]["weight"], &b["vm_connected"]),
            (&json!("b"), &json!(700), &json!(true))
        );
        fill(&Device::open(vm.open("test").unwrap()).unwrap(), 2, false).unwrap();
    }
    kept.0.ask(&["vgpu", "remove", "b", "--force"]);
    kept.kill();
    assert_eq!(kept.0.ask(&["status"])["vgpus"].as_array().unwrap().len(), 1);
}

#[test]
fn cont_17_a_daemon_that_never_served_is_not_started_again_and_one_that_ends_well_ends_its_keeper() {
    let folder = Folder::with(&format!("{QUIET}{}", table("a", "weight = 5000000\n")));
    let arguments = ["serve", "--config", &folder.config(), "--respawn"];
    let output = campanile(&arguments);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("campanile.toml:"), "{said}");
    let kept = Kept::begin(&table("a", ""));
    kill_process(kept.daemon().unwrap(), Signal::TERM).unwrap();
    until("the keeper's end", || kept.has_ended());
}

#[test]
fn cont_14_what_a_service_manager_has_stored_of_no_vgpu_is_closed_and_named() {
    let folder = Folder::with(&format!("{QUIET}{}", table("a", "")));
    let log = folder.file("log");
    let mut command = Command::new("sh");
    let hand_over =
        "exec 3</dev/zero; LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=campanile.gone.log exec \"$0\" \"$@\"";
    command.args(["-c", hand_over, env!("CARGO_BIN_EXE_campanile")]);
    let served = Served::run(folder, command, &[], fs::File::create(&log).unwrap().into());
    let said = fs::read_to_string(log).unwrap();
    assert!(said.contains("descriptor store: campanile.gone.log: no vGPU that is served; closed"), "{said}");
    let open = fs::read_dir(format!("/proc/{}/fd", served.pid())).unwrap();
    let files: Vec<_> = open.filter_map(|file| fs::read_link(file.unwrap().path()).ok()).collect();
    assert!(!files.iter().any(|file| file.as_os_str() == "/dev/zero"), "{files:?}");
}
