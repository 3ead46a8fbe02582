//! Kernels that an engine compiles for the first time, and what is held against them should it end.
//!
//! An engine compiles several at once, and begins with them in the order in which it was asked. So:
//!
//! ```text
//!   the oldest has begun when it became the oldest: its time counts from there
//!   the engine ends ─▶ one was compiled: that one is refused
//!                   └▶ several were, or it ran work: none is refused, and each is compiled alone ── ends again ─▶ the oldest is refused
//! ```
//!
//! It may be at others besides: at kernels that earlier processes had compiled, and at *abandoned* ones, whose device is lost or ended
//! while they are compiled. Those are no reason to refuse one that is waited for.

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
    /// Its place in the order of compilation, from 1: behind all that were compiled before.
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

    /// A process has come up that compiles it: that another was the reason for the end of the last one says nothing of this one's.
    pub fn begin(&mut self) {
        self.since = clock::now();
        if self.suspicion == Suspicion::Cleared {
            self.suspicion = Suspicion::default();
        }
    }
}

/// Those of an engine, by address space and handle.
pub type PendingKernels = BTreeMap<(u64, u64), PendingKernel>;

/// The one that was asked for first.
pub fn oldest(kernels: &PendingKernels) -> Option<(KernelName, &PendingKernel)> {
    let oldest = kernels.iter().min_by_key(|(_, kernel)| kernel.number);
    oldest.map(|(&(root, handle), kernel)| (KernelName { root, handle }, kernel))
}

/// The engine has answered for the kernel of this number: the time of the oldest of all begins, where that one came before it.
pub fn begin_oldest(kernels: [&mut PendingKernels; 2], answered: u64) {
    let all = kernels.into_iter().flat_map(BTreeMap::values_mut);
    if let Some(oldest) = all.min_by_key(|kernel| kernel.number)
        && answered < oldest.number
    {
        oldest.since = clock::now();
    }
}

/// The oldest has taken too long: it is why the engine ends, and the others are not.
pub fn clear_others(kernels: &mut PendingKernels) {
    kernels.values_mut().for_each(|kernel| kernel.suspicion = Suspicion::Cleared);
}

/// The engine has ended. The kernel that it ended over, where that is known; else each is compiled alone from here on. `is_at_others`: it
/// had yet to answer for kernels that are none of these; `ran`: it ran work.
pub fn judge_end(kernels: &mut PendingKernels, is_at_others: bool, ran: bool) -> Option<KernelName> {
    let several = kernels.len() > 1 || is_at_others || ran;
    let (name, oldest) = oldest(kernels)?;
    let next = match oldest.suspicion {
        Suspicion::Cleared => Suspicion::OneOfSeveral,
        Suspicion::OneOfSeveral if several => Suspicion::Alone,
        // Those others come first. Work, which is there at all times, has had its turn.
        Suspicion::Alone if is_at_others => Suspicion::Alone,
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
    use super::begin_oldest;
    use super::clear_others;
    use super::judge_end;
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
    fn the_time_of_the_oldest_begins_when_one_before_it_is_answered_and_an_abandoned_one_may_be_the_oldest() {
        let is_new = |kernels: &PendingKernels| -> Vec<bool> {
            kernels.values().map(|kernel| clock::since(kernel.since) < Duration::from_secs(30)).collect()
        };
        // Of handles 7, 8, 9 that of number 1 is 9.
        for (answered, begins) in [(0, true), (1, false), (2, false), (4, false)] {
            let (mut kernels, mut none) = (pending(&[9, 8, 7]), pending(&[]));
            begin_oldest([&mut kernels, &mut none], answered);
            assert_eq!(is_new(&kernels), [false, false, begins], "{answered}");
        }
        let (mut kernels, mut abandoned) = (pending(&[9, 8]), pending(&[9]));
        kernels.remove(&(7, 9));
        begin_oldest([&mut kernels, &mut abandoned], 0);
        assert_eq!([is_new(&kernels), is_new(&abandoned)], [[false], [true]]);
        begin_oldest([&mut kernels, &mut pending(&[])], 1);
        assert_eq!(is_new(&kernels), [true]);
    }

    #[test]
    fn an_engine_that_ends_over_one_of_several_kernels_convicts_the_one_that_it_ends_over_alone() {
        let mut kernels = pending(&[9, 5, 8]);
        assert_eq!(judge_end(&mut kernels, false, false), None);
        assert_eq!(suspicions(&kernels), [Suspicion::Alone; 3]);
        assert_eq!(judge_end(&mut kernels, true, false), None, "others went before it");
        assert_eq!(suspicions(&kernels), [Suspicion::Alone; 3]);
        assert_eq!(judge_end(&mut kernels, false, false), Some(name(9)));
        assert_eq!(judge_end(&mut kernels, false, true), Some(name(9)), "the second time");
        assert_eq!(judge_end(&mut pending(&[5]), false, false), Some(name(5)), "there was one");
        for (is_at_others, ran) in [(true, false), (false, true)] {
            let mut kernels = pending(&[5]);
            assert_eq!(judge_end(&mut kernels, is_at_others, ran), None, "or it was something else");
            assert_eq!(suspicions(&kernels), [Suspicion::Alone]);
        }
        assert_eq!(judge_end(&mut pending(&[]), true, true), None);
    }

    #[test]
    fn one_that_took_too_long_clears_the_others_of_this_end_and_of_no_other() {
        for handles in [&[5, 8][..], &[5]] {
            let mut kernels = pending(handles);
            clear_others(&mut kernels);
            assert_eq!(judge_end(&mut kernels, false, false), None);
            assert_eq!(suspicions(&kernels), vec![Suspicion::OneOfSeveral; handles.len()]);
        }
    }
}
