//! Which GPU a command works on.
//!
//! Without `--socket` and `--transport` it is the first that is there: a render node, then a file on virtiofs.

#[cfg(feature = "test-vmm")]
use std::path::PathBuf;
#[cfg(feature = "test-vmm")]
use std::sync::Arc;

#[cfg(feature = "test-vmm")]
use anyhow::Context;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::drm::context::DrmContext;
use campanile_guest_driver::transport::drm::node::RenderNode;
use campanile_guest_driver::transport::fs::channel::FsChannel;
use campanile_guest_driver::transport::fs::context::FsContext;
use campanile_protocol::PROTOCOL_VERSION;
#[cfg(feature = "test-vmm")]
use campanile_test_vmm::fuse::context::FuseContext;
#[cfg(feature = "test-vmm")]
use campanile_test_vmm::options::VmOptions;
#[cfg(feature = "test-vmm")]
use campanile_test_vmm::pause::virtual_cpu::VirtualCpu;
#[cfg(feature = "test-vmm")]
use campanile_test_vmm::vm::LoopbackVm;
use clap::Args;
use clap::ValueEnum;

/// The name that the daemon may log for a loopback guest's processes.
#[cfg(feature = "test-vmm")]
const NAME: &str = "campanile-guest";

/// How a program in a VM reaches the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// The render node of a virtio-gpu device.
    Drm,
    /// The file `gpu` on a virtiofs mount.
    Fs,
}

/// This VM's device, or a daemon's socket.
#[derive(Debug, Clone, Args)]
pub struct Target {
    /// Play the VM for this socket of `campanile serve`, instead of opening this machine's device.
    #[cfg(feature = "test-vmm")]
    #[arg(long, value_name = "PATH", global = true, conflicts_with = "transport")]
    pub socket: Option<PathBuf>,
    /// How to reach this machine's device; without it, whichever is there.
    #[arg(long, value_enum, global = true)]
    pub transport: Option<Way>,
    /// Claim to speak this protocol (major version).
    #[arg(long, value_name = "MAJOR", global = true, hide = true)]
    pub claim_protocol: Option<u16>,
}

/// A way to the GPU that further processes' contexts can be opened on.
#[derive(Debug, Clone)]
pub enum Machine {
    /// The VM that this program runs in, by its render node.
    Drm,
    /// The VM that this program runs in, by its file on virtiofs.
    Fs,
    /// A VM that this program plays.
    #[cfg(feature = "test-vmm")]
    Loopback(Arc<LoopbackVm>),
    /// A VM that this program plays, by its virtiofs device.
    #[cfg(feature = "test-vmm")]
    LoopbackFs(Arc<LoopbackVm>),
}

/// Does something generic with a transport of whichever kind.
pub trait WithTransport {
    /// What comes of it.
    type Output;
    /// Does it.
    fn with(self, transport: impl Transport) -> Self::Output;
}

impl Machine {
    /// Opens one context, as one more process would, and hands it on.
    pub fn with<W: WithTransport>(&self, then: W) -> anyhow::Result<W::Output> {
        Ok(match self {
            Self::Drm => then.with(DrmContext::open()?),
            Self::Fs => then.with(FsContext::open()?),
            #[cfg(feature = "test-vmm")]
            Self::Loopback(vm) => then.with(vm.open(NAME)?),
            #[cfg(feature = "test-vmm")]
            Self::LoopbackFs(vm) => then.with(FuseContext::open(vm)?),
        })
    }

    /// Opens a device, as one more process would.
    pub fn open(&self) -> anyhow::Result<Device> {
        self.open_as(PROTOCOL_VERSION)
    }

    fn open_as(&self, version: u32) -> anyhow::Result<Device> {
        Ok(match self {
            Self::Drm => Device::open_as(DrmContext::open()?, version)?,
            Self::Fs => Device::open_as(FsContext::open()?, version)?,
            #[cfg(feature = "test-vmm")]
            Self::Loopback(vm) => Device::open_as(vm.open(NAME)?, version)?,
            #[cfg(feature = "test-vmm")]
            Self::LoopbackFs(vm) => Device::open_as(FuseContext::open(vm)?, version)?,
        })
    }

    /// Makes the calling thread a virtual CPU where this program plays the VM.
    #[cfg(feature = "test-vmm")]
    pub fn virtual_cpu(&self) -> anyhow::Result<Option<VirtualCpu>> {
        Ok(match self {
            Self::Drm | Self::Fs => None,
            Self::Loopback(vm) | Self::LoopbackFs(vm) => Some(vm.virtual_cpu()?),
        })
    }

    /// Makes the calling thread a virtual CPU where this program plays the VM: never without the feature `test-vmm`.
    #[cfg(not(feature = "test-vmm"))]
    pub fn virtual_cpu(&self) -> anyhow::Result<()> {
        Ok(())
    }

    /// How the GPU is reached, for people.
    pub fn describe(&self) -> anyhow::Result<String> {
        Ok(match self {
            Self::Drm => DrmContext::open()?.path().unwrap_or_default().display().to_string(),
            Self::Fs => FsContext::open()?.describe(),
            #[cfg(feature = "test-vmm")]
            Self::Loopback(_) | Self::LoopbackFs(_) => "loopback".to_owned(),
        })
    }
}

impl Target {
    /// The machine; a loopback VM boots here.
    pub fn machine(&self) -> anyhow::Result<Machine> {
        #[cfg(feature = "test-vmm")]
        if let Some(socket) = &self.socket {
            let vm = LoopbackVm::connect(socket, &VmOptions::default());
            return Ok(Machine::Loopback(vm.context("attaching a loopback guest")?));
        }
        self.here()
    }

    /// The machine that this program runs in.
    fn here(&self) -> anyhow::Result<Machine> {
        match self.transport {
            Some(Way::Drm) => return Ok(Machine::Drm),
            Some(Way::Fs) => return Ok(Machine::Fs),
            None => {}
        }
        let Err(no_node) = RenderNode::find() else { return Ok(Machine::Drm) };
        if FsChannel::is_there() {
            return Ok(Machine::Fs);
        }
        anyhow::bail!("{no_node}; and {}", FsChannel::nowhere())
    }

    /// One device.
    pub fn open(&self) -> anyhow::Result<Device> {
        let version = self.claim_protocol.map_or(PROTOCOL_VERSION, |major| u32::from(major) << 16);
        self.machine()?.open_as(version)
    }
}
