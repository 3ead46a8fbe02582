//! The whole session, but for the devices of its guest processes.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::clock;
use campanile_host_gpu::engine::address::NODES;
use campanile_host_gpu::engine::address::node_index;
use campanile_host_gpu::engine::address::node_name;
use campanile_host_gpu::engine::message::NodeKind;
use campanile_host_gpu::sched::parameters::Band;
use campanile_protocol::PROTOCOL_VERSION;
use campanile_protocol::named_profile::GpuProfile;
use campanile_protocol::queue::doorbell::DoorbellModel;
use std::sync::atomic::Ordering;

use crate::ids::GuestProcess;
use crate::vgpu::config::Compute;
use crate::vgpu::config::Config;
use crate::vgpu::engines::slot::EngineSlot;
use crate::vgpu::hotplug::absences::Absences;
use crate::vgpu::hotplug::absences::KeptBlob;
use crate::vgpu::memory::blobs::Shown;
use crate::vgpu::memory::vidmm::allocations::Backing;
use crate::vgpu::memory::vidmm::vram::Place;
use crate::vgpu::memory::vidmm::vram::VideoMemory;
use crate::vgpu::memory::window::Window;
use crate::vgpu::objects::kernel_source::KernelSource;
use crate::vgpu::objects::message::Origin;
use crate::vgpu::objects::process::Away;
use crate::vgpu::objects::process::Process;
use crate::vgpu::objects::refusal::Refusal;
use crate::vgpu::session::Session;
use crate::vgpu::state::saved::SavedSession;
use crate::vgpu::state::saved::bytes::Bytes;
use crate::vgpu::state::saved::engine::SavedEngine;
use crate::vgpu::state::saved::engine::SavedMessage;
use crate::vgpu::state::saved::immutable::Immutable;
use crate::vgpu::state::saved::immutable::ImmutableNode;
use crate::vgpu::state::saved::memory::SavedAllocation;
use crate::vgpu::state::saved::memory::SavedBlob;
use crate::vgpu::state::saved::memory::SavedKeptBlob;
use crate::vgpu::state::saved::memory::SavedPlace;
use crate::vgpu::state::saved::memory::SavedSegment;
use crate::vgpu::state::saved::process::SavedAway;
use crate::vgpu::state::saved::process::SavedProcess;
use crate::vgpu::state::saved::process::SavedSource;
use crate::vgpu::state::saved::process::SavedTimeline;
use crate::vgpu::state::saved::row::SavedDrain;
use crate::vgpu::state::saved::row::SavedFence;
use crate::vgpu::state::saved::row::SavedMap;
use crate::vgpu::state::saved::row::SavedOrigin;
use crate::vgpu::state::saved::row::SavedResident;
use crate::vgpu::vm::Vm;

/// Why the state of a session cannot be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SaveError {
    /// It runs (LM-25).
    #[error("the vGPU does not stand still")]
    NotFrozen,
    /// Something that a standstill brings to an end has not ended: an error of the daemon's own.
    #[error("{0} did not come to an end with the standstill")]
    NotSettled(&'static str),
}

/// Kernel sources, each once, as they are met; and the work that is waited for.
#[derive(Debug, Default)]
pub(super) struct Collected {
    pub(super) sources: Vec<SavedSource>,
    places: BTreeMap<(u32, Option<String>, Vec<u8>), u32>,
    items: BTreeSet<(GuestProcess, u8, u64)>,
}

impl Collected {
    pub(super) fn source(&mut self, source: &KernelSource) -> u32 {
        let key = (source.language, source.entry.clone(), source.bytes.to_vec());
        let next = u32::try_from(self.sources.len()).unwrap_or(u32::MAX);
        let sources = &mut self.sources;
        *self.places.entry(key).or_insert_with(|| {
            sources.push(SavedSource {
                language: source.language,
                entry: source.entry.clone(),
                bytes: Bytes(source.bytes.to_vec()),
            });
            next
        })
    }

    pub(super) fn claim(&mut self, context: GuestProcess, ring: u8, item: Option<u64>) -> Option<u64> {
        self.items.extend(item.map(|item| (context, ring, item)));
        item
    }

    pub(super) fn origin(&mut self, origin: &Origin) -> SavedOrigin {
        let Origin { context, slot, sequence, ring, item } = *origin;
        let item = self.claim(context, ring, item.map(|item| item.0));
        SavedOrigin(context, slot, sequence, ring, item)
    }
}

fn milliseconds(ages: Vec<Duration>) -> Vec<u64> {
    ages.into_iter().map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)).collect()
}

/// The number of a refusal, in state; 0 is none.
pub(in crate::vgpu) const REFUSALS: [Refusal; 5] =
    [Refusal::OutOfMemory, Refusal::Resource, Refusal::Context, Refusal::Parameter, Refusal::Unspecified];

fn refusal_number(outcome: Result<(), Refusal>) -> u32 {
    let Err(refusal) = outcome else { return 0 };
    match refusal {
        Refusal::OutOfMemory => 1,
        Refusal::Resource => 2,
        Refusal::Context => 3,
        Refusal::Parameter => 4,
        Refusal::Unspecified => 5,
    }
}

/// What a vGPU of this configuration must be like for the state of another to become that of it, or the other way round.
pub fn immutable_of(config: &Config) -> Immutable {
    let nodes = NODES.map(|node| {
        let model = config.doorbell_modes.0[node_index(node)].model;
        ImmutableNode {
            name: node_name(node).to_owned(),
            has_global_doorbell: model == DoorbellModel::Global,
            doorbells: config.doorbells,
            is_sliced: node == NodeKind::Compute && !config.slice.is_zero(),
            device: match (node, &config.compute) {
                (NodeKind::Copy, _) => Some(String::new()),
                // What its device is, is of no importance then.
                (NodeKind::Compute, Compute::Available(_)) if config.profile != GpuProfile::Host => {
                    Some(config.profile.to_string())
                }
                (NodeKind::Compute, Compute::Available(device)) => Some(device.name.clone()),
                (NodeKind::Compute, Compute::Refused(_)) => None,
            },
        }
    });
    let band = |band: Band| Band::ALL.iter().position(|known| *known == band);
    Immutable {
        daemon: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: PROTOCOL_VERSION,
        vram_bytes: config.vram_bytes,
        aperture_bytes: VideoMemory::aperture_of(config.vram_bytes),
        quota_bytes: config.account.quota().max,
        window: config.window,
        single_use: config.single_use,
        gpu_profile: config.profile.fixed().map_or_else(String::new, |_| config.profile.to_string()),
        engines: u32::from(config.engines),
        highest_band: band(config.share.highest_band)
            .and_then(|place| u32::try_from(place).ok())
            .unwrap_or(0),
        nodes: nodes.to_vec(),
    }
}

impl Session {
    /// What a vGPU must be like for its state to become that of this one, or the other way round.
    pub fn immutable(&self) -> Immutable {
        immutable_of(&self.vm.config)
    }

    /// Everything of it that is not immutable and in neither memory.
    ///
    /// # Errors
    /// It does not stand still.
    pub fn save(&self) -> Result<SavedSession, SaveError> {
        Saver::of(self).save()
    }
}

/// What the state is taken of.
#[derive(Debug)]
pub(super) struct Saver<'a> {
    pub(super) vm: &'a Vm,
    away: &'a Absences,
}

impl<'a> Saver<'a> {
    /// Of this session.
    pub(super) fn of(session: &'a Session) -> Self {
        Saver { vm: &session.vm, away: &session.away }
    }
}

impl Saver<'_> {
    fn save(&self) -> Result<SavedSession, SaveError> {
        if !self.vm.freeze.is_frozen() {
            return Err(SaveError::NotFrozen);
        }
        self.check_settled()?;
        self.check_engines()?;
        self.collect()
    }

    /// All of it, whether it stands still or not.
    pub(super) fn collect(&self) -> Result<SavedSession, SaveError> {
        let now = clock::now();
        let mut collected = Collected::default();
        let engines = self.vm.engines.iter().map(|slot| save_engine(slot, &mut collected, now)).collect();
        let drains = self.vm.doorbells.drains.iter().map(|drain| {
            let origin = collected.origin(&drain.origin);
            SavedDrain(drain.holder.context, drain.holder.doorbell.0, origin, drain.last_queued)
        });
        let drains = drains.collect();
        let residents = self.vm.memory.residency.waiters.iter().map(|waiter| {
            let allocations = waiter.allocations.iter().map(|id| id.0).collect();
            SavedResident(collected.origin(&waiter.origin), allocations)
        });
        let residents = residents.collect();
        // Last, when it is known which work is waited for.
        let devices: BTreeMap<GuestProcess, _> = self
            .vm
            .objects
            .processes
            .iter()
            .filter_map(|(context, process)| {
                Some((*context, self.save_device(*context, process.device.as_ref()?, &mut collected)))
            })
            .collect();
        let processes = self.vm.objects.processes.iter().map(|(context, process)| {
            let device = devices.get(context).cloned();
            SavedProcess {
                away: self.save_away(*context, process),
                ..save_process(*context, process, device, &collected, now)
            }
        });
        let processes = processes.collect();
        let waiting = match &self.vm.memory.window {
            Window::Awaited(waiting) => waiting.as_slice(),
            Window::Open | Window::Never => &[],
        };
        let maps = waiting.iter().chain(&self.vm.memory.residency.deferred);
        let standing = &self.vm.config.standing;
        Ok(SavedSession {
            allocations: self.save_allocations(),
            blobs: self.save_blobs(),
            segments: self.save_segments(),
            sources: collected.sources,
            packed_sources: Bytes::default(),
            fences: self.save_fences(),
            processes,
            engines,
            drains,
            residents,
            maps: maps.map(|(resource, offset, token)| SavedMap(*resource, *offset, token.0)).collect(),
            due: self
                .vm
                .objects
                .due
                .iter()
                .map(|(token, outcome)| (token.0, refusal_number(*outcome)))
                .collect(),
            retired: self.vm.memory.retired.iter().map(|(segment, token)| (*segment, token.0)).collect(),
            names: self.away.contexts.iter().map(|(name, own)| (*name, *own)).collect(),
            adapter_resets: milliseconds(standing.reset_ages(now)),
            quarantine: standing.quarantined().map(|quarantine| quarantine.why),
        })
    }

    /// What may be under way in no state: it would end in neither session.
    pub(super) fn check_settled(&self) -> Result<(), SaveError> {
        let is_on_its_way = |blob: &crate::vgpu::memory::blobs::Blob| blob.shown == Shown::Moving;
        let unsettled = [
            (!self.vm.engines.pending.is_empty(), "what waits for engines"),
            (!self.vm.engines.suspending.is_empty(), "a suspend"),
            (self.vm.memory.blobs.values().any(is_on_its_way), "a move"),
            (self.vm.memory.allocations.iter().any(|(_, allocation)| allocation.is_moving), "an eviction"),
            (self.vm.engines.moves.has_arrivals(), "a copy by the device"),
        ];
        none_of(&unsettled)
    }

    /// What a standstill must have brought to an end besides.
    fn check_engines(&self) -> Result<(), SaveError> {
        none_of(&[
            (self.vm.engines.iter().any(EngineSlot::hears), "an engine"),
            (self.vm.engines.iter().any(|slot| !slot.in_flight.is_empty()), "a buffer in a hardware queue"),
        ])
    }

    fn save_allocations(&self) -> Vec<SavedAllocation> {
        let place = |backing: Backing| match backing {
            Backing::Vram(None) => SavedPlace::Nowhere,
            Backing::Vram(Some(Place::Aperture(offset))) => SavedPlace::Aperture(offset),
            Backing::Vram(Some(Place::Local(offset))) => SavedPlace::Local(offset),
            Backing::Vram(Some(Place::Area(offset))) => SavedPlace::Area(offset),
            Backing::Vram(Some(Place::Host(offset))) => SavedPlace::Host(offset),
            Backing::Guest(segment) => SavedPlace::Guest(segment.0),
        };
        let all = self.vm.memory.allocations.iter();
        all.map(|(id, it)| SavedAllocation(id.0, it.size, place(it.backing), it.priority)).collect()
    }

    fn save_blobs(&self) -> Vec<SavedBlob> {
        let all = self.vm.memory.blobs.iter().map(|(resource, blob)| {
            let is_shown = blob.shown == Shown::Yes;
            SavedBlob(*resource, blob.allocation.0, blob.is_vram, blob.mappable, is_shown)
        });
        all.collect()
    }

    fn save_away(&self, own: GuestProcess, process: &Process) -> Option<SavedAway> {
        let Away { parked, is_gone } = process.away?;
        let its = self.away.kept.iter().filter(|(_, kept)| kept.owner == own);
        let blobs =
            its.map(|(name, KeptBlob { blob, .. })| SavedKeptBlob(*name, blob.allocation.0, blob.mappable));
        Some(SavedAway { token: parked.token, names: parked.names, is_gone, blobs: blobs.collect() })
    }

    fn save_segments(&self) -> Vec<SavedSegment> {
        let all = self.vm.memory.segments.all_pieces().into_iter();
        all.map(|(id, pieces)| SavedSegment { id, pieces: pieces.to_vec() }).collect()
    }

    fn save_fences(&self) -> Vec<SavedFence> {
        let open = self.vm.fences.iter().filter(|(index, _)| self.vm.fences.is_open(*index));
        let row = |(index, global): (u32, campanile_protocol::handle::Handle)| {
            let value = self.vm.fences.value(index)?.load(Ordering::Acquire);
            Some(SavedFence(index, global.0, self.vm.fences.kind(index)?, value))
        };
        open.filter_map(row).collect()
    }
}

fn none_of(unsettled: &[(bool, &'static str)]) -> Result<(), SaveError> {
    match unsettled.iter().find(|(is_unsettled, _)| *is_unsettled) {
        Some((_, what)) => Err(SaveError::NotSettled(what)),
        None => Ok(()),
    }
}

fn save_process(
    context: GuestProcess,
    process: &Process,
    device: Option<crate::vgpu::state::saved::process::SavedDevice>,
    collected: &Collected,
    now: Instant,
) -> SavedProcess {
    let timelines = process.timelines.iter().map(|(ring, timeline)| {
        // What would never be ended is over.
        let is_claimed = |item: &&u64| collected.items.contains(&(context, *ring, **item));
        SavedTimeline {
            ring: *ring,
            next: timeline.next,
            open: timeline.open.keys().filter(is_claimed).copied().collect(),
            fences: timeline.fences.iter().map(|(behind, token)| (*behind, token.0)).collect(),
        }
    });
    SavedProcess {
        context,
        attached: process.attached.keys().copied().collect(),
        timelines: timelines.collect(),
        offences: milliseconds(process.offences.ages(now)),
        blocked: process.blocked,
        device,
        away: None,
    }
}

fn save_engine(slot: &EngineSlot, collected: &mut Collected, now: Instant) -> SavedEngine {
    let connects = slot.line.in_order().into_iter();
    let connects = connects.map(|connect| (collected.origin(&connect.origin), connect.doorbell.0)).collect();
    let waiting = slot.waiting.iter().map(|message| {
        SavedMessage(collected.origin(&message.origin), message.opcode, Bytes(message.body.clone()))
    });
    let waiting = waiting.collect();
    let mut compiling: Vec<_> = slot.compiling.values().collect();
    compiling.sort_by_key(|kernel| kernel.number);
    SavedEngine {
        submitted: slot.fences.submitted(),
        completed: slot.fences.completed(),
        taken: slot.taken,
        resets: milliseconds(slot.resets.ages(now)),
        connects,
        waiting,
        compiling: compiling
            .into_iter()
            .map(|kernel| (collected.origin(&kernel.origin), kernel.handle.0))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use campanile_protocol::named_profile::GpuProfile;
    use campanile_protocol::queue::doorbell::DoorbellModel;

    use super::REFUSALS;
    use super::SaveError;
    use super::immutable_of;
    use super::refusal_number;
    use crate::vgpu::config::Compute;
    use crate::vgpu::config::Config;
    use crate::vgpu::engines::barrier::Barrier;
    use crate::vgpu::engines::device_moves::Then;
    use crate::vgpu::engines::lifecycle::Lifecycle;
    use crate::vgpu::engines::pending::Action;
    use crate::vgpu::engines::pending::Pending;
    use crate::vgpu::engines::slot::InFlight;
    use crate::vgpu::memory::blobs::Shown;
    use crate::vgpu::memory::vidmm::device_memory::DeviceCopy;
    use crate::vgpu::objects::timeline::Token;
    use crate::vgpu::session::Session;
    use crate::vgpu::testing::CONTEXT;
    use crate::vgpu::testing::COPY;
    use crate::vgpu::testing::OWNER;
    use crate::vgpu::testing::config;
    use crate::vgpu::testing::golden;
    use crate::vgpu::testing::session;
    use crate::vgpu::testing::startable;
    use campanile_host_gpu::engine::message::MoveSide;
    use campanile_host_gpu::ids::ContextIndex;

    #[test]
    fn lm_26_the_number_of_a_refusal_is_its_place_among_all_and_that_of_none_is_zero() {
        assert_eq!(refusal_number(Ok(())), 0);
        assert_eq!(REFUSALS.map(|refusal| refusal_number(Err(refusal))), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn lm_34_what_guests_see_of_nodes_follows_the_configuration() {
        let nodes = |config: &Config| immutable_of(config).nodes;
        let [compute, copy] = &nodes(&config())[..] else { panic!("two nodes") };
        assert_eq!((compute.name.as_str(), copy.name.as_str()), ("compute", "copy"));
        assert_eq!((compute.is_sliced, copy.is_sliced), (true, false), "a copy has no thread groups");
        assert_eq!((compute.has_global_doorbell, copy.has_global_doorbell), (false, false));
        let mut other = Config { slice: Duration::ZERO, ..config() };
        other.doorbell_modes.0[1].model = DoorbellModel::Global;
        let nodes = nodes(&other);
        assert_eq!([&nodes[0], &nodes[1]].map(|node| node.is_sliced), [false, false]);
        assert_eq!([&nodes[0], &nodes[1]].map(|node| node.has_global_doorbell), [false, true]);
        let on = |device: &str| Config { compute: Compute::on(device), ..config() };
        let named = |device: &str| Config { profile: GpuProfile::Campanile1, ..on(device) };
        let [of_host, other, of_profile, same] =
            [on("a"), on("b"), named("a"), named("b")].map(|config| immutable_of(&config));
        assert_eq!(of_host.gpu_profile, "", "as it was before there were named ones");
        assert_eq!(of_host.check(&other).unwrap_err().field, "device of node compute");
        assert_eq!(of_profile.check(&same), Ok(()), "whatever the device");
        assert_eq!(of_profile.nodes[0].device.as_deref(), Some("campanile-1"));
        assert_eq!(of_profile.nodes[1].device.as_deref(), Some(""), "which only copies");
        let refused = of_profile.check(&of_host).unwrap_err().to_string();
        assert!(refused.contains("gpu_profile is host in the state, and campanile-1 here"), "{refused}");
        let none = Compute::Refused("no driver".to_owned());
        let none = immutable_of(&Config { compute: none, ..named("a") });
        assert_eq!(none.check(&of_profile).unwrap_err().field, "device of node compute");
    }

    #[test]
    fn lm_25_no_state_is_taken_of_a_session_in_which_something_has_not_come_to_an_end() {
        type Change = fn(&mut Session);
        let changes: [(&str, Change); 7] = [
            ("what waits for engines", |session| {
                let (barrier, action) = (Barrier::default(), Action::Answer(Token(1)));
                session.vm.engines.pending.push(Pending { barrier, action, charges: Vec::new() });
            }),
            ("a suspend", |session| {
                let suspending = session.vm.engines.hold(
                    &mut session.vm.objects,
                    &*session.vm.config.schedule,
                    OWNER,
                    CONTEXT,
                    |held| held.by_guest = true,
                );
                session.vm.engines.suspending.push(suspending.unwrap());
            }),
            ("a move", |session| session.vm.memory.blobs.values_mut().next().unwrap().shown = Shown::Moving),
            ("an eviction", |session| {
                let id = session.vm.memory.allocations.iter().next().unwrap().0;
                session.vm.memory.allocations.get_mut(id).unwrap().is_moving = true;
            }),
            ("a copy by the device", |session| {
                let side = MoveSide::Local(0);
                let copy = DeviceCopy { from: side, to: side, bytes: 4096 };
                session.vm.engines.moves.push(copy, Then::Arrived(Action::Answer(Token(1))));
            }),
            ("an engine", |session| Lifecycle::of(&mut session.vm).start_next_process(COPY).unwrap()),
            ("a buffer in a hardware queue", |session| {
                let flight = InFlight { fence_id: 5, entry: ContextIndex::new(0), suspends: 0, owner: None };
                session.vm.engines[COPY.index()].in_flight.push_back(flight);
            }),
        ];
        for (what, change) in changes {
            let mut session = session(&Arc::new(startable()));
            session.restore(&golden()).unwrap();
            assert!(session.save().is_ok());
            change(&mut session);
            assert_eq!(session.save().unwrap_err(), SaveError::NotSettled(what));
        }
    }
}
