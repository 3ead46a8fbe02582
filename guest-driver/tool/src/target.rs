//! Which GPU a command works on.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::transport::Transport;
use campanile_guest_driver::transport::drm::context::DrmContext;
use campanile_guest_driver::transport::loopback::options::VmOptions;
use campanile_guest_driver::transport::loopback::vm::LoopbackVm;
use campanile_protocol::PROTOCOL_VERSION;
use clap::Args;

/// The name that the daemon may log for a loopback guest's processes.
const NAME: &str = "campanile-guest";

/// This VM's render node, or a daemon's socket.
#[derive(Debug, Clone, Args)]
pub struct Target {
    /// Play the VM for this socket of `campanile serve`, instead of opening this machine's render node.
    #[arg(long, value_name = "PATH", global = true)]
    pub socket: Option<PathBuf>,
    /// Claim to speak this protocol (major version).
    #[arg(long, value_name = "MAJOR", global = true, hide = true)]
    pub claim_protocol: Option<u16>,
}

/// A way to the GPU that further processes' contexts can be opened on.
#[derive(Debug, Clone)]
pub enum Machine {
    /// The VM that this program runs in.
    Guest,
    /// A VM that this program plays.
    Loopback(Arc<LoopbackVm>),
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
            Self::Guest => then.with(DrmContext::open()?),
            Self::Loopback(vm) => then.with(vm.open(NAME)?),
        })
    }

    /// Opens a device, as one more process would.
    pub fn open(&self) -> anyhow::Result<Device> {
        self.open_as(PROTOCOL_VERSION)
    }

    fn open_as(&self, version: u32) -> anyhow::Result<Device> {
        Ok(match self {
            Self::Guest => Device::open_as(DrmContext::open()?, version)?,
            Self::Loopback(vm) => Device::open_as(vm.open(NAME)?, version)?,
        })
    }

    /// How the GPU is reached, for people.
    pub fn describe(&self) -> anyhow::Result<String> {
        Ok(match self {
            Self::Guest => DrmContext::open()?.path().display().to_string(),
            Self::Loopback(_) => "loopback".to_owned(),
        })
    }
}

impl Target {
    /// The machine; a loopback VM boots here.
    pub fn machine(&self) -> anyhow::Result<Machine> {
        match &self.socket {
            None => Ok(Machine::Guest),
            Some(socket) => {
                let vm = LoopbackVm::connect(socket, &VmOptions::default());
                Ok(Machine::Loopback(vm.context("attaching a loopback guest")?))
            }
        }
    }

    /// One device.
    pub fn open(&self) -> anyhow::Result<Device> {
        let version = self.claim_protocol.map_or(PROTOCOL_VERSION, |major| u32::from(major) << 16);
        self.machine()?.open_as(version)
    }
}
