//! A context: a queue of work aimed at one node.

use std::sync::Arc;

use campanile_protocol::control::message;
use campanile_protocol::control::message::CreateContext;
use campanile_protocol::control::message::CreateQueue;
use campanile_protocol::control::message::Named;
use campanile_protocol::control::reply::Created;
use campanile_protocol::control::reply::QueueCreated;
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
}

impl Device {
    /// A context on a node.
    pub fn create_context(&self, node: Node) -> Result<Context, DriverError> {
        Context::create(&self.shared, node)
    }
}

impl Context {
    fn create(shared: &Arc<Shared>, node: Node) -> Result<Self, DriverError> {
        let create = CreateContext { node: node.ordinal(), engine_affinity: 1, flags: 0, reserved: 0 };
        let created: Created = shared.control.request("CREATE_CONTEXT", message::CREATE_CONTEXT, &create)?;
        Ok(Self { inner: Arc::new(Inner { shared: Arc::clone(shared), handle: created.handle, node }) })
    }

    /// Its node.
    pub fn node(&self) -> Node {
        self.inner.node
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
