//! The sequences of QEMU and cloud-hypervisor, request by request, on the fs front: what a file is worth after each.

use campanile_protocol::fs;
use campanile_protocol::fs::errno;
use campanile_protocol::fs::fuse::InHeader;
use campanile_protocol::fs::fuse::OutHeader;
use campanile_protocol::fs::fuse::file::OpenIn;
use campanile_protocol::fs::fuse::file::OpenOut;
use campanile_protocol::fs::fuse::file::WriteIn;
use campanile_protocol::fs::fuse::opcode;
use campanile_protocol::fs::fuse::start;
use campanile_protocol::fs::fuse::start::InitIn;
use campanile_protocol::fs::place::STAGE_BASE;
use tempfile::TempDir;
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::support::Daemon;
use crate::vmm::BOTH;
use crate::vmm::Copy;
use crate::vmm::Kind;
use crate::vmm::Vmm;
use crate::vmm::nobody;

/// A guest's acknowledgement of `VHOST_F_LOG_ALL`, which cloud-hypervisor hands on.
const LOG_ALL: u64 = 1 << 26;

/// A daemon whose vGPU can be saved.
struct Host {
    daemon: Daemon,
    folder: TempDir,
}

impl Host {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let daemon = Self::in_folder(&folder);
        Self { daemon, folder }
    }

    fn in_folder(folder: &TempDir) -> Daemon {
        let state = folder.path().display().to_string();
        Daemon::with_specs(&["vram=16M,front=fs,tag=campanile"], &["--state-dir", &state])
    }

    fn boot(&self, kind: Kind) -> Vmm {
        // The socket has its name before anybody listens.
        crate::support::until("the daemon listens", || {
            std::os::unix::net::UnixStream::connect(self.daemon.socket(0)).is_ok()
        });
        Vmm::booted(kind, &self.daemon.socket(0))
    }
}

/// One request on the request queue; the second ring.
fn ask(vmm: &mut Vmm, opcode: u32, node: u64, arguments: &[u8]) -> Result<Vec<u8>, i32> {
    let length = u32::try_from(size_of::<InHeader>() + arguments.len()).unwrap();
    let header = InHeader { length, opcode, unique: 9, node, ..InHeader::default() };
    let answer = vmm.vm.cursor.round(4, &[header.as_bytes(), arguments].concat());
    let (header, results) = OutHeader::read_from_prefix(&answer).unwrap();
    assert_eq!(header.unique, 9);
    if header.error == 0 { Ok(results.to_vec()) } else { Err(-header.error) }
}

/// What a guest's kernel and a process of it do first: the handle of an open file.
fn open(vmm: &mut Vmm) -> u64 {
    let open = OpenIn { flags: 2, open_flags: 0 };
    let opened = ask(vmm, opcode::OPEN, fs::GPU, open.as_bytes()).unwrap();
    OpenOut::read_from_bytes(&opened).unwrap().handle
}

/// Whether a file means anything: frames can be staged on it.
fn stage(vmm: &mut Vmm, handle: u64) -> Result<(), i32> {
    let write = WriteIn { handle, offset: STAGE_BASE, size: 8, ..WriteIn::default() };
    ask(vmm, opcode::WRITE, fs::GPU, &[write.as_bytes(), &[0; 8]].concat()).map(drop)
}

fn init(vmm: &mut Vmm) {
    let init = InitIn { major: start::MAJOR, minor: 40, ..InitIn::default() };
    // The answer of INIT has 64 bytes and a header: more than this ring's places have.
    assert!(ask(vmm, opcode::INIT, 0, init.as_bytes()).is_ok());
}

#[test]
fn a_paused_and_a_saved_guest_goes_on_with_its_files() {
    for kind in BOTH {
        let host = Host::new();
        let mut vmm = host.boot(kind);
        init(&mut vmm);
        let handle = open(&mut vmm);
        assert_eq!(stage(&mut vmm, handle), Ok(()));
        vmm.pause();
        vmm.vm.enable(true);
        assert_eq!(stage(&mut vmm, handle), Ok(()), "{kind:?}: paused");
        vmm.pause();
        let bases = vmm.stop_rings();
        vmm.save().unwrap();
        vmm.resume(bases);
        assert_eq!(stage(&mut vmm, handle), Ok(()), "{kind:?}: saved");
        // Whoever acknowledges the log without one is not served worse.
        vmm.vm.front.set_features(vmm.features | LOG_ALL).unwrap();
        assert_eq!(stage(&mut vmm, handle), Ok(()), "{kind:?}: a log without a log");
    }
}

#[test]
fn a_restored_guest_has_its_files_where_it_comes_to() {
    for kind in BOTH {
        let host = Host::new();
        let target = Host::in_folder(&host.folder);
        let mut vmm = host.boot(kind);
        let handle = open(&mut vmm);
        assert_eq!(stage(&mut vmm, handle), Ok(()));
        vmm.begin_migration();
        let copy = Copy::of(&vmm.vm.guest);
        assert_eq!(stage(&mut vmm, handle), Ok(()));
        let (bases, state) = vmm.blackout(&copy);
        assert!(state.len() < 4 << 20);
        copy.pages(&vmm.vm.guest, (0..crate::guest::RAM).step_by(4096));
        drop(std::mem::replace(&mut vmm.vm.front, nobody()));
        let mut moved = vmm.target(&target.socket(0), copy, &state).unwrap();
        moved.go_on(bases);
        assert_eq!(stage(&mut moved, handle), Ok(()), "{kind:?}");
        assert_ne!(open(&mut moved), handle);
    }
}

/// The guest reboots. cloud-hypervisor never says RESET_DEVICE; QEMU does.
fn begin_anew(vmm: &mut Vmm, kind: Kind) {
    vmm.pause();
    vmm.stop_rings();
    if kind == Kind::Qemu {
        vmm.vm.front.reset_device().unwrap();
    }
    for queue in [&mut vmm.vm.control, &mut vmm.vm.cursor] {
        queue.clear();
    }
    vmm.start_driver([0, 0]);
}

#[test]
fn a_guest_that_begins_anew_has_no_file_of_before() {
    for kind in BOTH {
        let host = Host::new();
        let mut vmm = host.boot(kind);
        let handle = open(&mut vmm);
        assert_eq!(stage(&mut vmm, handle), Ok(()));
        begin_anew(&mut vmm, kind);
        assert_eq!(stage(&mut vmm, handle), Err(errno::ENODEV), "{kind:?}");
        let handle = open(&mut vmm);
        assert_eq!(stage(&mut vmm, handle), Ok(()));
    }
}

/// The guest reboots while it is on its way; what goes then is the guest of after.
#[test]
fn a_guest_that_reboots_on_its_way_comes_as_it_is_then() {
    for kind in BOTH {
        let host = Host::new();
        let target = Host::in_folder(&host.folder);
        let mut vmm = host.boot(kind);
        let before = open(&mut vmm);
        assert_eq!(stage(&mut vmm, before), Ok(()));
        vmm.begin_migration();
        let copy = Copy::of(&vmm.vm.guest);
        begin_anew(&mut vmm, kind);
        let after = open(&mut vmm);
        assert_eq!(stage(&mut vmm, after), Ok(()));
        let (bases, state) = vmm.blackout(&copy);
        copy.pages(&vmm.vm.guest, (0..crate::guest::RAM).step_by(4096));
        drop(std::mem::replace(&mut vmm.vm.front, nobody()));
        let mut moved = vmm.target(&target.socket(0), copy, &state).unwrap();
        moved.go_on(bases);
        assert_eq!(stage(&mut moved, after), Ok(()), "{kind:?}");
        assert_eq!(stage(&mut moved, before), Err(errno::ENODEV), "{kind:?}: of before the reset");
    }
}

/// The daemon is lost and comes again; cloud-hypervisor connects anew, without a state.
#[test]
fn a_reconnected_guest_is_told_that_its_files_are_gone() {
    let mut host = Host::new();
    let mut vmm = host.boot(Kind::CloudHypervisor);
    let handle = open(&mut vmm);
    assert_eq!(stage(&mut vmm, handle), Ok(()));
    let position = vmm.vm.cursor.used_index();
    host.daemon = Host::in_folder(&host.folder);
    crate::support::until("the daemon listens", || {
        std::os::unix::net::UnixStream::connect(host.daemon.socket(0)).is_ok()
    });
    vmm.reconnect(&host.daemon.socket(0));
    vmm.start_driver([0, position]);
    assert_eq!(stage(&mut vmm, handle), Err(errno::ENODEV));
    let handle = open(&mut vmm);
    assert_eq!(stage(&mut vmm, handle), Ok(()));
}
