//! Freezing for the VMM, by what D3 does: until `freeze.rs` takes its place, which bounds how long engines may take.

use super::power::Power;
use super::state::Session;

impl Session {
    /// Begins to stop all engines. Again, it changes nothing.
    pub fn freeze(&mut self) {
        self.enter_d3(None);
    }

    /// Whether no engine runs.
    pub fn is_frozen(&self) -> bool {
        matches!(self.power, Power::D3)
    }

    /// Engines may run again.
    pub fn thaw(&mut self) {
        if self.leave_d3() {
            self.resume_from_d3();
        }
    }
}
