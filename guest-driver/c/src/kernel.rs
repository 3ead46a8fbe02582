//! Kernels: what runs on the compute node.
#![allow(unsafe_code)]

use std::ffi::c_char;
use std::ffi::c_void;
use std::mem::MaybeUninit;

use campanile_guest_driver::kernel::Kernel;
use campanile_guest_driver::kernel::KernelSource;

use crate::boundary::given;
use crate::boundary::guarded;
use crate::boundary::release;
use crate::device::CampanileDevice;
use crate::failure::Failure;
use crate::foreign::items;
use crate::foreign::string;
use crate::foreign::utf8;
use crate::result::CampanileResult;

/// A compiled kernel, warm.
#[derive(Debug)]
pub struct CampanileKernel(pub(crate) Kernel);

/// What is known of a kernel.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CampanileKernelInfo {
    /// Its name in packets.
    pub handle: u64,
    /// Threads of a group in x, y, z.
    pub workgroup: [u32; 3],
    /// Bytes of constants that a dispatch must carry.
    pub constant_bytes: u32,
}

fn create(
    device: &CampanileDevice,
    source: KernelSource<'_>,
    entry: Option<&str>,
) -> Result<Box<CampanileKernel>, Failure> {
    let source = entry.map_or(source, |name| source.entry(name));
    Ok(Box::new(CampanileKernel(device.0.create_kernel(&source)?)))
}

/// Compiles WGSL text; returns when the kernel is ready to run. `entry` names the entry point where there are several,
/// and may be NULL. `CAMPANILE_KERNEL_REFUSED`, with the reason, for one that is wrong or passes a limit.
///
/// # Safety
/// `text` is NULL or a string, and so is `entry`; `kernel` is NULL or room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn campanile_kernel_create_wgsl(
    device: Option<&CampanileDevice>,
    text: *const c_char,
    entry: *const c_char,
    kernel: Option<&mut MaybeUninit<Box<CampanileKernel>>>,
) -> CampanileResult {
    guarded("campanile_kernel_create_wgsl", || {
        let (device, place) = (given(device, "device")?, given(kernel, "kernel")?);
        // SAFETY: NULL or a string, by this function's contract.
        let text = utf8(given(unsafe { string(text) }, "text")?, "text")?;
        // SAFETY: NULL or a string, by this function's contract.
        let entry = unsafe { string(entry) }.map(|entry| utf8(entry, "entry")).transpose()?;
        place.write(create(device, KernelSource::wgsl(text), entry)?);
        Ok(())
    })
}

/// Compiles `size` bytes of SPIR-V; otherwise as `campanile_kernel_create_wgsl`.
///
/// # Safety
/// `words` is NULL or points to `size` bytes; `entry` is NULL or a string; `kernel` is NULL or room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn campanile_kernel_create_spirv(
    device: Option<&CampanileDevice>,
    words: *const c_void,
    size: usize,
    entry: *const c_char,
    kernel: Option<&mut MaybeUninit<Box<CampanileKernel>>>,
) -> CampanileResult {
    guarded("campanile_kernel_create_spirv", || {
        let (device, place) = (given(device, "device")?, given(kernel, "kernel")?);
        // SAFETY: NULL or the caller's bytes, by this function's contract.
        let words = unsafe { items(words.cast(), size, "words") }?;
        // SAFETY: NULL or a string, by this function's contract.
        let entry = unsafe { string(entry) }.map(|entry| utf8(entry, "entry")).transpose()?;
        place.write(create(device, KernelSource::spirv(words), entry)?);
        Ok(())
    })
}

/// Frees a kernel; NULL is nothing. Wait for the work that uses it first.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_kernel_destroy(kernel: Option<Box<CampanileKernel>>) {
    release("campanile_kernel_destroy", kernel);
}

/// What is known of a kernel. Does not block.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_kernel_get_info(
    kernel: Option<&CampanileKernel>,
    info: Option<&mut MaybeUninit<CampanileKernelInfo>>,
) -> CampanileResult {
    guarded("campanile_kernel_get_info", || {
        let kernel = &given(kernel, "kernel")?.0;
        given(info, "info")?.write(CampanileKernelInfo {
            handle: kernel.handle().0,
            workgroup: kernel.workgroup(),
            constant_bytes: kernel.constant_bytes(),
        });
        Ok(())
    })
}
