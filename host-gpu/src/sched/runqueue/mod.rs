//! The runqueue of an engine, which all policies use: entities, tiers, caps, grace periods.
//!
//! ```text
//!   Runqueue ── entities      parameters, sleeping | runnable | throttled (at its cap), key
//!     ├──── Waiters           tier ▶ groups, by the key of the first entity of each ▶ priorities ▶ entities by key
//!     ├──── Bucket            one an entity with a cap
//!     ├──── NormalShare       which has its turn while focus and normal both have work
//!     ├──── StarvationGuard   some engine time for tiers that got none for long
//!     └──── SortKeys          the policy itself: which key an entity gets, and when the running one is no longer first
//!
//!   tier   0 idle, 1 normal, 2 focus, 3 … 34 realtime by level
//!   key    lower is earlier; only comparable in one tier
//! ```
//!
//! Of a group only the runnable entities of the highest priority compete in the tier (PRE-64). One event costs a few searches
//! of ordered sets, whatever the number of entities.

pub mod bucket;
mod decide;
pub mod entity;
pub mod share;
pub mod sort_keys;
pub mod starvation_guard;
mod state;
pub mod waiters;

pub use state::Runqueue;
