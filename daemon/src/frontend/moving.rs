//! A vGPU that goes elsewhere, or has come from there.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::device::FrontDevice;
use super::kind::Front;
use super::vgpu::Vgpu;
use super::vhost::device::AtWork;
use super::vhost::device::Save;
use super::waiting::Command;
use crate::ledger::lost::Lost;
use crate::ledger::read::FENCES;
use crate::ledger::read::block_of;
use crate::migration::checkpoint::DeviceCheckpoint;
use crate::migration::endpoint::Begins;
use crate::migration::endpoint::Endpoint;
use crate::migration::endpoint::Right;
use crate::migration::endpoint::Snapshot;
use crate::migration::endpoint::adopt;
use crate::migration::error::MigrationError;
use crate::migration::handed::Becomes;
use crate::migration::handed::Interrupted;
use crate::migration::local_fill::Contents;
use crate::migration::quiesce::Wanted;
use crate::migration::source::departure::Thaw;
use crate::migration::state;
use crate::migration::state::State;
use crate::vgpu::config::Config;
use crate::vgpu::counters::Counters;
use crate::vgpu::state::restore::install::adopt_code;
use crate::vgpu::state::restore::install::check_immutable;
use crate::vgpu::state::save::at_work::blocks;
use crate::vgpu::state::save::at_work::fence_values;
use crate::vgpu::state::save::at_work::now;
use crate::vgpu::state::save::at_work::save_at_work;
use crate::vgpu::state::saved::SavedSession;
use crate::vgpu::state::saved::at_work::SavedAtWork;
use crate::vgpu::state::saved::bytes::Bytes;

/// A bundle whose name takes as many bytes as any can.
const LONGEST: state::BundleId = state::BundleId(u64::MAX, u64::MAX);

impl<F: Front> FrontDevice<F> {
    /// A device that may go and come through `endpoint`.
    ///
    /// # Errors
    /// It cannot be made, or cannot begin as the snapshot that it should.
    pub fn moving(
        options: F::Options,
        config: Arc<Config>,
        counters: Arc<Counters>,
        endpoint: Arc<Endpoint>,
    ) -> io::Result<Self> {
        let mut device = Self::with(options, config, counters)?;
        if let Some(Snapshot { memories, mut state, begins, code, interrupted }) =
            endpoint.take_snapshot().map_err(io::Error::other)?
        {
            let vgpu = &mut device.vgpu;
            let contents =
                if matches!(begins, Begins::Frozen) { Contents::InPlace } else { Contents::InFile };
            let mut empty = SavedSession::default();
            let session = match &mut state {
                Becomes::Whole(state) => &mut state.session,
                Becomes::Lost(_) => &mut empty,
            };
            adopt(&mut vgpu.session, &vgpu.config, memories, contents, session).map_err(io::Error::other)?;
            adopt_code(&mut vgpu.session, code);
            match state {
                Becomes::Whole(state) => device.take_over_interrupted(&state, interrupted)?,
                Becomes::Lost(lost) => device.begin_bereft(&lost),
            }
            match begins {
                Begins::Detached(file) => {
                    device.vgpu.right = Some(Right::File(Arc::clone(&endpoint), file));
                    // The rings are new, and so are the guest's names for everything.
                    device.vgpu.waiting.clear();
                    device.vgpu.session.thaw();
                    device.vgpu.session.hotplug().end_present();
                    device.vgpu.session.hotplug().begin_return();
                }
                Begins::Running => {
                    device.vgpu.session.thaw();
                }
                // What it is to go on with is there before it may.
                Begins::Frozen => device.vgpu.session.quiesce().warm_up(),
            }
        }
        endpoint.attach(&device.vgpu.session).map_err(io::Error::other)?;
        device.vgpu.endpoint = Some(endpoint);
        Ok(device)
    }

    /// Becomes the device that a state is of, as far as it holds; where it cannot, and a daemon that was killed had it, one with nothing in it.
    fn take_over_interrupted(&mut self, state: &State, interrupted: Interrupted) -> io::Result<()> {
        let Interrupted { lost, otherwise } = interrupted;
        let taken = self.take_over(state);
        let (Err(why), Some(otherwise)) = (&taken, otherwise) else {
            taken.map_err(io::Error::other)?;
            self.vgpu.session.recovery().lose_interrupted(&lost);
            return Ok(());
        };
        log::error!("{}: devices are lost with the daemon before this one: {why}", self.vgpu.name());
        let (left, devices) = otherwise.lose()?;
        self.vgpu.counters.devices_lost.fetch_add(devices, Ordering::Relaxed);
        self.vgpu.config.ledger.forget_pages();
        self.begin_bereft(&left);
        Ok(())
    }

    /// Begins with nothing but the names that the guest's driver knows from a daemon that was killed.
    fn begin_bereft(&mut self, lost: &Lost) {
        for context in &lost.contexts {
            if let Err(refusal) = self.vgpu.session.create_context(*context) {
                log::warn!("{}: context {context} is lost with its devices: {refusal:?}", self.vgpu.name());
            }
        }
        self.front.begin_bereft(lost);
    }

    /// The device at work, for a daemon that goes on with it if this one is killed.
    pub(super) fn checkpoint(&self) -> Option<AtWork> {
        let session = &self.vgpu.session;
        // A device that has not begun has nothing to lose, and one that is elsewhere, or may be, is not to go on here.
        let has_begun = !session.is_fresh() && self.vgpu.right.is_none();
        if !has_begun || self.vgpu.quiesce.is_some() {
            return None;
        }
        let (saved, at_work) = if session.is_frozen() {
            // Its VM is paused: engines have nothing of it.
            (session.save().ok()?, SavedAtWork { taken: now(), ..SavedAtWork::default() })
        } else {
            save_at_work(session).ok()?
        };
        let front = Bytes(self.front.save(&self.vgpu.waiting).ok()?);
        let (immutable, bundle) = (session.immutable(), state::BundleId::default());
        let state = State { immutable, bundle, session: saved, front }.encode().ok()?;
        let mut device = Vec::new();
        ciborium::into_writer(&DeviceCheckpoint { state: Bytes(state), at_work }, &mut device).ok()?;
        let blocks = blocks(session).map(|(place, block)| (block_of(place), Arc::clone(block)));
        let fences = (FENCES.to_owned(), Arc::clone(fence_values(session)));
        Some(AtWork { device, files: blocks.chain([fences]).collect() })
    }

    /// The state of what stands still, and then its memories, on a thread that may wait for a peer.
    pub(super) fn save_for_departure(&self) -> Save {
        let Some(endpoint) = self.vgpu.endpoint.clone() else {
            return Box::new(|| Err("this vGPU cannot move: give --migrate-to or --state-dir".to_owned()));
        };
        let state = self.state(LONGEST);
        Box::new(move || {
            let mut state = state?;
            // What cannot be carried is not sent.
            state.encode().map_err(|error| error.to_string())?;
            let bundle = endpoint.departure.finish().map_err(|error| error.to_string())?;
            state.bundle = bundle.into();
            state.encode().map_err(|error| error.to_string())
        })
    }

    /// Becomes what a state says, with the memories that it names.
    pub(super) fn load_arrival(&mut self, bytes: &[u8]) -> Result<(), String> {
        let endpoint = self
            .vgpu
            .endpoint
            .clone()
            .ok_or("this vGPU takes nothing: give --migrate-listen, with --workers a migrate-listen of its own, or --state-dir")?;
        let mut state = state::decode(bytes).map_err(|error| error.to_string())?;
        // First, so that a bundle is not taken for nothing.
        check_immutable(self.vgpu.session.config(), &state.immutable).map_err(|error| error.to_string())?;
        self.front.load(&state.front.0)?;
        let text = |error: MigrationError| error.to_string();
        let (memories, right) = endpoint.take(state.bundle.into()).map_err(text)?;
        adopt(&mut self.vgpu.session, &self.vgpu.config, memories, Contents::InFile, &mut state.session)
            .map_err(text)?;
        adopt_code(&mut self.vgpu.session, right.take_code());
        self.take_over(&state)?;
        endpoint.attach(&self.vgpu.session).map_err(text)?;
        self.vgpu.right = Some(right);
        Ok(())
    }

    /// Looks whether a snapshot is asked for, or has what it needs.
    pub(super) fn look_at_quiesce(&mut self) {
        let vgpu = &mut self.vgpu;
        let Some(endpoint) = &vgpu.endpoint else { return };
        match endpoint.quiesce.take() {
            Wanted::Nothing => {}
            Wanted::Save(answer) => {
                vgpu.quiesce = Some(Some(answer));
                vgpu.session.freeze();
            }
            Wanted::GoOn => {
                let held = vgpu.quiesce.take().is_some();
                if held && vgpu.is_running() {
                    vgpu.session.thaw();
                }
            }
        }
        if vgpu.session.is_frozen()
            && let Some(answer) = vgpu.quiesce.as_mut().and_then(Option::take)
        {
            let state = self.state(state::BundleId::default());
            let state = state.and_then(|state| state.encode().map_err(|error| error.to_string()));
            // The thread that asked may have given up.
            let _gone = answer.try_send(state);
        }
    }
}

impl<C: Command> Vgpu<C> {
    /// The guest's rings run again: where it runs elsewhere meanwhile, or may, all its devices are lost here.
    pub(super) fn lose_if_gone(&mut self) {
        let thaw = self.endpoint.as_ref().map(|endpoint| endpoint.departure.thaw());
        if let Some(Thaw::Lost(why)) = thaw {
            log::warn!("{}: {why}", self.config.name);
            self.session.recovery().lose_everything(&why);
        }
    }

    /// The guest speaks to a device that was taken away before: from here on it is this guest's alone.
    pub(super) fn take_file(&mut self) {
        let right = self.right.take_if(|right| matches!(right, Right::File(..)));
        if let Some(Err(why)) = right.map(Right::start) {
            log::error!("{}: it may be elsewhere: {why}", self.config.name);
            self.session.recovery().lose_everything(&why.to_string());
        }
    }

    /// The guest has reset the device: what of it was elsewhere is given up. A driver does that when it begins, too.
    pub(super) fn begin_anew(&mut self) {
        self.right.take_if(|right| !matches!(right, Right::File(..)));
        self.quiesce = None;
        let Some(endpoint) = &self.endpoint else { return };
        endpoint.departure.detach();
        if let Err(error) = endpoint.attach(&self.session) {
            log::error!("{}: it cannot move: {error}", self.config.name);
        }
    }
}
