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
    use super::LIVE;
    use crate::cli::configured;

    #[test]
    fn what_changes_while_serving_is_an_option() {
        let all = configured::options();
        for name in LIVE {
            assert!(all.find(name).is_some(), "{name}");
        }
    }
}
