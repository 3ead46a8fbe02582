//! Command buffers: packets, one behind the other.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::MaybeUninit;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::error::DriverError;
use campanile_protocol::packet::Binding;

use crate::boundary::given;
use crate::boundary::guarded;
use crate::boundary::release;
use crate::buffer::CampanileBinding;
use crate::failure::Failure;
use crate::foreign::items;
use crate::kernel::CampanileKernel;
use crate::result::CampanileResult;

/// Packets, to be submitted any number of times.
#[derive(Debug)]
pub struct CampanileCommands(pub(crate) CommandBuffer);

/// What a dispatch runs, and on what. Fields that are left 0 mean "none".
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CampanileDispatch<'a> {
    /// The kernel.
    pub kernel: Option<&'a CampanileKernel>,
    /// Its buffers, at most 64, one for each binding of the kernel and for each element of one that is an array.
    pub bindings: *const CampanileBinding,
    /// How many.
    pub binding_count: usize,
    /// Its constants.
    pub constants: *const c_void,
    /// Bytes of them, a multiple of 4, at most 256: as many as `campanile_kernel_info` says.
    pub constant_bytes: usize,
}

/// A dispatch after its pointers were looked at.
struct Parts<'a> {
    kernel: &'a CampanileKernel,
    bindings: Vec<Binding>,
    constants: &'a [u8],
}

/// # Safety
/// The pointers of `dispatch` are NULL, or as many items lie there as it says.
unsafe fn parts<'a>(dispatch: Option<&'a CampanileDispatch<'a>>) -> Result<Parts<'a>, Failure> {
    let dispatch = given(dispatch, "dispatch")?;
    let kernel = given(dispatch.kernel, "dispatch->kernel")?;
    // SAFETY: by this function's contract.
    let bindings = unsafe { items(dispatch.bindings, dispatch.binding_count, "dispatch->bindings") }?;
    let (constants, size) = (dispatch.constants.cast(), dispatch.constant_bytes);
    // SAFETY: by this function's contract.
    let constants = unsafe { items(constants, size, "dispatch->constants") }?;
    let binding = |from: &CampanileBinding| Binding {
        set: from.set,
        element: from.element,
        ..Binding::new(from.va, from.length, from.slot)
    };
    Ok(Parts { kernel, bindings: bindings.iter().map(binding).collect(), constants })
}

/// Adds packets in the call `name`.
fn add(
    name: &str,
    commands: Option<&mut CampanileCommands>,
    packets: impl FnOnce(&mut CommandBuffer) -> Result<&mut CommandBuffer, DriverError>,
) -> CampanileResult {
    guarded(name, || {
        packets(&mut given(commands, "commands")?.0)?;
        Ok(())
    })
}

/// Makes an empty command buffer. Submitted like that, it does nothing but reach its fence point. Does not block, and
/// needs no device.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_commands_create(
    commands: Option<&mut MaybeUninit<Box<CampanileCommands>>>,
) -> CampanileResult {
    guarded("campanile_commands_create", || {
        given(commands, "commands")?.write(Box::new(CampanileCommands(CommandBuffer::new())));
        Ok(())
    })
}

/// Makes a command buffer of packets that were made elsewhere. They are copied, and not checked: the engine does that.
///
/// # Safety
/// `packets` is NULL or points to `size` bytes; `commands` is NULL or room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn campanile_commands_create_from_packets(
    packets: *const c_void,
    size: usize,
    commands: Option<&mut MaybeUninit<Box<CampanileCommands>>>,
) -> CampanileResult {
    guarded("campanile_commands_create_from_packets", || {
        let place = given(commands, "commands")?;
        // SAFETY: NULL or the caller's bytes, by this function's contract.
        let packets = unsafe { items(packets.cast::<u8>(), size, "packets") }?;
        place.write(Box::new(CampanileCommands(CommandBuffer::from_bytes(packets.to_vec()))));
        Ok(())
    })
}

/// Frees a command buffer; NULL is nothing. What was submitted was a copy.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_commands_destroy(commands: Option<Box<CampanileCommands>>) {
    release("campanile_commands_destroy", commands);
}

/// The packets and how many bytes they are; each of `packets` and `size` may be NULL. The pointer is valid until the
/// command buffer is changed or destroyed.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_commands_get_packets(
    commands: Option<&CampanileCommands>,
    packets: Option<&mut MaybeUninit<*const c_void>>,
    size: Option<&mut MaybeUninit<usize>>,
) -> CampanileResult {
    guarded("campanile_commands_get_packets", || {
        let bytes = given(commands, "commands")?.0.bytes();
        packets.map(|place| place.write(bytes.as_ptr().cast()));
        size.map(|place| place.write(bytes.len()));
        Ok(())
    })
}

/// Removes all packets.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_commands_clear(commands: Option<&mut CampanileCommands>) -> CampanileResult {
    guarded("campanile_commands_clear", || {
        given(commands, "commands")?.0 = CommandBuffer::new();
        Ok(())
    })
}

/// Copies `size` bytes between GPU addresses; the ranges may not overlap.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_commands_copy(
    commands: Option<&mut CampanileCommands>,
    source_va: u64,
    target_va: u64,
    size: u64,
) -> CampanileResult {
    add("campanile_commands_copy", commands, |commands| commands.copy(source_va, target_va, size))
}

/// Fills `size` bytes, a multiple of 4, with `value`.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_commands_fill(
    commands: Option<&mut CampanileCommands>,
    target_va: u64,
    size: u64,
    value: u32,
) -> CampanileResult {
    add("campanile_commands_fill", commands, |commands| commands.fill(target_va, size, value))
}

/// Runs a kernel over `x` * `y` * `z` thread groups.
///
/// # Safety
/// `dispatch` is NULL, or its pointers are NULL or to as many items as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn campanile_commands_dispatch(
    commands: Option<&mut CampanileCommands>,
    dispatch: Option<&CampanileDispatch<'_>>,
    x: u32,
    y: u32,
    z: u32,
) -> CampanileResult {
    guarded("campanile_commands_dispatch", || {
        let commands = given(commands, "commands")?;
        // SAFETY: by this function's contract.
        let parts = unsafe { parts(dispatch) }?;
        commands.0.dispatch(&parts.kernel.0, [x, y, z], &parts.bindings, parts.constants)?;
        Ok(())
    })
}

/// Runs a kernel over the grid that is found at `groups_va` (three 32-bit words: x, y, z) when its turn comes.
///
/// # Safety
/// `dispatch` is NULL, or its pointers are NULL or to as many items as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn campanile_commands_dispatch_indirect(
    commands: Option<&mut CampanileCommands>,
    dispatch: Option<&CampanileDispatch<'_>>,
    groups_va: u64,
) -> CampanileResult {
    guarded("campanile_commands_dispatch_indirect", || {
        let commands = given(commands, "commands")?;
        // SAFETY: by this function's contract.
        let parts = unsafe { parts(dispatch) }?;
        commands.0.dispatch_indirect(&parts.kernel.0, groups_va, &parts.bindings, parts.constants)?;
        Ok(())
    })
}

/// What follows sees all that came before.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_commands_barrier(commands: Option<&mut CampanileCommands>) -> CampanileResult {
    add("campanile_commands_barrier", commands, |commands| commands.barrier())
}

/// Stores `value` at the 64-bit word at `va` after all that came before.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_commands_signal(
    commands: Option<&mut CampanileCommands>,
    va: u64,
    value: u64,
) -> CampanileResult {
    add("campanile_commands_signal", commands, |commands| commands.signal(va, value))
}

/// Goes on once the 64-bit word at `va` is `value` or more; meanwhile other queues run.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_commands_wait(
    commands: Option<&mut CampanileCommands>,
    va: u64,
    value: u64,
) -> CampanileResult {
    add("campanile_commands_wait", commands, |commands| commands.wait(va, value))
}

/// Stores the host's monotonic nanoseconds at the 64-bit word at `va`.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_commands_timestamp(
    commands: Option<&mut CampanileCommands>,
    va: u64,
) -> CampanileResult {
    add("campanile_commands_timestamp", commands, |commands| commands.timestamp(va))
}

/// Does nothing.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_commands_nop(commands: Option<&mut CampanileCommands>) -> CampanileResult {
    add("campanile_commands_nop", commands, |commands| commands.nop())
}
