//! The project's own checks, behind `cargo ci`.
//!
//! ```text
//!   git's list of files ──▶ tree ──▶ source (the tokens of a file, and its comments; what is for tests only)
//!                                       │
//!                         ┌─────────────┼─────────────┬───────────┐
//!                         ▼             ▼             ▼           ▼
//!                       lint         layers      conformance   mutants      text in, findings out; no I/O
//!                         └─────────────┼─────────────┴───────────┘
//!                                       ▼
//!                                     stage        runs cargo, reads tables, prints, decides the exit code
//! ```
//!
//! Rules are about tokens and not syntax trees: a rule that a reader can't check by eye is not a house rule.

pub mod conformance;
pub mod finding;
pub mod layers;
pub mod lint;
pub mod mutants;
pub mod source;
pub mod stage;
pub mod test_files;
pub mod tree;
