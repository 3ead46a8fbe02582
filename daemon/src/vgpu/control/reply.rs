//! Answers to control messages.

use campanile_protocol::control::reply::MAX_PAYLOAD;
use campanile_protocol::control::reply::ResponseHeader;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use zerocopy::IntoBytes;

use crate::vgpu::counters::count;
use crate::vgpu::objects::budget::Charge;
use crate::vgpu::objects::budget::Kind;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::message::Refused;
use crate::vgpu::objects::message::WORK_BYTES;
use crate::vgpu::objects::timeline::Item;
use crate::vgpu::objects::timeline::Timeline;
use crate::vgpu::session::Session;

impl Session {
    /// Keeps a message, or a buffer, for later: its timeline waits for it.
    ///
    /// # Errors
    /// The VM's budget is used up; nothing was changed.
    pub(in crate::vgpu) fn park(&mut self, origin: Origin) -> Result<Origin, Refused> {
        let charge = self.charge(origin.context, Kind::Work, WORK_BYTES)?;
        Ok(self.park_charged(origin, Some(charge)))
    }

    /// As [`Self::park`], for a message that ends something, with which it was paid for.
    pub(in crate::vgpu) fn park_end(&mut self, origin: Origin) -> Origin {
        self.park_charged(origin, None)
    }

    /// As [`Self::park`], with what was charged for it already.
    pub(in crate::vgpu) fn park_charged(&mut self, origin: Origin, charge: Option<Charge>) -> Origin {
        let last = self.last_item;
        let item = self.processes.get_mut(&origin.context).map(|process| {
            process.timelines.entry(origin.ring).or_insert_with(|| Timeline::after(last)).begin(charge)
        });
        Origin { item, ..origin }
    }

    /// Charges a process for one more item.
    ///
    /// # Errors
    /// There is no such process, or the VM's budget is used up.
    pub(in crate::vgpu) fn charge(&self, context: u32, kind: Kind, bytes: u64) -> Result<Charge, Refused> {
        let process = self.processes.get(&context).ok_or(Status::NoDevice)?;
        Ok(process.purse.charge(kind, bytes)?)
    }

    /// Ends a piece of work on a timeline; fences behind it may be due.
    pub(in crate::vgpu) fn end_item(&mut self, context: u32, ring: u8, item: Option<Item>) {
        let Some(process) = self.processes.get_mut(&context) else { return };
        let Some(timeline) = process.timelines.get_mut(&ring) else { return };
        if let Some(item) = item {
            timeline.end(item);
        }
        while let Some(token) = timeline.take_due() {
            self.due.push((token, Ok(())));
        }
    }

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
        if let Some(page) = self.page(origin.context) {
            let at = device_page::response(origin.slot);
            let head = size_of::<ResponseHeader>() as u64;
            page.write(at + head, &payload[..length]);
            page.write(at + 8, &header.as_bytes()[8..]);
            // PAIRS WITH the guest driver's acquire of the sequence.
            page.store(at, origin.sequence);
        }
        self.end_item(origin.context, origin.ring, origin.item);
    }
}
