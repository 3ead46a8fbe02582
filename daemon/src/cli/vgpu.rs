//! A vGPU on the command line.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::MAX_WEIGHT;
use campanile_host_gpu::sched::parameters::WHOLE_ENGINE;
use campanile_protocol::fs::TAG_BYTES;

use super::size::parse_size;
use crate::frontend::fs::state::FsOptions;
use crate::host::options::FrontOptions;
use crate::host::options::VgpuOptions;
use crate::sched::share::Share;

const KEYS: &str = "name, socket, vram, front, aperture, tag, vram-min, vram-max, single-use, weight, cap, bands, tdr-timeout, tdr-timeout-compute, tdr-timeout-copy, restore and migrate-from";

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
    let (mut name, mut socket, mut vram_bytes) = (None, None, None);
    let (mut vram_min, mut vram_max, mut single_use) = (0, None, false);
    let mut timeouts = [None; 2];
    let mut share = Share::default();
    let mut restore = None;
    let mut migrate_from = Vec::new();
    let (mut front, mut aperture, mut tag) = (None, None, None);
    let milliseconds = |value: &str| {
        value.parse().map(Duration::from_millis).map_err(|_| format!("{value:?} are no milliseconds"))
    };
    for part in text.split(',') {
        if part == "single-use" {
            single_use = true;
            continue;
        }
        let (key, value) = part.split_once('=').ok_or_else(|| format!("{part:?} is not key=value"))?;
        match key {
            "name" if !value.is_empty() => name = Some(value.to_owned()),
            "socket" if !value.is_empty() => socket = Some(PathBuf::from(value)),
            "vram" => vram_bytes = Some(parse_size(value)?),
            "front" => front = Some(value),
            "aperture" => aperture = Some(parse_size(value)?),
            "tag" if (1..=TAG_BYTES).contains(&value.len()) => tag = Some(value.to_owned()),
            "tag" => return Err(format!("{value:?} is no mount tag; 1 to {TAG_BYTES} bytes are")),
            "vram-min" => vram_min = parse_size(value)?,
            "vram-max" => vram_max = Some(parse_size(value)?),
            "weight" => share.weight = number(value, "weight", 1, MAX_WEIGHT)?,
            "cap" => share.cap = number(value, "cap in percent", 1, WHOLE_ENGINE / 10)? * 10,
            "bands" => share.highest_band = band(value)?,
            "restore" if !value.is_empty() => restore = Some(PathBuf::from(value)),
            "migrate-from" => migrate_from.push(value.parse()?),
            "tdr-timeout" => timeouts = [Some(milliseconds(value)?); 2],
            "tdr-timeout-compute" => timeouts[0] = Some(milliseconds(value)?),
            "tdr-timeout-copy" => timeouts[1] = Some(milliseconds(value)?),
            "name" | "socket" => return Err(format!("{key} is empty")),
            _ => return Err(format!("{key:?} is unknown; {KEYS} are")),
        }
    }
    let missing = |key: &str| format!("{key} is missing in {text:?}");
    let name = name.ok_or_else(|| missing("name"))?;
    let socket = socket.ok_or_else(|| missing("socket"))?;
    let vram_bytes = vram_bytes.ok_or_else(|| missing("vram"))?;
    let vgpu = VgpuOptions::new(name, socket, vram_bytes);
    let front = match front {
        None | Some("gpu") if aperture.is_some() || tag.is_some() => {
            return Err("aperture and tag are for front=fs".to_owned());
        }
        None | Some("gpu") => FrontOptions::Gpu,
        Some("fs") => FrontOptions::Fs(FsOptions { aperture: aperture.unwrap_or(0), tag }),
        Some(other) => return Err(format!("{other:?} is no front; gpu and fs are")),
    };
    Ok(VgpuOptions { front, vram_min, vram_max, single_use, timeouts, share, restore, migrate_from, ..vgpu })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use campanile_host_gpu::sched::parameters::Band;

    use super::parse_vgpu;
    use crate::frontend::fs::state::FsOptions;
    use crate::host::options::FrontOptions;
    use crate::sched::share::Share;

    #[test]
    fn a_vgpu_is_read_from_its_parts() {
        let vgpu = parse_vgpu("vram=512M,name=a,socket=/run/a.sock").unwrap();
        assert_eq!((vgpu.name.as_str(), vgpu.vram_bytes), ("a", 512 << 20));
        assert_eq!(vgpu.socket, PathBuf::from("/run/a.sock"));
        assert_eq!(vgpu.share, Share::default());
    }

    #[test]
    fn a_vgpu_may_have_a_quota_and_be_single_use() {
        let vgpu = parse_vgpu("name=a,socket=s,vram=64M,vram-min=16M,vram-max=128M,single-use").unwrap();
        assert_eq!((vgpu.quota().min, vgpu.quota().max, vgpu.single_use), (16 << 20, 128 << 20, true));
        let vgpu = parse_vgpu("name=a,socket=s,vram=64M").unwrap();
        assert_eq!((vgpu.quota().min, vgpu.quota().max, vgpu.single_use), (0, 64 << 20, false));
        assert!(parse_vgpu("name=a,socket=s,vram=64M,vram-max=lots").unwrap_err().contains("lots"));
    }

    #[test]
    fn a_vgpu_may_stand_behind_the_fs_front() {
        let vgpu = parse_vgpu("name=a,socket=s,vram=64M,front=fs,aperture=32M,tag=campanile").unwrap();
        let expected = FsOptions { aperture: 32 << 20, tag: Some("campanile".to_owned()) };
        assert_eq!(vgpu.front, FrontOptions::Fs(expected));
        assert_eq!(parse_vgpu("name=a,socket=s,vram=64M,front=gpu").unwrap().front, FrontOptions::Gpu);
        let long = format!("front=fs,tag={}", "t".repeat(37));
        for wrong in ["front=net", "aperture=1M", "front=gpu,tag=t", "front=fs,tag=", &long] {
            assert!(parse_vgpu(&format!("name=a,socket=s,vram=64M,{wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_vgpu_may_come_from_peers_of_given_names_only() {
        let vgpu =
            parse_vgpu("name=a,socket=s,vram=64M,migrate-from=host-b.example,migrate-from=uid:7").unwrap();
        let names: Vec<_> = vgpu.migrate_from.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["host-b.example", "uid:7"]);
        assert!(parse_vgpu("name=a,socket=s,vram=64M").unwrap().migrate_from.is_empty());
        for wrong in ["migrate-from=", "migrate-from=uid:x", "migrate-from=a b"] {
            assert!(parse_vgpu(&format!("name=a,socket=s,vram=64M,{wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_vgpu_may_have_timeouts_of_its_own() {
        let vgpu = parse_vgpu("name=a,socket=s,vram=64M,tdr-timeout=500,tdr-timeout-copy=20").unwrap();
        assert_eq!(vgpu.timeouts, [500, 20].map(|ms| Some(Duration::from_millis(ms))));
        assert!(parse_vgpu("name=a,socket=s,vram=64M,tdr-timeout=soon").unwrap_err().contains("soon"));
    }

    #[test]
    fn a_vgpu_may_have_a_share_of_its_own() {
        let vgpu = parse_vgpu("name=a,socket=s,vram=64M,weight=300,cap=25,bands=realtime").unwrap();
        assert_eq!(vgpu.share, Share { weight: 300, cap: 250, highest_band: Band::Realtime });
        for wrong in [
            "weight=0",
            "weight=NaN",
            "weight=10001",
            "weight=-1",
            "cap=0",
            "cap=101",
            "cap=inf",
            "bands=idle",
        ] {
            let error = parse_vgpu(&format!("name=a,socket=s,vram=64M,{wrong}")).unwrap_err();
            let (_, value) = wrong.split_once('=').unwrap();
            assert!(error.contains(value), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_vgpu_that_lacks_a_part_is_refused_by_its_name() {
        assert!(parse_vgpu("name=a,socket=s").unwrap_err().contains("vram"));
        assert!(parse_vgpu("name=a,vram=1M").unwrap_err().contains("socket"));
        assert!(parse_vgpu("name=,socket=s,vram=1M").unwrap_err().contains("name"));
        assert!(parse_vgpu("name=a,socket=s,vram=1M,colour=2").unwrap_err().contains("colour"));
        assert!(parse_vgpu("nonsense").unwrap_err().contains("nonsense"));
    }
}
