//! Semaphores: 64-bit words that the GPU waits for and stores at.
//!
//! A timeline semaphore's word is its value. A binary one's counts its signals: each signal stores the next number, and each wait is
//! for the number of the last signal that was submitted.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ash::vk;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::fence::FencePoint;

use crate::abi;
use crate::abi::Outcome;
use crate::abi::handle;
use crate::device::Core;
use crate::heap::Piece;
use crate::wait::Limit;
use crate::wait::look;
use crate::wait::wait_in_parts;
use crate::wait::waited;

/// How long a wait for a point of the queue lasts before the word is looked at.
const GLANCE: Duration = Duration::from_millis(2);

/// A semaphore.
#[derive(Debug)]
pub(crate) struct Semaphore {
    word: Piece,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// How many signals were submitted.
    Binary(AtomicU64),
    /// Which points of the queue store which values: what a wait of the CPU can sleep for.
    Timeline(Mutex<Vec<(u64, Arc<FencePoint>)>>),
}

handle!(Semaphore, vk::Semaphore);

impl Kind {
    fn to_wait_for(&self, value: u64) -> u64 {
        match self {
            Self::Binary(signals) => signals.load(Ordering::Relaxed),
            Self::Timeline(_) => value,
        }
    }

    fn to_signal(&self, value: u64) -> u64 {
        match self {
            Self::Binary(signals) => signals.fetch_add(1, Ordering::Relaxed) + 1,
            Self::Timeline(_) => value,
        }
    }
}

impl Semaphore {
    /// GPU virtual address of the word.
    pub(crate) fn va(&self) -> u64 {
        self.word.va()
    }

    /// The value that a wait submitted now is for; `value` is a timeline's.
    pub(crate) fn to_wait_for(&self, value: u64) -> u64 {
        self.kind.to_wait_for(value)
    }

    /// The value that a signal submitted now stores.
    pub(crate) fn to_signal(&self, value: u64) -> u64 {
        self.kind.to_signal(value)
    }

    /// The queue stores `value` before it gets to `point`.
    pub(crate) fn submitted(&self, value: u64, point: &Arc<FencePoint>) {
        if let Kind::Timeline(pending) = &self.kind {
            let mut pending = lock(pending);
            pending.retain(|(_, point)| !point.is_reached());
            pending.push((value, Arc::clone(point)));
        }
    }

    fn value(&self) -> Outcome<u64> {
        // PAIRS WITH the engine's release of the word.
        Ok(self.word.word(0)?.load(Ordering::Acquire))
    }

    /// A point of the queue at which the value will be there.
    fn point(&self, value: u64) -> Option<Arc<FencePoint>> {
        let Kind::Timeline(pending) = &self.kind else { return None };
        lock(pending).iter().find(|(stored, _)| *stored >= value).map(|(_, point)| Arc::clone(point))
    }

    /// Waits for a value: asleep until the queue gets where it is stored, where that is known.
    fn wait(&self, core: &Core, value: u64, limit: &Limit) -> Outcome<bool> {
        let found = if limit.is_over() { None } else { self.point(value) };
        if let Some(point) = found {
            // A CPU may store the value before the queue does, and the queue may wait for what happens then: to sleep without
            // a look now and then could be for ever.
            wait_in_parts(
                limit,
                GLANCE,
                || Ok(self.value()? >= value),
                |part| match point.wait(Some(part)) {
                    Err(DriverError::Timeout) => Ok(false),
                    // Whether it failed is looked at below.
                    Ok(()) | Err(_) => Ok(true),
                },
            )?;
        }
        look(core, limit, || Ok(self.value()? >= value))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) extern "system" fn create(
    device: vk::Device,
    info: *const vk::SemaphoreCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::Semaphore,
) -> vk::Result {
    abi::command("vkCreateSemaphore", || {
        let kind = abi::chained::<vk::SemaphoreTypeCreateInfo<'_>>(abi::read(info).p_next);
        let timeline = kind.filter(|kind| kind.semaphore_type == vk::SemaphoreType::TIMELINE);
        let word = Core::of(device).heap.word(timeline.map_or(0, |kind| kind.initial_value))?;
        let kind = match timeline {
            Some(_) => Kind::Timeline(Mutex::default()),
            None => Kind::Binary(AtomicU64::new(0)),
        };
        abi::give(Semaphore { word, kind }, out);
        Ok(())
    })
}

pub(crate) extern "system" fn destroy(
    _device: vk::Device,
    semaphore: vk::Semaphore,
    _allocator: *const vk::AllocationCallbacks<'_>,
) {
    abi::quiet("vkDestroySemaphore", || drop(abi::take::<Semaphore>(semaphore)));
}

pub(crate) extern "system" fn counter(
    device: vk::Device,
    semaphore: vk::Semaphore,
    out: *mut u64,
) -> vk::Result {
    abi::command("vkGetSemaphoreCounterValue", || {
        Core::of(device).check()?;
        abi::write(out, abi::get::<Semaphore>(semaphore).value()?);
        Ok(())
    })
}

pub(crate) extern "system" fn signal(
    _device: vk::Device,
    info: *const vk::SemaphoreSignalInfo<'_>,
) -> vk::Result {
    abi::command("vkSignalSemaphore", || {
        let info = abi::read(info);
        abi::get::<Semaphore>(info.semaphore).word.word(0)?.store(info.value, Ordering::Release);
        Ok(())
    })
}

pub(crate) extern "system" fn wait(
    device: vk::Device,
    info: *const vk::SemaphoreWaitInfo<'_>,
    nanoseconds: u64,
) -> vk::Result {
    abi::command_with("vkWaitSemaphores", || {
        let (core, limit, info) = (Core::of(device), Limit::after(nanoseconds), abi::read(info));
        let semaphores = abi::items(info.p_semaphores, info.semaphore_count);
        let semaphores = semaphores.iter().map(|semaphore| abi::get::<Semaphore>(*semaphore));
        let wanted: Vec<_> =
            semaphores.zip(abi::items(info.p_values, info.semaphore_count).iter().copied()).collect();
        if info.flags.contains(vk::SemaphoreWaitFlags::ANY) && wanted.len() > 1 {
            let is_any = || {
                let is_there =
                    |(semaphore, value): &(&Semaphore, u64)| semaphore.value().map(|now| now >= *value);
                wanted.iter().map(is_there).try_fold(false, |any, this| Ok(any | this?))
            };
            return look(core, &limit, is_any).map(waited);
        }
        for (semaphore, value) in wanted {
            if !semaphore.wait(core, value, &limit)? {
                return Ok(vk::Result::TIMEOUT);
            }
        }
        Ok(vk::Result::SUCCESS)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU64;

    use super::Kind;

    #[test]
    fn a_binary_semaphore_counts_its_signals_and_a_wait_is_for_the_last_of_them() {
        let binary = Kind::Binary(AtomicU64::new(0));
        for signal in 1..4 {
            // What programs pass for a binary one counts for nothing.
            assert_eq!(binary.to_signal(77), signal);
            assert_eq!(binary.to_wait_for(77), signal);
        }
        let timeline = Kind::Timeline(Mutex::default());
        assert_eq!((timeline.to_signal(77), timeline.to_wait_for(78)), (77, 78));
    }
}
