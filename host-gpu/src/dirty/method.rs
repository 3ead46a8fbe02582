//! How it is found out what an engine wrote.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use serde::Serialize;

/// How writes of an engine process are tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// The kernel notes each page that the process stores to. Exact; needs Linux 6.7, and a GPU that is a CPU: what a
    /// device writes by itself goes through no page table of the process.
    WriteProtect,
    /// The engine notes what the packets that it runs may write, before it runs them: all of each range that a kernel
    /// may write. More than was written, and never less (DIRTY-50).
    BoundRanges,
    /// Contents are compared with what was sent last, of the pages that the engine notes as with [`Self::BoundRanges`].
    /// Exact, with any device; but each query reads those pages, and the memory has a shadow of hashes. That is costly
    /// (DIRTY-03), so nothing is tracked until a basis is started.
    ShadowCompare,
    /// Not at all (DIRTY-09).
    Off,
}

impl Method {
    /// In words, as on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WriteProtect => "write-protect",
            Self::BoundRanges => "bound-ranges",
            Self::ShadowCompare => "shadow-compare",
            Self::Off => "off",
        }
    }

    /// Whether it is cheap, so that all memory is tracked from the beginning (DIRTY-03).
    pub const fn is_performant(self) -> bool {
        matches!(self, Self::WriteProtect | Self::BoundRanges)
    }

    /// Whether engines note in planes what their work may write.
    pub const fn has_planes(self) -> bool {
        matches!(self, Self::BoundRanges | Self::ShadowCompare)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No method has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no way to track writes: write-protect, bound-ranges, shadow-compare or off")]
pub struct NoSuchMethod(String);

impl FromStr for Method {
    type Err = NoSuchMethod;

    fn from_str(name: &str) -> Result<Self, NoSuchMethod> {
        let all = [Self::WriteProtect, Self::BoundRanges, Self::ShadowCompare, Self::Off];
        all.into_iter().find(|method| method.name() == name).ok_or_else(|| NoSuchMethod(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::Method;

    #[test]
    fn dirty_03_a_method_has_a_name_a_cost_and_planes_or_none() {
        for (name, method, is_performant, has_planes) in [
            ("write-protect", Method::WriteProtect, true, false),
            ("bound-ranges", Method::BoundRanges, true, true),
            ("shadow-compare", Method::ShadowCompare, false, true),
            ("off", Method::Off, false, false),
        ] {
            assert_eq!(name.parse(), Ok(method));
            assert_eq!(method.to_string(), name);
            assert_eq!((method.is_performant(), method.has_planes()), (is_performant, has_planes), "{name}");
        }
        let error = "on".parse::<Method>().unwrap_err().to_string();
        assert!(error.contains("\"on\" is no way to track writes"), "{error}");
    }
}
