//! The project's own checks, behind `cargo ci`.
//!
//! ```text
//!   git's list of files ──▶ tree ──▶ source (the tokens of a file, and its comments; what is for tests only)
//!                             │ └──▶ members (the shipped files of a crate, and which refer to which)
//!              ┌──────────────┼─────────────┬───────────┬──────────┐
//!              ▼              ▼             ▼           ▼          ▼
//!         lint, book  layers, packaged   conformance   mutants     house      text in, findings out; no I/O
//!              │              │             │        trials       │        builds and runs mutants
//!              └──────────────┼─────────────┴───────────┴──────────┘
//!                             ▼
//!                           stage        runs cargo, reads tables, prints, decides the exit code
//! ```
//!
//! Rules are about tokens, which a reader can check by eye. Syntax trees are for figures alone: which type has how many methods.

pub mod book;
pub mod conformance;
pub mod finding;
pub mod house;
pub mod layers;
pub mod lint;
pub mod members;
pub mod mutants;
pub mod packaged;
pub mod screen;
pub mod source;
pub mod stage;
pub mod test_files;
pub mod tree;
pub mod trials;
