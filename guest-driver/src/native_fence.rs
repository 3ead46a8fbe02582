//! Native fences: values that queues, nodes and processes of this VM wait for and signal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::native_fence;
use campanile_protocol::control::native_fence::CreateNativeFence;
use campanile_protocol::control::native_fence::CurrentValue;
use campanile_protocol::control::native_fence::NATIVE_FENCE_DEFAULT;
use campanile_protocol::control::native_fence::NATIVE_FENCE_INTRA_GPU;
use campanile_protocol::control::native_fence::NativeFenceOpened;
use campanile_protocol::control::native_fence::NativeFenceValue;
use campanile_protocol::control::native_fence::OpenNativeFence;
use campanile_protocol::handle::Handle;
use zerocopy::IntoBytes;

use crate::control::Call;
use crate::device::Device;
use crate::device::Shared;
use crate::error::DriverError;

/// How long a wait sleeps between two looks where too many waits are open for the daemon to take one more.
const NAP: Duration = Duration::from_millis(1);

/// Who waits for a fence and signals it (UMS-143).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FenceKind {
    /// CPU and GPU.
    #[default]
    Default,
    /// The GPU alone: what the CPU asks of it is refused.
    IntraGpu,
}

/// The VM's name for a native fence: a process of the same VM that is told it may open the fence. It means
/// nothing in another VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GlobalFence(pub u64);

/// A native fence, open in this process. The last process that closes it destroys it (UMS-142).
#[derive(Debug)]
pub struct NativeFence {
    shared: Arc<Shared>,
    opened: NativeFenceOpened,
    va: u64,
    /// Waits that the daemon has, by value: one message a value, however often it is waited for.
    waiting: Mutex<BTreeMap<u64, Arc<Call>>>,
}

impl Device {
    /// A new native fence that starts at `initial_value`.
    ///
    /// # Errors
    /// `Refused` with `OutOfResources` where this process has 1024 open, or the VM has 4096.
    pub fn create_fence(&self, kind: FenceKind, initial_value: u64) -> Result<NativeFence, DriverError> {
        let kind = match kind {
            FenceKind::Default => NATIVE_FENCE_DEFAULT,
            FenceKind::IntraGpu => NATIVE_FENCE_INTRA_GPU,
        };
        NativeFence::open(&self.shared, |va| {
            let create = CreateNativeFence { kind, reserved: 0, initial_value, va };
            let control = &self.shared.control;
            control.request("CREATE_NATIVE_FENCE", native_fence::CREATE_NATIVE_FENCE, &create)
        })
    }

    /// Opens a fence that this or another process of the VM has created and not yet closed for good.
    ///
    /// # Errors
    /// `Refused` with `InvalidHandle` where there is none of that name.
    pub fn open_fence(&self, global: GlobalFence) -> Result<NativeFence, DriverError> {
        NativeFence::open(&self.shared, |va| {
            let open = OpenNativeFence { global: Handle(global.0), va };
            let control = &self.shared.control;
            control.request("OPEN_NATIVE_FENCE", native_fence::OPEN_NATIVE_FENCE, &open)
        })
    }
}

impl NativeFence {
    fn open(
        shared: &Arc<Shared>,
        ask: impl FnOnce(u64) -> Result<NativeFenceOpened, DriverError>,
    ) -> Result<Self, DriverError> {
        let va = shared.allocate(PAGE_SIZE)?;
        match ask(va) {
            Ok(opened) => {
                Ok(Self { shared: Arc::clone(shared), opened, va, waiting: Mutex::new(BTreeMap::new()) })
            }
            Err(error) => {
                shared.release(va, PAGE_SIZE);
                Err(error)
            }
        }
    }

    /// Its name for other processes of the VM.
    pub fn global(&self) -> GlobalFence {
        GlobalFence(self.opened.global.0)
    }

    /// Who may wait for it and signal it.
    pub fn kind(&self) -> FenceKind {
        if self.opened.kind == NATIVE_FENCE_INTRA_GPU { FenceKind::IntraGpu } else { FenceKind::Default }
    }

    /// GPU virtual address of its value, for [`crate::commands::CommandBuffer::wait`] and
    /// [`crate::commands::CommandBuffer::signal`] on any queue of this process.
    pub fn va(&self) -> u64 {
        self.va
    }

    /// Its value now. A message to the daemon: to look often, have a queue wait for the fence, and look at
    /// that queue's [`crate::fence::FencePoint`] instead.
    pub fn value(&self) -> Result<u64, DriverError> {
        let named = Named { handle: self.opened.fence };
        let control = &self.shared.control;
        let current: CurrentValue =
            control.request("QUERY_NATIVE_FENCE", native_fence::QUERY_NATIVE_FENCE, &named)?;
        Ok(current.value)
    }

    /// Stores a value from the CPU: queues that wait for it go on, and so do threads that wait on the CPU.
    pub fn signal(&self, value: u64) -> Result<(), DriverError> {
        let signal = NativeFenceValue { fence: self.opened.fence, value };
        let control = &self.shared.control;
        control.call("SIGNAL_NATIVE_FENCE", native_fence::SIGNAL_NATIVE_FENCE, &[signal.as_bytes()])?;
        Ok(())
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Call>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until the value is `value` or more, wherever it is signalled.
    ///
    /// # Errors
    /// `DeviceLost` when the device of this process is in error: at once, and of this process alone. `Timeout` when
    /// the time is over. `Refused` with `NotSupported` for a fence of the GPU alone.
    pub fn wait(&self, value: u64, timeout: Option<Duration>) -> Result<(), DriverError> {
        let begun = Instant::now();
        let left = || timeout.map(|limit| limit.saturating_sub(begun.elapsed()));
        loop {
            if let Some(call) = self.call(value)? {
                call.wait(left())?;
                self.waiting().remove(&value);
                return call.answer().map(|_| ()).map_err(|error| self.lost_or(error));
            }
            if self.value().map_err(|error| self.lost_or(error))? >= value {
                return Ok(());
            }
            let left = left();
            if left.is_some_and(|left| left.is_zero()) {
                return Err(DriverError::Timeout);
            }
            std::thread::sleep(left.map_or(NAP, |left| left.min(NAP)));
        }
    }

    /// The message that is answered when the value is there; none where too many are under way.
    fn call(&self, value: u64) -> Result<Option<Arc<Call>>, DriverError> {
        let mut waiting = self.waiting();
        if let Some(call) = waiting.get(&value) {
            return Ok(Some(Arc::clone(call)));
        }
        let wait = NativeFenceValue { fence: self.opened.fence, value };
        let control = &self.shared.control;
        let call =
            control.send_wait("WAIT_NATIVE_FENCE", native_fence::WAIT_NATIVE_FENCE, &[wait.as_bytes()])?;
        let call = call.map(Arc::new);
        waiting.extend(call.iter().map(|call| (value, Arc::clone(call))));
        Ok(call)
    }

    fn lost_or(&self, error: DriverError) -> DriverError {
        self.shared.check().err().unwrap_or(error)
    }
}

impl Drop for NativeFence {
    fn drop(&mut self) {
        if !self.shared.control.transport().is_connected() {
            return;
        }
        let named = Named { handle: self.opened.fence };
        let control = &self.shared.control;
        match control.call("CLOSE_NATIVE_FENCE", native_fence::CLOSE_NATIVE_FENCE, &[named.as_bytes()]) {
            Ok(_) => self.shared.release(self.va, PAGE_SIZE),
            Err(error) => log::debug!("closing a fence: {error}"),
        }
    }
}
