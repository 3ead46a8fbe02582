//! A check of the self-test.

use crate::target::Machine;

/// One claim, and how it is tried on a machine that other checks use, too.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    /// The claim.
    pub claim: &'static str,
    /// Tries it; the error says what is not so.
    pub holds: fn(&Machine) -> anyhow::Result<()>,
}
