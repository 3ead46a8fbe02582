//! What a checker sees of a Rust file: its tokens, and its comments apart from them.
//!
//! ```text
//!   text ──proc-macro2──▶ tokens   words, punctuation, literals, with line and the end of the group that each opens
//!                           ├─ comments     everything else, and doc comments
//!                           ├─ attributes   groups of #[…] and where the item behind them starts
//!                           ├─ test_fns     #[test] functions
//!                           └─ shipped      tokens that are no part of a #[cfg(test)] item
//!                                └─ paths   `a::b::c`
//! ```
//!
//! Tokens and not syntax trees, so that what macros are given (`proptest! { #[test] fn … }`) is seen like everything else.

pub mod attributes;
pub mod paths;
pub mod shipped;
pub mod test_fns;
pub mod tokens;
