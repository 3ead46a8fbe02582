//! WGSL → naga module → SPIR-V, in order of increasing trust. The result goes through the guard like any other SPIR-V.

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
use crate::kernel::limits;
use crate::kernel::memory;
use crate::kernel::program::BufferChecks;
use crate::kernel::program::ENTRY;
use crate::kernel::resources;
use crate::kernel::source::Source;

/// The SPIR-V of `source`, whose one entry point is [`ENTRY`], and what checks its buffers. May panic and may use much
/// stack: call it through the sanitizer.
pub(super) fn to_spirv(source: &Source) -> Result<(Vec<u32>, BufferChecks), KernelError> {
    let text = str::from_utf8(&source.bytes)
        .map_err(|e| KernelError::Parse(Diagnostic::new(&format!("not UTF-8: {e}"))))?;
    limits::check_text(text)?;
    let parsed = front::wgsl::parse_str(text);
    let mut module = parsed
        .map_err(|e| KernelError::Parse(Diagnostic::new(&e.emit_to_string_with_path(text, "kernel"))))?;
    limits::check_shape(&module)?;
    memory::check_immediates(&module)?;
    validate(&module, text)?;
    keep_one_entry(&mut module, source.entry.as_deref())?;
    let info = validate(&module, text)?;

    let unsupported = |e: &dyn std::error::Error| KernelError::Unsupported(Diagnostic::new(&with_causes(e)));
    let (module, info) =
        process_overrides(&module, &info, None, &Default::default()).map_err(|e| unsupported(&e))?;

    limits::check_cost(&module, &info)?;
    memory::check(&module, &info)?;
    resources::check(&module)?;
    write(&module, &info).map_err(|e| unsupported(&e))
}

/// 32-bit arithmetic, constants and buffers: what every device that the driver accepts has. Each further
/// capability needs a device feature that the driver would have to demand.
fn capabilities() -> Capabilities {
    Capabilities::IMMEDIATES
        | Capabilities::SHADER_FLOAT16_IN_FLOAT32
        | Capabilities::MEMORY_DECORATION_COHERENT
        | Capabilities::MEMORY_DECORATION_VOLATILE
}

fn validate(module: &naga::Module, text: &str) -> Result<ModuleInfo, KernelError> {
    Validator::new(ValidationFlags::all(), capabilities())
        .validate(module)
        .map_err(|e| KernelError::Invalid(Diagnostic::new(&e.emit_to_string_with_path(text, "kernel"))))
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
        // Names, so that what is refused later can be named.
        flags: spv::WriterFlags::DEBUG,
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
