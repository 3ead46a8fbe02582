//! SPIR-V as words.

/// Words before the first instruction: magic number, version, generator, bound, schema.
pub(crate) const HEADER: usize = 5;

/// The words of a module; bytes of a last one that is cut are left out.
pub(crate) fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// The bytes of words.
pub(crate) fn bytes(words: &[u32]) -> impl Iterator<Item = u8> {
    words.iter().flat_map(|word| word.to_le_bytes())
}
