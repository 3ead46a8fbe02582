//! Which lines of the conformance checklist are shown by tests.
//!
//! ```text
//!   docs/conformance.md ────────checklist──▶ ids and texts ─┐
//!   docs/conformance-na.txt ───exemptions──▶ na, deferred ──┼─audit──▶ counts per group, what is missing,
//!   #[test] fn ums_33_…() ─────────claims──▶ id, place ─────┘          contradictions
//! ```
//!
//! A test shows a line by its name, `ums_33_reads_as_a_claim`; several lines by several ids in front. A test
//! that the runner ignores shows nothing.

pub mod audit;
pub mod checklist;
pub mod claims;
pub mod exemptions;
pub mod rule_id;
