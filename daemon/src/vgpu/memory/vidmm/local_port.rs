//! How the daemon itself has local memory of a device's own copied, whether or not the engines of the vGPU run.

use std::fs::File;
use std::io;
use std::sync::Arc;

use campanile_host_gpu::adapter::copy_process::CopyFiles;
use campanile_host_gpu::adapter::copy_process::CopyOptions;
use campanile_host_gpu::adapter::copy_process::CopyProcess;
use campanile_host_gpu::adapter::launcher::Launcher;

use super::device_local::DeviceLocal;

/// Starts processes that copy it.
#[derive(Debug, Clone)]
pub struct LocalPort {
    /// The memory.
    pub device: Arc<DeviceLocal>,
    /// What starts them.
    pub launcher: Arc<dyn Launcher>,
    /// How.
    pub options: CopyOptions,
}

impl LocalPort {
    /// A process that copies between it and these files. The calling thread waits until it could copy: a driver is opened.
    ///
    /// # Errors
    /// It does not come up.
    pub fn open(&self, visible: &File, evicted: &File) -> io::Result<CopyProcess> {
        let files = CopyFiles { visible, local: self.device.descriptor(), evicted };
        CopyProcess::start(&*self.launcher, &self.options, files)
    }

    /// Bytes of it.
    pub fn bytes(&self) -> u64 {
        self.options.local.bytes
    }

    /// Where it begins in the video memory.
    pub fn start(&self) -> u64 {
        self.options.local.start
    }
}
