//! Tests of vGPUs as the operator writes them.

use std::path::PathBuf;
use std::time::Duration;

use campanile_host_gpu::sched::parameters::Band;

use super::change_vgpu;
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
    let vgpu = parse_vgpu("name=a,socket=s,vram=64M,migrate-from=host-b.example,migrate-from=uid:7").unwrap();
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
    for wrong in
        ["weight=0", "weight=NaN", "weight=10001", "weight=-1", "cap=0", "cap=101", "cap=inf", "bands=idle"]
    {
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

#[test]
fn a_vgpu_is_changed_in_what_is_said_and_nothing_else() {
    let before = parse_vgpu("name=a,socket=s,vram=64M,front=fs,aperture=32M,tag=t,weight=300").unwrap();
    let change =
        |values: &[&str]| change_vgpu(&before, &values.iter().map(ToString::to_string).collect::<Vec<_>>());
    assert_eq!(change(&[]).unwrap(), before);
    let after = change(&["cap=50", "vram-min=16M"]).unwrap();
    assert_eq!((after.share.cap, after.share.weight, after.vram_min), (500, 300, 16 << 20));
    assert_eq!(after.front, before.front);
    for wrong in ["cap", "cap=0", "colour=2", "front=gpu"] {
        assert!(change(&[wrong]).is_err(), "{wrong}");
    }
}
