//! What is asked of an adapter about dirty tracking, when it starts, and what is refused then (DIRTY-01 to DIRTY-11).
//!
//! ```text
//!   tracking_caps ─── supported? ──no──▶ nothing more is asked; live migration is refused
//!        └──yes──▶ segment_tracking, once for each segment ──▶ Tracking: what holds for the adapter's life
//! ```

use super::error::DirtyError;
use super::method::Method;

/// The smallest page of a dirty bit (DIRTY-06).
pub const SMALLEST_PAGE: u64 = 4096;

/// What the tracker of one memory can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// Writes are tracked (DIRTY-02).
    pub supported: bool,
    /// It costs little, so it runs from the beginning (DIRTY-03).
    pub performant: bool,
    /// Bytes for which there is one bit (DIRTY-06).
    pub page_size: u64,
    /// How.
    pub method: Method,
}

/// What an adapter says of itself (DIRTY-02, DIRTY-03; LM-01).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdapterCaps {
    /// DirtyBitTrackingSupported.
    pub supported: bool,
    /// DirtyBitTrackingPerformant.
    pub performant: bool,
    /// LiveMigration.
    pub live_migration: bool,
}

/// Why an adapter does not start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum CapsError {
    /// DIRTY-04.
    #[error("dirty tracking is said to be cheap, and not to be there")]
    PerformantOnly,
    /// DIRTY-10, LM-02.
    #[error("live migration needs dirty tracking, which is off (--dirty-tracking)")]
    MigrationWithoutTracking,
    /// DIRTY-10, LM-02.
    #[error("live migration needs dirty tracking on every segment, and segment {0} has none")]
    MigrationWithoutSegment(u32),
    /// DIRTY-06.
    #[error("segment {segment}: a dirty bit for each {page_size} bytes")]
    PageSize { segment: u32, page_size: u64 },
}

/// What answers: the adapter.
pub trait DirtyCaps {
    /// Asked first, before anything else of this feature (DIRTY-01).
    fn adapter_caps(&mut self) -> AdapterCaps;

    /// Bytes for each dirty bit of a segment. Asked once for each, and only if tracking is supported (DIRTY-05).
    ///
    /// # Errors
    /// [`DirtyError::NotImplemented`] for a segment without a plane; others still work (DIRTY-09).
    fn segment_page_size(&mut self, segment: u32) -> Result<u64, DirtyError>;
}

/// What was answered; it holds for the adapter's life (DIRTY-11).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracking {
    /// Of the adapter.
    pub caps: AdapterCaps,
    /// Segments with a plane, and bytes for each bit.
    pub segments: Vec<(u32, u64)>,
}

/// Asks an adapter that starts, with these local segments.
///
/// # Errors
/// What it says cannot be: it does not start.
pub fn adapter_start(adapter: &mut impl DirtyCaps, segments: &[u32]) -> Result<Tracking, CapsError> {
    let caps = adapter.adapter_caps();
    if caps.performant && !caps.supported {
        return Err(CapsError::PerformantOnly);
    }
    if caps.live_migration && !caps.supported {
        return Err(CapsError::MigrationWithoutTracking);
    }
    let mut tracked = Vec::new();
    let asked = if caps.supported { segments } else { &[] };
    for &segment in asked {
        match adapter.segment_page_size(segment) {
            Ok(page_size) if page_size.is_power_of_two() && page_size >= SMALLEST_PAGE => {
                tracked.push((segment, page_size));
            }
            Ok(page_size) => return Err(CapsError::PageSize { segment, page_size }),
            Err(_) if caps.live_migration => return Err(CapsError::MigrationWithoutSegment(segment)),
            Err(_) => {}
        }
    }
    Ok(Tracking { caps, segments: tracked })
}
