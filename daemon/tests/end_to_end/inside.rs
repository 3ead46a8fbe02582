//! The daemon's library in this process: for what only its operator sees and does. Engines are processes as ever.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use campanile_daemon::host::engines::EngineOptions;
use campanile_daemon::host::options::HostOptions;
use campanile_daemon::host::options::VgpuOptions;
use campanile_daemon::host::start::Host;
use campanile_daemon::vgpu::doorbells::modes::DoorbellModes;
use campanile_host_gpu::adapter::program::Program;
use campanile_test_vmm::options::VmOptions;
use campanile_test_vmm::vm::LoopbackVm;
use tempfile::TempDir;

/// A host with one vGPU of 64 MiB and no Vulkan, whose engines stay awake.
pub(crate) struct Inside {
    pub(crate) host: Host,
    folder: TempDir,
}

impl Inside {
    pub(crate) fn start(doorbells: u32, doorbell_modes: DoorbellModes) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("a.sock");
        let nothing = |name: &str| (name.to_owned(), "/nonexistent".to_owned());
        let program = Program::new(
            PathBuf::from(env!("CARGO_BIN_EXE_campanile")),
            vec![nothing("VK_DRIVER_FILES"), nothing("VK_ICD_FILENAMES")],
        );
        let vgpus = vec![VgpuOptions::new("a".to_owned(), socket, 64 << 20)];
        let host = Host::start(HostOptions {
            engines: EngineOptions {
                doorbells,
                doorbell_modes,
                spin: Duration::from_secs(600),
                spares: false,
                ..EngineOptions::new(program.clone())
            },
            ..HostOptions::new(vgpus, program)
        })
        .unwrap();
        Self { host, folder }
    }

    pub(crate) fn vm(&self) -> Arc<LoopbackVm> {
        LoopbackVm::connect(self.folder.path().join("a.sock"), &VmOptions::default()).unwrap()
    }

    pub(crate) fn count(
        &self,
        counter: impl Fn(&campanile_daemon::vgpu::counters::Counters) -> &AtomicU64,
    ) -> u64 {
        counter(&self.host.vgpus[0].counters).load(Ordering::Relaxed)
    }
}
