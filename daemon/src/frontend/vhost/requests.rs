//! The front-end's requests, one method each. They run on the connection thread. Those that freeze the device, begin a log
//! or ask after a state wait for the worker, in bounded time; the others do not wait.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;

use campanile_host_gpu::event::check_eventfd;
use epoll::Events;
use vhost::vhost_user::Backend;
use vhost::vhost_user::Error;
use vhost::vhost_user::GpuBackend;
use vhost::vhost_user::Result;
use vhost::vhost_user::VhostUserBackendReqHandler;
use vhost::vhost_user::message::VhostTransferStateDirection;
use vhost::vhost_user::message::VhostTransferStatePhase;
use vhost::vhost_user::message::VhostUserConfigFlags;
use vhost::vhost_user::message::VhostUserInflight;
use vhost::vhost_user::message::VhostUserLog;
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost::vhost_user::message::VhostUserShMemConfig;
use vhost::vhost_user::message::VhostUserSharedMsg;
use vhost::vhost_user::message::VhostUserSingleMemoryRegion;
use vhost::vhost_user::message::VhostUserVringAddrFlags;
use vhost::vhost_user::message::VhostUserVringState;

use super::call::Call;
use super::features;
use super::memory_table::Claim;
use super::memory_table::MemoryTable;
use super::refusal::Refusal;
use super::session::Session;
use super::state_transfer::Direction;
use super::worker::Token;
use crate::guest_ram::dirty_log::LogPages;
use crate::ledger::read;

/// Where the front-end's own mapping of a region is, asked for by postcopy alone.
type RegionBase = u64;

impl Session {
    /// The eventfd in which a queue is to be signalled, if one was given.
    fn received(
        &self,
        index: u8,
        what: &'static str,
        fd: Option<File>,
    ) -> std::result::Result<Option<Call>, Refusal> {
        let queue = u16::from(index);
        let call = fd.map(|fd| Call::new(fd.into())).transpose();
        let call = call.map_err(|source| Refusal::NoEventfd { queue, what, source })?;
        if let Some(call) = &call {
            self.shared.ledger.keep(&read::eventfd(what, queue), call.as_fd());
        }
        Ok(call)
    }
}

impl VhostUserBackendReqHandler for Session {
    fn set_owner(&self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&self) -> Result<()> {
        for ring in self.shared.rings.iter() {
            let kick = ring.lock().halt();
            self.forget(kick);
        }
        self.stopped();
        self.begin_epoch();
        Ok(())
    }

    fn get_features(&self) -> Result<u64> {
        Ok(self.offered)
    }

    fn set_features(&self, acked: u64) -> Result<()> {
        let unknown = acked & !(self.offered | features::LOG_ALL);
        if unknown != 0 {
            return Err(Refusal::Features(unknown).into());
        }
        Session::set_features(self, acked);
        Ok(())
    }

    fn set_mem_table(
        &self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<RegionBase>>> {
        let table = MemoryTable::map(self.shared.common(), regions.iter().map(Claim::from).collect(), files)?;
        self.set_memory(table);
        Ok(None)
    }

    fn set_vring_num(&self, index: u32, num: u32) -> Result<()> {
        Ok(self.ring(index)?.lock().set_size(num)?)
    }

    fn set_vring_addr(
        &self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        log: u64,
    ) -> Result<()> {
        let ring = self.ring(index)?;
        let negotiated = self.negotiated();
        let guest = |address| {
            let queue = u16::try_from(index).unwrap_or(u16::MAX);
            negotiated.memory.guest_address(address).ok_or(Refusal::QueueAddress { queue, address })
        };
        let (table, available, used) = (guest(descriptor)?, guest(available)?, guest(used)?);
        drop(negotiated);
        let is_logged = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG);
        let mut state = ring.lock();
        state.set_addresses(table, available, used)?;
        state.set_log_address(is_logged.then_some(log));
        drop(state);
        self.look_at(index);
        Ok(())
    }

    fn set_vring_base(&self, index: u32, base: u32) -> Result<()> {
        let based = self.ring(index)?.lock().set_base(base)?;
        self.based(based);
        Ok(())
    }

    fn get_vring_base(&self, index: u32) -> Result<VhostUserVringState> {
        if self.ring(index)?.lock().is_started() {
            self.freeze()?;
        }
        let (base, kick) = self.ring(index)?.lock().stop();
        self.forget(kick);
        self.stopped();
        Ok(VhostUserVringState::new(index, u32::from(base)))
    }

    fn set_vring_kick(&self, index: u8, fd: Option<File>) -> Result<()> {
        let ring = self.ring(u32::from(index))?;
        let queue = u16::from(index);
        self.may_start(queue)?;
        let kick = OwnedFd::from(fd.ok_or(Refusal::NoKick(queue))?);
        check_eventfd(&kick).map_err(|source| Refusal::NoEventfd { queue, what: "kick", source })?;
        // Edge-triggered, so that the worker need not read it: each write of the guest wakes it up once.
        self.shared.ledger.keep(&read::eventfd("kick", queue), kick.as_fd());
        let edges = Events::EPOLLIN | Events::EPOLLET;
        let added = self.shared.poller.add(&kick, Token::Ring(index).data(), edges);
        added.map_err(|source| Refusal::BadKick { queue, source })?;
        let replaced = ring.lock().start(kick);
        self.forget(replaced);
        self.started();
        self.look_at(u32::from(index));
        Ok(())
    }

    fn set_vring_call(&self, index: u8, fd: Option<File>) -> Result<()> {
        let call = self.received(index, "call", fd)?;
        self.ring(u32::from(index))?.lock().set_call(call);
        Ok(())
    }

    fn set_vring_err(&self, index: u8, fd: Option<File>) -> Result<()> {
        let error = self.received(index, "error", fd)?;
        self.ring(u32::from(index))?.lock().set_error(error);
        Ok(())
    }

    fn get_protocol_features(&self) -> Result<VhostUserProtocolFeatures> {
        let mut negotiated = self.negotiated();
        (negotiated.is_fresh, negotiated.has_asked) = (true, true);
        Ok(features::protocol(self.kind()))
    }

    fn set_protocol_features(&self, acked: u64) -> Result<()> {
        let unknown = acked & !features::protocol(self.kind()).bits();
        if unknown != 0 {
            return Err(Refusal::ProtocolFeatures(unknown).into());
        }
        let mut negotiated = self.negotiated();
        // A front-end that does not ask knows the answer from a connection before.
        negotiated.is_fresh = negotiated.has_asked;
        negotiated.protocol = acked;
        Ok(())
    }

    fn get_queue_num(&self) -> Result<u64> {
        Ok(u64::try_from(self.shared.rings.len()).unwrap_or(0))
    }

    fn set_vring_enable(&self, index: u32, enable: bool) -> Result<()> {
        self.ring(index)?.lock().set_enabled(enable);
        if !enable {
            self.disabled()?;
        }
        self.look_at(index);
        Ok(())
    }

    /// Exactly `size` bytes whatever the offset: cloud-hypervisor hangs on anything else.
    fn get_config(&self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        self.configuration_asked(offset, size);
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        let size = usize::try_from(size).map_err(|_| Error::InvalidParam)?;
        let mut bytes: Vec<u8> = self.config.iter().copied().skip(skip).take(size).collect();
        bytes.resize(size, 0);
        Ok(bytes)
    }

    /// Nothing can be written; an error would kill cloud-hypervisor.
    fn set_config(&self, _offset: u32, _bytes: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        Ok(())
    }

    fn set_backend_req_fd(&self, backend: Backend) {
        self.set_backend(backend);
    }

    fn set_gpu_socket(&self, _backend: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("no display is shown, so no display socket is taken"))
    }

    fn get_shared_object(&self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("shared objects are not offered"))
    }

    fn get_inflight_fd(&self, _inflight: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        Err(Error::InvalidOperation("in-flight tracking is not offered"))
    }

    fn set_inflight_fd(&self, _inflight: &VhostUserInflight, _file: File) -> Result<()> {
        Err(Error::InvalidOperation("in-flight tracking is not offered"))
    }

    fn get_max_mem_slots(&self) -> Result<u64> {
        Ok(u64::try_from(features::MEMORY_SLOTS).unwrap_or(0))
    }

    fn add_mem_region(
        &self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<RegionBase>> {
        let table = self.negotiated().memory.with(self.shared.common(), Claim::from(region), file)?;
        self.set_memory(table);
        Ok(None)
    }

    fn remove_mem_region(&self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let table = self.negotiated().memory.without(Claim::from(region))?;
        self.set_memory(table);
        Ok(())
    }

    /// A thread reads or writes `fd`, which is the front-end's own: there is none to give back.
    fn set_device_state_fd(
        &self,
        direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        fd: File,
    ) -> Result<Option<File>> {
        let direction = match direction {
            VhostTransferStateDirection::SAVE => Direction::Save,
            VhostTransferStateDirection::LOAD => Direction::Load,
        };
        self.begin_transfer(direction, fd).inspect_err(|refusal| self.say(refusal))?;
        Ok(None)
    }

    /// And here it is waited for.
    fn check_device_state(&self) -> Result<()> {
        Ok(self.end_transfer()?)
    }

    fn get_shmem_config(&self) -> Result<VhostUserShMemConfig> {
        let aperture = self.aperture().ok_or(Error::InvalidOperation("no region is offered"))?;
        self.windows_asked();
        let mut sizes = [0; 256];
        sizes[usize::from(aperture.region)] = aperture.length;
        Ok(VhostUserShMemConfig::new(1, &sizes))
    }

    fn set_log_base(&self, log: &VhostUserLog, file: File) -> Result<()> {
        if !self.migrates {
            return Err(Refusal::NoMigration.into());
        }
        let mut pages = LogPages::map(file, log.mmap_offset, log.mmap_size).map_err(Refusal::Log)?;
        pages.register(&self.shared.domain).map_err(Refusal::Log)?;
        Ok(self.set_log(pages)?)
    }
}
