//! Control messages to the daemon, one at a time, answered in the device page.

use campanile_protocol::control::frame::FrameHeader;
use campanile_protocol::control::frame::MAGIC;
use campanile_protocol::control::reply::ResponseHeader;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::fault::Fault;
use crate::front::Front;
use crate::memory::Memory;

/// The response slot that all messages use.
const SLOT: u32 = 0;
/// Bytes of a message's body at the most: a kernel.
const LARGEST: usize = 2048;

/// The control path of a session.
pub(crate) struct Control {
    context: u32,
    page: Memory,
    sequence: u64,
}

impl Control {
    /// Over this device page.
    pub(crate) fn new(context: u32, page: Memory) -> Self {
        Self { context, page, sequence: 0 }
    }

    /// The device page.
    pub(crate) fn page(&self) -> Memory {
        self.page
    }

    /// Whether the device works, as far as its page says.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        match self.page.word(device_page::DEVICE_STATUS).acquire() {
            device_page::DEVICE_ACTIVE => Ok(()),
            status => Err(Fault::DeviceLost(status)),
        }
    }

    /// Sends a message without an answer but its status.
    pub(crate) fn tell(
        &mut self,
        front: &mut Front,
        name: &'static str,
        opcode: u32,
        parts: &[&[u8]],
    ) -> Result<(), Fault> {
        let mut body = [0; LARGEST];
        let mut length = 0;
        for part in parts {
            body[length..length + part.len()].copy_from_slice(part);
            length += part.len();
        }
        let length = length.next_multiple_of(8);
        self.sequence += 1;
        let size = u32::try_from(size_of::<FrameHeader>() + length).unwrap_or(u32::MAX);
        let frame = FrameHeader { magic: MAGIC, size, opcode, slot: SLOT, sequence: self.sequence };
        front.submit(name, self.context, frame.as_bytes(), &body[..length])?;
        let at = device_page::response(SLOT);
        if self.page.word(at).acquire() != self.sequence {
            return Err(Fault::Message(name, u32::MAX));
        }
        let response: ResponseHeader = self.page.read_as(at);
        if response.status == Status::Ok.word() { Ok(()) } else { Err(Fault::Message(name, response.status)) }
    }

    /// Sends a message, and has its answer.
    pub(crate) fn ask<T: FromBytes + IntoBytes>(
        &mut self,
        front: &mut Front,
        name: &'static str,
        opcode: u32,
        parts: &[&[u8]],
    ) -> Result<T, Fault> {
        self.tell(front, name, opcode, parts)?;
        Ok(self.page.read_as(device_page::response(SLOT) + size_of::<ResponseHeader>() as u64))
    }
}
