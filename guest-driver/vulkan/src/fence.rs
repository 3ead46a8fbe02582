//! Fences: points of the queue's progress.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use ash::vk;
use campanile_guest_driver::error::DriverError;
use campanile_guest_driver::fence::FencePoint;

use crate::abi;
use crate::abi::Outcome;
use crate::abi::handle;
use crate::device::Core;
use crate::failure::failed;
use crate::wait::Limit;
use crate::wait::look;
use crate::wait::waited;

/// A fence.
#[derive(Debug)]
pub(crate) struct Fence {
    state: Mutex<State>,
}

#[derive(Debug, Clone)]
enum State {
    Unsignalled,
    Signalled,
    /// Shared, so that however many wait, and however often, the daemon is asked once.
    Pending(Arc<FencePoint>),
}

handle!(Fence, vk::Fence);

impl Fence {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It will be signalled when the queue gets to `point`.
    pub(crate) fn submitted(&self, point: FencePoint) {
        *self.state() = State::Pending(Arc::new(point));
    }

    /// Whether it is signalled: a load.
    fn is_signalled(&self) -> bool {
        let mut state = self.state();
        if matches!(&*state, State::Pending(point) if point.is_reached()) {
            *state = State::Signalled;
        }
        matches!(*state, State::Signalled)
    }

    fn wait(&self, core: &Core, limit: &Limit) -> Outcome<bool> {
        let state = self.state().clone();
        match state {
            State::Signalled => Ok(true),
            // A look is no reason to ask the daemon.
            State::Pending(point) if limit.is_over() => {
                let is_reached = point.is_reached();
                if is_reached { Ok(true) } else { core.check().map(|()| false) }
            }
            State::Pending(point) => match point.wait(limit.left()) {
                Ok(()) => Ok(true),
                Err(DriverError::Timeout) => Ok(point.is_reached()),
                Err(error) => Err(failed("vkWaitForFences")(error)),
            },
            // Another thread may submit it meanwhile.
            State::Unsignalled => look(core, limit, || Ok(self.is_signalled())),
        }
    }
}

pub(crate) extern "system" fn create(
    _device: vk::Device,
    info: *const vk::FenceCreateInfo<'_>,
    _allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::Fence,
) -> vk::Result {
    abi::command("vkCreateFence", || {
        let is_signalled = abi::read(info).flags.contains(vk::FenceCreateFlags::SIGNALED);
        let state = if is_signalled { State::Signalled } else { State::Unsignalled };
        abi::give(Fence { state: Mutex::new(state) }, out);
        Ok(())
    })
}

pub(crate) extern "system" fn destroy(
    _device: vk::Device,
    fence: vk::Fence,
    _allocator: *const vk::AllocationCallbacks<'_>,
) {
    abi::quiet("vkDestroyFence", || drop(abi::take::<Fence>(fence)));
}

pub(crate) extern "system" fn reset(_device: vk::Device, count: u32, fences: *const vk::Fence) -> vk::Result {
    abi::command("vkResetFences", || {
        for fence in abi::items(fences, count) {
            *abi::get::<Fence>(*fence).state() = State::Unsignalled;
        }
        Ok(())
    })
}

pub(crate) extern "system" fn status(device: vk::Device, fence: vk::Fence) -> vk::Result {
    abi::command_with("vkGetFenceStatus", || {
        if abi::get::<Fence>(fence).is_signalled() {
            return Ok(vk::Result::SUCCESS);
        }
        Core::of(device).check()?;
        Ok(vk::Result::NOT_READY)
    })
}

pub(crate) extern "system" fn wait(
    device: vk::Device,
    count: u32,
    fences: *const vk::Fence,
    all: vk::Bool32,
    nanoseconds: u64,
) -> vk::Result {
    abi::command_with("vkWaitForFences", || {
        let (core, limit) = (Core::of(device), Limit::after(nanoseconds));
        let fences: Vec<&Fence> =
            abi::items(fences, count).iter().map(|fence| abi::get::<Fence>(*fence)).collect();
        if all == vk::FALSE && fences.len() > 1 {
            return look(core, &limit, || Ok(fences.iter().any(|fence| fence.is_signalled()))).map(waited);
        }
        for fence in fences {
            if !fence.wait(core, &limit)? {
                return Ok(vk::Result::TIMEOUT);
            }
        }
        Ok(vk::Result::SUCCESS)
    })
}
