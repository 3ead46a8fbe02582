//! What a kernel is compiled from, as long as a process or a message to an engine needs it.

use std::ops::Deref;
use std::sync::Arc;

use super::budget::Charge;
use super::budget::list_bytes;

/// Bytes that a kernel is charged besides its source: what the smallest takes, compiled, in an engine (66 KB with lavapipe), and
/// messages about it.
pub const KERNEL_BYTES: u64 = 72 << 10;

/// Text or words of a kernel, and what was charged for it.
#[derive(Debug)]
pub struct SourceBytes {
    bytes: Box<[u8]>,
    _charge: Charge,
}

impl SourceBytes {
    /// These.
    pub fn new(bytes: &[u8], charge: Charge) -> Arc<Self> {
        Arc::new(Self { bytes: bytes.into(), _charge: charge })
    }

    /// What is charged for them, with the name of their entry point.
    pub fn price(bytes: usize, entry: Option<&str>) -> u64 {
        let bytes = bytes.saturating_add(entry.map_or(0, str::len));
        list_bytes(bytes, 1).saturating_add(KERNEL_BYTES)
    }
}

impl Deref for SourceBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// What a kernel is compiled from, should its engine be replaced.
#[derive(Debug, Clone)]
pub struct KernelSource {
    /// `LANGUAGE_*` of the protocol.
    pub language: u32,
    /// Entry point, where there are several.
    pub entry: Option<String>,
    /// Text or words, as long as it is kept or a message to an engine needs it.
    pub bytes: Arc<SourceBytes>,
    /// Whether engines were asked to forget it; then the next process of one is not told of it.
    pub is_ending: bool,
}
