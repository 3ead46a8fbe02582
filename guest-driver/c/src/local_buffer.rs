//! Memory that the CPU does not see, and where it lies: residency, priorities, budgets.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use campanile_guest_driver::residency::Eviction;
use campanile_guest_driver::residency::LocalBuffer;
use campanile_guest_driver::residency::WhenFull;

use crate::boundary::given;
use crate::boundary::guarded;
use crate::boundary::release;
use crate::buffer::CampanileBinding;
use crate::device::CampanileDevice;
use crate::failure::Failure;
use crate::foreign::items;
use crate::result::CampanileResult;

/// The least of priorities: evicted before all others.
pub const CAMPANILE_PRIORITY_MINIMUM: u32 = 0x2800_0000;
/// Evicted before others.
pub const CAMPANILE_PRIORITY_LOW: u32 = 0x5000_0000;
/// What a buffer begins with.
pub const CAMPANILE_PRIORITY_NORMAL: u32 = 0x7800_0000;
/// Evicted after others.
pub const CAMPANILE_PRIORITY_HIGH: u32 = 0xA000_0000;
/// The highest: evicted after all others.
pub const CAMPANILE_PRIORITY_MAXIMUM: u32 = 0xC800_0000;

const _: () = {
    use campanile_protocol::control::memory;
    assert!(CAMPANILE_PRIORITY_MINIMUM == memory::PRIORITY_MINIMUM, "one set of priorities");
    assert!(CAMPANILE_PRIORITY_LOW == memory::PRIORITY_LOW, "one set of priorities");
    assert!(CAMPANILE_PRIORITY_NORMAL == memory::PRIORITY_NORMAL, "one set of priorities");
    assert!(CAMPANILE_PRIORITY_HIGH == memory::PRIORITY_HIGH, "one set of priorities");
    assert!(CAMPANILE_PRIORITY_MAXIMUM == memory::PRIORITY_MAXIMUM, "one set of priorities");
};

/// Video memory that only the GPU sees: filled and read by copies.
#[derive(Debug)]
pub struct CampanileLocalBuffer(LocalBuffer);

/// How the memory of a VM stands, in bytes. Its budget is `committed` and `available` together.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CampanileMemoryInfo {
    /// What the VM can always have.
    pub guaranteed: u64,
    /// What it can have at the most.
    pub limit: u64,
    /// What it has allocated.
    pub committed: u64,
    /// What it could allocate besides, as things are.
    pub available: u64,
    /// Of it allocated, and in host memory for the time being.
    pub evicted: u64,
    /// Of it held where it is by `campanile_device_make_resident`.
    pub held: u64,
    /// The memory that the CPU does not see: all of it.
    pub local: u64,
    /// What is free there.
    pub local_free: u64,
    /// The memory that the CPU sees: all of it.
    pub visible: u64,
    /// What is free there.
    pub visible_free: u64,
    /// How often buffers were evicted so far.
    pub evictions: u64,
    /// How often buffers were brought back.
    pub restores: u64,
}

/// Makes a buffer of at least `size` bytes, zeroed, that the CPU does not see. Where memory is short it lies in host
/// memory for a while, and comes back, contents preserved, when the GPU needs it. `CAMPANILE_OUT_OF_RESOURCES` where the
/// VM's quota, or what the host gives to all, is used up.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_local_buffer_create(
    device: Option<&CampanileDevice>,
    size: u64,
    buffer: Option<&mut MaybeUninit<Box<CampanileLocalBuffer>>>,
) -> CampanileResult {
    guarded("campanile_local_buffer_create", || {
        let (device, place) = (given(device, "device")?, given(buffer, "buffer")?);
        place.write(Box::new(CampanileLocalBuffer(device.0.create_local_buffer(size)?)));
        Ok(())
    })
}

/// Frees a buffer; NULL is nothing. Work that still uses it faults, and the device is lost.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_local_buffer_destroy(buffer: Option<Box<CampanileLocalBuffer>>) {
    release("campanile_local_buffer_destroy", buffer);
}

/// Bytes of the buffer, a multiple of 4096; 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_local_buffer_size(buffer: Option<&CampanileLocalBuffer>) -> u64 {
    buffer.map_or(0, |buffer| buffer.0.size())
}

/// GPU virtual address of the first byte, never 0; 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_local_buffer_va(buffer: Option<&CampanileLocalBuffer>) -> u64 {
    buffer.map_or(0, |buffer| buffer.0.va())
}

/// All of the buffer as binding number `slot` of a kernel. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_local_buffer_bind(
    buffer: Option<&CampanileLocalBuffer>,
    slot: u32,
    binding: Option<&mut MaybeUninit<CampanileBinding>>,
) -> CampanileResult {
    guarded("campanile_local_buffer_bind", || {
        let bound = given(buffer, "buffer")?.0.binding(slot);
        given(binding, "binding")?.write(CampanileBinding {
            va: bound.va,
            length: bound.length,
            slot: bound.slot.into(),
            set: bound.set,
            element: bound.element,
        });
        Ok(())
    })
}

/// The buffers of a list, none of which may be NULL.
///
/// # Safety
/// `buffers` is NULL, or `count` pointers to live buffers, or NULL, lie there.
unsafe fn list(
    buffers: *const Option<&CampanileLocalBuffer>,
    count: usize,
) -> Result<Vec<&LocalBuffer>, Failure> {
    // SAFETY: by this function's contract.
    let buffers = unsafe { items(buffers, count, "buffers") }?;
    let entries = buffers.iter().enumerate();
    entries.map(|(at, buffer)| Ok(&given(*buffer, &format!("buffers[{at}]"))?.0)).collect()
}

/// Has `count` buffers, 1 to 1024, brought to where the GPU reaches them, and held there until `campanile_device_evict`
/// is called for each as often. Where there is no room, and none can be made, waits until others let go, or, where
/// `may_wait` is false, says `CAMPANILE_OUT_OF_RESOURCES`, as it does where they never fit.
///
/// # Safety
/// `buffers` is NULL, or `count` pointers to buffers lie there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn campanile_device_make_resident(
    device: Option<&CampanileDevice>,
    buffers: *const Option<&CampanileLocalBuffer>,
    count: usize,
    may_wait: bool,
) -> CampanileResult {
    guarded("campanile_device_make_resident", || {
        let device = given(device, "device")?;
        // SAFETY: by this function's contract.
        let buffers = unsafe { list(buffers, count) }?;
        Ok(device.0.make_resident(&buffers, if may_wait { WhenFull::Wait } else { WhenFull::Fail })?)
    })
}

/// Lets go of `count` buffers, 1 to 1024, that were made resident. They are moved out when others need the room, or at
/// once where `now` is true.
///
/// # Safety
/// `buffers` is NULL, or `count` pointers to buffers lie there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn campanile_device_evict(
    device: Option<&CampanileDevice>,
    buffers: *const Option<&CampanileLocalBuffer>,
    count: usize,
    now: bool,
) -> CampanileResult {
    guarded("campanile_device_evict", || {
        let device = given(device, "device")?;
        // SAFETY: by this function's contract.
        let buffers = unsafe { list(buffers, count) }?;
        Ok(device.0.evict(&buffers, if now { Eviction::Now } else { Eviction::WhenNeeded })?)
    })
}

/// Sets how late `count` buffers, 1 to 1024, are evicted: `CAMPANILE_PRIORITY_MINIMUM` to `…_MAXIMUM`. A hint.
///
/// # Safety
/// `buffers` is NULL, or `count` pointers to buffers lie there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn campanile_device_set_priority(
    device: Option<&CampanileDevice>,
    buffers: *const Option<&CampanileLocalBuffer>,
    count: usize,
    priority: u32,
) -> CampanileResult {
    guarded("campanile_device_set_priority", || {
        let device = given(device, "device")?;
        // SAFETY: by this function's contract.
        let buffers = unsafe { list(buffers, count) }?;
        Ok(device.0.set_priority(&buffers, priority)?)
    })
}

/// Bytes of video memory that the VM can have as things are, what it has included; 0 for NULL. Costs a load: the daemon
/// stores it when other VMs have taken or given back a good part of what all share.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_device_budget(device: Option<&CampanileDevice>) -> u64 {
    device.map_or(0, |device| device.0.budget())
}

/// Asks how the memory of the VM stands.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_device_get_memory_info(
    device: Option<&CampanileDevice>,
    info: Option<&mut MaybeUninit<CampanileMemoryInfo>>,
) -> CampanileResult {
    guarded("campanile_device_get_memory_info", || {
        let (device, place) = (given(device, "device")?, given(info, "info")?);
        let said = device.0.memory_info()?;
        place.write(CampanileMemoryInfo {
            guaranteed: said.guaranteed,
            limit: said.limit,
            committed: said.committed,
            available: said.available,
            evicted: said.evicted,
            held: said.held,
            local: said.local,
            local_free: said.local_free,
            visible: said.visible,
            visible_free: said.visible_free,
            evictions: said.evictions,
            restores: said.restores,
        });
        Ok(())
    })
}
