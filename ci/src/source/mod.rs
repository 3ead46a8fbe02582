//! What a checker sees of a Rust file.
//!
//! ```text
//!   text ──masked──▶ code and comments, apart      same length and lines as the text, the rest is blanks
//!                      │
//!                      ├─attributes─▶ groups of #[…] and where the item behind them starts
//!                      ├─shipped────▶ code without #[cfg(test)] items
//!                      ├─uses───────▶ `use` statements
//!                      └─test_fns───▶ #[test] functions
//!   tree ──testing──▶ which files hold nothing but tests
//! ```
//!
//! An offset means the same place in the text, the code and the comments.

pub mod attributes;
pub mod masked;
pub mod shipped;
pub mod test_fns;
pub mod testing;
pub mod uses;
pub mod words;
