//! Kernels made ready to run.

use std::fs::File;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;

use rustix::fs::MemfdFlags;
use rustix::fs::memfd_create;

use crate::kernel::program::Binding;
use crate::kernel::program::GRID_BINDING;
use crate::kernel::program::Kernel;
use crate::memory::mapping::Access;
use crate::memory::mapping::Mapping;
use crate::vulkan::error::VulkanError;
use crate::vulkan::import::HostRange;
use crate::vulkan::import::Import;
use crate::vulkan::info::ImportMethod;
use crate::vulkan::info::Limits;
use crate::vulkan::raw::commands::Groups;
use crate::vulkan::raw::commands::Place;
use crate::vulkan::raw::commands::Slot;
use crate::vulkan::raw::commands::Work;
use crate::vulkan::raw::device::Gpu;
use crate::vulkan::raw::device::Timeline;
use crate::vulkan::raw::program::Layout;
use crate::vulkan::raw::program::Program;

/// A kernel that the driver has compiled. Work in flight keeps it, so it may be dropped at any time.
pub struct Pipeline {
    gpu: Arc<Gpu>,
    program: Arc<Program>,
    bindings: Vec<Binding>,
    constants: u32,
    uses_num_workgroups: bool,
}

impl Pipeline {
    /// The buffers that a dispatch must bind.
    pub fn bindings(&self) -> &[Binding] {
        &self.bindings
    }

    /// The bytes of constants that a dispatch must bring.
    pub fn constants(&self) -> u32 {
        self.constants
    }

    /// Whether it must be told the grid that its slices are of.
    pub fn uses_num_workgroups(&self) -> bool {
        self.uses_num_workgroups
    }

    pub(super) fn is_of(&self, gpu: &Arc<Gpu>) -> bool {
        Arc::ptr_eq(&self.gpu, gpu)
    }

    pub(super) fn program(&self) -> &Arc<Program> {
        &self.program
    }
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pipeline")
            .field("bindings", &self.bindings)
            .field("constants", &self.constants)
            .finish_non_exhaustive()
    }
}

/// Makes pipelines, on any thread, beside the driver that dispatches. One warm-up at a time.
#[derive(Clone)]
pub struct Compiler {
    shared: Arc<Shared>,
}

struct Shared {
    gpu: Arc<Gpu>,
    layout: Arc<Layout>,
    /// What a warm-up binds where the kernel wants a buffer; no invocation ever touches it.
    scratch: Import,
    warm_up: Mutex<WarmUp>,
}

struct WarmUp {
    slot: Slot,
    timeline: Arc<Timeline>,
    submitted: u64,
}

impl Compiler {
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        layout: &Arc<Layout>,
        method: ImportMethod,
    ) -> Result<Self, VulkanError> {
        let timeline = Arc::new(Timeline::new(gpu)?);
        let slot = Slot::new(layout, &timeline)?;
        let length = gpu.limits.import_alignment.max(4096);
        let scratch = Import::new(gpu, method, &HostRange::whole(&anonymous(length)?, Access::ReadWrite))?;
        let warm_up = Mutex::new(WarmUp { slot, timeline, submitted: 0 });
        let (gpu, layout) = (Arc::clone(gpu), Arc::clone(layout));
        Ok(Self { shared: Arc::new(Shared { gpu, layout, scratch, warm_up }) })
    }

    /// Makes a pipeline and has the driver compile it. Waits for what is already queued on the device.
    pub fn pipeline(&self, kernel: &Kernel) -> Result<Pipeline, VulkanError> {
        let Shared { gpu, layout, scratch, warm_up } = &*self.shared;
        check_size(&gpu.limits, kernel)?;
        let program = Program::new(layout, kernel)?;
        let at = |binding: u32| {
            let (buffer, offset) = scratch.window(0, scratch.len())?;
            Some(Place { binding, buffer: Arc::clone(buffer), offset, length: scratch.len() })
        };
        let grid = kernel.uses_num_workgroups.then_some(GRID_BINDING);
        let bindings = kernel.bindings.iter().map(|binding| binding.binding).chain(grid);
        let places: Vec<Place> = bindings.filter_map(at).collect();
        let constants = vec![0; usize::try_from(kernel.constants).unwrap_or_default()];
        let parts = &[Groups { base: [0; 3], groups: [0; 3] }];
        let work =
            Work { program: &program, places: &places, constants: &constants, parts, conditions: None };
        // A panic under the lock cannot leave the slot half used: `Slot::run` settles first.
        warm_up.lock().unwrap_or_else(PoisonError::into_inner).run(&work)?;
        Ok(Pipeline {
            gpu: Arc::clone(gpu),
            program,
            bindings: kernel.bindings.clone(),
            constants: kernel.constants,
            uses_num_workgroups: kernel.uses_num_workgroups,
        })
    }
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiler").finish_non_exhaustive()
    }
}

impl WarmUp {
    /// A dispatch of no groups makes every known driver compile and has no other effect.
    fn run(&mut self, work: &Work<'_>) -> Result<(), VulkanError> {
        let value = self.submitted + 1;
        self.slot.run(work, value)?;
        self.submitted = value;
        self.timeline.wait(value, None)?;
        self.slot.retire(value);
        Ok(())
    }
}

fn check_size(limits: &Limits, kernel: &Kernel) -> Result<(), VulkanError> {
    let invocations = kernel.workgroup.iter().copied().fold(1, u32::saturating_mul);
    let sides = kernel.workgroup.into_iter().zip(limits.workgroup);
    let asked =
        sides.map(|(wanted, limit)| ("invocations along one side of a workgroup", wanted, limit)).chain([
            ("invocations in a workgroup", invocations, limits.invocations),
            ("bytes of workgroup memory", kernel.workgroup_memory, limits.workgroup_memory),
        ]);
    for (what, wanted, limit) in asked {
        if wanted > limit {
            let (wanted, limit) = (u64::from(wanted), u64::from(limit));
            return Err(VulkanError::KernelTooBig { what, wanted, limit });
        }
    }
    Ok(())
}

/// Zeroed memory of our own that can be imported.
pub(super) fn anonymous(length: u64) -> Result<Arc<Mapping>, VulkanError> {
    let failed = |e: &dyn std::error::Error| VulkanError::Import { length, offset: 0, reason: e.to_string() };
    let file = File::from(memfd_create("campanile-scratch", MemfdFlags::CLOEXEC).map_err(|e| failed(&e))?);
    file.set_len(length).map_err(|e| failed(&e))?;
    Ok(Arc::new(Mapping::new(file, 0, length, Access::ReadWrite).map_err(|e| failed(&e))?))
}
