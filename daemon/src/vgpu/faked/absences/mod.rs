//! Processes whose device is taken away and comes back, over fakes.

mod guests;
mod leaving;
mod names;
mod returning;
mod waiting;
