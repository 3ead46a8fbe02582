//! Native fences: created, opened, closed, waited for and signalled by the CPU (UMS-131 to UMS-143).
//!
//! ```text
//!   CPU waits   message ─▶ parked with its process ─▶ MonitoredValue in every engine ─▶ value? released
//!   GPU signals engine: value, MonitoredValue ─▶ report of global handles ─▶ waiters of those fences looked at
//!   CPU signals message ─▶ value ─▶ engines poked: blocked queues look again ─▶ waiters looked at
//! ```
//!
//! What one process does to a fence reaches others in its value alone: closing it, or losing the device, ends the
//! process's own waits and no other's (UMS-140).

use std::sync::atomic::Ordering;

use campanile_host_gpu::memory::page_table::writer::PageTables;
use campanile_host_gpu::memory::page_table::writer::Root;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::control::native_fence::NATIVE_FENCE_INTRA_GPU;
use campanile_protocol::control::native_fence::NativeFenceOpened;
use campanile_protocol::control::status::Status;
use campanile_protocol::handle::Handle;
use campanile_protocol::page_table::SegmentId;

use super::table::FenceTable;
use super::table::Named;
use crate::ids::GuestProcess;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::ids::ContextHandle;
use crate::vgpu::objects::message::Checked;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::process::Device;
use crate::vgpu::objects::processes::Objects;
use crate::vgpu::objects::waits::GpuWait;
use crate::vgpu::objects::waits::NativeWait;
use crate::vgpu::objects::waits::OpenFence;

/// Bytes of a native fence that a process has open, and of its end.
pub(in crate::vgpu) const FENCE_BYTES: u64 = 512;

/// Waits for a fence that are over.
#[derive(Debug, Default)]
#[must_use]
pub(in crate::vgpu) struct Over {
    /// Of CPUs: to be answered with OK.
    pub(in crate::vgpu) of_cpu: Vec<NativeWait>,
    /// Of contexts, which are parked no more: guest process and context.
    pub(in crate::vgpu) of_gpu: Vec<(GuestProcess, ContextHandle)>,
}

impl Over {
    /// Whether none is.
    pub(in crate::vgpu) fn is_empty(&self) -> bool {
        self.of_cpu.is_empty() && self.of_gpu.is_empty()
    }
}

/// A local handle that a process has closed.
#[derive(Debug)]
#[must_use]
pub(in crate::vgpu) struct Closed {
    /// What it named; its page is still mapped.
    pub(in crate::vgpu) fence: OpenFence,
    /// In this address space.
    pub(in crate::vgpu) root: Root,
    /// Waits of the CPU through this handle: they will never be answered otherwise.
    pub(in crate::vgpu) of_cpu: Vec<NativeWait>,
    /// Waits of the process's parked contexts for the fence.
    pub(in crate::vgpu) of_gpu: Vec<GpuWait>,
}

/// Which waits are to be looked at, since an engine has said that it signalled something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(in crate::vgpu) enum Look {
    /// Those for the fence of this number.
    AtWaitsFor(u32),
    /// All.
    AtAllWaits,
    /// None: the fence has no opener left.
    Nowhere,
    /// None: there never was such a fence, or engines were told of its end. The engine is to be ended (UMS-141).
    Violation,
}

/// A fence that is about to be opened by a process.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub(in crate::vgpu) struct Opening {
    index: u32,
    global: Handle,
    kind: u32,
}

impl Opening {
    /// Gives a process a local handle of it, and its page at `va`.
    ///
    /// # Errors
    /// The process has no device, something is mapped or about to be mapped at `va`, or no page table or handle is left.
    pub(in crate::vgpu) fn map(
        self,
        objects: &mut Objects,
        tables: &mut PageTables,
        context: GuestProcess,
        va: u64,
        charge: Charge,
    ) -> Result<NativeFenceOpened, Refused> {
        let Self { index, global, kind } = self;
        let device = objects.device_mut(context)?;
        let is_taken = device.is_taken(va, PAGE_SIZE) || device.paging.waits_for(va, PAGE_SIZE);
        (!is_taken).or(Status::InvalidAddress)?;
        tables.map(device.root, va, SegmentId::FENCES, u64::from(index) * PAGE_SIZE, PAGE_SIZE, true)?;
        let opened = device.fences.insert(OpenFence { index, va }, charge);
        let fence = opened.ok_or(Status::OutOfResources)?;
        Ok(NativeFenceOpened { fence, global, kind, reserved: 0 })
    }
}

impl FenceTable {
    /// A fence by its number, to be opened.
    ///
    /// # Errors
    /// There is none.
    pub(in crate::vgpu) fn named(&self, index: u32, global: Handle) -> Result<Opening, Refused> {
        let kind = self.kind(index).ok_or(Status::InvalidHandle)?;
        Ok(Opening { index, global, kind })
    }

    /// The fence behind a local handle of a process, for the CPU (UMS-143).
    ///
    /// # Errors
    /// The process has no device or no such handle, or the fence is for the GPU alone.
    pub(in crate::vgpu) fn of_cpu(
        &self,
        objects: &Objects,
        context: GuestProcess,
        handle: Handle,
    ) -> Result<u32, Refused> {
        let fence = objects.device(context)?.fences.get(handle).ok_or(Status::InvalidHandle)?;
        if self.kind(fence.index) == Some(NATIVE_FENCE_INTRA_GPU) {
            let text = "an INTRA_GPU fence can be waited for, signalled and read by the GPU alone".to_owned();
            return Err(Refused { status: Status::NotSupported, text });
        }
        Ok(fence.index)
    }

    /// Closes what a device that ends has open; the fences that no other device has, to be freed.
    #[must_use]
    pub(in crate::vgpu) fn close_all(&mut self, device: &Device) -> Vec<u32> {
        let open = device.fences.iter().map(|(_, fence)| fence.index);
        open.filter(|index| self.close(*index)).collect()
    }

    /// Takes the waits for a fence out that are over at its current value, in whatever process. To be called after every
    /// engine has the new MonitoredValue: signals from there on interrupt.
    pub(in crate::vgpu) fn take_over(&self, objects: &mut Objects, index: u32) -> Over {
        let Some(value) = self.value(index) else { return Over::default() };
        let current = value.load(Ordering::Acquire);
        let mut over = Over::default();
        for (context, process) in &mut objects.processes {
            let Some(device) = &mut process.device else { continue };
            let is_over = |of: u32, wanted: u64| of == index && wanted <= current;
            over.of_cpu.extend(device.native_waits.extract_if(.., |wait| is_over(wait.index, wait.value)));
            let of_gpu = device.gpu_waits.extract_if(.., |wait| is_over(wait.index, wait.value));
            over.of_gpu.extend(of_gpu.map(|wait| (*context, wait.context)));
        }
        over
    }

    /// What a global handle means that an engine has signalled.
    pub(in crate::vgpu) fn look(&self, signalled: Handle) -> Look {
        match self.find(signalled) {
            Named::Live(index) => Look::AtWaitsFor(index),
            Named::Leaving => Look::Nowhere,
            Named::Nothing if signalled == Handle::NONE => Look::AtAllWaits,
            Named::Nothing => Look::Violation,
        }
    }
}

/// The smallest value of a fence that CPU or GPU waits for, in whatever process.
pub(in crate::vgpu) fn smallest_wait(objects: &Objects, index: u32) -> Option<u64> {
    let devices = objects.processes.values().filter_map(|process| process.device.as_ref());
    let waits = devices.flat_map(|device| {
        let of_cpu = device.native_waits.iter().map(|wait| (wait.index, wait.value));
        of_cpu.chain(device.gpu_waits.iter().map(|wait| (wait.index, wait.value)))
    });
    waits.filter(|wait| wait.0 == index).map(|wait| wait.1).min()
}

/// Takes a local handle from a process, with what waits for its fence there.
///
/// # Errors
/// The process has no device, or no such handle.
pub(in crate::vgpu) fn take_open(
    objects: &mut Objects,
    context: GuestProcess,
    handle: Handle,
) -> Result<Closed, Refused> {
    let device = objects.device_mut(context)?;
    let fence = device.fences.remove(handle).ok_or(Status::InvalidHandle)?;
    let of_cpu = device.native_waits.extract_if(.., |wait| wait.fence == handle).collect();
    let of_gpu = device.gpu_waits.extract_if(.., |wait| wait.index == fence.index).collect();
    Ok(Closed { fence, root: device.root, of_cpu, of_gpu })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use campanile_host_gpu::memory::page_table::reader::Intent;
    use campanile_host_gpu::memory::page_table::reader::resolve_one;
    use campanile_host_gpu::memory::page_table::writer::PageTables;
    use campanile_protocol::PAGE_SIZE;
    use campanile_protocol::control::native_fence::NATIVE_FENCE_DEFAULT;
    use campanile_protocol::control::native_fence::NATIVE_FENCE_INTRA_GPU;
    use campanile_protocol::control::status::Status;
    use campanile_protocol::handle::Handle;
    use campanile_protocol::page_table::FIRST_ADDRESS;
    use campanile_protocol::page_table::SegmentId;

    use super::Look;
    use super::smallest_wait;
    use super::take_open;
    use crate::ids::GuestProcess;
    use crate::vgpu::fences::table::FenceTable;
    use crate::vgpu::objects::budget::Budget;
    use crate::vgpu::objects::budget::Charge;
    use crate::vgpu::objects::budget::Kind;
    use crate::vgpu::objects::device_page::DevicePage;
    use crate::vgpu::objects::ids::AllocationId;
    use crate::vgpu::objects::ids::ContextHandle;
    use crate::vgpu::objects::mapping::GpuMapping;
    use crate::vgpu::objects::message::Origin;
    use crate::vgpu::objects::paging_queue::Change;
    use crate::vgpu::objects::paging_queue::PagingOperation;
    use crate::vgpu::objects::process::Device;
    use crate::vgpu::objects::process::Process;
    use crate::vgpu::objects::processes::Objects;
    use crate::vgpu::objects::waits::GpuWait;
    use crate::vgpu::objects::waits::NativeWait;

    const VA: u64 = FIRST_ADDRESS + (1 << 30);
    const CONTEXT: Handle = Handle(1);

    fn charge() -> Charge {
        Arc::new(Budget::default()).vm().charge(Kind::Objects, 1).unwrap()
    }

    /// Two processes, 1 and 2, with devices in address spaces of their own.
    fn objects(tables: &mut PageTables) -> Objects {
        let mut objects = Objects::default();
        for context in [1, 2] {
            let mut process = Process::new(Arc::new(Budget::default()).process().unwrap()).unwrap();
            let page = DevicePage { allocation: AllocationId(0), offset: 0, va: 0, guest: None };
            process.device = Some(Device::new(page, tables.create_root().unwrap(), 0));
            objects.processes.insert(GuestProcess::new(context), process);
        }
        objects
    }

    fn device(objects: &mut Objects, of: u32) -> &mut Device {
        objects.processes.get_mut(&GuestProcess::new(of)).unwrap().device.as_mut().unwrap()
    }

    fn wait(of: u32, fence: Handle, index: u32, value: u64) -> NativeWait {
        let origin = Origin { context: GuestProcess::new(of), slot: 0, sequence: 1, ring: 1, item: None };
        NativeWait { origin, fence, index, value }
    }

    /// Opens a new fence of a kind in a process: its number and the local handle.
    fn opened(
        fences: &mut FenceTable,
        objects: &mut Objects,
        tables: &mut PageTables,
        kind: u32,
    ) -> (u32, Handle) {
        let (index, global) = fences.create(kind, 0).unwrap();
        let opening = fences.named(index, global).unwrap_or_else(|refused| panic!("{}", refused.text));
        let va = VA + u64::from(index) * PAGE_SIZE;
        let mapped = opening.map(objects, tables, GuestProcess::new(1), va, charge());
        (index, mapped.unwrap_or_else(|refused| panic!("{}", refused.text)).fence)
    }

    #[test]
    fn ums_135_waits_of_every_process_are_over_at_their_value_and_not_before() {
        let (mut fences, mut tables) = (FenceTable::new().unwrap(), PageTables::new().unwrap());
        let mut objects = objects(&mut tables);
        let (index, handle) = opened(&mut fences, &mut objects, &mut tables, NATIVE_FENCE_DEFAULT);
        let other = fences.create(NATIVE_FENCE_DEFAULT, 9).unwrap().0;
        assert_eq!(smallest_wait(&objects, index), None);
        device(&mut objects, 1).native_waits.push(wait(1, handle, index, 7));
        device(&mut objects, 2).gpu_waits.push(GpuWait {
            context: ContextHandle::new(CONTEXT),
            index,
            value: 5,
        });
        device(&mut objects, 2).native_waits.push(wait(2, handle, other, 2));
        assert_eq!([index, other].map(|of| smallest_wait(&objects, of)), [Some(5), Some(2)]);
        for (value, of_cpu, of_gpu) in [(4, 0, 0), (5, 0, 1), (6, 0, 0), (7, 1, 0)] {
            fences.value(index).unwrap().store(value, Ordering::Release);
            let over = fences.take_over(&mut objects, index);
            assert_eq!((over.of_cpu.len(), over.of_gpu.len()), (of_cpu, of_gpu), "{value}");
            assert_eq!(over.is_empty(), of_cpu + of_gpu == 0);
            assert!(
                over.of_gpu
                    .iter()
                    .all(|unparked| *unparked == (GuestProcess::new(2), ContextHandle::new(CONTEXT)))
            );
        }
        assert_eq!([index, other].map(|of| smallest_wait(&objects, of)), [None, Some(2)]);
    }

    #[test]
    fn ums_140_a_process_that_closes_a_fence_ends_its_own_waits_and_no_others() {
        let (mut fences, mut tables) = (FenceTable::new().unwrap(), PageTables::new().unwrap());
        let mut objects = objects(&mut tables);
        let (index, handle) = opened(&mut fences, &mut objects, &mut tables, NATIVE_FENCE_DEFAULT);
        let (kept, other) = opened(&mut fences, &mut objects, &mut tables, NATIVE_FENCE_DEFAULT);
        device(&mut objects, 1).native_waits = vec![wait(1, handle, index, 7), wait(1, other, kept, 7)];
        let parked = |index| GpuWait { context: ContextHandle::new(CONTEXT), index, value: 5 };
        device(&mut objects, 1).gpu_waits = vec![parked(index), parked(kept)];
        device(&mut objects, 2).gpu_waits = vec![parked(index)];
        let closed = take_open(&mut objects, GuestProcess::new(1), handle)
            .unwrap_or_else(|refused| panic!("{}", refused.text));
        assert_eq!((closed.fence.index, closed.fence.va), (index, VA + u64::from(index) * PAGE_SIZE));
        assert_eq!((closed.of_cpu.len(), closed.of_gpu.len()), (1, 1));
        assert_eq!(device(&mut objects, 1).native_waits, [wait(1, other, kept, 7)]);
        assert_eq!(device(&mut objects, 1).gpu_waits, [parked(kept)]);
        assert_eq!(device(&mut objects, 2).gpu_waits, [parked(index)], "another process waits on");
        let again = take_open(&mut objects, GuestProcess::new(1), handle).map_err(|refused| refused.status);
        assert_eq!(again.err(), Some(Status::InvalidHandle));
    }

    #[test]
    fn ums_143_a_fence_of_the_gpu_alone_is_none_for_the_cpu() {
        let (mut fences, mut tables) = (FenceTable::new().unwrap(), PageTables::new().unwrap());
        let mut objects = objects(&mut tables);
        let (index, handle) = opened(&mut fences, &mut objects, &mut tables, NATIVE_FENCE_DEFAULT);
        let (_, alone) = opened(&mut fences, &mut objects, &mut tables, NATIVE_FENCE_INTRA_GPU);
        let of_cpu =
            |context, handle| fences.of_cpu(&objects, context, handle).map_err(|refused| refused.status);
        assert_eq!(of_cpu(GuestProcess::new(1), handle), Ok(index));
        assert_eq!(of_cpu(GuestProcess::new(1), alone), Err(Status::NotSupported));
        assert_eq!(of_cpu(GuestProcess::new(2), handle), Err(Status::InvalidHandle), "it has not opened it");
        assert_eq!(of_cpu(GuestProcess::new(3), handle), Err(Status::NoDevice));
    }

    #[test]
    fn a_fence_is_opened_where_nothing_is_mapped() {
        let (mut fences, mut tables) = (FenceTable::new().unwrap(), PageTables::new().unwrap());
        let mut objects = objects(&mut tables);
        let (index, _) = opened(&mut fences, &mut objects, &mut tables, NATIVE_FENCE_DEFAULT);
        let opening = fences.named(index, Handle(1)).unwrap_or_else(|refused| panic!("{}", refused.text));
        let va = VA + u64::from(index) * PAGE_SIZE;
        let mut open = |context, va| {
            let opened = opening.map(&mut objects, &mut tables, context, va, charge());
            opened.map(drop).map_err(|refused| refused.status)
        };
        assert_eq!(open(GuestProcess::new(1), va), Err(Status::InvalidAddress));
        assert_eq!(open(GuestProcess::new(2), va), Ok(()), "in another address space");
        assert_eq!(open(GuestProcess::new(1), va + PAGE_SIZE), Ok(()));
        assert_eq!(open(GuestProcess::new(3), va), Err(Status::NoDevice));
        // A mapping that is about to be there.
        let late = GpuMapping { size: PAGE_SIZE, allocation: AllocationId(1), offset: 0, writable: true };
        let changes = vec![Change::Map(va + 2 * PAGE_SIZE, late)];
        let operation = PagingOperation { value: 1, changes, charge: None };
        device(&mut objects, 1).paging.push(operation);
        let opened =
            opening.map(&mut objects, &mut tables, GuestProcess::new(1), va + 2 * PAGE_SIZE, charge());
        assert_eq!(opened.map_err(|refused| refused.status).err(), Some(Status::InvalidAddress));
        assert_eq!(
            fences.named(index + 1, Handle(1)).err().map(|refused| refused.status),
            Some(Status::InvalidHandle)
        );
    }

    #[test]
    fn ums_131_the_page_of_a_fence_is_its_own_part_of_the_file_of_fences() {
        let (mut fences, mut tables) = (FenceTable::new().unwrap(), PageTables::new().unwrap());
        let mut objects = objects(&mut tables);
        for _ in 0..3 {
            let (index, _) = opened(&mut fences, &mut objects, &mut tables, NATIVE_FENCE_DEFAULT);
            let (root, va) = (device(&mut objects, 1).root.0, VA + u64::from(index) * PAGE_SIZE);
            let run = resolve_one(tables.mapping(), root, va, PAGE_SIZE, Intent::Write).unwrap();
            assert_eq!((run.segment, run.offset), (SegmentId::FENCES, u64::from(index) * PAGE_SIZE));
        }
    }

    #[test]
    fn ums_141_what_an_engine_signals_is_looked_at_or_was_never_there() {
        let mut fences = FenceTable::new().unwrap();
        let (index, global) = fences.create(NATIVE_FENCE_DEFAULT, 0).unwrap();
        assert_eq!(fences.look(global), Look::AtWaitsFor(index));
        assert_eq!(fences.look(Handle::NONE), Look::AtAllWaits);
        assert!(fences.close(index));
        assert_eq!(fences.look(global), Look::Nowhere);
        fences.free(index);
        assert_eq!(fences.look(global), Look::Violation);
    }

    #[test]
    fn ums_142_a_device_that_ends_closes_all_that_it_has_open_and_frees_what_no_other_has() {
        let (mut fences, mut tables) = (FenceTable::new().unwrap(), PageTables::new().unwrap());
        let mut objects = objects(&mut tables);
        let (shared, _) = opened(&mut fences, &mut objects, &mut tables, NATIVE_FENCE_DEFAULT);
        let (own, _) = opened(&mut fences, &mut objects, &mut tables, NATIVE_FENCE_DEFAULT);
        fences.open(shared);
        let device = objects.take_device(GuestProcess::new(1)).unwrap();
        assert_eq!(fences.close_all(&device), [own]);
        assert!(fences.is_open(shared) && !fences.is_open(own));
    }
}
