//! What is another of a vGPU, and whether it changes while the vGPU is there.

use super::options::HostOptions;
use super::options::VgpuOptions;
use crate::vgpu::control::tuning::Tuning;

/// Keys of a vGPU that are another.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Differences {
    /// Those that change while a guest has it.
    pub(super) live: Vec<&'static str>,
    /// Those with which it has to begin anew.
    pub(super) fixed: Vec<&'static str>,
}

impl Differences {
    /// Between the same vGPU as it is, and as it is to be.
    pub(super) fn of(before: &VgpuOptions, after: &VgpuOptions) -> Self {
        let pick = |all: &[(&'static str, bool)]| {
            all.iter().filter(|(_, is_other)| *is_other).map(|(key, _)| *key).collect()
        };
        Self {
            live: pick(&[
                ("weight", before.share.weight != after.share.weight),
                ("cap", before.share.cap != after.share.cap),
                ("bands", before.share.highest_band != after.share.highest_band),
                ("tdr-timeout", before.timeouts != after.timeouts),
                ("vram-min", before.vram_min != after.vram_min),
            ]),
            fixed: pick(&[
                ("name", before.name != after.name),
                ("socket", before.socket != after.socket),
                ("vram", before.vram_bytes != after.vram_bytes),
                (
                    "vram-max",
                    before.quota().max != after.quota().max && before.vram_bytes == after.vram_bytes,
                ),
                ("single-use", before.single_use != after.single_use),
                ("gpu-profile", before.profile != after.profile),
                ("front", before.front != after.front),
                ("restore", before.restore != after.restore),
                ("migrate-from", before.migrate_from != after.migrate_from),
                ("migrate-listen", before.migrate_listen != after.migrate_listen),
            ]),
        }
    }
}

/// Takes all of `after` that changes while a guest has it.
pub(super) fn take_live(vgpu: &mut VgpuOptions, after: &VgpuOptions) {
    (vgpu.share, vgpu.timeouts, vgpu.vram_min) = (after.share, after.timeouts, after.vram_min);
}

/// Takes all options that change while the daemon serves.
pub(super) fn take_live_options(options: &mut HostOptions, after: &HostOptions) {
    options.timeouts = after.timeouts;
    options.policy = after.policy;
    options.engines.d3_after = after.engines.d3_after;
    options.freeze_limit = after.freeze_limit;
}

/// How a vGPU is tuned in a daemon with these options.
pub(super) fn tuning(vgpu: &VgpuOptions, options: &HostOptions) -> Tuning {
    let [compute, copy] = options.timeouts;
    Tuning {
        share: vgpu.share,
        timeouts: [vgpu.timeouts[0].unwrap_or(compute), vgpu.timeouts[1].unwrap_or(copy)],
        policy: options.policy,
        d3_after: options.engines.d3_after,
        freeze_limit: options.freeze_limit,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use campanile_protocol::named_profile::GpuProfile;

    use super::super::options::FrontOptions;
    use super::Differences;
    use super::VgpuOptions;
    use super::take_live;
    use crate::frontend::fs::state::FsOptions;

    #[test]
    fn what_changes_while_a_guest_has_it_is_told_from_the_rest() {
        let before = VgpuOptions::new("a".to_owned(), PathBuf::from("/a"), 64 << 20);
        assert_eq!(Differences::of(&before, &before), Differences::default());
        let mut after = VgpuOptions { single_use: true, vram_min: 1 << 20, ..before.clone() };
        after.share.weight = 7;
        after.timeouts[1] = Some(Duration::from_millis(20));
        let found = Differences::of(&before, &after);
        assert_eq!(
            (found.live, found.fixed),
            (vec!["weight", "tdr-timeout", "vram-min"], vec!["single-use"])
        );
        let mut taken = before.clone();
        take_live(&mut taken, &after);
        assert_eq!(Differences::of(&taken, &after).live, Vec::<&str>::new());
        assert!(!taken.single_use);
        let larger = VgpuOptions { vram_bytes: 96 << 20, socket: PathBuf::from("/b"), ..before.clone() };
        assert_eq!(Differences::of(&before, &larger).fixed, ["socket", "vram"], "its maximum follows it");
        let other = VgpuOptions {
            vram_max: Some(128 << 20),
            front: FrontOptions::Fs(FsOptions::default()),
            restore: Some(PathBuf::from("/r")),
            migrate_from: vec!["uid:7".parse().unwrap()],
            migrate_listen: "unix:/p".parse().ok(),
            profile: Some(GpuProfile::Campanile1),
            ..before.clone()
        };
        let fixed = Differences::of(&before, &other).fixed;
        assert_eq!(fixed, ["vram-max", "gpu-profile", "front", "restore", "migrate-from", "migrate-listen"]);
    }
}
