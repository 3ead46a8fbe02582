//! What the operator asks for of engines.

use std::path::PathBuf;
use std::time::Duration;

use campanile_host_gpu::adapter::program::Program;
use campanile_host_gpu::engine::message::SLICE_MICROSECONDS;
use campanile_protocol::named_profile::GpuProfile;

use super::local_choice::LocalChoice;
use crate::vgpu::doorbells::modes::DoorbellModes;
use crate::vgpu::vulkan_devices::VulkanDevices;

/// MiB of compiled code where the operator says nothing: some thousand kernels of 10 KB, or some hundred of the largest.
pub const CODE_MIB: u32 = 32;

/// Engines as the operator asks for them.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Physical adapters of each vGPU, linked; each has every node.
    pub count: u8,
    /// Physical doorbells of each engine of each vGPU.
    pub doorbells: u32,
    /// How each node's doorbells work.
    pub doorbell_modes: DoorbellModes,
    /// How long an engine spins without work.
    pub spin: Duration,
    /// How long a slice of a dispatch is to take, which is how long a kernel may hold up what is more urgent; zero where
    /// dispatches run in one piece.
    pub slice: Duration,
    /// How long all engines of a vGPU sleep before it goes to D3; never for none.
    pub d3_after: Option<Duration>,
    /// Whether the next process of each engine is started ahead.
    pub spares: bool,
    /// MiB of what each compute engine's processes keep of compiled code for the next; 0 for nothing.
    pub code_mib: u32,
    /// Whether engines drop their privileges.
    pub sandbox: bool,
    /// Where local memory lies.
    pub local: LocalChoice,
    /// The Vulkan devices of the adapters.
    pub vulkan_devices: VulkanDevices,
    /// What of those devices guests see, and may use, where their vGPU says nothing else.
    pub profile: GpuProfile,
    /// What engines are started from.
    pub program: Program,
    /// The file in which what was found of the machine is kept for the next process, where the descriptor store does not keep it.
    pub findings: Option<PathBuf>,
}

impl EngineOptions {
    /// Engines out of `program`, and everything else as it is where the operator says nothing, but that no vGPU goes to D3.
    pub fn new(program: Program) -> Self {
        Self {
            count: 1,
            doorbells: 64,
            doorbell_modes: DoorbellModes::default(),
            spin: Duration::from_millis(2),
            slice: Duration::from_micros(SLICE_MICROSECONDS),
            d3_after: None,
            spares: true,
            code_mib: CODE_MIB,
            sandbox: true,
            local: LocalChoice::Host,
            vulkan_devices: VulkanDevices::default(),
            profile: GpuProfile::Host,
            program,
            findings: None,
        }
    }
}
