//! The figures of the house, and the limits that they keep.
//!
//! ```text
//!   tree ──types────▶ methods and fields of each type, and the files that its methods are in ──┐
//!        ──members──▶ circles of files that import each other ─────────────────────────────────┼──figures──▶ report
//!        ───────────▶ shipped source lines of each crate ──────────────────────────────────────┘     │
//!                                                                    ci/house.txt ──────────────limits──▶ findings
//! ```
//!
//! A figure above its limit is a finding. Limits are lowered by hand when a figure has fallen, and not raised without a reason.

pub mod figures;
pub mod limits;
pub mod types;
