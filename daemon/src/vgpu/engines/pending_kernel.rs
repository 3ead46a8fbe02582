//! Kernels that an engine compiles for the first time, and what is held against them should it end.
//!
//! An engine compiles several at once, and begins with them in the order in which it was asked. So:
//!
//! ```text
//!   the oldest has begun when it became the oldest: its time counts from there
//!   the engine ends ─▶ one was compiled: that one is refused
//!                   └▶ several were: none is refused, and each is compiled alone ── ends again ─▶ the oldest is refused
//! ```

use std::collections::BTreeMap;
use std::time::Instant;

use campanile_host_gpu::clock;
use campanile_host_gpu::kernel::name::KernelName;
use campanile_protocol::handle::Handle;

use crate::vgpu::objects::message::Origin;

/// What is held against a kernel, should its engine end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Suspicion {
    /// It may have been this one, or one of those that are compiled at the same time.
    #[default]
    OneOfSeveral,
    /// It was this one: nothing is compiled beside it.
    Alone,
    /// Another one is known to be the reason.
    Cleared,
}

/// A kernel that an engine compiles; the engine of another physical adapter may compile it too.
#[derive(Debug, Clone, Copy)]
pub struct PendingKernel {
    /// Where the answer goes.
    pub origin: Origin,
    /// The name that it will have.
    pub handle: Handle,
    /// Its place in the order of compilation.
    pub number: u64,
    /// From when on its time counts, where it is the oldest.
    pub since: Instant,
    /// Should the engine end.
    pub suspicion: Suspicion,
}

impl PendingKernel {
    /// One that is asked for now.
    pub fn new(origin: Origin, handle: Handle, number: u64) -> Self {
        Self { origin, handle, number, since: clock::now(), suspicion: Suspicion::default() }
    }
}

/// Those of an engine, by address space and handle.
pub type PendingKernels = BTreeMap<(u64, u64), PendingKernel>;

/// The one that was asked for first.
pub fn oldest(kernels: &PendingKernels) -> Option<(KernelName, &PendingKernel)> {
    let oldest = kernels.iter().min_by_key(|(_, kernel)| kernel.number);
    oldest.map(|(&(root, handle), kernel)| (KernelName { root, handle }, kernel))
}

fn oldest_mut(kernels: &mut PendingKernels) -> Option<&mut PendingKernel> {
    kernels.values_mut().min_by_key(|kernel| kernel.number)
}

/// The engine has answered for a kernel, which may be none of these. Takes it; where it came before the oldest that is left, the time of
/// that one begins.
pub fn take_answered(kernels: &mut PendingKernels, answered: KernelName) -> Option<PendingKernel> {
    let taken = kernels.remove(&(answered.root, answered.handle));
    if let Some(oldest) = oldest_mut(kernels)
        && taken.is_none_or(|taken| taken.number < oldest.number)
    {
        oldest.since = clock::now();
    }
    taken
}

/// The oldest has taken too long: it is why the engine ends, and the others are not.
pub fn clear_others(kernels: &mut PendingKernels) {
    kernels.values_mut().for_each(|kernel| kernel.suspicion = Suspicion::Cleared);
}

/// The engine has ended. The kernel that it ended over, where that is known; else each is compiled alone from here on.
pub fn judge_end(kernels: &mut PendingKernels) -> Option<KernelName> {
    let several = kernels.len() > 1;
    let (name, oldest) = oldest(kernels)?;
    let next = match oldest.suspicion {
        Suspicion::Cleared => Suspicion::OneOfSeveral,
        Suspicion::OneOfSeveral if several => Suspicion::Alone,
        Suspicion::OneOfSeveral | Suspicion::Alone => return Some(name),
    };
    kernels.values_mut().for_each(|kernel| kernel.suspicion = next);
    None
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use campanile_host_gpu::clock;
    use campanile_host_gpu::kernel::name::KernelName;
    use campanile_protocol::handle::Handle;

    use super::PendingKernel;
    use super::PendingKernels;
    use super::Suspicion;
    use super::clear_others;
    use super::judge_end;
    use super::oldest;
    use super::take_answered;
    use crate::ids::GuestProcess;
    use crate::vgpu::objects::message::Origin;

    fn name(handle: u64) -> KernelName {
        KernelName { root: 7, handle }
    }

    /// Kernels of these handles, in the order in which they were asked for, some time ago.
    fn pending(handles: &[u64]) -> PendingKernels {
        let origin = Origin { context: GuestProcess::new(1), slot: 1, sequence: 1, ring: 1, item: None };
        let since = clock::now().checked_sub(Duration::from_secs(60)).unwrap();
        let kernels = (1..).zip(handles).map(|(number, handle)| {
            ((7, *handle), PendingKernel { since, ..PendingKernel::new(origin, Handle(*handle), number) })
        });
        kernels.collect()
    }

    fn suspicions(kernels: &PendingKernels) -> Vec<Suspicion> {
        kernels.values().map(|kernel| kernel.suspicion).collect()
    }

    #[test]
    fn the_time_of_the_oldest_begins_when_the_one_before_it_is_answered_or_one_that_is_compiled_again() {
        let is_new = |kernels: &PendingKernels| {
            let (name, oldest) = oldest(kernels).unwrap();
            (name.handle, clock::since(oldest.since) < Duration::from_secs(30))
        };
        let mut kernels = pending(&[9, 5, 8]);
        assert_eq!(is_new(&kernels), (9, false));
        assert_eq!(take_answered(&mut kernels, name(8)).unwrap().number, 3);
        assert_eq!(is_new(&kernels), (9, false), "one behind it was answered");
        assert_eq!(take_answered(&mut kernels, name(9)).unwrap().number, 1);
        assert_eq!(is_new(&kernels), (5, true));
        let mut kernels = pending(&[9, 5]);
        assert!(take_answered(&mut kernels, name(4)).is_none());
        assert_eq!(is_new(&kernels), (9, true), "what is compiled again comes before all of these");
        let mut kernels = pending(&[9]);
        assert!(take_answered(&mut kernels, name(9)).is_some() && oldest(&kernels).is_none());
    }

    #[test]
    fn an_engine_that_ends_over_one_of_several_kernels_convicts_the_one_that_it_ends_over_alone() {
        let mut kernels = pending(&[9, 5, 8]);
        assert_eq!(judge_end(&mut kernels), None);
        assert_eq!(suspicions(&kernels), [Suspicion::Alone; 3]);
        assert_eq!(judge_end(&mut kernels), Some(name(9)));
        assert_eq!(judge_end(&mut pending(&[5])), Some(name(5)), "there was one");
        assert_eq!(judge_end(&mut pending(&[])), None);
    }

    #[test]
    fn one_that_took_too_long_clears_the_others_of_this_end_and_of_no_other() {
        for handles in [&[5, 8][..], &[5]] {
            let mut kernels = pending(handles);
            clear_others(&mut kernels);
            assert_eq!(judge_end(&mut kernels), None);
            assert_eq!(suspicions(&kernels), vec![Suspicion::OneOfSeveral; handles.len()]);
        }
    }
}
