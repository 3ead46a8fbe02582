//! A daemon that is killed under running guests, and the one that its keeper starts in its place.

use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::user_queue::QueueOptions;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;
use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::kill_process;

use crate::served::Folder;
use crate::served::NEVER;
use crate::served::QUIET;
use crate::served::Served;
use crate::served::until;

const BYTES: u64 = 1 << 20;

fn table(name: &str, more: &str) -> String {
    format!("[[vgpu]]\nname = \"{name}\"\nsocket = \"@/{name}.sock\"\nvram = \"64M\"\n{more}")
}

/// A keeper, and the daemon that it has.
struct Kept(Served);

impl Kept {
    fn begin(config: &str) -> Self {
        let folder = Folder::with(&format!("{QUIET}{config}"));
        let command = Command::new(env!("CARGO_BIN_EXE_campanile"));
        Self(Served::run(folder, command, &["--respawn"], Stdio::inherit()))
    }

    fn connect(&self, name: &str) -> Arc<LoopbackVm> {
        LoopbackVm::connect(self.0.folder.file(&format!("{name}.sock")), &VmOptions::default()).unwrap()
    }

    fn daemon(&self) -> Option<Pid> {
        let output = self.0.ctl(&["--json", "status"]);
        let status: Option<serde_json::Value> = serde_json::from_slice(&output.stdout).ok();
        Pid::from_raw(i32::try_from(status?["daemon"]["pid"].as_u64()?).unwrap())
    }

    /// Kills the daemon, and waits until the next one serves.
    fn kill(&self) {
        let before = self.daemon().unwrap();
        assert_ne!(u32::try_from(before.as_raw_nonzero().get()).unwrap(), self.0.pid(), "it is not the keeper");
        kill_process(before, Signal::KILL).unwrap();
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
fn fill(device: &Device, value: u32, by_doorbell: bool) -> Result<(), DriverError> {
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

#[test]
fn cont_12_guests_of_a_daemon_that_is_killed_see_lost_devices_and_go_on_with_new_ones() {
    let kept = Kept::begin(&format!("{}{}", table("a", ""), table("b", "")));
    let vms = [kept.connect("a"), kept.connect("b")];
    for round in 0..3 {
        let devices: Vec<Device> = vms.iter().map(|vm| Device::open(vm.open("test").unwrap()).unwrap()).collect();
        for device in &devices {
            fill(device, 10 + round, true).unwrap();
        }
        kept.kill();
        for device in devices {
            let lost = fill(&device, 1, round % 2 == 0).unwrap_err();
            assert!(matches!(lost, DriverError::DeviceLost(_)), "{lost}");
            let again = device.recreate().unwrap();
            fill(&again, 20 + round, true).unwrap();
            fill(&again, 30 + round, false).unwrap();
        }
        for vm in &vms {
            assert!(vm.is_connected());
            fill(&Device::open(vm.open("new").unwrap()).unwrap(), 40 + round, true).unwrap();
        }
    }
}
