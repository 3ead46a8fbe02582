//! Source → SPIR-V → guard → kernel, in order of increasing trust.

use crate::kernel::error::Diagnostic;
use crate::kernel::error::KernelError;
use crate::kernel::interface::Interface;
use crate::kernel::program::BufferChecks;
use crate::kernel::program::ENTRY;
use crate::kernel::program::GRID_BINDING;
use crate::kernel::program::Kernel;
use crate::kernel::source::Language;
use crate::kernel::source::Source;
use crate::kernel::wgsl;
use crate::shader::interface::Place;
use crate::shader::interface::Refusal;
use crate::shader::interface::Shader;
use crate::shader::interface::Wish;
use crate::shader::pass::guard;
use crate::shader::profile::Profile;

/// The whole way. May panic and may use much stack for WGSL: call it through the sanitizer.
pub(super) fn translate(source: &Source, profile: &Profile) -> Result<Kernel, KernelError> {
    let (shader, buffer_checks) = match source.language {
        Language::Wgsl => {
            let (words, checks) = wgsl::to_spirv(source)?;
            (guarded(&words, None, &[], profile)?, checks)
        }
        Language::SpirV => {
            let (entry, constants) = (source.entry.as_deref(), &source.fixed.constants);
            (guarded(&words_of(&source.bytes)?, entry, constants, profile)?, BufferChecks::Device)
        }
    };
    let Interface { mut bindings, workgroup, constants, workgroup_memory } = Interface::of(&shader)?;
    if source.language == Language::SpirV {
        // Vulkan lets programs bind less than a block declares: the rest reads as zero, and keeps nothing.
        bindings.iter_mut().for_each(|binding| binding.min_size = binding.min_size.min(4));
    }
    Ok(Kernel {
        spirv: shader.words,
        entry: ENTRY.to_owned(),
        workgroup,
        bindings,
        constants,
        workgroup_memory,
        uses_num_workgroups: shader.uses_num_workgroups,
        buffer_checks,
        subgroup_size: source.fixed.subgroup_size,
    })
}

fn guarded(
    words: &[u32],
    entry: Option<&str>,
    constants: &[(u32, u64)],
    profile: &Profile,
) -> Result<Shader, KernelError> {
    let grid = Place { set: 0, binding: GRID_BINDING };
    guard(words, &Wish { profile, entry, constants, rename: ENTRY, grid }).map_err(|refusal| match refusal {
        Refusal::Broken(e) if e.at == 0 => KernelError::Parse(Diagnostic::new(&e.to_string())),
        Refusal::Broken(e) => KernelError::Invalid(Diagnostic::new(&e.to_string())),
        Refusal::Entry { asked, choices } => {
            let asked = asked.map_or_else(|| "(none was asked for)".to_owned(), |name| format!("`{name}`"));
            KernelError::AmbiguousEntry {
                asked: Diagnostic::new(&asked),
                choices: Diagnostic::new(&choices.join(", ")),
            }
        }
    })
}

fn words_of(bytes: &[u8]) -> Result<Vec<u32>, KernelError> {
    let (words, rest) = bytes.as_chunks::<4>();
    if rest.is_empty() {
        return Ok(words.iter().map(|word| u32::from_le_bytes(*word)).collect());
    }
    Err(KernelError::Parse(Diagnostic::new(&format!("{} bytes are no whole words", bytes.len()))))
}
