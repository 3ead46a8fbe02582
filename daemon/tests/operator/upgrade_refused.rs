//! A vGPU that cannot be handed over now refuses the upgrade, and loses nothing.

use std::fs;
use std::fs::File;
use std::io::Read;
use std::io::Write;
use std::os::unix::net::UnixStream;

use campanile_guest_driver::device::Device;

use crate::served::Folder;
use crate::served::QUIET;
use crate::served::Served;
use crate::served::until;
use crate::upgrade::Line;
use crate::upgrade::connect;
use crate::upgrade::once;
use crate::upgrade::table;

/// A message of vhost-user that asks for the features, and bytes of its answer.
const GET_FEATURES: [u32; 3] = [1, 1, 0];
const ANSWER: usize = 12 + 8;

#[test]
fn cont_06_a_vgpu_that_is_being_migrated_refuses_the_upgrade_and_goes_on() {
    let target = Served::with(&format!("migrate-listen = \"unix:@/door\"\n{}", table("a", "")));
    let to = format!("migrate-to = \"unix:{}\"\n", target.folder.file("door").display());
    let mut line = Line::begin(&format!("{to}{}{}", table("b", ""), table("a", "")));
    let [a, b] = ["a", "b"].map(|name| connect(&line.served, name));
    let devices = [&a, &b].map(|vm| Device::open(vm.open("test").unwrap()).unwrap());
    line.served.ask(&["migrate", "--vgpu", "a"]);
    let why = line.refused(&[]);
    assert!(
        why.contains("vGPU a: ") && why.contains("migration") && why.contains("goes on as it was"),
        "{why}"
    );
    devices.iter().for_each(once);
    let departure = |line: &Line| line.served.ask(&["migration"])["departures"][1].clone();
    until("a pass", || departure(&line)["progress"]["passes"].as_array().is_some_and(|all| !all.is_empty()));
    assert_eq!(departure(&line)["phase"], "brownout", "the migration goes on, too");
    line.served.ask(&["call-off", "--vgpu", "a"]);
    until("the end of its thread", || line.try_upgrade().is_ok());
    devices.iter().for_each(once);
}

#[test]
fn a_successor_with_another_gpu_profile_refuses_the_vgpu_of_a_vm_and_the_daemon_goes_on() {
    let config = |profile: &str| table("a", &format!("gpu-profile = \"{profile}\"\n"));
    let mut line = Line::begin(&config("campanile-1"));
    let vm = connect(&line.served, "a");
    let device = Device::open(vm.open("test").unwrap()).unwrap();
    let profile = device.profile().unwrap();
    line.upgrade();
    once(&device);
    assert_eq!(device.profile().unwrap(), profile);
    line.served.folder.write("campanile.toml", &format!("{QUIET}{}", config("host")));
    let why = line.refused(&[]);
    assert!(why.contains("gpu_profile is campanile-1 in the state, and host here"), "{why}");
    once(&device);
}

#[test]
fn cont_06_a_vmm_in_the_middle_of_a_message_refuses_the_upgrade_and_goes_on() {
    let mut line = Line::begin(&format!("{}{}", table("a", ""), table("b", "")));
    let b = connect(&line.served, "b");
    let device = Device::open(b.open("test").unwrap()).unwrap();
    let mut vmm = UnixStream::connect(line.served.folder.file("a.sock")).unwrap();
    let message: Vec<u8> = GET_FEATURES.into_iter().flat_map(u32::to_ne_bytes).collect();
    vmm.write_all(&message[..5]).unwrap();
    // Until the first bytes are read it stands between two messages, and goes.
    let mut refused = None;
    until("a message that has begun", || {
        refused = line.try_upgrade().err();
        refused.is_some()
    });
    let why = refused.unwrap();
    assert!(why.contains("vGPU a: its VMM is in the middle of a message"), "{why}");
    once(&device);
    vmm.write_all(&message[5..]).unwrap();
    let mut answer = [0; ANSWER];
    vmm.read_exact(&mut answer).unwrap();
    line.upgrade();
    vmm.write_all(&message).unwrap();
    let mut again = [0; ANSWER];
    vmm.read_exact(&mut again).unwrap();
    assert_eq!(again, answer);
    once(&device);
}

#[test]
fn cont_06_a_vgpu_that_was_to_go_goes_on_by_itself_when_another_cannot() {
    let folder = Folder::with(&format!("{QUIET}{}{}", table("a", ""), table("b", "")));
    let log = folder.file("log");
    let mut line = Line::of(Served::logging(folder, &[], File::create(&log).unwrap().into()));
    let a = connect(&line.served, "a");
    let device = Device::open(a.open("test").unwrap()).unwrap();
    once(&device);
    let mut vmm = UnixStream::connect(line.served.folder.file("b.sock")).unwrap();
    vmm.write_all(&GET_FEATURES.into_iter().flat_map(u32::to_ne_bytes).collect::<Vec<_>>()[..5]).unwrap();
    // Longer than any engine may take to stand still: nothing but the daemon wakes the first one by then.
    until("a message that has begun", || line.try_upgrade().is_err());
    until("a vGPU that goes on", || {
        let said = fs::read_to_string(&log).unwrap();
        said.rfind("a: goes on") > said.rfind("a: stands still")
    });
    once(&device);
}
