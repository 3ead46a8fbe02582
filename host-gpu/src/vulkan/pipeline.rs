//! Kernels made ready to run.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::Weak;

use rustix::fs::MemfdFlags;
use rustix::fs::memfd_create;

use crate::kernel::program::Binding;
use crate::kernel::program::BindingPoint;
use crate::kernel::program::BufferKind;
use crate::kernel::program::GRID_BINDING;
use crate::kernel::program::Kernel;
use crate::kernel::program::Texels;
use crate::memory::mapping::Access;
use crate::memory::mapping::Mapping;
use crate::vulkan::error::VulkanError;
use crate::vulkan::import::HostRange;
use crate::vulkan::import::Import;
use crate::vulkan::info::Limits;
use crate::vulkan::raw::commands::Groups;
use crate::vulkan::raw::commands::Place;
use crate::vulkan::raw::commands::Slot;
use crate::vulkan::raw::commands::Work;
use crate::vulkan::raw::device::Gpu;
use crate::vulkan::raw::device::Timeline;
use crate::vulkan::raw::program::Interface;
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
    /// Of the interfaces that some kernel has.
    layouts: Mutex<HashMap<Interface, Weak<Layout>>>,
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
    pub(super) fn new(gpu: &Arc<Gpu>) -> Result<Self, VulkanError> {
        let timeline = Arc::new(Timeline::new(gpu)?);
        let slot = Slot::new(gpu, &timeline)?;
        let length = gpu.limits.import_alignment.max(4096);
        let scratch = Import::new(gpu, &HostRange::whole(&anonymous(length)?, Access::ReadWrite))?;
        let warm_up = Mutex::new(WarmUp { slot, timeline, submitted: 0 });
        let (gpu, layouts) = (Arc::clone(gpu), Mutex::default());
        Ok(Self { shared: Arc::new(Shared { gpu, layouts, scratch, warm_up }) })
    }

    /// Makes a pipeline and has the driver compile it. Waits for what is already queued on the device.
    pub fn pipeline(&self, kernel: &Kernel) -> Result<Pipeline, VulkanError> {
        let Shared { gpu, scratch, warm_up, .. } = &*self.shared;
        check_size(&gpu.limits, kernel)?;
        let program = Program::new(&self.layout(kernel)?, kernel)?;
        let missing = || VulkanError::Import {
            length: scratch.len(),
            offset: 0,
            reason: "there is nothing to warm up with".to_owned(),
        };
        let at = |(point, kind, texels): (BindingPoint, BufferKind, Option<Texels>)| {
            let length = scratch.len();
            let (buffer, offset) = scratch.window(0, length).ok_or_else(missing)?;
            let format = texels.and_then(Texels::example);
            let view =
                format.map(|format| scratch.views().view(buffer, offset, length, format)).transpose()?;
            Ok(Place { point, kind, buffer: Arc::clone(buffer), offset, length, view })
        };
        let grid = (BindingPoint::plain(GRID_BINDING), BufferKind::Storage, None);
        let grid = kernel.uses_num_workgroups.then_some(grid);
        let own = kernel.points().map(|(point, of)| (point, of.kind, of.texels));
        let places: Vec<Place> = own.chain(grid).map(at).collect::<Result<_, VulkanError>>()?;
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

    /// That of the kernel's interface.
    fn layout(&self, kernel: &Kernel) -> Result<Arc<Layout>, VulkanError> {
        let interface = Interface::of(kernel);
        // A panic under the lock cannot leave the map half changed.
        let mut layouts = self.shared.layouts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(layout) = layouts.get(&interface).and_then(Weak::upgrade) {
            return Ok(layout);
        }
        let layout = Layout::new(&self.shared.gpu, &interface)?;
        layouts.retain(|_, layout| layout.strong_count() > 0);
        layouts.insert(interface, Arc::downgrade(&layout));
        Ok(layout)
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
        self.slot.run(std::slice::from_ref(work), value, None)?;
        self.submitted = value;
        self.timeline.wait(value, None)?;
        self.slot.retire(value);
        Ok(())
    }
}

/// What no device of these limits takes is refused here, before the driver sees it.
fn check_size(limits: &Limits, kernel: &Kernel) -> Result<(), VulkanError> {
    let invocations = kernel.workgroup.iter().copied().fold(1, u32::saturating_mul);
    let sides = kernel.workgroup.into_iter().zip(limits.workgroup);
    // One more holds the grid; guests are told of one less, whether or not a kernel asks for it.
    let storage = kernel.buffers(BufferKind::Storage) + 1;
    let sets = kernel.bindings.last().map_or(0, |last| last.set + 1);
    let asked =
        sides.map(|(wanted, limit)| ("invocations along one side of a workgroup", wanted, limit)).chain([
            ("invocations in a workgroup", invocations, limits.invocations),
            ("bytes of workgroup memory", kernel.workgroup_memory, limits.workgroup_memory),
            ("descriptor sets", sets, limits.sets),
            ("storage buffers", storage, limits.storage_buffers),
            ("uniform buffers", kernel.buffers(BufferKind::Uniform), limits.uniform_buffers),
            ("uniform texel buffers", kernel.buffers(BufferKind::UniformTexels), limits.uniform_texels),
            ("storage texel buffers", kernel.buffers(BufferKind::StorageTexels), limits.storage_texels),
            ("bytes of constants", kernel.constants, limits.constants),
        ]);
    for (what, wanted, limit) in asked {
        if wanted > limit {
            let (wanted, limit) = (u64::from(wanted), u64::from(limit));
            return Err(VulkanError::KernelTooBig { what, wanted, limit });
        }
    }
    let size = kernel.subgroup_size;
    let [least, most] = limits.subgroup_sizes;
    if size != 0 && !(size.is_power_of_two() && (least..=most).contains(&size)) {
        return Err(VulkanError::SubgroupSize { size, least, most });
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

#[cfg(test)]
mod tests {
    use campanile_protocol::texels::Number;

    use super::check_size;
    use crate::kernel::program::Binding;
    use crate::kernel::program::BufferAccess;
    use crate::kernel::program::BufferKind;
    use crate::kernel::program::Kernel;
    use crate::kernel::program::Texels;
    use crate::kernel::sanitizer::sanitize;
    use crate::kernel::source::Source;
    use crate::vulkan::error::VulkanError;
    use crate::vulkan::info::Limits;

    /// One storage buffer and the grid, one uniform buffer in set 2, 8 bytes of constants, 16 of workgroup memory.
    fn kernel() -> Kernel {
        let text = "struct C { a: u32, b: u32 } var<immediate> c: C;
            var<workgroup> cells: array<u32, 4>;
            @group(0) @binding(0) var<storage, read_write> out: array<u32>;
            @group(2) @binding(0) var<uniform> u: vec4<u32>;
            @compute @workgroup_size(4, 2, 1) fn main(@builtin(num_workgroups) n: vec3<u32>) {
                cells[0] = n.x; out[0] = cells[0] + u.x + c.b;
            }";
        sanitize(&Source::wgsl(text)).unwrap()
    }

    /// Just enough for it.
    fn limits() -> Limits {
        Limits {
            groups: [1; 3],
            binding_length: 4096,
            uniform_length: 4096,
            binding_alignment: 256,
            import_alignment: 4096,
            allocation_length: 1 << 30,
            workgroup: [4, 2, 1],
            invocations: 8,
            workgroup_memory: 16,
            sets: 3,
            storage_buffers: 2,
            uniform_buffers: 1,
            uniform_texels: 1,
            storage_texels: 1,
            texel_elements: 4,
            constants: 8,
            subgroup_size: 8,
            subgroup_sizes: [8, 32],
        }
    }

    #[test]
    fn a_kernel_that_needs_one_more_of_anything_is_refused() {
        let kernel = kernel();
        check_size(&limits(), &kernel).unwrap();
        type Change = fn(&mut Limits);
        let less: [(&str, Change); 9] = [
            ("one side", |it| it.workgroup[0] -= 1),
            ("one side", |it| it.workgroup[1] -= 1),
            ("invocations in a workgroup", |it| it.invocations -= 1),
            ("workgroup memory", |it| it.workgroup_memory -= 1),
            ("descriptor sets", |it| it.sets -= 1),
            ("storage buffers", |it| it.storage_buffers -= 1),
            ("uniform buffers", |it| it.uniform_buffers -= 1),
            ("bytes of constants", |it| it.constants -= 1),
            ("one side", |it| it.workgroup[2] -= 1),
        ];
        for (what, change) in less {
            let mut limits = limits();
            change(&mut limits);
            let refused = check_size(&limits, &kernel).unwrap_err();
            assert!(matches!(refused, VulkanError::KernelTooBig { .. }), "{what}: {refused}");
            assert!(refused.to_string().contains(what), "{what}: {refused}");
        }
    }

    #[test]
    fn texel_buffers_of_each_kind_have_a_limit_of_their_own() {
        let texels = Texels { number: Number::Float, format: None };
        let first = Binding {
            set: 0,
            binding: 0,
            count: 1,
            kind: BufferKind::UniformTexels,
            texels: Some(texels),
            access: BufferAccess::Read,
            min_size: 1,
        };
        let of = |uniform, storage| {
            let bindings = [(BufferKind::UniformTexels, uniform), (BufferKind::StorageTexels, storage)]
                .map(|(kind, count)| Binding { kind, count, ..first });
            check_size(&limits(), &Kernel { bindings: bindings.to_vec(), ..kernel() })
                .map_err(|e| e.to_string())
        };
        of(1, 1).unwrap();
        assert!(of(2, 1).unwrap_err().contains("uniform texel buffers"));
        assert!(of(1, 2).unwrap_err().contains("storage texel buffers"));
    }

    #[test]
    fn subgroups_are_asked_for_by_powers_of_two_that_the_device_has() {
        let asked = |size, limits: &Limits| check_size(limits, &Kernel { subgroup_size: size, ..kernel() });
        for size in [0, 8, 16, 32] {
            asked(size, &limits()).unwrap();
        }
        for size in [1, 4, 12, 24, 64, u32::MAX] {
            let refused = asked(size, &limits()).unwrap_err();
            assert!(
                matches!(refused, VulkanError::SubgroupSize { size: of, least: 8, most: 32 } if of == size)
            );
        }
        let none = Limits { subgroup_sizes: [0; 2], ..limits() };
        asked(0, &none).unwrap();
        assert!(asked(8, &none).is_err(), "a device that lets no kernel ask");
    }
}
