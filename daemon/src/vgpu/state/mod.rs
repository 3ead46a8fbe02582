//! What a vGPU is, as bytes: [`save`] takes it from a session that stands still, [`saved`] is its form, and [`restore`]
//! checks all of it before a new session becomes it. Of a session that does not, it is brought up to date by [`overtake`].

pub mod overtake;
pub mod restore;
pub mod save;
pub mod saved;
