//! The registry of all bundles of a daemon.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use serde_json::Value;
use serde_json::json;

use super::arriving::Arriving;
use super::bundle::Bundle;
use super::compiling::Compiles;
use crate::intake::DRAINED;
use crate::intake::Intake;
use crate::migration::channel::message::Hello;
use crate::migration::channel::peer_name::Credentials;
use crate::migration::id::BundleId;
use crate::migration::lock::locked;
use crate::migration::stage::Stage;
use crate::migration::text::printable;

/// Names of bundles that were there, which are never taken again.
const PAST: usize = 1024;

#[derive(Default)]
struct Entries {
    bundles: HashMap<BundleId, Arc<Bundle>>,
    past: VecDeque<BundleId>,
}

/// Characters of an unknown vGPU's name that a refusal repeats.
const SHOWN: usize = 100;

/// Which bundles there are.
pub(super) struct Registry {
    intake: Arc<Intake>,
    vgpus: Mutex<Vec<Arc<Arriving>>>,
    entries: Mutex<Entries>,
}

impl Registry {
    pub(super) fn new(vgpus: Vec<Arc<Arriving>>, intake: Arc<Intake>) -> Self {
        Self { intake, vgpus: Mutex::new(vgpus), entries: Mutex::default() }
    }

    /// Takes what comes for this one, too.
    pub(super) fn add(&self, vgpu: Arc<Arriving>) {
        locked(&self.vgpus).push(vgpu);
    }

    /// Takes nothing more for this one; what is on its way to it.
    pub(super) fn forget(&self, vgpu: &str) -> Vec<Arc<Bundle>> {
        locked(&self.vgpus).retain(|known| known.name != vgpu);
        let mut all = self.all();
        all.retain(|bundle| bundle.vgpu == vgpu);
        all
    }

    fn vgpu(&self, name: &str) -> Option<Arc<Arriving>> {
        locked(&self.vgpus).iter().find(|vgpu| vgpu.name == name).cloned()
    }

    /// Whether anything is on its way to this one.
    pub(super) fn awaits(&self, vgpu: &str) -> bool {
        locked(&self.entries).bundles.values().any(|bundle| bundle.vgpu == vgpu && !bundle.is_over())
    }

    /// Enters a new bundle, or says which check failed. Nothing is kept of one that is refused.
    pub(super) fn greet(
        &self,
        hello: &Hello,
        credentials: &Credentials,
    ) -> Result<(u32, Arc<Bundle>), String> {
        let none = || format!("there is no vGPU \"{}\" here", printable(&hello.vgpu, SHOWN));
        let vgpu = self.vgpu(&hello.vgpu).ok_or_else(none)?;
        vgpu.allow(credentials)?;
        if self.intake.is_closed() {
            return Err(DRAINED.to_owned());
        }
        let version = vgpu.examine(hello)?;
        let mut entries = locked(&self.entries);
        if entries.past.contains(&hello.bundle) || entries.bundles.contains_key(&hello.bundle) {
            return Err(format!("bundle {} was here already", hello.bundle));
        }
        if let Some(other) =
            entries.bundles.values().find(|bundle| bundle.vgpu == hello.vgpu && !bundle.is_over())
        {
            return Err(format!("vGPU {} already has bundle {} on its way", hello.vgpu, other.id));
        }
        let bundle = Stage::new(&vgpu.shape)
            .and_then(|stage| Bundle::new(hello, version, stage, Compiles::new(vgpu.compiler.clone())?))
            .map_err(|error| format!("no memory for vGPU {}: {error}", hello.vgpu))?;
        let bundle = Arc::new(bundle);
        // One that went meanwhile finds no bundle to drop, or this finds it gone.
        if self.vgpu(&hello.vgpu).is_none() {
            return Err(none());
        }
        entries.bundles.insert(hello.bundle, Arc::clone(&bundle));
        Ok((version, bundle))
    }

    /// Takes a further line in, if the bundle has one left.
    pub(super) fn join(&self, id: BundleId, credentials: &Credentials) -> Result<Arc<Bundle>, String> {
        let none = || format!("bundle {id} awaits no line");
        let bundle = locked(&self.entries).bundles.get(&id).cloned().ok_or_else(none)?;
        if let Some(vgpu) = self.vgpu(&bundle.vgpu) {
            vgpu.allow(credentials)?;
        }
        let taken =
            bundle.lines_left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| left.checked_sub(1));
        taken.map_err(|_| none())?;
        Ok(bundle)
    }

    /// The bundle of this name, if it is of this vGPU (LM-08).
    pub(super) fn find(&self, vgpu: &str, id: BundleId) -> Option<Arc<Bundle>> {
        locked(&self.entries).bundles.get(&id).filter(|bundle| bundle.vgpu == vgpu).cloned()
    }

    /// Removes a bundle.
    pub(super) fn remove(&self, id: BundleId) {
        let mut entries = locked(&self.entries);
        if entries.bundles.remove(&id).is_some() {
            entries.past.push_back(id);
            if entries.past.len() > PAST {
                entries.past.pop_front();
            }
        }
    }

    pub(super) fn all(&self) -> Vec<Arc<Bundle>> {
        locked(&self.entries).bundles.values().cloned().collect()
    }

    pub(super) fn describe(&self) -> Value {
        let mut all = self.all();
        all.retain(|bundle| !bundle.is_over());
        all.sort_by_key(|bundle| bundle.begun);
        let each = all.iter().map(|bundle| {
            let (state, bytes) = bundle.state();
            json!({ "bundle": bundle.id, "vgpu": bundle.vgpu, "state": state, "received_bytes": bytes,
                    "kernels_left": bundle.compiles.left(), "seconds": bundle.begun.elapsed().as_secs() })
        });
        Value::Array(each.collect())
    }
}
