//! `campanile ctl reload`, on the daemon's side: the same command line and files, read again.

use std::ffi::OsString;
use std::sync::Mutex;
use std::sync::PoisonError;

use super::configured;
use super::configured::Configured;
use super::options::host_options;
use super::options::vgpus;
use crate::config::fault::Fault;
use crate::config::fault::Faults;
use crate::host::check::objections;
use crate::host::options::HostOptions;
use crate::host::options::VgpuOptions;
use crate::operator::reload::Changes;
use crate::operator::reload::Reload;
use crate::operator::reload::VgpuChange;
use crate::vgpu::control::tuning::Tuning;

/// Options that change while the daemon serves. All others need a restart.
const LIVE: [&str; 12] = [
    "log-level",
    "tdr-timeout",
    "tdr-timeout-compute",
    "tdr-timeout-copy",
    "tdr-level",
    "tdr-debug",
    "tdr-limit-count",
    "tdr-limit-time",
    "readmission",
    "compile-timeout",
    "d3-after",
    "freeze-limit",
];

/// What is in force of a daemon.
#[derive(Debug, Clone)]
struct InForce {
    /// All options, by name, as the command line has them.
    options: Vec<(String, Vec<OsString>)>,
    vgpus: Vec<VgpuOptions>,
}

/// What reads this command line again, of a daemon that was started with it.
pub(super) fn reload(line: Vec<OsString>, configured: &Configured) -> Reload {
    let in_force = Mutex::new(InForce::of(configured));
    Reload::new(move || {
        let mut in_force = in_force.lock().unwrap_or_else(PoisonError::into_inner);
        let configured = configured::read(line.clone()).map_err(|error| format!("{error:#}"))?;
        let options = host_options(vgpus(&configured), &configured.arguments.engine);
        let options = configured.at("vulkan-driver", options).map_err(|error| format!("{error:#}"))?;
        let migrate_listen = configured.arguments.migration.migrate_listen.clone();
        let (vram_total, vm_budget) = (configured.arguments.vram_total, configured.arguments.vm_budget);
        let options = HostOptions { migrate_listen, vram_total, vm_budget, ..options };
        let faults: Vec<Fault> =
            objections(&options).into_iter().map(|found| configured.fault(found)).collect();
        if !faults.is_empty() {
            return Err(Faults(faults).to_string());
        }
        let changes = in_force.change(&InForce::of(&configured), &options);
        configured.arguments.log_level.set();
        Ok(changes)
    })
}

impl InForce {
    fn of(configured: &Configured) -> Self {
        Self { options: configured.said.clone(), vgpus: vgpus(configured) }
    }

    /// Takes of `wanted` what can change now, and tells all that is another.
    fn change(&mut self, wanted: &Self, options: &HostOptions) -> Changes {
        let mut changes = Changes::default();
        for ((name, before), (_, after)) in self.options.iter_mut().zip(&wanted.options) {
            if before == after {
                continue;
            }
            if LIVE.contains(&name.as_str()) {
                changes.changed.push(name.clone());
                before.clone_from(after);
            } else {
                changes.restart.push(name.clone());
            }
        }
        for vgpu in &wanted.vgpus {
            match self.vgpus.iter_mut().find(|before| before.name == vgpu.name) {
                None => changes.restart.push(format!("vGPU {}: it is new", vgpu.name)),
                Some(before) => {
                    change_vgpu(before, vgpu, &mut changes);
                    changes.vgpus.push(tuned(before, options));
                }
            }
        }
        for gone in
            self.vgpus.iter().filter(|before| !wanted.vgpus.iter().any(|vgpu| vgpu.name == before.name))
        {
            changes.restart.push(format!("vGPU {}: it is to go", gone.name));
        }
        changes
    }
}

/// Takes of `after` what can change now.
fn change_vgpu(before: &mut VgpuOptions, after: &VgpuOptions, changes: &mut Changes) {
    let name = &after.name;
    let mut changed = |key: &str, is_other: bool| {
        if is_other {
            changes.changed.push(format!("vGPU {name}: {key}"));
        }
    };
    changed("weight", before.share.weight != after.share.weight);
    changed("cap", before.share.cap != after.share.cap);
    changed("bands", before.share.highest_band != after.share.highest_band);
    changed("tdr-timeout", before.timeouts != after.timeouts);
    changed("vram-min", before.vram_min != after.vram_min);
    (before.share, before.timeouts, before.vram_min) = (after.share, after.timeouts, after.vram_min);
    let others = [
        ("socket", before.socket != after.socket),
        ("vram", before.vram_bytes != after.vram_bytes),
        ("vram-max", before.quota().max != after.quota().max && before.vram_bytes == after.vram_bytes),
        ("single-use", before.single_use != after.single_use),
        ("front", before.front != after.front),
        ("restore", before.restore != after.restore),
        ("migrate-from", before.migrate_from != after.migrate_from),
    ];
    for (key, _) in others.into_iter().filter(|(_, is_other)| *is_other) {
        changes.restart.push(format!("vGPU {name}: {key}"));
    }
}

/// What a vGPU is to have with these options of the daemon.
fn tuned(vgpu: &VgpuOptions, options: &HostOptions) -> VgpuChange {
    let [compute, copy] = options.timeouts;
    let tuning = Tuning {
        share: vgpu.share,
        timeouts: [vgpu.timeouts[0].unwrap_or(compute), vgpu.timeouts[1].unwrap_or(copy)],
        policy: options.policy,
        d3_after: options.engines.d3_after,
        freeze_limit: options.freeze_limit,
    };
    VgpuChange { name: vgpu.name.clone(), tuning, vram_min: vgpu.vram_min }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    use super::InForce;
    use super::LIVE;
    use super::host_options;
    use super::vgpus;
    use crate::cli::configured;
    use crate::cli::configured::Configured;
    use crate::operator::reload::Changes;
    use crate::sched::share::Share;
    use crate::vgpu::control::tuning::Tuning;
    use crate::vgpu::tdr::policy::DebugMode;
    use crate::vgpu::tdr::policy::Level;
    use crate::vgpu::tdr::policy::Policy;
    use crate::vgpu::tdr::policy::Readmission;

    #[test]
    fn what_changes_while_serving_is_an_option() {
        let all = configured::options();
        for name in LIVE {
            assert!(all.find(name).is_some(), "{name}");
        }
    }

    fn with(folder: &Path, text: &str) -> Configured {
        let file = folder.join("campanile.toml");
        fs::write(&file, text).unwrap();
        let line = ["campanile".into(), "serve".into(), "--config".into(), file.into_os_string()];
        configured::read(Vec::<OsString>::from(line)).unwrap()
    }

    /// What there is to change from one file to the next.
    fn changes(before: &str, after: &str) -> Changes {
        let folder = tempfile::tempdir().unwrap();
        let mut in_force = InForce::of(&with(folder.path(), before));
        let wanted = with(folder.path(), after);
        let options = host_options(vgpus(&wanted), &wanted.arguments.engine).unwrap();
        in_force.change(&InForce::of(&wanted), &options)
    }

    #[test]
    fn all_that_changes_while_serving_reaches_a_vgpu() {
        let vgpu = "[[vgpu]]\nname = \"a\"\nsocket = \"/a.sock\"\nvram = \"64M\"\ntdr-timeout-copy = 7\n";
        let live = "log-level = \"warn\"\ntdr-timeout = 2001\ntdr-timeout-compute = 500\ntdr-timeout-copy = 501\n\
                    tdr-level = 1\ntdr-debug = 3\ntdr-limit-count = 9\ntdr-limit-time = 11\n\
                    readmission = \"reboot\"\ncompile-timeout = 13000\nd3-after = 17000\nfreeze-limit = 19\n";
        let found = changes(vgpu, &format!("{live}{vgpu}weight = 300\nvram-min = \"16M\"\n"));
        let mut changed = found.changed;
        changed.sort_unstable();
        let mut expected = LIVE.map(str::to_owned).to_vec();
        expected.extend(["vGPU a: vram-min", "vGPU a: weight"].map(str::to_owned));
        expected.sort_unstable();
        assert_eq!((changed, found.restart), (expected, Vec::new()));
        let policy = Policy {
            level: Level::Fatal,
            debug: DebugMode::RecoverAlways,
            limit_count: 9,
            limit_time: Duration::from_secs(11),
            readmission: Readmission::Reboot,
            compile_timeout: Duration::from_secs(13),
        };
        let tuning = Tuning {
            share: Share { weight: 300, ..Share::default() },
            timeouts: [500, 7].map(Duration::from_millis),
            policy,
            d3_after: Some(Duration::from_secs(17)),
            freeze_limit: Duration::from_millis(19),
        };
        assert_eq!((found.vgpus[0].tuning, found.vgpus[0].vram_min), (tuning, 16 << 20));
    }

    #[test]
    fn what_cannot_change_of_a_vgpu_is_named_key_by_key() {
        let vgpu = |name: &str, more: &str| {
            format!("[[vgpu]]\nname = \"{name}\"\nsocket = \"/{name}.sock\"\nvram = \"64M\"\n{more}")
        };
        let other = "[[vgpu]]\nname = \"a\"\nsocket = \"/b.sock\"\nvram = \"64M\"\nvram-max = \"128M\"\nsingle-use = true\n\
                     front = \"fs\"\nrestore = \"/r\"\nmigrate-from = \"uid:7\"\n";
        let found = changes(&format!("{}{}", vgpu("a", ""), vgpu("c", "")), other);
        let keys = ["socket", "vram-max", "single-use", "front", "restore", "migrate-from"];
        let mut expected = keys.map(|key| format!("vGPU a: {key}")).to_vec();
        expected.push("vGPU c: it is to go".to_owned());
        assert_eq!((found.restart, found.changed), (expected, Vec::new()));
        let found = changes(&vgpu("a", ""), &vgpu("a", "").replace("64M", "32M"));
        assert_eq!(found.restart, ["vGPU a: vram"]);
    }
}
