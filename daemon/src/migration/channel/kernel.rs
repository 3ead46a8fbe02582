//! A kernel on its way: what a target compiles before the VM is there. No state: that has all kernels, too.
//!
//! ```text
//!   0  language (u32) ─ 4  bytes of the entry point's name (u32), 0 for none ─ 8  the name ─ text or words, to the end of the frame
//! ```

use campanile_protocol::control::message::MAX_ENTRY_BYTES;
use campanile_protocol::engine::message::MAX_SOURCE_BYTES;

use crate::migration::error::MigrationError;

/// Bytes before the name.
const HEAD: usize = 8;
/// Bytes of the longest.
pub const MAX_KERNEL: usize = HEAD + MAX_ENTRY_BYTES as usize + MAX_SOURCE_BYTES as usize;

/// What it is compiled from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentKernel<'a> {
    /// `LANGUAGE_*` of the protocol.
    pub language: u32,
    /// Entry point, where there are several.
    pub entry: Option<&'a str>,
    /// Text or words.
    pub bytes: &'a [u8],
}

impl<'a> SentKernel<'a> {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let entry = self.entry.unwrap_or_default();
        let length = u32::try_from(entry.len()).unwrap_or(u32::MAX);
        [&self.language.to_le_bytes()[..], &length.to_le_bytes(), entry.as_bytes(), self.bytes].concat()
    }

    /// From its bytes.
    ///
    /// # Errors
    /// They are no kernel.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, MigrationError> {
        const SHORT: MigrationError = MigrationError::Corrupt("a kernel ends within its head");
        let (language, rest) = bytes.split_first_chunk::<4>().ok_or(SHORT)?;
        let (length, rest) = rest.split_first_chunk::<4>().ok_or(SHORT)?;
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let (entry, bytes) = rest.split_at_checked(length).ok_or(SHORT)?;
        let entry = std::str::from_utf8(entry)
            .map_err(|_| MigrationError::Corrupt("the name of a kernel's entry point is no text"))?;
        if length > MAX_ENTRY_BYTES as usize || bytes.is_empty() || bytes.len() > MAX_SOURCE_BYTES as usize {
            return Err(MigrationError::Corrupt("a kernel is longer than any can be, or has nothing in it"));
        }
        let entry = (!entry.is_empty()).then_some(entry);
        Ok(Self { language: u32::from_le_bytes(*language), entry, bytes })
    }
}

#[cfg(test)]
mod tests {
    use campanile_protocol::control::message::MAX_ENTRY_BYTES;
    use campanile_protocol::engine::message::MAX_SOURCE_BYTES;

    use super::MAX_KERNEL;
    use super::SentKernel;

    #[test]
    fn a_kernel_comes_as_it_was_sent() {
        let longest = "e".repeat(MAX_ENTRY_BYTES as usize);
        let most = vec![7; MAX_SOURCE_BYTES as usize];
        for entry in [None, Some("main"), Some(&longest[..])] {
            for bytes in [&b"x"[..], &most] {
                let kernel = SentKernel { language: 2, entry, bytes };
                let encoded = kernel.encode();
                assert!(encoded.len() <= MAX_KERNEL);
                assert_eq!(SentKernel::decode(&encoded).unwrap(), kernel);
            }
        }
    }

    #[test]
    fn lm_40_a_kernel_that_cannot_be_is_refused_in_words() {
        let good = SentKernel { language: 1, entry: Some("main"), bytes: b"text" }.encode();
        let too_long =
            SentKernel { language: 1, entry: None, bytes: &vec![0; MAX_SOURCE_BYTES as usize + 1] };
        let name = "e".repeat(MAX_ENTRY_BYTES as usize + 1);
        let long_name = SentKernel { language: 1, entry: Some(&name), bytes: b"text" };
        let mut no_text = good.clone();
        no_text[8] = 0xff;
        let mut past_its_end = good.clone();
        past_its_end[4] = 9;
        for (bytes, why) in [
            (&good[..3], "ends within its head"),
            (&good[..7], "ends within its head"),
            (&good[..11], "ends within its head"),
            (&past_its_end, "ends within its head"),
            (&good[..12], "has nothing in it"),
            (&no_text, "is no text"),
            (&too_long.encode(), "longer than any can be"),
            (&long_name.encode(), "longer than any can be"),
        ] {
            let error = SentKernel::decode(bytes).unwrap_err().to_string();
            assert!(error.contains(why), "{error}, and not {why}");
        }
    }
}
