//! One guest process of a loopback VM.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::capset::CAPSET_ID;
use campanile_protocol::capset::Capset;
use campanile_protocol::virtio_gpu::blob;
use campanile_protocol::virtio_gpu::command;
use campanile_protocol::virtio_gpu::response;
use zerocopy::FromBytes;
use zerocopy::FromZeros;
use zerocopy::IntoBytes;

use super::blob_record::BlobRecord;
use super::channel::Channel;
use super::channel::Sender;
use super::command::Command;
use super::command::entries;
use super::pending::Pending;
use super::vm::LoopbackVm;
use super::window::WindowRange;
use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::away::Again;
use campanile_guest_driver::transport::away::Migrant;
use campanile_guest_driver::transport::away::Numbers;
use campanile_guest_driver::transport::away::show_file;
use campanile_guest_driver::transport::blob::Blob;
use campanile_guest_driver::transport::blob::BlobMemory;
use campanile_guest_driver::transport::error::TransportError;
use campanile_guest_driver::transport::shared_memory::SharedMemory;
use campanile_guest_driver::transport::submission;
use campanile_guest_driver::transport::submission::Submission;

/// One context of the device. Dropping it destroys its blobs and the context, as closing the render node does.
#[derive(Debug)]
pub struct LoopbackContext {
    vm: Arc<LoopbackVm>,
    name: String,
    channel: Mutex<Channel>,
    /// The device is away.
    is_away: AtomicBool,
    blobs: Mutex<HashMap<u32, Arc<BlobRecord>>>,
    numbers: Mutex<Numbers>,
}

impl LoopbackVm {
    /// Opens a context: one guest process, by a name that the daemon may log.
    pub fn open(self: &Arc<Self>, name: &str) -> Result<LoopbackContext, TransportError> {
        LoopbackContext::create(Arc::clone(self), name)
    }
}

/// `RESP_OK_CAPSET` with our set in it.
#[derive(FromBytes)]
#[repr(C)]
struct CapsetAnswer {
    _header: command::Header,
    capset: Capset,
}

impl LoopbackContext {
    /// CTX_CREATE.
    pub(super) fn create(vm: Arc<LoopbackVm>, name: &str) -> Result<Self, TransportError> {
        let channel = Self::begin(&vm, name)?;
        let (name, channel, is_away) = (name.to_owned(), Mutex::new(channel), AtomicBool::new(false));
        Ok(Self { vm, name, channel, is_away, blobs: Mutex::default(), numbers: Mutex::default() })
    }

    /// A context of the device that the VM has now.
    fn begin(vm: &Arc<LoopbackVm>, name: &str) -> Result<Channel, TransportError> {
        let (context_id, generation) = (vm.numbers.fresh_id(), vm.numbers.generation());
        let channel = Channel { context_id, generation, vm: Arc::clone(vm) };
        let mut body = command::ContextCreate::new_zeroed();
        body.context_init = CAPSET_ID;
        for (place, byte) in body.debug_name.iter_mut().zip(name.bytes()) {
            *place = byte;
            body.name_length += 1;
        }
        channel.tell("CTX_CREATE", channel.header(command::CTX_CREATE, Sender::Context), &body, &[])?;
        Ok(channel)
    }

    fn channel(&self) -> Channel {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The VM that this process runs in.
    pub fn vm(&self) -> &Arc<LoopbackVm> {
        &self.vm
    }

    /// The context's number on the wire.
    pub fn id(&self) -> u32 {
        self.channel().context_id
    }

    fn blobs(&self) -> MutexGuard<'_, HashMap<u32, Arc<BlobRecord>>> {
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, blob: &Blob) -> Result<Arc<BlobRecord>, TransportError> {
        let foreign = TransportError::ForeignBlob { resource_id: blob.resource_id() };
        self.blobs().get(&blob.resource_id()).cloned().ok_or(foreign)
    }

    /// Has a blob shown in a gap of the window.
    fn place_in_window(&self, number: u32, size: u64) -> Result<Arc<WindowRange>, TransportError> {
        let range = self.vm.window().allocate(size)?;
        let body = blob::MapBlob { resource_id: number, padding: 0, offset: range.offset() };
        let header = self.channel().header(command::RESOURCE_MAP_BLOB, Sender::Kernel);
        let kind = response::OK_MAP_INFO;
        let _info: response::MapInfo = self.channel().ask("RESOURCE_MAP_BLOB", header, &body, &[], kind)?;
        Ok(range)
    }

    fn map_in_window(&self, record: &BlobRecord) -> Result<SharedMemory, TransportError> {
        let range = self.place_in_window(record.number(), record.size)?;
        match range.shared() {
            Some(shared) => {
                *record.place() = Some(range);
                Ok(shared)
            }
            None => {
                self.unmap(record.number())?;
                Err(TransportError::WindowUnmapped { offset: range.offset(), bytes: record.size })
            }
        }
    }

    /// The context may name a resource; else the resource is gone.
    fn attach(&self, number: u32) -> Result<(), TransportError> {
        let kind = command::CTX_ATTACH_RESOURCE;
        let attached = self.channel().name("CTX_ATTACH_RESOURCE", kind, Sender::Context, number);
        if attached.is_err() {
            self.unref(number)?;
        }
        attached
    }

    fn unmap(&self, resource_id: u32) -> Result<(), TransportError> {
        let kind = command::RESOURCE_UNMAP_BLOB;
        self.channel().name("RESOURCE_UNMAP_BLOB", kind, Sender::Kernel, resource_id)
    }

    fn unref(&self, resource_id: u32) -> Result<(), TransportError> {
        self.channel().name("RESOURCE_UNREF", command::RESOURCE_UNREF, Sender::Kernel, resource_id)
    }

    /// All of the stock driver's steps at the end of a blob, in its order; the first failure.
    fn release(&self, resource_id: u32, record: &BlobRecord) -> Result<(), TransportError> {
        let kind = command::CTX_DETACH_RESOURCE;
        let detached = self.channel().name("CTX_DETACH_RESOURCE", kind, Sender::Context, resource_id);
        let in_window = record.pages.is_none() && record.mapped().take().is_some();
        let unmapped = if in_window { self.unmap(resource_id) } else { Ok(()) };
        detached.and(unmapped).and(self.unref(resource_id))
    }
}

impl Transport for LoopbackContext {
    fn capset(&self) -> Result<Capset, TransportError> {
        let header = self.channel().header(command::GET_CAPSET_INFO, Sender::Kernel);
        let body = command::GetCapsetInfo { index: 0, padding: 0 };
        let info: response::CapsetInfo =
            self.channel().ask("GET_CAPSET_INFO", header, &body, &[], response::OK_CAPSET_INFO)?;
        if info.id != CAPSET_ID || (info.max_size as usize) < size_of::<Capset>() {
            return Err(TransportError::Missing { feature: "capability set 24" });
        }
        let header = self.channel().header(command::GET_CAPSET, Sender::Kernel);
        let body = command::GetCapset { id: CAPSET_ID, version: info.max_version };
        let answer: CapsetAnswer =
            self.channel().ask("GET_CAPSET", header, &body, &[], response::OK_CAPSET)?;
        Ok(answer.capset)
    }

    fn sees_video_memory(&self) -> bool {
        self.vm.window_bytes() > 0
    }

    fn create_blob(&self, memory: BlobMemory, size: u64) -> Result<Blob, TransportError> {
        let limit = u64::MAX - PAGE_SIZE + 1;
        if size == 0 || size > limit {
            return Err(TransportError::Size { what: "a blob", bytes: size, limit });
        }
        let size = size.next_multiple_of(PAGE_SIZE);
        let vm = &self.vm;
        let number = vm.numbers.fresh_id();
        let flags = blob::FLAG_MAPPABLE;
        let mut body = blob::CreateBlob { resource_id: number, flags, size, ..Default::default() };
        let mut list = Vec::new();
        let (pages, sender) = match memory {
            BlobMemory::Vram | BlobMemory::Local => {
                body.memory = blob::MEM_HOST3D;
                (None, Sender::Context)
            }
            BlobMemory::GuestRam => {
                let block = vm.ram.allocate(size, vm.options.pages)?;
                block.zero();
                list = entries(&block);
                body.memory = blob::MEM_GUEST;
                body.entry_count = u32::try_from(list.len()).unwrap_or(u32::MAX);
                (Some(Arc::new(block)), Sender::Kernel)
            }
        };
        let header = self.channel().header(command::RESOURCE_CREATE_BLOB, sender);
        self.channel().tell("RESOURCE_CREATE_BLOB", header, &body, list.as_bytes())?;
        self.attach(number)?;
        let record = BlobRecord {
            number: AtomicU32::new(number),
            size,
            pages,
            mapped: Mutex::default(),
            place: Mutex::default(),
        };
        let mut blobs = self.blobs();
        let resource_id = self.numbers.lock().unwrap_or_else(PoisonError::into_inner).name(number, &blobs);
        blobs.insert(resource_id, Arc::new(record));
        Ok(Blob::new(resource_id, size, memory))
    }

    fn map(&self, blob: &Blob) -> Result<SharedMemory, TransportError> {
        let record = self.record(blob)?;
        let mut mapped = record.mapped();
        if let Some(shared) = &*mapped {
            return Ok(shared.clone());
        }
        let shared = match &record.pages {
            Some(pages) => pages.shared(),
            None => self.map_in_window(&record)?,
        };
        *mapped = Some(shared.clone());
        Ok(shared)
    }

    fn destroy_blob(&self, blob: Blob) -> Result<(), TransportError> {
        let record = self.record(&blob)?;
        self.blobs().remove(&blob.resource_id());
        self.release(record.number(), &record)
    }

    fn submit(&self, frames: &[u8], fence: Option<u8>) -> Result<Submission, TransportError> {
        self.channel().check()?;
        let size = submission::check(frames, fence)?;
        let vm = &self.vm;
        let mut header = self.channel().header(command::SUBMIT_3D, Sender::Context);
        if let Some(ring_index) = fence {
            header.flags = command::FLAG_FENCE | command::FLAG_INFO_RING_IDX;
            header.fence_id = vm.numbers.fresh_fence();
            header.ring_index = ring_index;
        }
        let body = [header.as_bytes(), command::Submit3d { size, padding: 0 }.as_bytes()].concat();
        let response_bytes = size_of::<command::Header>();
        let request =
            vm.start(&Command { name: "SUBMIT_3D", body: &body, payload: frames, response_bytes })?;
        let fence = fence.map(|_| header.fence_id);
        Ok(Submission::new(Arc::new(Pending { queue: Arc::clone(vm.rings.control()), request, fence })))
    }

    fn commands_sent(&self) -> u64 {
        self.vm.commands_sent()
    }

    fn is_connected(&self) -> bool {
        let is_away = self.is_away.load(Ordering::Acquire);
        is_away || (self.channel().check().is_ok() && self.vm.is_connected())
    }

    fn number(&self, resource: u32) -> u32 {
        self.blobs().get(&resource).map_or(resource, |record| record.number())
    }

    fn migrant(&self) -> Option<&dyn Migrant> {
        Some(self)
    }
}

impl Migrant for LoopbackContext {
    fn views(&self) -> Result<Vec<(u32, Option<SharedMemory>)>, TransportError> {
        let blobs = self.blobs();
        // Pages of guest RAM stay where they are.
        let view = |record: &BlobRecord| record.mapped().clone().filter(|_| record.pages.is_none());
        Ok(blobs.iter().map(|(resource, record)| (*resource, view(record))).collect())
    }

    fn alias(&self, resource: u32) -> Result<SharedMemory, TransportError> {
        let foreign = TransportError::ForeignBlob { resource_id: resource };
        let record = self.blobs().get(&resource).cloned().ok_or(foreign)?;
        let mut place = record.place();
        if place.is_none() {
            *place = Some(self.place_in_window(record.number(), record.size)?);
        }
        let range = place.as_ref().ok_or(TransportError::NoWindow)?;
        let missing = TransportError::WindowUnmapped { offset: range.offset(), bytes: record.size };
        range.alias().ok_or(missing)
    }

    fn leave(&self) {
        let blobs: Vec<Arc<BlobRecord>> = self.blobs().values().cloned().collect();
        self.is_away.store(true, Ordering::Release);
        for record in blobs {
            // The process keeps what it sees.
            let mapped = record.mapped().clone();
            if let Err(error) = self.release(record.number(), &record) {
                log::debug!("closing a device that is about to go: {error}");
            }
            *record.mapped() = mapped;
            *record.place() = None;
        }
        let channel = self.channel();
        if let Err(error) =
            channel.tell("CTX_DESTROY", channel.header(command::CTX_DESTROY, Sender::Context), &(), &[])
        {
            log::debug!("closing a device that is about to go: {error}");
        }
    }

    fn has_left(&self) -> bool {
        self.is_away.load(Ordering::Acquire)
    }

    fn arrive(&self, patiently: bool) -> Result<bool, TransportError> {
        let is_other = self.channel().generation != self.vm.numbers.generation();
        if self.vm.is_unplugged() || (patiently && !is_other) {
            return Ok(false);
        }
        let channel = Self::begin(&self.vm, &self.name)?;
        *self.channel.lock().unwrap_or_else(PoisonError::into_inner) = channel;
        self.is_away.store(false, Ordering::Release);
        Ok(true)
    }

    fn make_again(&self, resource: u32, name: u64) -> Result<Again, TransportError> {
        let foreign = TransportError::ForeignBlob { resource_id: resource };
        let record = self.blobs().get(&resource).cloned().ok_or(foreign)?;
        let number = self.vm.numbers.fresh_id();
        let mut body =
            blob::CreateBlob { resource_id: number, blob_id: name, size: record.size, ..Default::default() };
        let (mut list, mut sender, mut again) = (Vec::new(), Sender::Context, Again::Itself);
        (body.memory, body.flags) = (blob::MEM_HOST3D, blob::FLAG_MAPPABLE);
        if let Some(pages) = &record.pages {
            (list, sender, again) = (entries(pages), Sender::Kernel, Again::SamePages);
            (body.memory, body.blob_id) = (blob::MEM_GUEST, 0);
            body.entry_count = u32::try_from(list.len()).unwrap_or(u32::MAX);
        }
        let header = self.channel().header(command::RESOURCE_CREATE_BLOB, sender);
        self.channel().tell("RESOURCE_CREATE_BLOB", header, &body, list.as_bytes())?;
        self.attach(number)?;
        record.number.store(number, Ordering::Relaxed);
        Ok(again)
    }

    fn show(&self, resource: u32, view: &SharedMemory) -> Result<(), TransportError> {
        let foreign = TransportError::ForeignBlob { resource_id: resource };
        let record = self.blobs().get(&resource).cloned().ok_or(foreign)?;
        let place = record.place();
        let range = place.as_ref().ok_or(TransportError::NoWindow)?;
        let missing = TransportError::WindowUnmapped { offset: range.offset(), bytes: record.size };
        let (file, offset) = range.file().ok_or(missing)?;
        show_file(view, &*file, offset, record.size)
            .map_err(|source| TransportError::System { what: "mapping a blob", source: source.into() })
    }
}

impl Drop for LoopbackContext {
    fn drop(&mut self) {
        if !self.is_connected() {
            return;
        }
        let blobs = std::mem::take(&mut *self.blobs());
        for (resource_id, record) in blobs {
            if let Err(error) = self.release(record.number(), &record) {
                log::debug!("closing a context, resource {resource_id}: {error}");
            }
        }
        let header = self.channel().header(command::CTX_DESTROY, Sender::Context);
        if let Err(error) = self.channel().tell("CTX_DESTROY", header, &(), &[]) {
            log::debug!("closing a context: {error}");
        }
    }
}
