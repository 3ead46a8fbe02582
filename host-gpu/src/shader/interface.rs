//! What a kernel needs from a dispatch, as read off a module that passed.

use campanile_protocol::texels;
use campanile_protocol::texels::Format;
use campanile_protocol::texels::Number;

use crate::shader::error::GuardError;
use crate::shader::profile::Profile;

/// What a variable of a kernel is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BufferKind {
    /// A storage buffer.
    Storage,
    /// A uniform buffer.
    Uniform,
    /// A uniform texel buffer.
    UniformTexels,
    /// A storage texel buffer.
    StorageTexels,
}

impl BufferKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Storage, Self::Uniform, Self::UniformTexels, Self::StorageTexels];
}

/// What a kernel takes the texels of a buffer for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Texels {
    /// What it reads and writes.
    pub number: Number,
    /// `VkFormat`, where the kernel says which.
    pub format: Option<u16>,
}

impl Texels {
    /// A format that a buffer of them may have.
    pub fn example(self) -> Option<&'static Format> {
        texels::find(self.format.unwrap_or(match self.number {
            Number::Float => 100,
            Number::Unsigned => 98,
            Number::Signed => 99,
        }))
    }

    /// Why a buffer of them cannot have `format`; for storage, where `is_storage`, and on a device with further formats, where `is_extended`.
    pub fn misfit(self, format: &Format, is_storage: bool, is_extended: bool) -> Option<&'static str> {
        let is_float = |number| number == Number::Float;
        let offer = if is_storage { format.storage } else { format.uniform };
        if !offer.is_there(is_extended) {
            return Some(if is_storage {
                "no storage texel buffer has it"
            } else {
                "no uniform texel buffer has it"
            });
        }
        if is_storage && self.format.is_some_and(|named| named != format.code) {
            return Some("the kernel names another");
        }
        (is_float(self.number) != is_float(format.number)).then_some(match self.number {
            Number::Float => "the kernel reads or writes floats",
            Number::Signed | Number::Unsigned => "the kernel reads or writes integers",
        })
    }
}

/// One binding, of all variables that share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShaderBinding {
    /// The descriptor set.
    pub set: u32,
    /// The number within the set.
    pub binding: u32,
    /// Kind of buffer.
    pub kind: BufferKind,
    /// Of texel buffers.
    pub texels: Option<Texels>,
    /// How many buffers the binding has, where it is an array of them.
    pub count: Option<u32>,
    /// Whether the kernel has an instruction that writes it.
    pub is_written: bool,
    /// The fewest bytes that may be bound: the fixed part and one element of an array without a length.
    pub min_size: u64,
    /// What the guest calls the variable, or its id.
    pub name: String,
}

/// A module that passed, with one entry point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shader {
    /// Valid SPIR-V for the device that the profile is of.
    pub words: Vec<u32>,
    /// Invocations of a workgroup.
    pub workgroup: [u32; 3],
    /// Ascending by set and binding.
    pub bindings: Vec<ShaderBinding>,
    /// Bytes of push constants.
    pub constants: u32,
    /// Bytes of workgroup memory.
    pub workgroup_memory: u64,
    /// Whether the number of workgroups is read where [`Place`] says.
    pub uses_num_workgroups: bool,
}

/// Where a kernel finds the number of workgroups of the whole grid: a storage buffer of three words.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// The descriptor set.
    pub set: u32,
    /// The number within the set.
    pub binding: u32,
}

/// What to do with a module.
#[derive(Debug, Clone, Copy)]
pub struct Wish<'a> {
    /// What the device offers.
    pub profile: &'a Profile,
    /// The entry point; `None` where there is one only.
    pub entry: Option<&'a str>,
    /// `SpecId` and value of specialisation constants, ascending by id: as many low bits as the type has. The others keep their
    /// defaults.
    pub constants: &'a [(u32, u64)],
    /// What the entry point is called in the result.
    pub rename: &'a str,
    /// Where the number of workgroups is found.
    pub grid: Place,
}

/// Why there is no [`Shader`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The module breaks a rule.
    #[error(transparent)]
    Broken(#[from] GuardError),
    /// The entry point asked for does not exist, or none was asked for and there are several.
    #[error("no single compute entry point {asked:?}, there are: {}", .choices.join(", "))]
    Entry {
        /// What was asked for.
        asked: Option<String>,
        /// What there is.
        choices: Vec<String>,
    },
}

#[cfg(test)]
mod tests {
    use campanile_protocol::texels;
    use campanile_protocol::texels::Number;
    use campanile_protocol::texels::Offer;

    use super::Texels;

    #[test]
    fn a_format_that_not_every_device_has_fits_where_the_device_has_it() {
        for format in texels::FORMATS {
            let any = Texels { number: format.number, format: None };
            for (is_storage, offer) in [(false, format.uniform), (true, format.storage)] {
                let fits =
                    [false, true].map(|is_extended| any.misfit(format, is_storage, is_extended).is_none());
                assert_eq!(fits, [offer == Offer::Always, offer != Offer::Never], "{}", format.name);
            }
            let other = if format.number == Number::Float { Number::Signed } else { Number::Float };
            assert!(Texels { number: other, format: None }.misfit(format, false, true).is_some());
        }
    }
}
