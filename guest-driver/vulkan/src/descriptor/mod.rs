//! Descriptors: layouts, the sets that programs fill, and templates to fill them by.
//!
//! ```text
//!   Layout: binding ─▶ first slot, slots       Set: slot ─▶ Range { va, length, … }   a dispatch resolves both when it is recorded
//! ```

pub(crate) mod layout;
pub(crate) mod pool;
pub(crate) mod slots;
pub(crate) mod template;
pub(crate) mod update;
