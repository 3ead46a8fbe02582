//! Why a kernel was refused, in words for the programmer of the guest.

/// The longest diagnostic that is passed on, bytes.
pub const DIAGNOSTIC_LIMIT: usize = 2048;

/// Why a kernel was refused. All are the guest's fault except `NoThread`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum KernelError {
    /// The source is longer than anything accepted.
    #[error("the kernel is {length} bytes long, more than {limit}: split it or strip debug information")]
    TooLong { length: usize, limit: usize },
    /// The source does not parse.
    #[error("the kernel does not parse: {0}")]
    Parse(Diagnostic),
    /// The source parses and breaks a rule of its language, or uses something not offered here.
    #[error("the kernel is not valid: {0}")]
    Invalid(Diagnostic),
    /// The module has no compute entry point.
    #[error("the kernel has no compute entry point: add a function marked `@compute @workgroup_size(…)`")]
    NoEntry,
    /// The entry point asked for does not exist, or none was asked for and there are several.
    #[error("the kernel has no single compute entry point {asked}: name one of {choices}")]
    AmbiguousEntry {
        /// What was asked for, quoted, or that nothing was.
        asked: Diagnostic,
        /// The compute entry points that exist.
        choices: Diagnostic,
    },
    /// A variable of a kind that compute kernels here cannot have.
    #[error(
        "variable `{name}` is {what}: kernels take storage and uniform buffers, groups 0 to 7, bindings 0 to 63, and one var<immediate>"
    )]
    Variable {
        /// The guest's name of the variable.
        name: Diagnostic,
        /// What it is.
        what: &'static str,
    },
    /// A countable thing exceeds its limit.
    #[error("the kernel has {count} {what}, more than {limit}")]
    Limit {
        /// What was counted, in words.
        what: &'static str,
        /// How many or how much there is.
        count: u64,
        /// How many or how much there may be.
        limit: u64,
    },
    /// The valid module could not be written as SPIR-V.
    #[error("the kernel cannot be translated: {0}")]
    Unsupported(Diagnostic),
    /// The translator failed in an unforeseen way. The kernel is refused and the sanitizer goes on.
    #[error("the kernel made the translator fail ({0}): simplify it, or compile it with another compiler")]
    Crashed(Diagnostic),
    /// The sanitizer's thread could not be started or is gone: the host's fault.
    #[error(
        "the kernel could not be looked at, the sanitizer has no thread ({0}): raise the engine's memory or thread limit"
    )]
    NoThread(Diagnostic),
}

/// Text from naga or from the guest, cut to [`DIAGNOSTIC_LIMIT`] bytes and free of control characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic(String);

impl Diagnostic {
    /// Keeps as much of `text` as fits, whole characters only.
    pub fn new(text: &str) -> Self {
        let clean = text.trim_end().chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c });
        let mut kept = String::new();
        for c in clean {
            if kept.len() + c.len_utf8() + '…'.len_utf8() > DIAGNOSTIC_LIMIT {
                kept.push('…');
                break;
            }
            kept.push(c);
        }
        Self(kept)
    }
}

impl std::fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
