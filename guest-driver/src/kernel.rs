//! Kernels: what runs on the compute node.

use std::sync::Arc;

use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateKernel;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::reply::KernelCreated;
use campanile_protocol::handle::Handle;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::device::Device;
use crate::device::Shared;
use crate::error::DriverError;

/// A kernel's source.
#[derive(Debug, Clone, Copy)]
pub struct KernelSource<'a> {
    language: u32,
    bytes: &'a [u8],
    entry: Option<&'a str>,
}

impl<'a> KernelSource<'a> {
    /// WGSL, the promised language.
    pub const fn wgsl(text: &'a str) -> Self {
        Self { language: message::LANGUAGE_WGSL, bytes: text.as_bytes(), entry: None }
    }

    /// SPIR-V words, as far as naga reads them.
    pub const fn spirv(bytes: &'a [u8]) -> Self {
        Self { language: message::LANGUAGE_SPIRV, bytes, entry: None }
    }

    /// Chooses an entry point where there are several.
    #[must_use]
    pub const fn entry(self, name: &'a str) -> Self {
        Self { entry: Some(name), ..self }
    }
}

/// A compiled kernel, warm.
#[derive(Debug)]
pub struct Kernel {
    shared: Arc<Shared>,
    created: KernelCreated,
}

impl Device {
    /// Compiles a kernel; done when it is ready to run.
    pub fn create_kernel(&self, source: &KernelSource<'_>) -> Result<Kernel, DriverError> {
        Kernel::create(&self.shared, source)
    }
}

impl Kernel {
    fn create(shared: &Arc<Shared>, source: &KernelSource<'_>) -> Result<Self, DriverError> {
        let entry = source.entry.unwrap_or("").as_bytes();
        let length =
            |bytes: &[u8]| u32::try_from(bytes.len()).map_err(|_| DriverError::Commands("source too long"));
        let head = CreateKernel {
            language: source.language,
            entry_bytes: length(entry)?,
            source_bytes: length(source.bytes)?,
            reserved: 0,
        };
        let parts = [head.as_bytes(), entry, source.bytes];
        let payload = shared.control.call("CREATE_KERNEL", message::CREATE_KERNEL, &parts)?;
        let created =
            KernelCreated::read_from_bytes(&payload).map_err(|_| DriverError::BadAnswer("CREATE_KERNEL"))?;
        Ok(Self { shared: Arc::clone(shared), created })
    }

    /// Its name in packets.
    pub fn handle(&self) -> Handle {
        self.created.kernel
    }

    /// Threads of a group in x, y, z.
    pub fn workgroup(&self) -> [u32; 3] {
        self.created.workgroup
    }

    /// Constant bytes that a dispatch must carry.
    pub fn constant_bytes(&self) -> u32 {
        self.created.constant_bytes
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if !self.shared.control.transport().is_connected() {
            return;
        }
        let named = Named { handle: self.created.kernel };
        if let Err(error) =
            self.shared.control.call("DESTROY_KERNEL", message::DESTROY_KERNEL, &[named.as_bytes()])
        {
            log::debug!("destroying a kernel: {error}");
        }
    }
}
