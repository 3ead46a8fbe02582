//! Kernels that may be compiled for the secondary instance, once they have earned it.

use std::time::Duration;

use crate::kernel::name::KernelName;
use crate::kernel::program::Kernel;

/// A kernel to be compiled for the secondary instance.
#[derive(Debug)]
pub struct Request {
    /// Its name.
    pub name: KernelName,
    /// Which of that name.
    pub serial: u64,
    /// What is compiled.
    pub program: Box<Kernel>,
}

/// A kernel that may be compiled for the secondary instance once it has earned it.
#[derive(Debug)]
pub struct Candidate {
    program: Box<Kernel>,
    price: Duration,
    ran: Duration,
}

impl Candidate {
    /// One whose compilation for the primary took `price`.
    pub fn new(program: Kernel, price: Duration) -> Self {
        Self { program: Box::new(program), price, ran: Duration::ZERO }
    }

    /// What is compiled.
    pub(super) fn into_program(self) -> Box<Kernel> {
        self.program
    }

    /// The same, that has earned it and has to wait.
    pub(super) fn that_waits(program: Box<Kernel>) -> Self {
        Self { program, price: Duration::ZERO, ran: Duration::ZERO }
    }

    /// A slice of it ran for so long, with others of the same dispatch. Whether it is to be compiled.
    pub(super) fn has_earned(&mut self, ran: Duration) -> bool {
        self.ran = self.ran.saturating_add(ran);
        self.ran >= self.price
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Candidate;
    use crate::kernel::sanitizer::sanitize;
    use crate::kernel::source::Source;

    #[test]
    fn a_kernel_has_earned_another_compilation_when_its_slices_ran_for_as_long_as_one() {
        let program = sanitize(&Source::wgsl("@compute @workgroup_size(1) fn main() {}")).unwrap();
        let mut candidate = Candidate::new(program, Duration::from_millis(10));
        let earned = [4, 5, 1, 1].map(|ran| candidate.has_earned(Duration::from_millis(ran)));
        assert_eq!(earned, [false, false, true, true]);
    }
}
