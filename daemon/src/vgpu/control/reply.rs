//! Answers to control messages.

use campanile_protocol::control::reply::MAX_PAYLOAD;
use campanile_protocol::control::reply::ResponseHeader;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use zerocopy::IntoBytes;

use crate::vgpu::counters::count;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::vm::Vm;

impl Vm {
    /// Writes the answer into the guest's response slot: payload, then header, then sequence.
    pub(in crate::vgpu) fn answer(&mut self, origin: Origin, outcome: Result<Vec<u8>, Refused>) {
        let (status, payload) = match outcome {
            Ok(payload) => (Status::Ok, payload),
            Err(refused) => {
                count(&self.counters.refused_messages);
                (refused.status, refused.text.into_bytes())
            }
        };
        let length = payload.len().min(MAX_PAYLOAD);
        let header = ResponseHeader {
            sequence: 0,
            status: status.word(),
            payload_bytes: u32::try_from(length).unwrap_or(0),
        };
        if let Some(page) = self.memory.page(&self.objects, origin.context) {
            let at = device_page::response(origin.slot);
            let head = size_of::<ResponseHeader>() as u64;
            page.write(at + head, &payload[..length]);
            page.write(at + 8, &header.as_bytes()[8..]);
            // PAIRS WITH the guest driver's acquire of the sequence.
            page.store(at, origin.sequence);
        }
        self.objects.end_item(origin.context, origin.ring, origin.item);
    }
}
