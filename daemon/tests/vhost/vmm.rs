//! The message sequences of QEMU 11.1 and cloud-hypervisor v53, request by request, as they were traced: one VM on its
//! source and its target, in a process without any VMM.
//!
//! What KVM does is done here too: the pages that the guest's own processors write are copied at the end.

use std::fs::File;
use std::io::Read;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::pipe::pipe;
use vhost::VhostBackend;
use vhost::vhost_user::Frontend;
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostTransferStateDirection;
use vhost::vhost_user::message::VhostTransferStatePhase;
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vm_memory::Bytes;
use vm_memory::GuestAddress;
use vmm_sys_util::eventfd::EFD_NONBLOCK;
use vmm_sys_util::eventfd::EventFd;

use crate::bench::Vm;
use crate::dirty_log::Log;
use crate::guest::Guest;
use crate::guest::RAM;

const LOG_ALL: u64 = 1 << 26;
pub(crate) const PAGE: u64 = 4096;

/// Whose sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Qemu,
    CloudHypervisor,
}

pub(crate) const BOTH: [Kind; 2] = [Kind::Qemu, Kind::CloudHypervisor];

/// The front-end's own part of a VM, and the VM.
pub(crate) struct Vmm {
    pub(crate) kind: Kind,
    pub(crate) vm: Vm,
    pub(crate) features: u64,
    pub(crate) protocol: VhostUserProtocolFeatures,
    pub(crate) log: Option<Log>,
    /// The guest has set no interrupt vector, so that cloud-hypervisor gives no call descriptor.
    pub(crate) is_polled: bool,
}

/// Bytes of a state, as they go through a VMM.
pub(crate) type State = Vec<u8>;

impl Vmm {
    /// A VM of two queues, whose driver has started.
    pub(crate) fn booted(kind: Kind, path: &Path) -> Self {
        let mut vmm = Self::connected(kind, path);
        vmm.start_driver([0, 0]);
        vmm
    }

    /// A VM whose driver has not started.
    pub(crate) fn connected(kind: Kind, path: &Path) -> Self {
        Self::over(kind, Frontend::connect(path, 2).unwrap())
    }

    /// The same over a connection that is there.
    pub(crate) fn over(kind: Kind, mut front: Frontend) -> Self {
        let (features, protocol) = Self::greet(kind, &mut front, None);
        Self { kind, vm: Vm::with(front, 256, true), features, protocol, log: None, is_polled: false }
    }

    /// What a connection begins with; gives features and protocol features.
    fn greet(
        kind: Kind,
        front: &mut Frontend,
        saved: Option<VhostUserProtocolFeatures>,
    ) -> (u64, VhostUserProtocolFeatures) {
        let mut features;
        let protocol;
        match (kind, saved) {
            (Kind::Qemu, _) => {
                front.get_features().unwrap();
                protocol = front.get_protocol_features().unwrap();
                front.set_protocol_features(protocol).unwrap();
                front.get_queue_num().unwrap();
                front.set_owner().unwrap();
                features = front.get_features().unwrap();
                for queue in 0..2 {
                    let unused = EventFd::new(EFD_NONBLOCK).unwrap();
                    front.set_vring_call(queue, &unused).unwrap();
                    front.set_vring_err(queue, &unused).unwrap();
                }
            }
            (Kind::CloudHypervisor, None) => {
                front.set_owner().unwrap();
                features = front.get_features().unwrap();
                protocol = front.get_protocol_features().unwrap();
                front.set_protocol_features(protocol).unwrap();
                front.get_queue_num().unwrap();
            }
            (Kind::CloudHypervisor, Some(saved)) => {
                front.set_owner().unwrap();
                features = front.get_features().unwrap();
                front.set_protocol_features(saved).unwrap();
                protocol = saved;
            }
        }
        front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        features &= !LOG_ALL;
        (features, protocol)
    }

    /// After the daemon was lost: features are known, and there is no state.
    pub(crate) fn reconnect(&mut self, path: &Path) {
        let mut front = Frontend::connect(path, 2).unwrap();
        Self::greet(self.kind, &mut front, Some(self.protocol));
        self.vm.front = front;
    }

    fn set_calls(&self) {
        for queue in [&self.vm.control, &self.vm.cursor] {
            self.vm.front.set_vring_call(queue.index, &queue.call).unwrap();
        }
    }

    fn set_address(&self, index: usize, is_logged: bool) {
        let queue = if index == 0 { &self.vm.control } else { &self.vm.cursor };
        let mut addresses = Vm::addresses(queue);
        addresses.flags = u32::from(is_logged);
        addresses.log_addr = is_logged.then(|| queue.used_ring());
        self.vm.front.set_vring_addr(index, &addresses).unwrap();
    }

    fn set_sizes_and_rings(&self, bases: [u16; 2], is_logged: bool) {
        let front = &self.vm.front;
        let queues = [&self.vm.control, &self.vm.cursor];
        if self.kind == Kind::CloudHypervisor {
            for queue in queues {
                front.set_vring_num(queue.index, queue.size).unwrap();
            }
        }
        for (queue, base) in queues.into_iter().zip(bases) {
            match self.kind {
                Kind::Qemu => {
                    front.set_vring_num(queue.index, queue.size).unwrap();
                    front.set_vring_base(queue.index, base).unwrap();
                    self.set_address(queue.index, is_logged);
                }
                Kind::CloudHypervisor => {
                    self.set_address(queue.index, is_logged);
                    front.set_vring_base(queue.index, base).unwrap();
                    if !self.is_polled {
                        front.set_vring_call(queue.index, &queue.call).unwrap();
                    }
                }
            }
            front.set_vring_kick(queue.index, &queue.kick).unwrap();
        }
    }

    /// DRIVER_OK: of a first start, a resume, or a target.
    pub(crate) fn start_driver(&mut self, bases: [u16; 2]) {
        match self.kind {
            Kind::Qemu => {
                self.set_calls();
                self.vm.front.set_features(self.features).unwrap();
                self.vm.set_memory();
                self.set_sizes_and_rings(bases, false);
                self.vm.enable(true);
                self.set_calls();
            }
            Kind::CloudHypervisor => {
                self.vm.front.set_features(self.features).unwrap();
                self.vm.set_memory();
                self.set_sizes_and_rings(bases, false);
                self.vm.enable(true);
            }
        }
    }

    pub(crate) fn set_log(&mut self) -> Option<Log> {
        let log = Log::new();
        self.vm.front.set_log_base(0, Some(log.region())).unwrap();
        self.log.replace(log)
    }

    /// The guest's pages are watched from here on.
    pub(crate) fn begin_migration(&mut self) {
        assert!(self.set_log().is_none());
        self.vm.front.set_features(self.features | LOG_ALL).unwrap();
        for index in 0..2 {
            self.set_address(index, true);
        }
    }

    /// One pass: the pages written since the last. QEMU looks into its log, cloud-hypervisor brings a new one first.
    pub(crate) fn dirty_pages(&mut self) -> Vec<u64> {
        match self.kind {
            Kind::Qemu => self.log.as_ref().unwrap().take(),
            Kind::CloudHypervisor => self.set_log().unwrap().take(),
        }
    }

    /// One pass: what was written since the last is sent.
    pub(crate) fn copy_dirty(&mut self, copy: &Copy) {
        let pages = self.dirty_pages();
        copy.pages(&self.vm.guest, pages);
    }

    /// The VM is paused.
    pub(crate) fn pause(&mut self) {
        self.vm.enable(false);
    }

    /// The rest of a stop, before the state: positions of the rings.
    pub(crate) fn stop_rings(&mut self) -> [u16; 2] {
        let bases = [0, 1].map(|queue| u16::try_from(self.vm.front.get_vring_base(queue).unwrap()).unwrap());
        if self.kind == Kind::Qemu {
            self.set_calls();
        }
        bases
    }

    /// The state; an error if CHECK_DEVICE_STATE says so.
    pub(crate) fn save(&mut self) -> Result<State, String> {
        let (reader, writer) = pipe().unwrap();
        self.transfer(VhostTransferStateDirection::SAVE, writer)?;
        let mut state = Vec::new();
        File::from(reader).read_to_end(&mut state).unwrap();
        self.vm.front.check_device_state().map_err(|error| error.to_string())?;
        Ok(state)
    }

    pub(crate) fn transfer(&self, direction: VhostTransferStateDirection, fd: OwnedFd) -> Result<(), String> {
        let given = self.vm.front.set_device_state_fd(direction, VhostTransferStatePhase::STOPPED, fd);
        given.map(|fd| assert!(fd.is_none())).map_err(|error| error.to_string())
    }

    /// Everything from the pause to the state, with the pages that are dirty by then.
    pub(crate) fn blackout(&mut self, copy: &Copy) -> ([u16; 2], State) {
        self.pause();
        match self.kind {
            Kind::Qemu => {
                let bases = self.stop_rings();
                self.copy_dirty(copy);
                let state = self.save().unwrap();
                self.copy_dirty(copy);
                (bases, state)
            }
            Kind::CloudHypervisor => {
                self.copy_dirty(copy);
                let bases = self.stop_rings();
                let state = self.save().unwrap();
                self.copy_dirty(copy);
                (bases, state)
            }
        }
    }

    /// The migration was given up while the VM ran.
    pub(crate) fn cancel(&mut self) {
        if self.kind == Kind::Qemu {
            self.vm.front.set_features(self.features).unwrap();
        }
        for index in 0..2 {
            self.set_address(index, false);
        }
        if self.kind == Kind::CloudHypervisor {
            self.vm.front.set_features(self.features).unwrap();
        }
        self.log = None;
    }

    /// The migration failed after the state was made: the source goes on. (cloud-hypervisor: a snapshot was taken.)
    pub(crate) fn resume(&mut self, bases: [u16; 2]) {
        match self.kind {
            Kind::Qemu => {
                self.vm.front.set_features(self.features | LOG_ALL).unwrap();
                self.vm.set_memory();
                self.set_sizes_and_rings(bases, true);
                self.set_log();
                self.vm.enable(true);
                self.vm.front.set_features(self.features).unwrap();
                for index in 0..2 {
                    self.set_address(index, false);
                }
                self.log = None;
            }
            Kind::CloudHypervisor => self.start_driver(bases),
        }
    }

    /// The target of this VM, up to the answer to the state; the source is still there.
    pub(crate) fn target(&self, path: &Path, copy: Copy, state: &[u8]) -> Result<Self, String> {
        let mut front = Frontend::connect(path, 2).unwrap();
        let (_, protocol) = Self::greet(self.kind, &mut front, Some(self.protocol));
        let guest = copy.guest;
        let (control, cursor) = (self.vm.control.moved_to(&guest), self.vm.cursor.moved_to(&guest));
        let vm = Vm { front, guest, control, cursor };
        let target =
            Self { kind: self.kind, vm, features: self.features, protocol, log: None, is_polled: false };
        target.load(state)?;
        Ok(target)
    }

    pub(crate) fn load(&self, state: &[u8]) -> Result<(), String> {
        let (reader, writer) = pipe().unwrap();
        self.transfer(VhostTransferStateDirection::LOAD, reader)?;
        // Who does not want it closes its end.
        let _ = File::from(writer).write_all(state);
        self.vm.front.check_device_state().map_err(|error| error.to_string())
    }

    /// The rest of a start of the target.
    pub(crate) fn go_on(&mut self, bases: [u16; 2]) {
        self.start_driver(bases);
        if self.kind == Kind::CloudHypervisor {
            // Paused until now, as far as the VM is concerned.
            self.vm.enable(true);
        }
    }
}

/// Guest memory of a target.
pub(crate) struct Copy {
    pub(crate) guest: Guest,
}

impl Copy {
    /// The first pass: everything.
    pub(crate) fn of(source: &Guest) -> Self {
        let copy = Self { guest: Guest::new() };
        copy.pages(source, (0..RAM).step_by(usize::try_from(PAGE).unwrap()));
        copy
    }

    pub(crate) fn pages(&self, source: &Guest, pages: impl IntoIterator<Item = u64>) {
        let mut bytes = [0; 4096];
        for page in pages.into_iter().filter(|page| *page < RAM) {
            source.ram.read_slice(&mut bytes, GuestAddress(page)).unwrap();
            self.guest.ram.write_slice(&bytes, GuestAddress(page)).unwrap();
        }
    }

    /// Whether a range is as on the source.
    pub(crate) fn assert_same(&self, source: &Guest, start: u64, length: u64) {
        let read = |guest: &Guest| {
            let mut bytes = vec![0; usize::try_from(length).unwrap()];
            guest.ram.read_slice(&mut bytes, GuestAddress(start)).unwrap();
            bytes
        };
        let (ours, theirs) = (read(&self.guest), read(source));
        let differs = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs);
        assert_eq!(differs, None, "{start:#x} is stale");
    }
}

/// A front-end that is connected to nobody.
pub(crate) fn nobody() -> Frontend {
    let (stream, _) = std::os::unix::net::UnixStream::pair().unwrap();
    Frontend::from_stream(stream, 2)
}
