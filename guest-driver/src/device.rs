//! A device: this process's share of the GPU.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::PROTOCOL_VERSION;
use campanile_protocol::capset::CapsContradict;
use campanile_protocol::capset::Capset;
use campanile_protocol::capset::check_scheduling_caps;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateDevice;
use campanile_protocol::control::message::MapMemory;
use campanile_protocol::control::message::UnmapMemory;
use campanile_protocol::control::reply::Paging;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::device_page::DEVICE_PAGE_BYTES;
use zerocopy::IntoBytes;

use crate::absence;
use crate::control::Control;
use crate::error::DriverError;
use crate::transport::Transport;
use crate::transport::blob::Blob;
use crate::transport::blob::BlobMemory;

/// Where the device page lies in the address space.
const PAGE_VA: u64 = 0x10_0000;
/// Where buffers begin.
const FIRST_VA: u64 = 0x100_0000;
/// Where they end.
const END_VA: u64 = 1 << 38;
/// Looks at a word between two looks at whether the daemon is there, at which others get the CPU.
const LOOKS: u32 = 256;

/// What all objects of a device share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) control: Arc<Control>,
    space: Mutex<BTreeMap<u64, u64>>,
    /// Ranges that are free once the paging fence is there: fence, address, bytes.
    leaving: Mutex<Vec<(u64, u64, u64)>>,
    page: Mutex<Option<Blob>>,
    capset: Capset,
}

/// An open device. All objects made from it keep it open.
#[derive(Debug, Clone)]
pub struct Device {
    pub(crate) shared: Arc<Shared>,
}

/// Where memory that the CPU is to reach can lie: without a window onto video memory in guest RAM only.
pub(crate) fn reachable(transport: &dyn Transport, wanted: BlobMemory) -> BlobMemory {
    if transport.sees_video_memory() { wanted } else { BlobMemory::GuestRam }
}

impl Device {
    /// Opens a device over a transport: one guest process, one address space.
    ///
    /// # Errors
    /// What the transport says; `Version` where daemon and driver do not fit.
    pub fn open(transport: impl Transport) -> Result<Self, DriverError> {
        Self::open_as(transport, PROTOCOL_VERSION)
    }

    /// As [`Self::open`], for a program that claims to speak another protocol: for tests.
    #[doc(hidden)]
    pub fn open_as(transport: impl Transport, protocol_version: u32) -> Result<Self, DriverError> {
        Self::open_over(Arc::new(transport), protocol_version)
    }

    fn open_over(transport: Arc<dyn Transport>, protocol_version: u32) -> Result<Self, DriverError> {
        let begun = Instant::now();
        loop {
            absence::arrive(&*transport, begun)?;
            match Self::open_on(Arc::clone(&transport), protocol_version) {
                Err(DriverError::Refused { status: Status::Leaving, .. }) if absence::leave(&*transport) => {}
                opened => return opened,
            }
        }
    }

    fn open_on(transport: Arc<dyn Transport>, protocol_version: u32) -> Result<Self, DriverError> {
        let capset = transport.capset()?;
        if capset.protocol_version >> 16 != protocol_version >> 16 {
            return Err(DriverError::Version { daemon: capset.protocol_version, own: protocol_version });
        }
        check_scheduling_caps(capset.scheduling_caps)
            .map_err(|CapsContradict { cap, needs }| DriverError::Caps { cap, needs })?;
        let blob = transport.create_blob(reachable(&*transport, BlobMemory::Vram), DEVICE_PAGE_BYTES)?;
        let page = transport.map(&blob)?;
        let resource = blob.resource_id();
        let control = absence::watch(|watched| Control::new(transport, page, resource, watched))?;
        let create = CreateDevice {
            protocol_version,
            page_resource: blob.resource_id(),
            page_offset: 0,
            page_va: PAGE_VA,
        };
        if let Err(refused) = control.call("CREATE_DEVICE", message::CREATE_DEVICE, &[create.as_bytes()]) {
            control.give_up(blob);
            return Err(refused);
        }
        let space = Mutex::new(BTreeMap::from([(FIRST_VA, END_VA - FIRST_VA)]));
        let (leaving, page) = (Mutex::default(), Mutex::new(Some(blob)));
        Ok(Self { shared: Arc::new(Shared { control, space, leaving, page, capset }) })
    }

    /// Gives a lost device up and opens another over the same transport: the way on after
    /// [`DeviceLost`](DriverError::DeviceLost). Nothing of the old one is left: buffers have to be made and filled
    /// again, kernels created, contexts and queues made (TDR-84).
    ///
    /// # Errors
    /// `DeviceInUse` while there is any object of it, or a clone. `Refused` with
    /// [`Blocked`](campanile_protocol::control::status::Status::Blocked) where this process or its VM hung the GPU too
    /// often: then do not try again. Whatever [`Self::open`] may come to.
    ///
    /// # Example
    ///
    /// All that is made from a device lives in one function, so that all of it is dropped when it fails.
    ///
    /// ```standalone_crate
    /// use campanile_guest_driver::commands::CommandBuffer;
    /// use campanile_guest_driver::device::Device;
    /// use campanile_guest_driver::error::DriverError;
    /// use campanile_guest_driver::kernel::KernelSource;
    /// use campanile_guest_driver::node::Node;
    /// use campanile_test_vmm::options::VmOptions;
    /// use campanile_test_vmm::vm::LoopbackVm;
    /// use campanile_guest_driver::user_queue::QueueOptions;
    ///
    /// fn count_to(device: &Device, limit: u32) -> Result<u32, DriverError> {
    ///     let kernel = device.create_kernel(&KernelSource::wgsl(
    ///         "@group(0) @binding(0) var<storage, read_write> data: array<u32>;
    ///          @compute @workgroup_size(1) fn main() {
    ///              loop { if data[0] == data[1] { break; } data[0] = data[0] + 2u; }
    ///          }",
    ///     ))?;
    ///     let data = device.create_buffer(8)?;
    ///     data.write(4, &limit.to_le_bytes())?;
    ///     let context = device.create_context(Node::Compute)?;
    ///     let mut queue = context.create_user_queue(&QueueOptions::default())?;
    ///     let mut commands = CommandBuffer::new();
    ///     commands.dispatch(&kernel, [1, 1, 1], &[data.binding(0)], &[])?;
    ///     queue.submit(&commands)?.wait(None)?;
    ///     let mut counted = [0; 4];
    ///     data.read(0, &mut counted)?;
    ///     Ok(u32::from_le_bytes(counted))
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # // A daemon within this program, whose engine processes are this program again.
    /// # use std::os::fd::AsFd;
    /// # if std::env::args().nth(1).as_deref() == Some("engine") {
    /// #     let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    /// #     return Err(campanile_host_gpu::engine::start::main(socket).into());
    /// # }
    /// # let folder = tempfile::tempdir()?;
    /// # let socket = folder.path().join("vgpu.sock");
    /// # let arguments = ["campanile", "serve", "--tdr-timeout", "200", "--vram", "64M", "--socket"];
    /// # let arguments = arguments.map(std::ffi::OsString::from);
    /// # let arguments = arguments.into_iter().chain([socket.clone().into_os_string()]);
    /// # let _daemon = campanile_daemon::cli::serve::start(arguments)?;
    /// let vm = LoopbackVm::connect(&socket, &VmOptions::default())?;
    /// let mut device = Device::open(vm.open("example")?)?;
    /// // In steps of two it never comes to seven.
    /// let counted = match count_to(&device, 7) {
    ///     Err(DriverError::DeviceLost(loss)) => {
    ///         eprintln!("lost: {loss}");
    ///         assert_eq!((loss.reason, loss.is_collateral), (6, false));
    ///         device = device.recreate()?;
    ///         count_to(&device, 8)?
    ///     }
    ///     other => other?,
    /// };
    /// assert_eq!(counted, 8);
    /// # Ok(())
    /// # }
    /// ```
    pub fn recreate(self) -> Result<Self, DriverError> {
        let shared = Arc::into_inner(self.shared).ok_or(DriverError::DeviceInUse)?;
        let transport = Arc::clone(shared.control.transport());
        drop(shared);
        Self::open_over(transport, PROTOCOL_VERSION)
    }

    /// What the device can do.
    pub fn capset(&self) -> &Capset {
        &self.shared.capset
    }

    /// `Err(DeviceLost)` when the device is in error.
    pub fn check(&self) -> Result<(), DriverError> {
        self.shared.check()
    }

    /// Whether buffers of video memory are what they are called; without a window onto it they lie in guest RAM.
    pub fn sees_video_memory(&self) -> bool {
        self.shared.control.transport().sees_video_memory()
    }

    /// Commands that the whole VM has put on its control queue, where the transport can tell, and else this process.
    pub fn control_commands(&self) -> u64 {
        self.shared.control.transport().commands_sent()
    }
}

impl Shared {
    pub(crate) fn check(&self) -> Result<(), DriverError> {
        self.control.check()
    }

    /// A free range of the address space.
    pub(crate) fn allocate(&self, size: u64) -> Result<u64, DriverError> {
        self.reclaim();
        let mut space = self.space.lock().unwrap_or_else(PoisonError::into_inner);
        let found = space.iter().find(|&(_, &free)| free >= size).map(|(&start, &free)| (start, free));
        let (start, free) = found.ok_or(DriverError::AddressSpace(size))?;
        space.remove(&start);
        if free > size {
            space.insert(start + size, free - size);
        }
        Ok(start)
    }

    /// Gives a range back.
    pub(crate) fn release(&self, va: u64, size: u64) {
        let mut space = self.space.lock().unwrap_or_else(PoisonError::into_inner);
        let after = space.remove(&(va + size)).unwrap_or(0);
        let before = space.range(..va).next_back().map(|(&start, &free)| (start, free));
        match before.filter(|(start, free)| start + free == va) {
            Some((start, free)) => space.insert(start, free + size + after),
            None => space.insert(va, size + after),
        };
    }

    /// Maps a resource whole; returns its address.
    pub(crate) fn map(&self, resource: u32, size: u64) -> Result<u64, DriverError> {
        let size = size.next_multiple_of(PAGE_SIZE);
        let _pass = self.control.enter();
        let resource = self.control.transport().number(resource);
        let va = self.allocate(size)?;
        let map = MapMemory { resource, flags: message::MAP_WRITABLE, offset: 0, va, size };
        let mapped: Result<Paging, _> = self.control.request("MAP_MEMORY", message::MAP_MEMORY, &map);
        match mapped {
            Ok(paging) => {
                self.wait_paging(paging.fence)?;
                Ok(va)
            }
            Err(error) => {
                self.release(va, size);
                Err(error)
            }
        }
    }

    /// Unmaps what [`Self::map`] mapped.
    pub(crate) fn unmap(&self, va: u64, size: u64) -> Result<(), DriverError> {
        let size = size.next_multiple_of(PAGE_SIZE);
        let unmap = UnmapMemory { va, size };
        let paging: Paging = self.control.request("UNMAP_MEMORY", message::UNMAP_MEMORY, &unmap)?;
        // It happens after the kernel-mode buffers that were submitted before. What is mapped at another address
        // meanwhile does not wait for that.
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner).push((paging.fence, va, size));
        Ok(())
    }

    /// Gives a buffer back; what fails then is gone with the device anyway.
    pub(crate) fn free_buffer(&self, va: u64, size: u64, blob: Option<Blob>) {
        let _pass = self.control.enter();
        let transport = self.control.transport();
        if !transport.is_connected() {
            return;
        }
        if let Err(error) = self.unmap(va, size) {
            log::debug!("unmapping a buffer at {va:#x}: {error}");
        }
        if let Some(blob) = blob
            && let Err(error) = transport.destroy_blob(blob)
        {
            log::debug!("freeing a buffer: {error}");
        }
    }

    /// Gives back the ranges that are unmapped by now.
    fn reclaim(&self) {
        let word = self.control.page().word(device_page::PAGING_FENCE);
        // PAIRS WITH the daemon's release of the fence.
        let done = word.map_or(0, |word| word.load(Ordering::Acquire));
        let gone: Vec<_> = {
            let mut leaving = self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
            leaving.extract_if(.., |(fence, _, _)| *fence <= done).collect()
        };
        gone.into_iter().for_each(|(_, va, size)| self.release(va, size));
    }

    pub(crate) fn wait_paging(&self, fence: u64) -> Result<(), DriverError> {
        self.poll(device_page::PAGING_FENCE, fence, None).map(|_| ())
    }

    /// Polls a word of the device page until it is `value` or more, the device is lost, or the time is over.
    /// True when the value is there.
    pub(crate) fn poll(&self, offset: u64, value: u64, limit: Option<Duration>) -> Result<bool, DriverError> {
        let word = self.control.page().word(offset).ok_or(DriverError::BadAnswer("device page"))?;
        let mut since = None;
        loop {
            for _ in 0..LOOKS {
                // PAIRS WITH the engine's release of the fence.
                if word.load(Ordering::Acquire) >= value {
                    return Ok(true);
                }
                std::hint::spin_loop();
            }
            self.check()?;
            if !self.control.transport().is_connected() {
                return Err(crate::transport::error::TransportError::Disconnected.into());
            }
            let since = since.get_or_insert_with(Instant::now);
            if limit.is_some_and(|limit| since.elapsed() >= limit) {
                return Ok(false);
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let page = self.page.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let _pass = self.control.enter();
        if !self.control.transport().is_connected() {
            return;
        }
        if let Err(error) = self.control.call("DESTROY_DEVICE", message::DESTROY_DEVICE, &[]) {
            log::debug!("destroying the device: {error}");
        }
        if let Some(page) = page
            && let Err(error) = self.control.transport().destroy_blob(page)
        {
            log::debug!("freeing the device page: {error}");
        }
    }
}
