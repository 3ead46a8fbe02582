//! What policies have in common: who has work, in which tier, behind whom; caps; grace periods.
//!
//! ```text
//!   Rota ── members   parameters, asleep | in line | resting (at its cap), key
//!     ├──── Line      tier ▶ groups, by the key of who is first in each ▶ priorities ▶ members by key
//!     ├──── Bucket    one each member with a cap
//!     ├──── NormalShare   whose turn it is while focus and normal both have work
//!     ├──── Patience      a little for tiers that got nothing for long
//!     └──── Order     the policy itself: which key a member gets, and when who runs is no more first
//!
//!   tier   0 idle, 1 normal, 2 focus, 3 … 34 realtime by level
//!   key    lower is earlier; only comparable in one tier
//! ```
//!
//! In a group only the members of the highest priority that have work stand in line for the tier (PRE-64). One event
//! costs a few searches of ordered sets, whatever the number of members.

pub mod bucket;
mod decide;
pub mod line;
pub mod member;
pub mod order;
pub mod patience;
pub mod share;
mod state;

pub use state::Rota;
