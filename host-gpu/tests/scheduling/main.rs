//! One suite for all scheduling policies: what is said here holds for each that can be chosen, unless a test says which.
//!
//! ```text
//!   Machine (virtual clock, loads) ──▶ Policy ──▶ Decision ──▶ Machine: which entity had the engine, from when to when
//! ```

mod bands;
mod caps;
mod events;
mod fairness;
mod machine;
mod priorities;
mod properties;
