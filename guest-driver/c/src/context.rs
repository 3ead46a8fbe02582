//! A context: a place on a node that queues are made in.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use campanile_guest_driver::context::Context;
use campanile_guest_driver::node::Node;

use crate::boundary::given;
use crate::boundary::guarded;
use crate::boundary::release;
use crate::device::CAMPANILE_NODE_COMPUTE;
use crate::device::CAMPANILE_NODE_COPY;
use crate::device::CampanileDevice;
use crate::failure::Failure;
use crate::result::CampanileResult;

/// A context on a node.
#[derive(Debug)]
pub struct CampanileContext(pub(crate) Context);

fn node(ordinal: u32) -> Result<Node, Failure> {
    match ordinal {
        CAMPANILE_NODE_COMPUTE => Ok(Node::Compute),
        CAMPANILE_NODE_COPY => Ok(Node::Copy),
        _ => Err(Failure::argument(format_args!("there is no node {ordinal}"))),
    }
}

/// Makes a context on `node`, a `CAMPANILE_NODE_…`. `CAMPANILE_NOT_SUPPORTED`, with the reason, where the node is
/// not available.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_context_create(
    device: Option<&CampanileDevice>,
    node_ordinal: u32,
    context: Option<&mut MaybeUninit<Box<CampanileContext>>>,
) -> CampanileResult {
    guarded("campanile_context_create", || {
        let (device, place) = (given(device, "device")?, given(context, "context")?);
        place.write(Box::new(CampanileContext(device.0.create_context(node(node_ordinal)?)?)));
        Ok(())
    })
}

/// Gives a context back; NULL is nothing. Its queues go on.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_context_destroy(context: Option<Box<CampanileContext>>) {
    release("campanile_context_destroy", context);
}

/// Suspends a context: when this returns, nothing of it is on the GPU, and nothing will be until it is resumed. Its queues
/// take work as before, and keep it. How often it was suspended so far is in `count`, which may be NULL.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_context_suspend(
    context: Option<&CampanileContext>,
    count: Option<&mut MaybeUninit<u64>>,
) -> CampanileResult {
    guarded("campanile_context_suspend", || {
        let suspended = given(context, "context")?.0.suspend()?;
        if let Some(count) = count {
            count.write(suspended);
        }
        Ok(())
    })
}

/// Lets a context run again, with what its queues got meanwhile.
#[unsafe(no_mangle)]
pub extern "C" fn campanile_context_resume(context: Option<&CampanileContext>) -> CampanileResult {
    guarded("campanile_context_resume", || Ok(given(context, "context")?.0.resume()?))
}
