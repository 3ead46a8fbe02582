//! Sessions over fake engines: no process, no thread of an engine, and time that a test moves.

mod absences;
mod kernels;
mod model;
mod native_fences;
mod residency;
mod scenes;
mod simulation;
mod world;
