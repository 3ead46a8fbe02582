//! Source → naga module → SPIR-V, in order of increasing trust.

use std::borrow::Cow;

use naga::back::pipeline_constants::process_overrides;
use naga::back::spv;
use naga::compact::KeepUnused;
use naga::compact::compact;
use naga::front;
use naga::proc::BoundsCheckPolicies;
use naga::proc::BoundsCheckPolicy;
use naga::valid::Capabilities;
use naga::valid::ModuleInfo;
use naga::valid::ValidationFlags;
use naga::valid::Validator;

use crate::kernel::error::Diagnostic;
use crate::kernel::error::KernelError;
use crate::kernel::grid;
use crate::kernel::interface::Interface;
use crate::kernel::limits;
use crate::kernel::memory;
use crate::kernel::program::BufferChecks;
use crate::kernel::program::ENTRY;
use crate::kernel::program::Kernel;
use crate::kernel::source::Language;
use crate::kernel::source::Source;

/// The whole way. May panic and may use much stack: call it through the sanitizer.
pub(super) fn translate(source: &Source) -> Result<Kernel, KernelError> {
    let mut module = parse(source)?;
    drop_zero_initialisers(&mut module);
    limits::check_shape(&module)?;
    let text = text_of(source);
    validate(&module, text)?;
    keep_one_entry(&mut module, source.entry.as_deref())?;
    let info = validate(&module, text)?;

    let unsupported = |e: &dyn std::error::Error| KernelError::Unsupported(Diagnostic::new(&with_causes(e)));
    let (module, info) =
        process_overrides(&module, &info, None, &Default::default()).map_err(|e| unsupported(&e))?;

    limits::check_cost(&module, &info)?;
    let workgroup_memory = memory::check(&module, &info)?;
    let interface = Interface::of(&module)?;
    let (module, info) = if interface.uses_num_workgroups {
        let mut module = module.into_owned();
        grid::read_from_memory(&mut module)?;
        let info = validate(&module, None)?;
        (Cow::Owned(module), Cow::Owned(info))
    } else {
        (module, info)
    };
    let (spirv, buffer_checks) = write(&module, &info).map_err(|e| unsupported(&e))?;
    Ok(Kernel {
        spirv,
        entry: ENTRY.to_owned(),
        workgroup: interface.workgroup,
        bindings: interface.bindings,
        constants: interface.constants,
        workgroup_memory,
        uses_num_workgroups: interface.uses_num_workgroups,
        buffer_checks,
    })
}

fn parse(source: &Source) -> Result<naga::Module, KernelError> {
    let refused = |text: &str| KernelError::Parse(Diagnostic::new(text));
    match source.language {
        Language::Wgsl => {
            let text = str::from_utf8(&source.bytes).map_err(|e| refused(&format!("not UTF-8: {e}")))?;
            limits::check_text(text)?;
            front::wgsl::parse_str(text).map_err(|e| refused(&e.emit_to_string_with_path(text, "kernel")))
        }
        Language::SpirV => {
            let options = front::spv::Options { adjust_coordinate_space: false, ..Default::default() };
            front::spv::parse_u8_slice(&source.bytes, &options).map_err(|e| refused(&e.to_string()))
        }
    }
}

/// SPIR-V may say that workgroup memory starts zeroed. It does so anyway here, and naga has no word for it.
fn drop_zero_initialisers(module: &mut naga::Module) {
    let (values, constants) = (&module.global_expressions, &module.constants);
    let is_zero = |init| {
        let value = match values.try_get(init) {
            Ok(naga::Expression::Constant(constant)) => {
                constants.try_get(*constant).and_then(|constant| values.try_get(constant.init))
            }
            value => value,
        };
        matches!(value, Ok(naga::Expression::ZeroValue(_)))
    };
    for (_, variable) in module.global_variables.iter_mut() {
        if variable.space == naga::AddressSpace::WorkGroup && variable.init.is_some_and(is_zero) {
            variable.init = None;
        }
    }
}

fn text_of(source: &Source) -> Option<&str> {
    match source.language {
        Language::Wgsl => str::from_utf8(&source.bytes).ok(),
        Language::SpirV => None,
    }
}

/// 32-bit arithmetic, constants and buffers: what every device that the driver accepts has. Each further
/// capability needs a device feature that the driver would have to demand.
fn capabilities() -> Capabilities {
    Capabilities::IMMEDIATES
        | Capabilities::SHADER_FLOAT16_IN_FLOAT32
        | Capabilities::MEMORY_DECORATION_COHERENT
        | Capabilities::MEMORY_DECORATION_VOLATILE
}

fn validate(module: &naga::Module, text: Option<&str>) -> Result<ModuleInfo, KernelError> {
    Validator::new(ValidationFlags::all(), capabilities()).validate(module).map_err(|e| {
        let words = match text {
            Some(text) => e.emit_to_string_with_path(text, "kernel"),
            None => with_causes(e.as_inner()),
        };
        KernelError::Invalid(Diagnostic::new(&words))
    })
}

/// naga's errors say "is invalid" on top and the reason in their causes.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(e) = cause {
        words.push_str(": ");
        words.push_str(&e.to_string());
        cause = e.source();
    }
    words
}

/// Drops every entry point but the one asked for and all that only the others used, and names it [`ENTRY`].
fn keep_one_entry(module: &mut naga::Module, asked: Option<&str>) -> Result<(), KernelError> {
    let is_compute = |e: &naga::EntryPoint| e.stage == naga::ShaderStage::Compute;
    let names: Vec<&str> =
        module.entry_points.iter().filter(|e| is_compute(e)).map(|e| e.name.as_str()).collect();
    let kept = match (asked, names.as_slice()) {
        (_, []) => return Err(KernelError::NoEntry),
        (None, [only]) => (*only).to_owned(),
        (Some(asked), _) if names.contains(&asked) => asked.to_owned(),
        (asked, _) => {
            let asked = asked.map_or_else(|| "(none was asked for)".to_owned(), |name| format!("`{name}`"));
            return Err(KernelError::AmbiguousEntry {
                asked: Diagnostic::new(&asked),
                choices: Diagnostic::new(&names.join(", ")),
            });
        }
    };
    module.entry_points.retain(|e| is_compute(e) && e.name == kept);
    compact(module, KeepUnused::No);
    for entry in &mut module.entry_points {
        entry.name = ENTRY.to_owned();
    }
    Ok(())
}

fn write(module: &naga::Module, info: &ModuleInfo) -> Result<(Vec<u32>, BufferChecks), spv::Error> {
    match write_with(module, info, BufferChecks::Kernel) {
        // "Atomics out-of-bounds handling": naga has no skipped atomics.
        Err(spv::Error::FeatureNotImplemented(_)) => write_with(module, info, BufferChecks::Device),
        other => other,
    }
}

fn write_with(
    module: &naga::Module,
    info: &ModuleInfo,
    checks: BufferChecks,
) -> Result<(Vec<u32>, BufferChecks), spv::Error> {
    let options = spv::Options {
        lang_version: (1, 3),
        flags: spv::WriterFlags::empty(),
        // An empty binding map keeps group and binding as the guest numbered them.
        capabilities: Some([spv::Capability::Shader].into_iter().collect()),
        bounds_check_policies: BoundsCheckPolicies {
            // Restrict, because naga has no skipped atomics and workgroup memory is where atomics live.
            index: BoundsCheckPolicy::Restrict,
            buffer: match checks {
                BufferChecks::Kernel => BoundsCheckPolicy::ReadZeroSkipWrite,
                BufferChecks::Device => BoundsCheckPolicy::Unchecked,
            },
            image_load: BoundsCheckPolicy::ReadZeroSkipWrite,
            binding_array: BoundsCheckPolicy::Restrict,
        },
        // The polyfill makes LLVM take minutes, and `None` would show a guest the last kernel's memory.
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::Native,
        // It would not stop a loop without end, only make one that takes 2^64 steps of it, for up to 1.4x the time.
        force_loop_bounding: false,
        emit_int_div_checks: true,
        ..Default::default()
    };
    spv::write_vec(module, info, &options, None).map(|spirv| (spirv, checks))
}
