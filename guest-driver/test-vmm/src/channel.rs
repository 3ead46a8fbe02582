//! Commands in the name of one context.

use std::sync::Arc;

use campanile_protocol::virtio_gpu::command::Header;
use campanile_protocol::virtio_gpu::command::ResourceName;
use campanile_protocol::virtio_gpu::response;
use zerocopy::FromBytes;
use zerocopy::Immutable;
use zerocopy::IntoBytes;

use super::command;
use super::command::Command;
use super::vm::LoopbackVm;
use campanile_guest_driver::transport::error::TransportError;

/// A context's number, and the boot of the device in which it means something.
#[derive(Debug, Clone)]
pub(super) struct Channel {
    pub(super) vm: Arc<LoopbackVm>,
    pub(super) context_id: u32,
    pub(super) generation: u64,
}

/// In whose name a command is sent: the stock driver names no context where the resource is all that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sender {
    Context,
    Kernel,
}

impl Channel {
    /// The header of a command.
    pub(super) fn header(&self, kind: u32, sender: Sender) -> Header {
        let context_id = if sender == Sender::Context { self.context_id } else { 0 };
        Header { kind, context_id, ..Default::default() }
    }

    /// Whether the context can still mean something to the device.
    pub(super) fn check(&self) -> Result<(), TransportError> {
        if self.generation == self.vm.numbers.generation() {
            Ok(())
        } else {
            Err(TransportError::DeviceReset)
        }
    }

    /// Sends a command and waits for an answer of one kind.
    pub(super) fn ask<T: FromBytes, B: IntoBytes + Immutable>(
        &self,
        name: &'static str,
        header: Header,
        body: &B,
        payload: &[u8],
        kind: u32,
    ) -> Result<T, TransportError> {
        self.check()?;
        let body = [header.as_bytes(), body.as_bytes()].concat();
        let answer =
            self.vm.command(&Command { name, body: &body, payload, response_bytes: size_of::<T>() })?;
        command::decode(name, kind, &answer)
    }

    /// Sends a command that is answered by a header alone.
    pub(super) fn tell<B: IntoBytes + Immutable>(
        &self,
        name: &'static str,
        header: Header,
        body: &B,
        payload: &[u8],
    ) -> Result<(), TransportError> {
        self.ask::<Header, B>(name, header, body, payload, response::OK_NODATA).map(drop)
    }

    /// Sends a command that only names a resource.
    pub(super) fn name(
        &self,
        name: &'static str,
        kind: u32,
        sender: Sender,
        resource_id: u32,
    ) -> Result<(), TransportError> {
        self.tell(name, self.header(kind, sender), &ResourceName { resource_id, padding: 0 }, &[])
    }
}
