//! Descriptors: layouts, the sets that programs fill, and templates to fill them by.
//!
//! ```text
//!   Layout: binding ─▶ first slot, slots       Set: slot ─▶ Range { va, length, … }   a dispatch resolves both when it is recorded
//!           └▶ inline uniform block: bytes in memory of the set
//! ```

pub(crate) mod inline;
pub(crate) mod layout;
pub(crate) mod pool;
pub(crate) mod slots;
pub(crate) mod template;
pub(crate) mod update;
