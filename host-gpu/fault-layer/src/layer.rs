//! What the Vulkan loader knows of the layer: its interface, version 2, as `vk_layer.h` has it.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::ffi::c_char;
use std::ffi::c_void;
use std::mem;
use std::sync::RwLock;

use ash::vk;

use crate::entries;
use crate::hooks;
use crate::lessened;
use crate::memory;
use crate::next;
use crate::priorities;

const NEGOTIATE: u32 = 1;
const VERSION: u32 = 2;
/// What a chain structure has of the next layer.
const LINK: u32 = 0;

/// `VkNegotiateLayerInterface`.
#[repr(C)]
struct Negotiated {
    kind: u32,
    next: *mut c_void,
    version: u32,
    instance_commands: Option<vk::PFN_vkGetInstanceProcAddr>,
    device_commands: Option<vk::PFN_vkGetDeviceProcAddr>,
    physical_commands: *const c_void,
}

/// `VkLayerInstanceCreateInfo`, or `VkLayerDeviceCreateInfo` with another link.
#[repr(C)]
struct ChainInfo<L> {
    kind: vk::StructureType,
    next: *const c_void,
    function: u32,
    link: *const L,
}

/// `VkLayerInstanceLink`.
#[repr(C)]
struct InstanceLink {
    next: *const Self,
    instance_commands: vk::PFN_vkGetInstanceProcAddr,
    physical_commands: *const c_void,
}

/// `VkLayerDeviceLink`.
#[repr(C)]
struct DeviceLink {
    next: *const Self,
    instance_commands: vk::PFN_vkGetInstanceProcAddr,
    device_commands: vk::PFN_vkGetDeviceProcAddr,
}

/// What stands below, as the last instance and device were told.
static INSTANCE_COMMANDS: RwLock<Option<vk::PFN_vkGetInstanceProcAddr>> = RwLock::new(None);
static DEVICE_COMMANDS: RwLock<Option<vk::PFN_vkGetDeviceProcAddr>> = RwLock::new(None);

fn set<T>(place: &RwLock<Option<T>>, value: T) {
    if let Ok(mut place) = place.write() {
        *place = Some(value);
    }
}

fn get<T: Copy>(place: &RwLock<Option<T>>) -> Option<T> {
    place.read().ok().and_then(|place| *place)
}

/// Agrees upon the version of the interface, and tells the loader where the layer's functions are.
///
/// # Safety
/// The loader's, as its interface says.
// SAFETY: the manifest names it; nothing else has this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "system" fn campanile_fault_layer_negotiate(interface: *mut c_void) -> vk::Result {
    // SAFETY: the loader's structure, there to be read and written.
    let Some(interface) = (unsafe { interface.cast::<Negotiated>().as_mut() }) else {
        return vk::Result::ERROR_INITIALIZATION_FAILED;
    };
    if interface.kind != NEGOTIATE || interface.version < VERSION {
        return vk::Result::ERROR_INITIALIZATION_FAILED;
    }
    interface.version = VERSION;
    interface.instance_commands = Some(instance_command);
    interface.device_commands = Some(device_command);
    interface.physical_commands = std::ptr::null();
    vk::Result::SUCCESS
}

/// The function of this name, as one of no particular type.
macro_rules! function {
    ($function:expr, $pfn:ident) => {{
        // SAFETY: all functions have the same size, and the loader casts it back to the type that its name has.
        Some(unsafe { mem::transmute::<vk::$pfn, unsafe extern "system" fn()>($function) })
    }};
}

unsafe extern "system" fn instance_command(
    instance: vk::Instance,
    name: *const c_char,
) -> vk::PFN_vkVoidFunction {
    // SAFETY: the caller's name, with a NUL behind it.
    let known = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default();
    match known {
        "vkGetInstanceProcAddr" => return function!(instance_command, PFN_vkGetInstanceProcAddr),
        "vkGetDeviceProcAddr" => return function!(device_command, PFN_vkGetDeviceProcAddr),
        "vkCreateInstance" => return function!(create_instance, PFN_vkCreateInstance),
        "vkCreateDevice" => return function!(create_device, PFN_vkCreateDevice),
        _ => {}
    }
    let below = get(&INSTANCE_COMMANDS)?;
    // SAFETY: the caller's arguments, as they came.
    let function = unsafe { below(instance, name) };
    match (known, entries::index(known)) {
        ("vkEnumerateDeviceExtensionProperties", Some(entry)) => {
            next::set(entry, function);
            function!(hooks::enumerate_device_extensions, PFN_vkEnumerateDeviceExtensionProperties)
        }
        ("vkEnumeratePhysicalDevices", Some(entry)) => {
            next::set(entry, function);
            hooks::of_device(entry)
        }
        ("vkGetPhysicalDeviceFeatures2", _) => {
            function!(lessened::of_features(function), PFN_vkGetPhysicalDeviceFeatures2)
        }
        ("vkGetPhysicalDeviceProperties2", _) => {
            function!(lessened::of_properties(function), PFN_vkGetPhysicalDeviceProperties2)
        }
        ("vkGetPhysicalDeviceMemoryProperties2", _) => {
            function!(memory::of_properties(function), PFN_vkGetPhysicalDeviceMemoryProperties2)
        }
        ("vkGetPhysicalDeviceQueueFamilyProperties2", _) => {
            function!(priorities::of_families(function), PFN_vkGetPhysicalDeviceQueueFamilyProperties2)
        }
        _ => function,
    }
}

unsafe extern "system" fn device_command(device: vk::Device, name: *const c_char) -> vk::PFN_vkVoidFunction {
    // SAFETY: the caller's name, with a NUL behind it.
    let known = unsafe { CStr::from_ptr(name) }.to_str().unwrap_or_default();
    match known {
        "vkGetDeviceProcAddr" => return function!(device_command, PFN_vkGetDeviceProcAddr),
        "vkDestroyDevice" => return function!(destroy_device, PFN_vkDestroyDevice),
        _ => {}
    }
    let below = get(&DEVICE_COMMANDS)?;
    // SAFETY: the caller's arguments, as they came.
    let function = unsafe { below(device, name) };
    match entries::index(known).filter(|_| function.is_some()) {
        Some(entry) => {
            next::set(entry, function);
            match known {
                "vkAllocateMemory" => function!(memory::allocate, PFN_vkAllocateMemory),
                _ => hooks::of_device(entry),
            }
        }
        None => function,
    }
}

/// The loader's structure of this kind that has the link to what stands below, in a chain that begins with `first`.
fn chain<L>(first: *const c_void, kind: vk::StructureType) -> Option<&'static mut ChainInfo<L>> {
    let mut at = first.cast::<ChainInfo<L>>().cast_mut();
    loop {
        // SAFETY: all structures of a chain begin as this one does, and are there for as long as the call is.
        let head = unsafe { at.as_ref() }?;
        let (its, next) = (head.kind, head.next);
        // SAFETY: of this kind, so it is whole.
        if its == kind && unsafe { (*at).function } == LINK {
            // SAFETY: as above; a layer is to write it, and nothing else does meanwhile.
            return unsafe { at.as_mut() };
        }
        at = next.cast::<ChainInfo<L>>().cast_mut();
    }
}

unsafe extern "system" fn create_instance(
    info: *const vk::InstanceCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    made: *mut vk::Instance,
) -> vk::Result {
    if let Some(failure) = next::fault(const { hooks::of("vkCreateInstance") }) {
        return failure;
    }
    // SAFETY: the caller's structure.
    let first = unsafe { (*info).p_next };
    let found = chain::<InstanceLink>(first, vk::StructureType::LOADER_INSTANCE_CREATE_INFO);
    let Some(found) = found else { return vk::Result::ERROR_INITIALIZATION_FAILED };
    // SAFETY: the loader's link, which is there for this layer.
    let link = unsafe { &*found.link };
    let (below, next) = (link.instance_commands, link.next);
    // What stands below finds its own link there.
    found.link = next;
    set(&INSTANCE_COMMANDS, below);
    // SAFETY: asks for a function that needs no instance.
    let create = unsafe { below(vk::Instance::null(), c"vkCreateInstance".as_ptr()) };
    let Some(create) = create else { return vk::Result::ERROR_INITIALIZATION_FAILED };
    // SAFETY: what the name says.
    let create = unsafe { mem::transmute::<unsafe extern "system" fn(), vk::PFN_vkCreateInstance>(create) };
    // SAFETY: the caller's arguments, with the chain moved on.
    unsafe { create(info, allocator, made) }
}

unsafe extern "system" fn create_device(
    physical: vk::PhysicalDevice,
    info: *const vk::DeviceCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    made: *mut vk::Device,
) -> vk::Result {
    if let Some(failure) = next::fault(const { hooks::of("vkCreateDevice") }) {
        return failure;
    }
    // SAFETY: the caller's structure.
    let info = unsafe { &*info };
    // SAFETY: the caller's, as Vulkan demands.
    let below = match unsafe { priorities::Below::of(info) } {
        Ok(below) => below,
        Err(refused) => return refused,
    };
    let first = info.p_next;
    let found = chain::<DeviceLink>(first, vk::StructureType::LOADER_DEVICE_CREATE_INFO);
    let Some(found) = found else { return vk::Result::ERROR_INITIALIZATION_FAILED };
    // SAFETY: the loader's link, which is there for this layer.
    let link = unsafe { &*found.link };
    let (instance_commands, device_commands) = (link.instance_commands, link.device_commands);
    // What stands below finds its own link there.
    found.link = link.next;
    set(&DEVICE_COMMANDS, device_commands);
    // SAFETY: the loader's function; the null instance is what it takes from layers.
    let create = unsafe { instance_commands(vk::Instance::null(), c"vkCreateDevice".as_ptr()) };
    let Some(create) = create else { return vk::Result::ERROR_INITIALIZATION_FAILED };
    // SAFETY: what the name says.
    let create = unsafe { mem::transmute::<unsafe extern "system" fn(), vk::PFN_vkCreateDevice>(create) };
    let info = below.info(info);
    // SAFETY: the caller's arguments, with the chain moved on, and without what is only claimed.
    let result = unsafe { create(physical, &raw const info, allocator, made) };
    if result == vk::Result::SUCCESS {
        // SAFETY: the device was made.
        let device = unsafe { made.read() };
        // SAFETY: the device was made, and this function is of it.
        if let Some(wait) = unsafe { device_commands(device, c"vkDeviceWaitIdle".as_ptr()) } {
            // SAFETY: what the name says.
            let wait =
                unsafe { mem::transmute::<unsafe extern "system" fn(), vk::PFN_vkDeviceWaitIdle>(wait) };
            next::add_device(device, wait);
        }
    }
    result
}

unsafe extern "system" fn destroy_device(device: vk::Device, allocator: *const vk::AllocationCallbacks<'_>) {
    next::remove_device(device);
    let below = get(&DEVICE_COMMANDS);
    // SAFETY: the device is alive still.
    let destroy = below.and_then(|below| unsafe { below(device, c"vkDestroyDevice".as_ptr()) });
    if let Some(destroy) = destroy {
        // SAFETY: what the name says.
        let destroy =
            unsafe { mem::transmute::<unsafe extern "system" fn(), vk::PFN_vkDestroyDevice>(destroy) };
        // SAFETY: the caller's arguments, as they came.
        unsafe { destroy(device, allocator) };
    }
}
