//! A vGPU as the operator writes it: on the command line, and as a `[[vgpu]]` table of a file.

use std::fmt;
use std::path::Path;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::MAX_WEIGHT;
use campanile_host_gpu::sched::parameters::WHOLE_ENGINE;
use campanile_protocol::fs::TAG_BYTES;

use super::kind::Kind;
use super::size::parse_size;
use crate::frontend::fs::state::FsOptions;
use crate::host::options::FrontOptions;
use crate::host::options::VgpuOptions;

/// A key of a vGPU.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// What it is called, on the command line and in files.
    pub name: &'static str,
    /// What its value is.
    pub kind: Kind,
    /// Whether it may be there several times; in a file as a list.
    pub repeats: bool,
    /// What it says.
    pub help: &'static str,
    take: fn(&mut Draft, &str) -> Result<(), String>,
}

/// Bytes of the longest name: names of cgroups and of stored descriptors have it in them, with each byte as up to three.
const MAX_NAME: usize = 64;

/// All keys, in the order in which people write them.
pub const KEYS: [Key; 19] = [
    key("name", Kind::Text, "Its name", |draft, value| {
        if value.len() > MAX_NAME {
            return Err(format!("a name of {} bytes; {MAX_NAME} are possible", value.len()));
        }
        if value.contains(char::is_control) {
            return Err(format!("{value:?} has a control character; names have none"));
        }
        fill(&mut draft.name, "name", value)
    }),
    key("socket", Kind::Path, "The socket to which its VMM connects", |draft, value| {
        fill(&mut draft.socket, "socket", value)
    }),
    key("vram", Kind::Size, "Video memory", |draft, value| {
        draft.vram_bytes = Some(parse_size(value)?);
        Ok(())
    }),
    key("vram-min", Kind::Size, "Memory that its guests can always have", |draft, value| {
        draft.options.vram_min = parse_size(value)?;
        Ok(())
    }),
    key(
        "vram-max",
        Kind::Size,
        "Memory that they may have at the most; vram where it is not said",
        |draft, value| {
            draft.options.vram_max = Some(parse_size(value)?);
            Ok(())
        },
    ),
    key(
        "front",
        Kind::Text,
        "What its guest sees: gpu (a virtio-gpu device) or fs (a virtio-fs device)",
        |draft, value| {
            draft.is_fs = match value {
                "gpu" => false,
                "fs" => true,
                other => return Err(format!("{other:?} is no front; gpu and fs are")),
            };
            Ok(())
        },
    ),
    key("aperture", Kind::Size, "With front fs: bytes of the VM's ivshmem-plain device", |draft, value| {
        draft.aperture = Some(parse_size(value)?);
        Ok(())
    }),
    key("tag", Kind::Text, "With front fs: the mount tag", |draft, value| {
        if !(1..=TAG_BYTES).contains(&value.len()) {
            return Err(format!("{value:?} is no mount tag; 1 to {TAG_BYTES} bytes are"));
        }
        draft.tag = Some(value.to_owned());
        Ok(())
    }),
    key("single-use", Kind::Flag, "One guest process has it at a time", |draft, value| {
        draft.options.single_use = value == "true";
        Ok(())
    }),
    key("gpu-profile", Kind::Text, "As --gpu-profile, for it alone: host or campanile-1", |draft, value| {
        draft.options.profile = Some(value.parse().map_err(|error| format!("{value:?}: {error}"))?);
        Ok(())
    }),
    key(
        "weight",
        Kind::Number,
        "Its part of each node beside others, 1 to 10000; 100 where it is not said",
        |draft, value| {
            draft.options.share.weight = number(value, "weight", 1, MAX_WEIGHT)?;
            Ok(())
        },
    ),
    key(
        "cap",
        Kind::Number,
        "Percent of each node's time that it gets at the most, 1 to 100",
        |draft, value| {
            draft.options.share.cap = number(value, "cap in percent", 1, WHOLE_ENGINE / 10)? * 10;
            Ok(())
        },
    ),
    key("bands", Kind::Text, "Highest priority of its work: normal, focus or realtime", |draft, value| {
        draft.options.share.highest_band = band(value)?;
        Ok(())
    }),
    key("tdr-timeout", Kind::Number, "Milliseconds as --tdr-timeout, for it alone", |draft, value| {
        draft.options.timeouts = [Some(milliseconds(value)?); 2];
        Ok(())
    }),
    key("tdr-timeout-compute", Kind::Number, "The same, of its compute nodes", |draft, value| {
        draft.options.timeouts[0] = Some(milliseconds(value)?);
        Ok(())
    }),
    key("tdr-timeout-copy", Kind::Number, "The same, of its copy nodes", |draft, value| {
        draft.options.timeouts[1] = Some(milliseconds(value)?);
        Ok(())
    }),
    key("restore", Kind::Path, "The snapshot that its first session begins as", |draft, value| {
        fill(&mut draft.options.restore, "restore", value)
    }),
    Key {
        repeats: true,
        ..key(
            "migrate-from",
            Kind::Text,
            "Peers that may bring it: a name in a certificate, or uid:NUMBER",
            |draft, value| {
                draft.options.migrate_from.push(value.parse()?);
                Ok(())
            },
        )
    },
    key("migrate-listen", Kind::Text, "With --workers: as --migrate-listen, for it alone", |draft, value| {
        draft.options.migrate_listen = Some(value.parse()?);
        Ok(())
    }),
];

const fn key(
    name: &'static str,
    kind: Kind,
    help: &'static str,
    take: fn(&mut Draft, &str) -> Result<(), String>,
) -> Key {
    Key { name, kind, repeats: false, help, take }
}

/// The names of all keys, as a sentence lists them.
pub fn names() -> String {
    KEYS.map(|key| key.name).join(", ")
}

/// A vGPU of which not everything has been said.
#[derive(Debug)]
pub struct Draft {
    name: Option<String>,
    socket: Option<PathBuf>,
    vram_bytes: Option<u64>,
    is_fs: bool,
    aperture: Option<u64>,
    tag: Option<String>,
    /// All that needs no second look.
    options: VgpuOptions,
}

impl Default for Draft {
    fn default() -> Self {
        let options = VgpuOptions::new(String::new(), PathBuf::new(), 0);
        let (name, socket, vram_bytes, aperture, tag) = (None, None, None, None, None);
        Self { name, socket, vram_bytes, is_fs: false, aperture, tag, options }
    }
}

impl From<&VgpuOptions> for Draft {
    fn from(vgpu: &VgpuOptions) -> Self {
        let (is_fs, aperture, tag) = match &vgpu.front {
            FrontOptions::Gpu => (false, None, None),
            FrontOptions::Fs(FsOptions { aperture, tag }) => (true, Some(*aperture), tag.clone()),
        };
        Self {
            name: Some(vgpu.name.clone()),
            socket: Some(vgpu.socket.clone()),
            vram_bytes: Some(vgpu.vram_bytes),
            is_fs,
            aperture,
            tag,
            options: vgpu.clone(),
        }
    }
}

/// Why a draft is no vGPU: the key that is missing, or that others do not go with.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DraftError {
    /// It must be there.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// It is for the fs front only.
    #[error("aperture and tag are for front=fs")]
    Front(&'static str),
}

impl Draft {
    /// Takes the value of a key.
    ///
    /// # Errors
    /// In words: what is wrong with it, and what would be right.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match KEYS.iter().find(|key| key.name == name) {
            Some(key) => (key.take)(self, value),
            None => Err(format!("{name:?} is unknown; {} are", names())),
        }
    }

    /// Its name, as far as it was said.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Its socket, as far as it was said.
    pub fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// The vGPU.
    ///
    /// # Errors
    /// Something is missing, or does not go with the rest.
    pub fn finish(self) -> Result<VgpuOptions, DraftError> {
        let name = self.name.ok_or(DraftError::Missing("name"))?;
        let socket = self.socket.ok_or(DraftError::Missing("socket"))?;
        let vram_bytes = self.vram_bytes.ok_or(DraftError::Missing("vram"))?;
        let front = match (self.is_fs, self.aperture, self.tag) {
            (true, aperture, tag) => FrontOptions::Fs(FsOptions { aperture: aperture.unwrap_or(0), tag }),
            (false, None, None) => FrontOptions::Gpu,
            (false, Some(_), _) => return Err(DraftError::Front("aperture")),
            (false, None, Some(_)) => return Err(DraftError::Front("tag")),
        };
        Ok(VgpuOptions { name, socket, vram_bytes, front, ..self.options })
    }
}

/// Takes what must not be empty.
fn fill<T: From<String>>(place: &mut Option<T>, key: &str, value: &str) -> Result<(), String> {
    if value.is_empty() {
        return Err(format!("{key} is empty"));
    }
    *place = Some(value.to_owned().into());
    Ok(())
}

/// A whole number of `what` from `least` to `most`.
fn number<T: FromStr + PartialOrd + fmt::Display>(
    value: &str,
    what: &str,
    least: T,
    most: T,
) -> Result<T, String> {
    match value.parse() {
        Ok(number) if (&least..=&most).contains(&&number) => Ok(number),
        _ => Err(format!("{value:?} is no {what}; {least} to {most} are")),
    }
}

fn milliseconds(value: &str) -> Result<Duration, String> {
    value.parse().map(Duration::from_millis).map_err(|_| format!("{value:?} are no milliseconds"))
}

fn band(value: &str) -> Result<Band, String> {
    match value {
        "normal" => Ok(Band::Normal),
        "focus" => Ok(Band::Focus),
        "realtime" => Ok(Band::Realtime),
        _ => Err(format!("{value:?} are no bands; normal, focus (and normal) and realtime (all) are")),
    }
}

/// Reads `name=NAME,socket=PATH,vram=SIZE,…`.
///
/// # Errors
/// In words: which part is wrong, and what would be right.
pub fn parse_vgpu(text: &str) -> Result<VgpuOptions, String> {
    let mut draft = Draft::default();
    for part in text.split(',') {
        let is_flag = KEYS.iter().any(|key| key.name == part && matches!(key.kind, Kind::Flag));
        match part.split_once('=') {
            Some((name, value)) => draft.set(name, value)?,
            None if is_flag => draft.set(part, "true")?,
            None => return Err(format!("{part:?} is not key=value")),
        }
    }
    draft.finish().map_err(|error| format!("{error} in {text:?}"))
}

/// The same vGPU with other values of some keys, each `key=value`.
///
/// # Errors
/// In words: which part is wrong, and what would be right.
pub fn change_vgpu(vgpu: &VgpuOptions, values: &[String]) -> Result<VgpuOptions, String> {
    let mut draft = Draft::from(vgpu);
    for part in values {
        let (name, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is not key=value"))?;
        draft.set(name, value)?;
    }
    draft.finish().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
