//! A device: this process's share of the GPU.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use campanile_guest_driver::device::Device;
use campanile_guest_driver::error::DriverError;
use campanile_protocol::capset::NodeMetadata;
use campanile_protocol::device_page::DEVICE_ACTIVE;

use crate::boundary::given;
use crate::boundary::guarded;
use crate::boundary::release;
use crate::foreign::string;
#[cfg(feature = "loopback")]
use crate::foreign::utf8;
use crate::result::CampanileResult;
use crate::this_vm;
#[cfg(feature = "loopback")]
use crate::vms;

/// The most nodes that a device has.
pub const CAMPANILE_MAX_NODES: usize = 8;
/// Number of the node that runs kernels, and everything else.
pub const CAMPANILE_NODE_COMPUTE: u32 = 0;
/// Number of the node that copies, fills, signals and waits.
pub const CAMPANILE_NODE_COPY: u32 = 1;

/// `campanile_node_info.kind`: runs kernels, and everything else.
pub const CAMPANILE_NODE_KIND_COMPUTE: u32 = 1;
/// `campanile_node_info.kind`: copies, fills, signals and waits.
pub const CAMPANILE_NODE_KIND_COPY: u32 = 2;

/// Bit of `campanile_node_info.flags`: the node takes work. Without it, a context there is refused, with the reason.
pub const CAMPANILE_NODE_AVAILABLE: u32 = 1;
/// Bit of `campanile_node_info.flags`: the node has user-mode queues.
pub const CAMPANILE_NODE_USER_MODE_SUBMISSION: u32 = 2;
/// Bit of `campanile_node_info.flags`: a fence point is reached only after the packets are no longer used.
pub const CAMPANILE_NODE_BUFFER_RELEASE: u32 = 4;
/// Bit of `campanile_node_info.flags`: all user-mode queues of a process share one doorbell on the node.
pub const CAMPANILE_NODE_GLOBAL_DOORBELL: u32 = 8;
/// Bit of `campanile_node_info.flags`: each submission to a user-mode queue of the node sends a message, since no
/// engine polls.
pub const CAMPANILE_NODE_NOTIFY: u32 = 16;

/// An open device.
#[derive(Debug)]
pub struct CampanileDevice(pub(crate) Device);

/// What a node can do.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct CampanileNodeInfo {
    /// A `CAMPANILE_NODE_KIND_…`, or a later one.
    pub kind: u32,
    /// `CAMPANILE_NODE_AVAILABLE` and the other bits.
    pub flags: u32,
    /// Physical doorbells, which the queues of the VM share; 1 for each process with `CAMPANILE_NODE_GLOBAL_DOORBELL`.
    pub physical_doorbells: u32,
    /// The most buffers that one user-mode queue may have in flight; 0 where there is no limit.
    pub max_in_flight: u32,
    /// Engines that have this node.
    pub engines: u32,
}

/// What a device can do.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CampanileDeviceInfo {
    /// Version of the protocol that the daemon speaks: major * 65536 + minor.
    pub protocol_version: u32,
    /// Entries of `nodes` that count.
    pub node_count: u32,
    /// Bytes of video memory of the VM.
    pub vram_bytes: u64,
    /// Bytes of it that the VM's CPUs can see at one time.
    pub aperture_bytes: u64,
    /// The most bytes of packets in one submission.
    pub max_commands_bytes: u32,
    /// The most bytes of one message to the daemon; a kernel's source has to fit in, with its entry's name.
    pub max_control_bytes: u32,
    /// What each node can do; the index is the number for `campanile_context_create`.
    pub nodes: [CampanileNodeInfo; CAMPANILE_MAX_NODES],
}

fn node_info(node: &NodeMetadata) -> CampanileNodeInfo {
    CampanileNodeInfo {
        kind: node.kind,
        flags: node.flags,
        physical_doorbells: node.physical_doorbells,
        max_in_flight: node.max_in_flight_hw_queue_buffers,
        engines: node.engines,
    }
}

fn device_info(device: &Device) -> CampanileDeviceInfo {
    let capset = device.capset();
    CampanileDeviceInfo {
        protocol_version: capset.protocol_version,
        node_count: capset.node_count.min(8),
        vram_bytes: capset.vram_bytes,
        aperture_bytes: capset.aperture_bytes,
        max_commands_bytes: capset.max_dma_buffer_bytes,
        max_control_bytes: capset.max_control_bytes,
        nodes: std::array::from_fn(|index| {
            capset.nodes.get(index).map_or_else(CampanileNodeInfo::default, node_info)
        }),
    }
}

/// Opens a device inside of a VM, over the render node at `path` ("/dev/dri/renderD128"), or over the file `gpu` on
/// virtiofs. Where `path` is NULL, over the first render node that is a Campanile's, and where there is none, over the
/// first such file. `CAMPANILE_NO_DEVICE`, with the reason, where it is none, or no device behind it answers.
///
/// # Safety
/// `path` is NULL or a string; `device` is NULL or room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn campanile_device_open(
    path: *const c_char,
    device: Option<&mut MaybeUninit<Box<CampanileDevice>>>,
) -> CampanileResult {
    guarded("campanile_device_open", || {
        let place = given(device, "device")?;
        // SAFETY: NULL or a string, by this function's contract.
        let path = unsafe { string(path) };
        let path = path.map(|path| Path::new(OsStr::from_bytes(path.to_bytes())));
        place.write(Box::new(CampanileDevice(this_vm::open(path)?)));
        Ok(())
    })
}

/// Opens a device without a VM: this process plays VMM and guest on the daemon's `socket`. `name` is for the daemon's
/// log, and may be NULL. All devices of this process on one socket are in one VM, whose first one connects it; while
/// another process has the socket, that waits up to 30 s. For tests: only a library that was built with the feature
/// `loopback` has it, and a program says so with the macro `CAMPANILE_LOOPBACK`.
///
/// # Safety
/// `socket` is NULL or a string, and so is `name`; `device` is NULL or room for a pointer.
#[cfg(feature = "loopback")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn campanile_device_open_loopback(
    socket: *const c_char,
    name: *const c_char,
    device: Option<&mut MaybeUninit<Box<CampanileDevice>>>,
) -> CampanileResult {
    guarded("campanile_device_open_loopback", || {
        let place = given(device, "device")?;
        // SAFETY: NULL or a string, by this function's contract.
        let socket = given(unsafe { string(socket) }, "socket")?;
        // SAFETY: NULL or a string, by this function's contract.
        let name = utf8(unsafe { string(name) }.unwrap_or(c"libcampanile"), "name")?;
        let context = vms::open(Path::new(OsStr::from_bytes(socket.to_bytes())), name)?;
        place.write(Box::new(CampanileDevice(Device::open(context)?)));
        Ok(())
    })
}

/// Gives a device back; NULL is nothing. What was made from it goes on, and holds the device open until it is
/// destroyed, too.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_device_close(device: Option<Box<CampanileDevice>>) {
    release("campanile_device_close", device);
}

/// What the device can do, as it was when it was opened. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_device_get_info(
    device: Option<&CampanileDevice>,
    info: Option<&mut MaybeUninit<CampanileDeviceInfo>>,
) -> CampanileResult {
    guarded("campanile_device_get_info", || {
        given(info, "info")?.write(device_info(&given(device, "device")?.0));
        Ok(())
    })
}

/// `CAMPANILE_OK` while the device works, `CAMPANILE_DEVICE_LOST` when it is in error. `status` may be NULL; there
/// goes the word of the device page: 0 it was unplugged, 1 active, 2 its engine was lost, 3 the driver failed under a kernel, 4 it was
/// ended, 6 a bad packet or ring entry, 7 an address that is not mapped. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_device_check(
    device: Option<&CampanileDevice>,
    status: Option<&mut MaybeUninit<u64>>,
) -> CampanileResult {
    guarded("campanile_device_check", || {
        let checked = given(device, "device")?.0.check();
        if let Some(place) = status {
            match checked {
                Err(DriverError::DeviceLost(loss)) => place.write(loss.status),
                _ => place.write(DEVICE_ACTIVE),
            };
        }
        Ok(checked?)
    })
}

/// How many commands went to the daemon so far: of the whole VM in loopback, elsewhere of this process. User-mode
/// submission does not move it. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_device_get_control_commands(
    device: Option<&CampanileDevice>,
    count: Option<&mut MaybeUninit<u64>>,
) -> CampanileResult {
    guarded("campanile_device_get_control_commands", || {
        let device = given(device, "device")?;
        given(count, "count")?.write(device.0.control_commands());
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use campanile_protocol::capset;

    #[test]
    fn the_header_has_the_numbers_of_the_protocol() {
        assert_eq!(super::CAMPANILE_MAX_NODES, capset::MAX_NODES);
        assert_eq!(super::CAMPANILE_NODE_COMPUTE, capset::NODE_COMPUTE);
        assert_eq!(super::CAMPANILE_NODE_COPY, capset::NODE_COPY);
        assert_eq!(super::CAMPANILE_NODE_KIND_COMPUTE, capset::NODE_KIND_COMPUTE);
        assert_eq!(super::CAMPANILE_NODE_KIND_COPY, capset::NODE_KIND_COPY);
        assert_eq!(super::CAMPANILE_NODE_AVAILABLE, capset::NODE_FLAG_AVAILABLE);
        assert_eq!(super::CAMPANILE_NODE_USER_MODE_SUBMISSION, capset::NODE_FLAG_USER_MODE_SUBMISSION);
        assert_eq!(super::CAMPANILE_NODE_BUFFER_RELEASE, capset::NODE_FLAG_RING_BUFFER_FENCE_RELEASE);
    }
}
