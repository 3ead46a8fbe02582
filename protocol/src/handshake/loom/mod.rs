//! The handshakes under the model checker, each with a twin whose fence, or order, is taken out.
//!
//! | model | twin |
//! |---|---|
//! | ring against disconnect | no full fence: a ring is lost |
//! | two rings of one global cell ([`global_cell`]) | stores instead of swaps: a ring hides another |
//! | sleep against work | no full fence: sleeps on work |
//! | signal against wait | no full fence: a waiter is missed |
//! | two engines, one node | grants before the yield: two run |
//! | a sleeper wakes, the node is given away | given without reclaiming: two run |
//! | ring contents and doorbell ([`contents`]) | no release: an entry is read before it is written |
//! | report of signalled fences ([`report`]) | no release, or no overflow word: a signal is lost |

mod contents;
mod global_cell;
mod grants;
mod report;
mod two_sides;
mod words;
