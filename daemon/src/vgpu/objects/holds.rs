//! Why a context is suspended.

/// Why a context is suspended: each reason by itself holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Holds {
    /// The guest has asked for it.
    pub by_guest: bool,
    /// The device is in D3, or on its way there.
    pub by_power: bool,
    /// Everything stands still, for a migration.
    pub by_freeze: bool,
    /// Its process is away: see `away.rs`.
    pub by_absence: bool,
}

impl Holds {
    /// Whether it may not run.
    pub const fn any(self) -> bool {
        self.by_guest || self.by_power || self.by_freeze || self.by_absence
    }
}
