//! Sessions over fake engines: no process, no thread of an engine, and time that a test moves.

mod absences;
mod blobs;
mod doorbells;
mod endings;
mod kernels;
mod model;
mod native_fences;
mod operator_resets;
mod residency;
mod scenes;
mod scheduling;
mod simulation;
mod submitting;
mod world;
