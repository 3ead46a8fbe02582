//! What is accepted, what is refused and why, and that nothing makes the sanitizer fall over.

mod accepted;
mod extremes;
mod fuzz;
mod refused;
mod samples;
