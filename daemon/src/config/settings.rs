//! What files say, each with its place.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use super::fault::Fault;
use super::fault::Place;
use crate::host::check::NAME_TAKEN;
use crate::host::check::socket_taken;
use crate::host::options::VgpuOptions;

/// An option of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its value as the command line has it.
    pub text: String,
    /// Where it was said.
    pub place: Place,
}

/// A vGPU.
#[derive(Debug, Clone)]
pub struct PlacedVgpu {
    /// What was said.
    pub options: VgpuOptions,
    /// Where its table begins.
    pub place: Place,
    /// Where each of its keys is.
    pub keys: BTreeMap<&'static str, Place>,
}

/// What a vGPU has for itself, as far as its table says it, also where something else of the table is wrong.
#[derive(Debug, Clone)]
pub struct Claim {
    /// Its name, and where it is.
    pub name: Option<(String, Place)>,
    /// Its socket, and where it is.
    pub socket: Option<(PathBuf, Place)>,
}

/// Everything that the files say.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    /// The first file.
    pub file: Option<Arc<PathBuf>>,
    /// Options of the daemon, by name.
    pub options: BTreeMap<String, Setting>,
    /// The vGPUs, in the order of the files.
    pub vgpus: Vec<PlacedVgpu>,
    /// What each table of a vGPU claims, in the same order, those that are wrong included.
    pub claims: Vec<Claim>,
}

impl Settings {
    /// What several tables of vGPUs claim, at the second one. `objections` finds the same in options that are whole.
    pub fn claimed_twice(&self) -> Vec<Fault> {
        let (mut names, mut sockets) = (BTreeSet::new(), BTreeMap::<&PathBuf, String>::new());
        let mut faults = Vec::new();
        for Claim { name, socket } in &self.claims {
            let of_vgpu = name.as_ref().map_or_else(|| "vGPU".to_owned(), |(name, _)| format!("vGPU {name}"));
            if let Some((name, place)) = name
                && !names.insert(name)
            {
                faults.push(Fault::new(place.clone(), &format!("{of_vgpu}: {NAME_TAKEN}")));
            }
            if let Some((socket, place)) = socket {
                if let Some(other) = sockets.get(socket) {
                    let text = socket_taken(&of_vgpu, socket, other);
                    faults.push(Fault::new(place.clone(), &text));
                } else {
                    sockets.insert(socket, of_vgpu);
                }
            }
        }
        faults
    }

    /// Where it is said what an objection is about: the option, or the one of which it is the more precise form, as
    /// `tdr-timeout` for `tdr-timeout-copy`; else the vGPU's table.
    pub fn place_of(&self, vgpu: Option<&str>, option: &str) -> Option<&Place> {
        let shorter = |name: &str| option.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'));
        match vgpu {
            None => {
                let exact = self.options.get(option);
                let setting = exact.or_else(|| {
                    self.options.iter().find_map(|(name, setting)| shorter(name).then_some(setting))
                });
                Some(&setting?.place)
            }
            Some(vgpu) => {
                // Of two with one name the second is in the way.
                let vgpu = self.vgpus.iter().rfind(|placed| placed.options.name == vgpu)?;
                let exact = vgpu.keys.get(option);
                let near = || vgpu.keys.iter().find_map(|(name, place)| shorter(name).then_some(place));
                Some(exact.or_else(near).unwrap_or(&vgpu.place))
            }
        }
    }
}
