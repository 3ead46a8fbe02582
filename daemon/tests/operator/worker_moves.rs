//! vGPUs that go from a worker to a worker of another daemon.

use std::process::Command;

use campanile_guest_driver::device::Device;
use campanile_test_vmm::migration::error::MigrationError;
use campanile_test_vmm::migration::options::MigrateOptions;
use campanile_test_vmm::vm::LoopbackVm;
use rustix::process::Signal;

use crate::killed::fill;
use crate::killed::table;
use crate::served::text;
use crate::upgrade::connect;
use crate::workers::Workers;

/// A daemon whose workers take vGPUs a and b at an address each.
fn takers() -> Workers {
    let each = |name: &str| table(name, &format!("migrate-listen = \"unix:@/{name}.peer\"\n"));
    Workers::begin(&format!("{}{}", each("a"), each("b")))
}

/// One whose workers bring a and b to the worker of b.
fn bringers(takers: &Workers) -> Workers {
    let peer = takers.served.folder.file("b.peer");
    let to = format!("migrate-to = \"unix:{}\"\n", peer.display());
    Workers::begin(&format!("{to}{}{}", table("a", ""), table("b", "")))
}

fn go(vm: &LoopbackVm, takers: &Workers, name: &str) -> Result<(), MigrationError> {
    let socket = takers.served.folder.file(&format!("{name}.sock"));
    vm.migrate(socket, MigrateOptions::default()).map(|_| ())
}

#[test]
fn a_worker_takes_its_vgpu_at_an_address_of_its_own_and_so_does_the_next_one() {
    let takers = takers();
    let bringers = bringers(&takers);
    takers.end("b", Signal::KILL);
    let vm = connect(&bringers.served, "b");
    let device = Device::open(vm.open("test").unwrap()).unwrap();
    let buffer = device.create_buffer(4096).unwrap();
    buffer.write(0, b"what is taken along").unwrap();
    fill(&device, 1, true).unwrap();
    go(&vm, &takers, "b").unwrap();
    fill(&device, 2, true).unwrap();
    let mut seen = [0; 19];
    buffer.read(0, &mut seen).unwrap();
    assert_eq!(&seen, b"what is taken along");
    assert_eq!(takers.served.ask(&["migration"])["departures"].as_array().unwrap().len(), 2);

    let arrivals = takers.served.ask(&["migration"])["arrivals"].clone();
    assert!(arrivals["bundles"].is_array() && arrivals["failed_lines"] == 0, "{arrivals}");

    // That address is of no other vGPU.
    let other = connect(&bringers.served, "a");
    let stays = Device::open(other.open("test").unwrap()).unwrap();
    let refused = go(&other, &takers, "a").unwrap_err().to_string();
    fill(&stays, 3, true).unwrap();
    let said = text(&bringers.served.ctl(&["migration"]).stdout);
    assert!(said.contains("there is no vGPU \"a\" here"), "{refused}; {said}");
}

#[test]
fn an_address_of_a_vgpu_needs_a_process_of_its_own() {
    for (more, why) in [
        (&["migrate-listen=unix:/p"][..], "vGPU a: migrate-listen is for vGPUs with a process each"),
        (
            &["migrate-listen=tls:0.0.0.0:0", "--workers", "/w"],
            "vGPU a: migrate-listen=tls:… needs --migrate-cert",
        ),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
        command.args(["serve", "--vgpu", &format!("name=a,socket=/a,vram=64M,{}", more[0])]).args(&more[1..]);
        let output = command.output().unwrap();
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(why), "{said}");
    }
}
