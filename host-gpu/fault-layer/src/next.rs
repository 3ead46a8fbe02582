//! What hooks pass calls on to, and the devices that there are.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::ffi::OsStr;
use std::ffi::c_void;
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::sync::Mutex;
use std::sync::OnceLock;
use std::sync::PoisonError;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering;

use ash::vk;
use ash::vk::Handle;

use crate::control::Control;
use crate::entries::ENTRIES;

/// Functions of what stands below the layer, by entry point.
static NEXT: [AtomicPtr<c_void>; ENTRIES.len()] = [const { AtomicPtr::new(ptr::null_mut()) }; ENTRIES.len()];

/// Devices that there are, with what waits for them.
static DEVICES: Mutex<Vec<(u64, vk::PFN_vkDeviceWaitIdle)>> = Mutex::new(Vec::new());

/// The function that an entry point is passed on to.
pub(crate) fn set(entry: usize, function: vk::PFN_vkVoidFunction) {
    let function = function.map_or(ptr::null_mut(), |function| function as *mut c_void);
    NEXT[entry].store(function, Ordering::Release);
}

/// That function; none before the loader asked for it.
pub(crate) fn get(entry: usize) -> Option<unsafe extern "system" fn()> {
    let function = NEXT[entry].load(Ordering::Acquire);
    if function.is_null() {
        return None;
    }
    // SAFETY: `set` stored a function's address, and libraries stay loaded as long as an instance is.
    Some(unsafe { mem::transmute::<*mut c_void, unsafe extern "system" fn()>(function) })
}

fn devices() -> std::sync::MutexGuard<'static, Vec<(u64, vk::PFN_vkDeviceWaitIdle)>> {
    // A panic elsewhere cannot have left the list half changed.
    DEVICES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device was made.
pub(crate) fn add_device(device: vk::Device, wait: vk::PFN_vkDeviceWaitIdle) {
    devices().push((device.as_raw(), wait));
}

/// One ends.
pub(crate) fn remove_device(device: vk::Device) {
    devices().retain(|(known, _)| *known != device.as_raw());
}

/// The file of this copy of the layer, where it lies beside one.
fn control() -> Option<Control> {
    static CONTROL: OnceLock<Option<Control>> = OnceLock::new();
    *CONTROL.get_or_init(|| {
        let mut found = mem::MaybeUninit::<libc::Dl_info>::uninit();
        let here = control as fn() -> Option<Control> as *const c_void;
        // SAFETY: `found` is there to be written; the address is one of this library.
        let is_found = unsafe { libc::dladdr(here, found.as_mut_ptr()) } != 0;
        if !is_found {
            return None;
        }
        // SAFETY: it was found, so it was written.
        let name = unsafe { found.assume_init() }.dli_fname;
        // SAFETY: the dynamic linker's name of this library, which stays loaded.
        let name = unsafe { CStr::from_ptr(name) };
        Control::open(Path::new(OsStr::from_bytes(name.to_bytes())).parent()?).ok()
    })
}

/// Counts a call of an entry point. What it fails with, if it does.
pub(crate) fn fault(entry: usize) -> Option<vk::Result> {
    let control = control()?;
    let result = control.count(entry);
    if result == Some(vk::Result::ERROR_DEVICE_LOST) {
        // On a lost device nothing runs any more.
        for (device, wait) in devices().iter() {
            // SAFETY: the device is in the list, so it is alive; what its threads do at the moment, this driver bears.
            let _idle = unsafe { wait(vk::Device::from_raw(*device)) };
        }
        control.set_lost(true);
    }
    let is_lost = control.is_lost() && ENTRIES[entry].may_be_lost();
    result.or(is_lost.then_some(vk::Result::ERROR_DEVICE_LOST))
}

/// The global priorities that devices are said to offer; none where they are the driver's.
pub(crate) fn offered() -> Option<Vec<vk::QueueGlobalPriorityKHR>> {
    let offered = control()?.offered();
    (!offered.is_empty()).then_some(offered)
}

/// Notes that a queue is to have this global priority. Whether it may, as far as the driver does not decide that.
pub(crate) fn ask(priority: vk::QueueGlobalPriorityKHR) -> bool {
    control().is_some_and(|control| control.ask(priority))
}

/// Bytes of memory that devices have left; none where that is the driver's business.
pub(crate) fn left() -> Option<u64> {
    control()?.left()
}

/// Names of hidden extensions.
pub(crate) fn hidden() -> Vec<Vec<u8>> {
    control().map(|control| control.hidden()).unwrap_or_default()
}
