//! Guests that lie about devices that are taken away and come back (decision 64).

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use campanile_protocol::PROTOCOL_VERSION;
use campanile_protocol::control::away::ATTACH_DEVICE;
use campanile_protocol::control::away::AttachDevice;
use campanile_protocol::control::away::PARK_DEVICE;
use campanile_protocol::control::away::PagesAgain;
use campanile_protocol::control::away::Parked;
use campanile_protocol::control::away::blob_name;
use campanile_protocol::control::message;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::device_page::DEVICE_PAGE_BYTES;
use campanile_protocol::virtio_gpu::blob::CreateBlob;
use campanile_protocol::virtio_gpu::blob::MEM_GUEST;
use campanile_protocol::virtio_gpu::command;
use campanile_protocol::virtio_gpu::response::ERR_INVALID_PARAMETER;
use campanile_protocol::virtio_gpu::response::OK_NODATA;
use serde_json::Value;
use tempfile::TempDir;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::attacker::Attacker;
use crate::attacker::frame;
use crate::blobs::VRAM;
use crate::daemon::until;
use crate::scene::Scene;
use crate::wire;
use crate::wire::FIRST_ID;

struct Operated {
    scene: Scene,
    folder: TempDir,
}

fn ctl(control: PathBuf, arguments: &[&str]) -> JoinHandle<Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_campanile"));
    command.arg("ctl").arg("--json").arg("--control").arg(control).args(arguments);
    std::thread::spawn(move || {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    })
}

impl Operated {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let control = folder.path().join("control");
        let scene = Scene::with(&["--tdr-debug", "3", "--control", control.to_str().unwrap()]);
        Self { scene, folder }
    }

    fn ctl(&self, arguments: &[&str]) -> JoinHandle<Value> {
        ctl(self.folder.path().join("control"), arguments)
    }

    /// Begins to take the device away, with so many milliseconds for guests.
    fn detach(&self, limit: &str) -> JoinHandle<Value> {
        let file = self.folder.path().join("away");
        self.ctl(&["detach", "--vgpu", "v0", "--limit", limit, file.to_str().unwrap()])
    }
}

fn park(attacker: &Attacker) -> Parked {
    until("the word that says so", || {
        attacker.page.word(device_page::LEAVE).unwrap().load(Ordering::Acquire) != 0
    });
    let (status, payload) = attacker.message(PARK_DEVICE, &[]);
    assert_eq!(status, Status::Ok);
    Parked::read_from_bytes(&payload).unwrap()
}

/// ATTACH_DEVICE in the name of a context; the response code.
fn attach(of: &Attacker, parked: Parked, page_resource: u32, pages: &[PagesAgain], count: u32) -> u32 {
    let attach =
        AttachDevice { parked, protocol_version: PROTOCOL_VERSION, page_resource, count, reserved: 0 };
    let body = [attach.as_bytes(), pages.as_bytes()].concat();
    let frames = frame(ATTACH_DEVICE, 0, 1, &body);
    wire::submit(of.vm(), of.id(), frames.len(), &frames)
}

#[test]
fn nobody_parks_who_was_not_asked_and_nobody_comes_back_who_was_not_away() {
    let mut operated = Operated::new();
    let attacker = operated.scene.attacker();
    assert_eq!(attacker.status(PARK_DEVICE, &[]), Status::Busy);
    assert_eq!(attacker.status(PARK_DEVICE, &[0; 8]), Status::InvalidParameter);
    assert_eq!(attacker.status(ATTACH_DEVICE, &[0; 40]), Status::UnknownMessage, "it has a device");
    let other = Attacker::without_device(&operated.scene.vm);
    for (token, names) in [(0, 0), (1, 1), (u64::MAX, u64::MAX)] {
        let parked = Parked { token, names };
        let page = other.page_blob.resource_id();
        assert_eq!(attach(&other, parked, page, &[], 0), ERR_INVALID_PARAMETER);
        assert_eq!(attach(&other, parked, page, &[], 9), ERR_INVALID_PARAMETER);
    }
    let named = CreateBlob { blob_id: 7, ..VRAM };
    assert_eq!(wire::create_blob(&operated.scene.vm, named, &[]), ERR_INVALID_PARAMETER);
    let named = CreateBlob { memory: MEM_GUEST, ..named };
    assert_eq!(wire::create_blob(&operated.scene.vm, named, &[]), ERR_INVALID_PARAMETER);
    assert!(attacker.is_active());
    operated.scene.unharmed();
}

#[test]
fn who_parks_and_goes_on_is_refused_and_lost_and_a_token_is_good_for_one_return() {
    let mut operated = Operated::new();
    let (stays, goes) = (operated.scene.attacker(), operated.scene.attacker());
    let vm = operated.scene.vm.clone();
    let detached = operated.detach("3000");
    let _its = park(&stays);
    assert_eq!(stays.status(PARK_DEVICE, &[]), Status::Busy, "twice");
    assert_eq!(stays.status(message::QUERY_CAPS, &[]), Status::Busy, "it is away");
    let parked = park(&goes);
    let page = goes.page_blob.resource_id();
    let thief = Attacker::without_device(&vm);
    assert_eq!(attach(&thief, parked, thief.page_blob.resource_id(), &[], 0), ERR_INVALID_PARAMETER);
    drop(goes);
    let answer = detached.join().unwrap();
    assert_eq!((answer["parked"].as_u64(), answer["lost"].as_array().unwrap().len()), (Some(2), 1));
    assert!(!stays.is_active(), "it was asked to go");
    operated.ctl(&["attach", "--vgpu", "v0"]).join().unwrap();
    // Names, by whoever knows them: of the right size, and once.
    let named = CreateBlob { blob_id: blob_name(&parked, page), size: DEVICE_PAGE_BYTES, ..VRAM };
    for wrong in [
        CreateBlob { size: 4096, ..named },
        CreateBlob { blob_id: named.blob_id + 1, ..named },
        CreateBlob { blob_id: parked.token, ..named },
    ] {
        assert_eq!(wire::create_blob(&vm, wrong, &[]), ERR_INVALID_PARAMETER, "{wrong:?}");
    }
    assert_eq!(wire::create_blob(&vm, named, &[]), OK_NODATA);
    let again = CreateBlob { resource_id: FIRST_ID + 1, ..named };
    assert_eq!(wire::create_blob(&vm, again, &[]), ERR_INVALID_PARAMETER, "twice");
    assert_eq!(wire::name(&vm, command::CTX_ATTACH_RESOURCE, thief.id(), FIRST_ID), OK_NODATA);
    // The wrong token, the wrong page, pages that are none of its.
    let wrong = Parked { token: parked.token ^ 1, ..parked };
    assert_eq!(attach(&thief, wrong, FIRST_ID, &[], 0), ERR_INVALID_PARAMETER);
    assert_eq!(attach(&thief, parked, thief.page_blob.resource_id(), &[], 0), ERR_INVALID_PARAMETER);
    let pages = [PagesAgain { name: named.blob_id, resource: FIRST_ID, reserved: 0 }];
    assert_eq!(attach(&thief, parked, FIRST_ID, &pages, 1), ERR_INVALID_PARAMETER);
    assert_eq!(attach(&thief, parked, FIRST_ID, &pages, 2), ERR_INVALID_PARAMETER);
    // Who has both is the process.
    assert_eq!(attach(&thief, parked, FIRST_ID, &[], 0), OK_NODATA);
    let late = Attacker::without_device(&vm);
    assert_eq!(attach(&late, parked, late.page_blob.resource_id(), &[], 0), ERR_INVALID_PARAMETER, "used");
    operated.scene.unharmed();
}

#[test]
fn processes_that_are_away_are_bounded_and_leave_nothing_behind() {
    let mut operated = Operated::new();
    let vm = operated.scene.vm.clone();
    let many: Vec<Attacker> = (0..100).map(|_| operated.scene.attacker()).collect();
    let detached = operated.detach("30000");
    for attacker in many {
        let _token = park(&attacker);
    }
    assert_eq!(detached.join().unwrap()["parked"].as_u64(), Some(101));
    // The guest resets its device, and whoever is away stays away, until the front-end is gone.
    vm.reset_device().unwrap();
    // It waits for its device, and its end would, too.
    std::mem::forget(operated.scene.give_neighbour_up());
    let committed = || {
        let status = operated.ctl(&["status"]).join().unwrap();
        (status["vgpus"][0]["vm_connected"].as_bool(), status["vgpus"][0]["vram_committed_bytes"].as_u64())
    };
    operated.scene.vm.hang_up();
    until("the end of the session", || committed() == (Some(false), Some(0)));
    operated.scene.unharmed();
}
