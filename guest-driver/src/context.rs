//! A context: a queue of work aimed at one node of one physical adapter.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::control::message::CreateQueue;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::reply::Created;
use campanile_protocol::control::reply::QueueCreated;
use campanile_protocol::control::reply::Suspended;
use campanile_protocol::handle::Handle;
use zerocopy::IntoBytes;

use crate::device::Device;
use crate::device::Shared;
use crate::error::DriverError;
use crate::node::Node;

/// A context on a node. Its queues keep it alive.
#[derive(Debug, Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    handle: Handle,
    node: Node,
    engine: u32,
    is_suspended: AtomicBool,
}

impl Device {
    /// A context on a node, of the first physical adapter.
    pub fn create_context(&self, node: Node) -> Result<Context, DriverError> {
        self.create_context_on(node, 0)
    }

    /// A context on a node of physical adapter `engine` (TDR-08); as many are linked as [`Self::capset`] says in `engines`
    /// of each node.
    ///
    /// # Errors
    /// `Refused` with InvalidParameter where there is no such physical adapter (TDR-09, TDR-10).
    pub fn create_context_on(&self, node: Node, engine: u32) -> Result<Context, DriverError> {
        Context::create(&self.shared, node, engine)
    }
}

impl Context {
    fn create(shared: &Arc<Shared>, node: Node, engine: u32) -> Result<Self, DriverError> {
        // An affinity of nothing is refused as one that is too large.
        let engine_affinity = 1u32.checked_shl(engine).unwrap_or(0);
        let create = CreateContext { node: node.ordinal(), engine_affinity, flags: 0, reserved: 0 };
        let created: Created = shared.control.request("CREATE_CONTEXT", message::CREATE_CONTEXT, &create)?;
        let (shared, is_suspended) = (Arc::clone(shared), AtomicBool::new(false));
        Ok(Self { inner: Arc::new(Inner { shared, handle: created.handle, node, engine, is_suspended }) })
    }

    /// Its node.
    pub fn node(&self) -> Node {
        self.inner.node
    }

    /// Its physical adapter, EngineOrdinal.
    pub fn engine(&self) -> u32 {
        self.inner.engine
    }

    /// Suspends it: when this returns, nothing of it is on the GPU, and nothing will be before [`Self::resume`]. Its queues
    /// take work as before, and keep it (UMS-103, UMS-107). Returns how often it was suspended so far.
    ///
    /// # Errors
    /// `Refused` with BUSY when it was resumed meanwhile by another thread, `DeviceLost`.
    pub fn suspend(&self) -> Result<u64, DriverError> {
        let named = Named { handle: self.inner.handle };
        let control = &self.inner.shared.control;
        self.inner.is_suspended.store(true, Ordering::Relaxed);
        let suspended: Result<Suspended, _> =
            control.request("SUSPEND_CONTEXT", message::SUSPEND_CONTEXT, &named);
        suspended.map(|suspended| suspended.fence)
    }

    /// Lets it run again. What was submitted meanwhile is found without a ring (UMS-105).
    pub fn resume(&self) -> Result<(), DriverError> {
        let named = Named { handle: self.inner.handle };
        self.inner.is_suspended.store(false, Ordering::Relaxed);
        let control = &self.inner.shared.control;
        control.call("RESUME_CONTEXT", message::RESUME_CONTEXT, &[named.as_bytes()]).map(|_| ())
    }

    /// Whether this driver has suspended it: then nothing that is under way will end.
    pub(crate) fn is_suspended(&self) -> bool {
        self.inner.is_suspended.load(Ordering::Relaxed)
    }

    /// Its name in control messages.
    pub fn handle(&self) -> Handle {
        self.inner.handle
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    pub(crate) fn create_queue(&self, flags: u32) -> Result<QueueCreated, DriverError> {
        let create = CreateQueue { context: self.inner.handle, flags, reserved: 0 };
        self.inner.shared.control.request("CREATE_QUEUE", message::CREATE_QUEUE, &create)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        destroy(&self.shared, "DESTROY_CONTEXT", message::DESTROY_CONTEXT, self.handle);
    }
}

/// Destroys an object; what fails then is gone with the device anyway.
pub(crate) fn destroy(shared: &Arc<Shared>, name: &'static str, opcode: u32, handle: Handle) {
    if !shared.control.transport().is_connected() {
        return;
    }
    if let Err(error) = shared.control.call(name, opcode, &[Named { handle }.as_bytes()]) {
        log::debug!("{name}: {error}");
    }
}
