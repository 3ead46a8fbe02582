//! What cannot change while a vGPU lives, and must be the same where its state goes (LM-18, LM-19, LM-34).
//!
//! Only there to be compared: nothing of it is applied. How much a vGPU may take of its host, its name, its sockets and
//! its timeouts are none of it: those are the target's own, made with the VM.

use std::fmt::Display;

use campanile_protocol::named_profile::GpuProfile;
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
    /// What a kernel may use, and what it computes to the last bit, is for these to say. With a named GPU profile it is that: it says
    /// what a kernel may use, and nothing says what it computes to the last bit.
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
    /// The named GPU profile, with its version; empty where it is that of the host's device.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gpu_profile: String,
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
        // Each field by name, so that one that is added is compared or is no field of this.
        let Self {
            daemon,
            protocol,
            vram_bytes,
            aperture_bytes,
            quota_bytes,
            window,
            single_use,
            gpu_profile,
            engines,
            highest_band,
            nodes,
        } = self;
        let daemons = (compatible(&saved.daemon), compatible(daemon));
        let fits = daemons.0 == daemons.1 && !daemons.0.is_empty();
        check("daemon version", fits, &saved.daemon, daemon)?;
        let fits = saved.protocol >> 16 == protocol >> 16 && saved.protocol <= *protocol;
        check("protocol version", fits, &saved.protocol, protocol)?;
        same("vram_bytes", &saved.vram_bytes, vram_bytes)?;
        same("aperture_bytes", &saved.aperture_bytes, aperture_bytes)?;
        same("quota_bytes", &saved.quota_bytes, quota_bytes)?;
        same("window", &saved.window, window)?;
        same("single_use", &saved.single_use, single_use)?;
        let named = |profile: &String| {
            if profile.is_empty() { GpuProfile::Host.to_string() } else { profile.clone() }
        };
        same("gpu_profile", &named(&saved.gpu_profile), &named(gpu_profile))?;
        same("engines", &saved.engines, engines)?;
        let fits = saved.highest_band <= *highest_band;
        check("highest_band", fits, &saved.highest_band, highest_band)?;
        same("number of nodes", &saved.nodes.len(), &nodes.len())?;
        saved.nodes.iter().zip(nodes).try_for_each(|(saved, here)| here.check(saved))
    }
}

impl ImmutableNode {
    fn check(&self, saved: &Self) -> Result<(), Mismatch> {
        let Self { name, has_global_doorbell, doorbells, is_sliced, device } = self;
        same("name of a node", &saved.name, name)?;
        let of = |field: &str| format!("{field} of node {name}");
        same(&of("has_global_doorbell"), &saved.has_global_doorbell, has_global_doorbell)?;
        same(&of("doorbells"), &saved.doorbells, doorbells)?;
        same(&of("is_sliced"), &saved.is_sliced, is_sliced)?;
        let named = |device: &Option<String>| device.clone().unwrap_or_else(|| "none".to_owned());
        same(&of("device"), &named(&saved.device), &named(device))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Immutable;
    use super::ImmutableNode;

    fn example() -> Immutable {
        let device = Some("a GPU, driver d 25.0.1".to_owned());
        let node = |name: &str| ImmutableNode {
            name: name.to_owned(),
            doorbells: 64,
            device: device.clone(),
            ..Default::default()
        };
        Immutable {
            daemon: "0.1.3".to_owned(),
            protocol: 1 << 16 | 2,
            vram_bytes: 64 << 20,
            aperture_bytes: 32 << 20,
            quota_bytes: 64 << 20,
            window: true,
            single_use: false,
            gpu_profile: "campanile-1".to_owned(),
            engines: 1,
            highest_band: 1,
            nodes: vec![node("compute"), node("copy")],
        }
    }

    /// A field, a state in which it is another, what the refusal calls it, and both values as it says them.
    type Row = (&'static str, fn(&mut Immutable), &'static str, [&'static str; 2]);

    /// Every field of [`Immutable`] and, behind `nodes`, of [`ImmutableNode`], at least once.
    const ROWS: [Row; 27] = [
        ("daemon", |it| it.daemon = "0.2.0".to_owned(), "daemon version", ["0.2.0", "0.1.3"]),
        ("daemon", |it| it.daemon = "1.1.3".to_owned(), "daemon version", ["1.1.3", "0.1.3"]),
        ("daemon", |it| it.daemon = String::new(), "daemon version", ["", "0.1.3"]),
        ("protocol", |it| it.protocol = 2 << 16, "protocol version", ["131072", "65538"]),
        ("protocol", |it| it.protocol = 1, "protocol version", ["1", "65538"]),
        ("protocol", |it| it.protocol += 1, "protocol version", ["65539", "65538"]),
        ("vram_bytes", |it| it.vram_bytes *= 2, "vram_bytes", ["134217728", "67108864"]),
        ("vram_bytes", |it| it.vram_bytes /= 2, "vram_bytes", ["33554432", "67108864"]),
        ("quota_bytes", |it| it.quota_bytes *= 2, "quota_bytes", ["134217728", "67108864"]),
        ("quota_bytes", |it| it.quota_bytes /= 2, "quota_bytes", ["33554432", "67108864"]),
        ("aperture_bytes", |it| it.aperture_bytes /= 2, "aperture_bytes", ["16777216", "33554432"]),
        ("aperture_bytes", |it| it.aperture_bytes *= 2, "aperture_bytes", ["67108864", "33554432"]),
        ("single_use", |it| it.single_use = true, "single_use", ["true", "false"]),
        ("gpu_profile", |it| it.gpu_profile.clear(), "gpu_profile", ["host", "campanile-1"]),
        (
            "gpu_profile",
            |it| it.gpu_profile = "campanile-2".to_owned(),
            "gpu_profile",
            ["campanile-2", "campanile-1"],
        ),
        ("window", |it| it.window = false, "window", ["false", "true"]),
        ("engines", |it| it.engines = 2, "engines", ["2", "1"]),
        ("highest_band", |it| it.highest_band = 2, "highest_band", ["2", "1"]),
        ("nodes", |it| it.nodes.truncate(1), "number of nodes", ["1", "2"]),
        ("nodes", |it| it.nodes.push(Default::default()), "number of nodes", ["3", "2"]),
        ("nodes.name", |it| it.nodes[1].name = "video".to_owned(), "name of a node", ["video", "copy"]),
        (
            "nodes.has_global_doorbell",
            |it| it.nodes[1].has_global_doorbell = true,
            "has_global_doorbell of node copy",
            ["true", "false"],
        ),
        ("nodes.doorbells", |it| it.nodes[1].doorbells = 1, "doorbells of node copy", ["1", "64"]),
        ("nodes.doorbells", |it| it.nodes[0].doorbells = 65, "doorbells of node compute", ["65", "64"]),
        (
            "nodes.is_sliced",
            |it| it.nodes[0].is_sliced = true,
            "is_sliced of node compute",
            ["true", "false"],
        ),
        (
            "nodes.device",
            |it| it.nodes[0].device = Some("a GPU, driver d 25.0.2".to_owned()),
            "device of node compute",
            ["a GPU, driver d 25.0.2", "a GPU, driver d 25.0.1"],
        ),
        (
            "nodes.device",
            |it| it.nodes[0].device = None,
            "device of node compute",
            ["none", "a GPU, driver d 25.0.1"],
        ),
    ];

    #[test]
    fn lm_33_lm_34_each_check_is_named_with_both_values() {
        let here = example();
        assert_eq!(here.check(&example()), Ok(()));
        for (field, change, name, [saved, ours]) in ROWS {
            let mut other = example();
            change(&mut other);
            let mismatch = here.check(&other).unwrap_err();
            let parts = (mismatch.field.as_str(), mismatch.saved.as_str(), mismatch.here.as_str());
            assert_eq!(parts, (name, saved, ours), "{field}");
            let text =
                format!("STATUS_OBJECT_TYPE_MISMATCH: {name} is {saved} in the state, and {ours} here");
            assert_eq!(mismatch.to_string(), text);
        }
    }

    #[test]
    fn lm_34_no_field_is_left_out_of_the_comparison() {
        let example = serde_json::to_value(example()).unwrap();
        let names = |value: &serde_json::Value, before: &str| -> Vec<String> {
            value.as_object().unwrap().keys().map(|name| format!("{before}{name}")).collect()
        };
        let fields = [names(&example, ""), names(&example["nodes"][0], "nodes.")].concat();
        let listed: BTreeSet<_> = ROWS.iter().map(|row| row.0.to_owned()).collect();
        assert_eq!(listed, fields.into_iter().collect(), "each field has a row in which it differs");
    }

    #[test]
    fn lm_40_a_refusal_repeats_no_more_of_a_value_than_its_head() {
        let mut saved = example();
        saved.daemon = "x".repeat(100_000);
        let mismatch = example().check(&saved).unwrap_err();
        assert_eq!(mismatch.saved, "x".repeat(200));
        assert!(mismatch.to_string().len() < 300);
    }

    #[test]
    fn lm_20_versions_from_1_on_are_compatible_by_their_first_number_and_nonsense_with_nothing() {
        let fits = |here: &str, saved: &str| {
            let with = |version: &str| Immutable { daemon: version.to_owned(), ..example() };
            with(here).check(&with(saved)).is_ok()
        };
        assert!(fits("1.2.0", "1.9.1") && fits("0.1.0", "0.1.9") && fits("12.0", "12.1"));
        assert!(!fits("1.2.0", "2.2.0") && !fits("0.1.0", "0.10.0") && !fits("0.1.0", "1.1.0"));
        assert!(!fits("x", "x") && !fits("", "") && !fits("1", "1"));
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
