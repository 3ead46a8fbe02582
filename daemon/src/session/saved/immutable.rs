//! What cannot change while a vGPU lives, and must be the same where its state goes (LM-18, LM-19, LM-34).
//!
//! Only there to be compared: nothing of it is applied. How much a vGPU may take of its host, its name, its sockets and
//! its timeouts are none of it: those are the target's own, made with the VM.

use std::fmt::Display;

use serde::Deserialize;
use serde::Serialize;

/// How one node of a vGPU is shown to guests.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ImmutableNode {
    /// Its name.
    pub name: String,
    /// Whether guests have one doorbell a process there (UMS-08).
    pub has_global_doorbell: bool,
    /// Physical doorbells, as guests are told.
    pub doorbells: u32,
    /// Whether dispatches are preempted between thread groups.
    pub is_sliced: bool,
    /// The device and its driver, by name and version; empty where the node only copies, none where it cannot be used.
    /// What a kernel may use, and what it computes to the last bit, is for these to say.
    pub device: Option<String>,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Immutable {
    /// Version of the daemon that wrote it.
    pub daemon: String,
    /// Version of what guests and daemon speak: major in the upper half, minor in the lower.
    pub protocol: u32,
    /// Bytes of video memory.
    pub vram_bytes: u64,
    /// Bytes of it that the guest's CPU can see.
    pub aperture_bytes: u64,
    /// Bytes that guests may have at the most, evicted ones included.
    pub quota_bytes: u64,
    /// Whether guests are offered a window onto the aperture.
    pub window: bool,
    /// Whether one guest process has it at a time (MCDM-41).
    pub single_use: bool,
    /// Linked physical adapters (TDR-07).
    pub engines: u32,
    /// The highest band that its guests may have (PRE-65).
    pub highest_band: u32,
    /// Nodes of each physical adapter, by ordinal.
    pub nodes: Vec<ImmutableNode>,
}

/// Characters of a value that a refusal repeats: the other side may say anything.
const REPEATED: usize = 200;

/// The check that failed: STATUS_OBJECT_TYPE_MISMATCH (LM-33).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("STATUS_OBJECT_TYPE_MISMATCH: {field} is {saved} in the state, and {here} here")]
pub struct Mismatch {
    /// What differs.
    pub field: String,
    /// There.
    pub saved: String,
    /// Here.
    pub here: String,
}

/// The part of a version that must be the same: major, and below version 1 minor too. Empty where it is no version.
fn compatible(version: &str) -> String {
    let mut parts = version.split('.');
    match (parts.next(), parts.next()) {
        (Some("0"), Some(minor)) => format!("0.{minor}"),
        (Some(major), Some(_)) => major.to_owned(),
        _ => String::new(),
    }
}

fn check(field: &str, fits: bool, saved: &impl Display, here: &impl Display) -> Result<(), Mismatch> {
    if fits {
        return Ok(());
    }
    let repeated = |value: String| value.chars().take(REPEATED).collect();
    let (saved, here) = (repeated(saved.to_string()), repeated(here.to_string()));
    Err(Mismatch { field: field.to_owned(), saved, here })
}

fn same<T: PartialEq + Display>(field: &str, saved: &T, here: &T) -> Result<(), Mismatch> {
    check(field, saved == here, saved, here)
}

impl Immutable {
    /// Whether state of a vGPU like `saved` can become that of a vGPU like this one.
    ///
    /// # Errors
    /// The first check that failed, with both values.
    pub fn check(&self, saved: &Self) -> Result<(), Mismatch> {
        let daemons = (compatible(&saved.daemon), compatible(&self.daemon));
        let fits = daemons.0 == daemons.1 && !daemons.0.is_empty();
        check("daemon version", fits, &saved.daemon, &self.daemon)?;
        let fits = saved.protocol >> 16 == self.protocol >> 16 && saved.protocol <= self.protocol;
        check("protocol version", fits, &saved.protocol, &self.protocol)?;
        same("vram_bytes", &saved.vram_bytes, &self.vram_bytes)?;
        same("aperture_bytes", &saved.aperture_bytes, &self.aperture_bytes)?;
        same("quota_bytes", &saved.quota_bytes, &self.quota_bytes)?;
        same("window", &saved.window, &self.window)?;
        same("single_use", &saved.single_use, &self.single_use)?;
        same("engines", &saved.engines, &self.engines)?;
        let fits = saved.highest_band <= self.highest_band;
        check("highest_band", fits, &saved.highest_band, &self.highest_band)?;
        same("number of nodes", &saved.nodes.len(), &self.nodes.len())?;
        for (saved, here) in saved.nodes.iter().zip(&self.nodes) {
            same("name of a node", &saved.name, &here.name)?;
            let of = |field: &str| format!("{field} of node {}", here.name);
            same(&of("has_global_doorbell"), &saved.has_global_doorbell, &here.has_global_doorbell)?;
            same(&of("doorbells"), &saved.doorbells, &here.doorbells)?;
            same(&of("is_sliced"), &saved.is_sliced, &here.is_sliced)?;
            let named = |device: &Option<String>| device.clone().unwrap_or_else(|| "none".to_owned());
            same(&of("device"), &named(&saved.device), &named(&here.device))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Immutable;
    use super::ImmutableNode;

    fn example() -> Immutable {
        let node = |name: &str| ImmutableNode { name: name.to_owned(), doorbells: 64, ..Default::default() };
        Immutable {
            daemon: "0.1.3".to_owned(),
            protocol: 1 << 16 | 2,
            vram_bytes: 64 << 20,
            aperture_bytes: 32 << 20,
            quota_bytes: 64 << 20,
            window: true,
            single_use: false,
            engines: 1,
            highest_band: 1,
            nodes: vec![node("compute"), node("copy")],
        }
    }

    #[test]
    fn lm_33_lm_34_each_check_is_named_with_both_values() {
        let here = example();
        assert_eq!(here.check(&example()), Ok(()));
        type Change = (&'static str, fn(&mut Immutable));
        let changes: [Change; 17] = [
            ("daemon version", |it| it.daemon = "0.2.0".to_owned()),
            ("daemon version", |it| it.daemon = String::new()),
            ("protocol version", |it| it.protocol = 2 << 16),
            ("protocol version", |it| it.protocol += 1),
            ("vram_bytes", |it| it.vram_bytes *= 2),
            ("quota_bytes", |it| it.quota_bytes *= 2),
            ("aperture_bytes", |it| it.aperture_bytes /= 2),
            ("single_use", |it| it.single_use = true),
            ("name of a node", |it| it.nodes[1].name = "video".to_owned()),
            ("has_global_doorbell of node copy", |it| it.nodes[1].has_global_doorbell = true),
            ("is_sliced of node compute", |it| it.nodes[0].is_sliced = true),
            ("window", |it| it.window = false),
            ("engines", |it| it.engines = 2),
            ("highest_band", |it| it.highest_band = 3),
            ("number of nodes", |it| it.nodes.truncate(1)),
            ("doorbells of node copy", |it| it.nodes[1].doorbells = 1),
            ("device of node compute", |it| it.nodes[0].device = Some("llvmpipe".to_owned())),
        ];
        for (field, change) in changes {
            let mut saved = example();
            change(&mut saved);
            let mismatch = here.check(&saved).unwrap_err();
            assert_eq!(mismatch.field, field);
            let text = mismatch.to_string();
            assert!(text.contains("STATUS_OBJECT_TYPE_MISMATCH") && text.contains(&mismatch.saved));
            assert_ne!(mismatch.saved, mismatch.here);
        }
    }

    #[test]
    fn lm_18_lm_19_what_only_adds_is_no_mismatch() {
        let here = example();
        for change in [
            (|it| it.daemon = "0.1.9".to_owned()) as fn(&mut Immutable),
            |it| it.protocol -= 1,
            |it| it.highest_band = 0,
        ] {
            let mut saved = example();
            change(&mut saved);
            assert_eq!(here.check(&saved), Ok(()));
        }
    }
}
