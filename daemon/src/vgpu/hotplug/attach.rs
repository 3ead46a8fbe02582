//! Guest processes come back to a device that was taken away (`away.rs`).

use std::collections::BTreeSet;

use campanile_protocol::PROTOCOL_VERSION;
use campanile_protocol::control::away::AttachDevice;
use campanile_protocol::control::away::PagesAgain;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use campanile_protocol::handle::Handle;
use campanile_protocol::queue::doorbell::DoorbellStatus;
use log::Level;
use zerocopy::FromBytes;

use super::absences::KeptBlob;
use crate::ids::FrontContext;
use crate::ids::GuestProcess;
use crate::vgpu::control::deferred::Deferred;
use crate::vgpu::control::guest_pages::GuestPages;
use crate::vgpu::control::memory::blobs::Blobs;
use crate::vgpu::counters::count;
use crate::vgpu::engines::barrier::Barrier;
use crate::vgpu::engines::pending::Action;
use crate::vgpu::hotplug::detached::Hotplug;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::process::Process;
use crate::vgpu::objects::refusal::Refusal;

impl Hotplug<'_> {
    /// ATTACH_DEVICE: the process that the guest calls `name` is one that was away.
    pub(in crate::vgpu) fn attach_device(
        &mut self,
        name: FrontContext,
        origin: Origin,
        bytes: &[u8],
    ) -> Result<(), Refusal> {
        let (own, pages) = self.who_returns(origin, bytes).map_err(|(refusal, why)| {
            self.vm
                .journal
                .line(Level::Warn, format_args!("context {name} is no process that was away: {why}"));
            refusal
        })?;
        if self.away.is_leaving() {
            self.vm.answer(Origin { context: own, ..origin }, Err(Status::Leaving.into()));
            return Ok(());
        }
        // The new process was a name alone.
        let Some(new) = self.vm.objects.processes.remove(&origin.context) else {
            return Err(Refusal::Context);
        };
        self.away.contexts.insert(name, own);
        let tokens = new.timelines.into_values().flat_map(|mut timeline| timeline.take_all());
        self.vm.objects.due.extend(tokens.map(|token| (token, Ok(()))));
        for resource in new.attached.keys() {
            if let Some(blob) = self.vm.memory.blobs.get_mut(resource) {
                blob.name = None;
            }
        }
        if let Some(process) = self.vm.objects.processes.get_mut(&own) {
            process.attached = new.attached;
            process.away = None;
        }
        let barrier = self.put_pages(&pages);
        Blobs::of(self.vm, self.away).drop_kept(own);
        self.publish_device(own);
        self.vm.answer(Origin { context: own, ..origin }, Ok(Vec::new()));
        let root = self.vm.objects.device(own).map_err(|_| Refusal::Context)?.root;
        Deferred::of(self.vm).after(barrier, Action::Return { context: own, root });
        if !self.vm.objects.processes.values().any(Process::is_away) {
            self.away.until = None;
        }
        count(&self.vm.counters.returned);
        self.vm.journal.line(Level::Info, format_args!("process {own} has come back, as context {name}"));
        Ok(())
    }

    /// Which process sends this, and the pages that it has made again.
    fn who_returns(
        &self,
        origin: Origin,
        bytes: &[u8],
    ) -> Result<(GuestProcess, Vec<PagesAgain>), (Refusal, &'static str)> {
        let wrong = |why| (Refusal::Parameter, why);
        let (message, rest) = AttachDevice::read_from_prefix(bytes).map_err(|_| wrong("it is too short"))?;
        let pages: Vec<PagesAgain> = rest
            .chunks_exact(size_of::<PagesAgain>())
            .filter_map(|it| PagesAgain::read_from_bytes(it).ok())
            .collect();
        let is_whole = rest.len() == pages.len() * size_of::<PagesAgain>();
        let is_counted = usize::try_from(message.count).is_ok_and(|count| count == pages.len());
        if !is_whole || !is_counted || message.reserved != 0 {
            return Err(wrong("what it says of its pages is not what it counts"));
        }
        let is_it = |process: &&Process| {
            process.away.is_some_and(|away| away.is_gone && away.parked == message.parked)
        };
        let found = self.vm.objects.processes.iter().find(|(_, process)| is_it(process)).map(|(own, _)| *own);
        let own = found.ok_or(wrong("no process that is away has this token"))?;
        if message.protocol_version >> 16 != PROTOCOL_VERSION >> 16 {
            return Err(wrong("its protocol is another"));
        }
        let page =
            self.vm.memory.attached_allocation(&self.vm.objects, origin.context, message.page_resource);
        let page = page.map_err(|_| (Refusal::Resource, "its device page is not attached"))?;
        let device = self.vm.objects.device(own).map_err(|_| (Refusal::Context, "it had no device"))?;
        if device.page.allocation != page {
            return Err(wrong("its device page is another"));
        }
        self.check_pages(own, origin.context, &pages)?;
        Ok((own, pages))
    }

    /// Whether blobs of its own pages can be what they were, with the pages of others that it has made.
    fn check_pages(
        &self,
        own: GuestProcess,
        new: GuestProcess,
        pages: &[PagesAgain],
    ) -> Result<(), (Refusal, &'static str)> {
        let wrong = |why| (Refusal::Parameter, why);
        let mut resources = BTreeSet::new();
        for PagesAgain { name, resource, reserved } in pages {
            let kept =
                self.away.kept.get(name).filter(|kept| kept.owner == own).map(|kept| kept.blob.allocation);
            let kept = kept.ok_or(wrong("it had no blob of such a name"))?;
            let again = self.vm.memory.attached_allocation(&self.vm.objects, new, *resource);
            let again = again.map_err(|_| (Refusal::Resource, "a blob of its pages is not attached"))?;
            let are_pages =
                [kept, again].iter().all(|id| self.vm.memory.allocations.guest_segment(*id).is_some());
            let fits =
                are_pages && self.vm.memory.allocations.size(kept) == self.vm.memory.allocations.size(again);
            if !fits || *reserved != 0 || !resources.insert((*name, *resource)) {
                return Err(wrong("its pages are no others for that blob"));
            }
        }
        let (names, all): (BTreeSet<u64>, BTreeSet<u32>) = resources.iter().copied().unzip();
        if names.len() == pages.len() && all.len() == pages.len() {
            Ok(())
        } else {
            Err(wrong("it names a blob twice"))
        }
    }

    /// Puts new pages behind old blobs. Engines have them when the barrier is passed.
    fn put_pages(&mut self, pages: &[PagesAgain]) -> Barrier {
        for PagesAgain { name, resource, .. } in pages {
            let Some(KeptBlob { blob: kept, .. }) = self.away.kept.remove(name) else { continue };
            let Some(blob) = self.vm.memory.blobs.get_mut(resource) else { continue };
            let again = std::mem::replace(&mut blob.allocation, kept.allocation);
            let backings =
                [kept.allocation, again].map(|id| self.vm.memory.allocations.get(id).map(|it| it.backing));
            let [Some(old), Some(new)] = backings else { continue };
            for (id, backing) in [(kept.allocation, new), (again, old)] {
                if let Some(allocation) = self.vm.memory.allocations.get_mut(id) {
                    allocation.backing = backing;
                }
            }
            Deferred::of(self.vm).show_when_announced(kept.allocation);
            GuestPages::of(self.vm).release_allocation(again);
        }
        Barrier::announced(&self.vm.engines)
    }

    /// Its page is what the daemon decided, whatever the guest has put there meanwhile.
    fn publish_device(&self, own: GuestProcess) {
        let Ok(device) = self.vm.objects.device(own) else { return };
        let words: Vec<(Handle, DoorbellStatus)> =
            device.doorbells.iter().map(|(_, bell)| (bell.queue, bell.state.status())).collect();
        for (queue, status) in words {
            self.vm.memory.store_page_word(
                &self.vm.objects,
                own,
                device_page::status(queue.index()),
                status.word(),
            );
        }
        for (at, value) in [
            (device_page::PAGING_FENCE, device.paging.done()),
            (device_page::LEAVE, 0),
            (device_page::DEVICE_STATUS, device.status),
        ] {
            self.vm.memory.store_page_word(&self.vm.objects, own, at, value);
        }
    }
}
