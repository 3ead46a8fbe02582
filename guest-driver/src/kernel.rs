//! Kernels: what runs on the compute node.

use std::borrow::Cow;
use std::sync::Arc;

use campanile_protocol::control::frame::FrameHeader;
use campanile_protocol::control::frame::MAX_CONTROL_BYTES;
use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateKernel;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::pipeline::Constant;
use campanile_protocol::control::pipeline::Head;
use campanile_protocol::control::reply::KernelCreated;
use campanile_protocol::handle::Handle;
use campanile_protocol::profile::Profile;
use miniz_oxide::deflate::compress_to_vec;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::device::Device;
use crate::device::Shared;
use crate::error::DriverError;

/// How hard modules are deflated, of 10.
const LEVEL: u8 = 6;

/// A kernel's source.
#[derive(Debug, Clone, Copy)]
pub struct KernelSource<'a> {
    language: u32,
    bytes: &'a [u8],
    entry: Option<&'a str>,
    constants: &'a [Constant],
    subgroup_size: u32,
}

impl<'a> KernelSource<'a> {
    /// WGSL, the promised language.
    pub const fn wgsl(text: &'a str) -> Self {
        Self::plain(message::LANGUAGE_WGSL, text.as_bytes())
    }

    /// SPIR-V words: a shader module with compute entry points.
    pub const fn spirv(bytes: &'a [u8]) -> Self {
        Self::plain(message::LANGUAGE_SPIRV, bytes)
    }

    /// SPIR-V words of which the specialisation constants take these values, ascending by id, each id once, and whose
    /// subgroups have `subgroup_size` invocations; 0 for the device's choice. Daemons before version 1.1 refuse it.
    pub const fn pipeline(bytes: &'a [u8], constants: &'a [Constant], subgroup_size: u32) -> Self {
        Self { constants, subgroup_size, ..Self::plain(message::LANGUAGE_SPIRV_PIPELINE, bytes) }
    }

    const fn plain(language: u32, bytes: &'a [u8]) -> Self {
        Self { language, bytes, entry: None, constants: &[], subgroup_size: 0 }
    }

    /// Its language and bytes in a message that has so many others: a module that it cannot hold is deflated.
    fn fit(&self, others: usize) -> (u32, Cow<'a, [u8]>) {
        let is_long = (others + self.bytes.len()).next_multiple_of(8) > MAX_CONTROL_BYTES as usize;
        if is_long && self.language == message::LANGUAGE_SPIRV_PIPELINE {
            let deflated = compress_to_vec(self.bytes, LEVEL);
            return (message::LANGUAGE_SPIRV_PIPELINE_DEFLATED, deflated.into());
        }
        (self.language, self.bytes.into())
    }

    /// Chooses an entry point where there are several.
    #[must_use]
    pub const fn entry(self, name: &'a str) -> Self {
        Self { entry: Some(name), ..self }
    }
}

fn length<T>(items: &[T]) -> Result<u32, DriverError> {
    u32::try_from(items.len()).map_err(|_| DriverError::Commands("source too long"))
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

    /// What kernels may use of the device behind the compute node, and how much.
    ///
    /// # Errors
    /// NOT_SUPPORTED where no node runs kernels; a daemon before version 1.1 does not know the message.
    pub fn profile(&self) -> Result<Box<Profile>, DriverError> {
        let payload = self.shared.control.call("QUERY_PROFILE", message::QUERY_PROFILE, &[])?;
        Profile::read_from_bytes(&payload).map(Box::new).map_err(|_| DriverError::BadAnswer("QUERY_PROFILE"))
    }
}

impl Kernel {
    fn create(shared: &Arc<Shared>, source: &KernelSource<'_>) -> Result<Self, DriverError> {
        let entry = source.entry.unwrap_or("").as_bytes();
        let pipeline = Head {
            subgroup_size: source.subgroup_size,
            constant_count: length(source.constants)?,
            reserved: [0; 2],
        };
        let fixed = match source.language {
            message::LANGUAGE_SPIRV_PIPELINE => [pipeline.as_bytes(), source.constants.as_bytes()].concat(),
            _ => Vec::new(),
        };
        let others = size_of::<FrameHeader>() + size_of::<CreateKernel>() + entry.len() + fixed.len();
        let (language, bytes) = source.fit(others);
        let head = CreateKernel {
            language,
            entry_bytes: length(entry)?,
            source_bytes: length(&bytes)?.saturating_add(length(&fixed)?),
            reserved: 0,
        };
        let parts = [head.as_bytes(), entry, &fixed, &bytes];
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

    /// Buffers that a dispatch must bind, elements of arrays counted.
    pub fn binding_count(&self) -> u32 {
        self.created.binding_count
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

#[cfg(test)]
mod tests {
    use campanile_protocol::control::message::LANGUAGE_SPIRV;
    use campanile_protocol::control::message::LANGUAGE_SPIRV_PIPELINE;
    use campanile_protocol::control::message::LANGUAGE_SPIRV_PIPELINE_DEFLATED;

    use super::KernelSource;
    use super::MAX_CONTROL_BYTES;

    #[test]
    fn a_module_is_deflated_where_a_message_does_not_hold_it_beside_the_rest() {
        let bytes = vec![7; MAX_CONTROL_BYTES as usize];
        let fits = |length: usize| KernelSource::pipeline(&bytes[..length], &[], 0).fit(96);
        let most = MAX_CONTROL_BYTES as usize - 96;
        assert_eq!(fits(most), (LANGUAGE_SPIRV_PIPELINE, (&bytes[..most]).into()));
        let (language, packed) = fits(most + 1);
        assert_eq!(language, LANGUAGE_SPIRV_PIPELINE_DEFLATED);
        assert_eq!(miniz_oxide::inflate::decompress_to_vec(&packed).unwrap(), bytes[..=most]);
        // What daemons before version 1.1 know is for the caller to cut.
        assert_eq!(KernelSource::spirv(&bytes).fit(96).0, LANGUAGE_SPIRV);
    }
}
