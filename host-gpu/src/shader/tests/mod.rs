//! What the guard lets through, what it makes of it, and what it refuses and why.

pub(crate) mod assembly;
mod made;
mod mutations;
mod refused;
mod samples;
