//! Which lines of the conformance checklist are shown by tests.
//!
//! ```text
//!   docs/conformance.md ────────checklist──▶ ids and texts ────────┐
//!   docs/conformance-na.txt ───exemptions──▶ na, deviates, unmet ──┤
//!   docs/decisions/*.md ────────decisions──▶ numbers ──────────────┼─audit──▶ counts per group, what is missing or
//!   #[test] fn ums_33_…() ─────────claims──▶ id, place ────────────┤          has no result, contradictions
//!   target/conformance/results ───results──▶ passed, failed ───────┘
//! ```
//!
//! A test shows a line by its name, `ums_33_reads_as_a_claim`; several lines by several ids in front. It shows it once
//! it ran and passed: a name alone counts as `named`, and a test that the runner ignores as nothing.

pub mod audit;
pub mod checklist;
pub mod claims;
pub mod decisions;
pub mod exemptions;
pub mod junit;
pub mod results;
pub mod rule_id;
