//! What a guest sends as a kernel: a claim, only its size is checked.

use campanile_protocol::control::pipeline::MAX_MODULE_BYTES;

/// The longest WGSL that is looked at, bytes: it keeps the nesting that an attacker can reach within the sanitizer's stack.
pub const WGSL_LIMIT: usize = 128 * 1024;

/// What a kernel is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Language {
    /// WGSL text, UTF-8.
    Wgsl,
    /// SPIR-V, little-endian words, logical addressing, GLSL flavour.
    SpirV,
}

impl Language {
    /// The longest source in it that is looked at, bytes.
    pub const fn limit(self) -> usize {
        match self {
            Self::Wgsl => WGSL_LIMIT,
            // Nothing that looks at it nests, nor takes more than linear time.
            Self::SpirV => MAX_MODULE_BYTES as usize,
        }
    }
}

/// A guest's kernel as received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// What `bytes` are.
    pub language: Language,
    /// The text or words, at most as many as [`Language::limit`] says.
    pub bytes: Vec<u8>,
    /// Which compute entry point is meant; `None` where the module has one only.
    pub entry: Option<String>,
    /// What a pipeline fixes of a SPIR-V module.
    pub fixed: Fixed,
}

/// What a pipeline fixes of a module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fixed {
    /// `SpecId` and value of specialisation constants, ascending by id; the others keep their defaults.
    pub constants: Vec<(u32, u64)>,
    /// Invocations of each subgroup; 0 for the device's choice.
    pub subgroup_size: u32,
}

impl Source {
    /// WGSL text with a single entry point.
    pub fn wgsl(text: &str) -> Self {
        Self::plain(Language::Wgsl, text.as_bytes().to_vec())
    }

    /// SPIR-V with a single entry point.
    pub fn spirv(bytes: Vec<u8>) -> Self {
        Self::plain(Language::SpirV, bytes)
    }

    fn plain(language: Language, bytes: Vec<u8>) -> Self {
        Self { language, bytes, entry: None, fixed: Fixed::default() }
    }
}
