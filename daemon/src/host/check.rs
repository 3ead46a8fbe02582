//! Whether a daemon can be as its options say.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use campanile_host_gpu::dirty::method::Method;
use campanile_protocol::PAGE_SIZE;
use campanile_protocol::capset::MAX_ENGINES;

use super::error::HostError;
use super::local_choice::LocalChoice;
use super::local_memory;
use super::options::FrontOptions;
use super::options::HostOptions;
use super::options::Listening;
use super::options::VgpuOptions;
use super::tracking::TrackingChoice;
use crate::frontend::fs::state::FsOptions;
use crate::migration::channel::address::Peer;
use crate::migration::channel::peer_name::PeerName;
use crate::operator::http::address::Address;
use crate::vgpu::memory::vidmm::quota::Pool;
use crate::vgpu::memory::vidmm::quota::Quota;
use crate::vgpu::objects::budget::MAX_BUDGET_BYTES;
use crate::vgpu::objects::budget::MIN_BUDGET_BYTES;

/// Smallest video memory: aperture and local memory of a few MiB.
pub const MIN_VRAM: u64 = 16 << 20;
/// Largest video memory of one vGPU: what page tables can map.
pub const MAX_VRAM: u64 = 32 << 30;

/// Shortest TDR timeout: scheduling on a busy host must not look like a hang.
pub const MIN_TIMEOUT: Duration = Duration::from_millis(10);
/// Longest of all times that the operator can set: moments that far off can be counted.
pub const MAX_TIME: Duration = Duration::from_secs(7 * 24 * 3600);

/// Bytes of the longest path of a socket (unix(7): `sun_path` has 108, and the last is 0).
const MAX_SOCKET_PATH: usize = 107;
/// What is said of a second vGPU of a name.
pub const NAME_TAKEN: &str = "another vGPU has this name";

/// What is said of the second socket of a path.
pub fn socket_taken(whose: &str, path: &Path, other: &str) -> String {
    format!("{whose}: its socket {} is the one of {other}, too", path.display())
}

/// What of the options cannot be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Objection {
    /// The vGPU that it is about, by its name; none for the daemon.
    pub vgpu: Option<String>,
    /// The option, or the key of the vGPU.
    pub option: &'static str,
    /// What is wrong, and what is possible.
    pub text: String,
}

/// Whether a daemon can be like that.
///
/// # Errors
/// The first objection, in the operator's words.
pub fn check(options: &HostOptions) -> Result<(), HostError> {
    match objections(options).into_iter().next() {
        Some(objection) => Err(HostError::Options(objection.text)),
        None => Ok(()),
    }
}

/// All that cannot be, those of vGPUs first.
pub fn objections(options: &HostOptions) -> Vec<Objection> {
    let mut all = Vec::new();
    let mut object = |option: &'static str, text: String| all.push(Objection { vgpu: None, option, text });
    if options.vgpus.is_empty() && options.control.is_none() {
        let text = "no vGPU: give --socket and --vram, or --vgpu name=…,socket=…,vram=…; or --control, through which \
                    `campanile ctl vgpu add` makes some later";
        object("vgpu", text.to_owned());
    }
    for (index, vgpu) in options.vgpus.iter().enumerate() {
        let name = &vgpu.name;
        let mut object = |option: &'static str, text: String| {
            all.push(Objection { vgpu: Some(name.clone()), option, text: format!("vGPU {name}: {text}") });
        };
        of_vgpu(options, vgpu, &mut object);
        for other in &options.vgpus[..index] {
            if other.name == vgpu.name {
                object("name", NAME_TAKEN.to_owned());
            }
            if let (Some(Peer::Tcp(at) | Peer::Tls(at)), Some(Peer::Tcp(taken) | Peer::Tls(taken))) =
                (&vgpu.migrate_listen, &other.migrate_listen)
                && at == taken
                && !at.ends_with(":0")
            {
                object("migrate-listen", format!("migrate-listen {at} is that of vGPU {}, too", other.name));
            }
        }
    }
    all.extend(sockets(options));
    let mut object = |option: &'static str, text: String| all.push(Objection { vgpu: None, option, text });
    of_daemon(options, &mut object);
    all
}

/// What of one vGPU cannot be.
fn of_vgpu(options: &HostOptions, vgpu: &VgpuOptions, object: &mut impl FnMut(&'static str, String)) {
    let bytes = vgpu.vram_bytes;
    if !(MIN_VRAM..=MAX_VRAM).contains(&bytes) || !bytes.is_multiple_of(2 * PAGE_SIZE) {
        let text = format!("vram of {bytes} bytes; between 16M and 32G in whole pages is possible");
        object("vram", text);
    }
    let Quota { min, max } = vgpu.quota();
    if !(bytes..=MAX_VRAM).contains(&max) || !max.is_multiple_of(PAGE_SIZE) || min > max {
        let text = format!(
            "vram-max of {max} bytes and vram-min of {min}; vram-max from vram to 32G in whole pages, and vram-min up to \
             that, are possible"
        );
        object(if min > max { "vram-min" } else { "vram-max" }, text);
    }
    if let FrontOptions::Fs(FsOptions { aperture, .. }) = &vgpu.front
        && !aperture.is_multiple_of(PAGE_SIZE)
    {
        object("aperture", format!("aperture of {aperture} bytes; whole pages are possible"));
    }
    let provable = |peer: &PeerName| {
        matches!(
            (options.listening.of(vgpu), peer),
            (Some(Peer::Unix(_)), PeerName::User(_)) | (Some(Peer::Tls(_)), PeerName::Host(_))
        )
    };
    if let Some(peer) = vgpu.migrate_from.iter().find(|peer| !provable(peer)) {
        let text = format!(
            "migrate-from={peer}: of what listens (--migrate-listen, with --workers its own migrate-listen) only tls:… proves names, \
             and unix:… users"
        );
        object("migrate-from", text);
    }
    if vgpu.migrate_listen.is_some() && options.tracking == TrackingChoice::Fixed(Method::Off) {
        let text = "migrate-listen needs dirty tracking, and --dirty-tracking says off";
        object("migrate-listen", text.to_owned());
    }
    if vgpu.migrate_listen.is_some() && options.listening != Listening::Each {
        let text = "migrate-listen is for vGPUs with a process each (--workers); --migrate-listen is for all of this one";
        object("migrate-listen", text.to_owned());
    }
    let keys = ["tdr-timeout-compute", "tdr-timeout-copy"];
    for (timeout, key) in vgpu.timeouts.into_iter().zip(keys) {
        if let Some(text) = timeout.and_then(timeout_objection) {
            object(key, text);
        }
    }
}

fn timeout_objection(timeout: Duration) -> Option<String> {
    if timeout < MIN_TIMEOUT {
        return Some(format!("a timeout of {} ms; 10 or more are possible", timeout.as_millis()));
    }
    time_objection(timeout)
}

fn time_objection(time: Duration) -> Option<String> {
    let most = MAX_TIME.as_secs();
    (time > MAX_TIME).then(|| format!("a time of {} s; a week, {most} s, is possible", time.as_secs()))
}

/// Each socket has one server, and a path that the kernel takes.
fn sockets<'a>(options: &'a HostOptions) -> Vec<Objection> {
    let (mut known, mut all) = (BTreeMap::<&Path, String>::new(), Vec::new());
    let mut add = |path: &'a Path, vgpu: Option<&str>, option: &'static str| {
        let whose = vgpu.map_or_else(|| format!("--{option}"), |name| format!("vGPU {name}"));
        let bytes = path.as_os_str().len();
        if bytes > MAX_SOCKET_PATH {
            let text =
                format!("{whose}: its socket has a path of {bytes} bytes; {MAX_SOCKET_PATH} are possible");
            all.push(Objection { vgpu: vgpu.map(str::to_owned), option, text });
        }
        if let Some(other) = known.get(path) {
            let text = socket_taken(&whose, path, other);
            all.push(Objection { vgpu: vgpu.map(str::to_owned), option, text });
        } else {
            known.insert(path, whose);
        }
    };
    for vgpu in &options.vgpus {
        add(&vgpu.socket, Some(&vgpu.name), "socket");
        if let Some(Peer::Unix(path)) = &vgpu.migrate_listen {
            add(path, Some(&vgpu.name), "migrate-listen");
        }
    }
    if let Some(path) = &options.control {
        add(path, None, "control");
    }
    if let Some(path) = &options.status {
        add(path, None, "status");
    }
    if let Some(Address::Unix(path)) = &options.metrics {
        add(path, None, "metrics");
    }
    if let Listening::All(Peer::Unix(path)) = &options.listening {
        add(path, None, "migrate-listen");
    }
    all
}

/// What of the daemon itself, and of all vGPUs together, cannot be.
fn of_daemon(options: &HostOptions, object: &mut impl FnMut(&'static str, String)) {
    let engines = &options.engines;
    if engines.doorbells == 0 || engines.doorbells > campanile_protocol::engine::block::MAX_DOORBELLS {
        object("doorbells", format!("{} doorbells; 1 to 1024 are possible", engines.doorbells));
    }
    if !(MIN_BUDGET_BYTES..=MAX_BUDGET_BYTES).contains(&options.vm_budget) {
        let bytes = options.vm_budget;
        object("vm-budget", format!("a budget of {bytes} bytes for each VM; 16M to 64G are possible"));
    }
    if options.control_users.has_others() && options.control.is_none() {
        object("control-user", "control-user: there is no control socket; name one with control".to_owned());
    }
    if let Some(why) = options.holding.objection() {
        object("engine-cpus", why);
    }
    if engines.count == 0 || usize::from(engines.count) > MAX_ENGINES {
        object("engines", format!("{} engines; 1 to {MAX_ENGINES} are possible", engines.count));
    }
    if let Some(why) = engines.vulkan_devices.objection(engines.count) {
        object("vulkan-device", why);
    }
    if let (Some(Address::Tcp(metrics)), Some(web)) = (&options.metrics, &options.web)
        && metrics == web
    {
        object("web", format!("--web: its port {web} is the one of --metrics, too"));
    }
    if engines.local == LocalChoice::Device {
        local_memory::objections(options).into_iter().for_each(|(option, text)| object(option, text));
    }
    if let Err(error) = Pool::new(options.vram_total, options.vgpus.iter().map(|vgpu| vgpu.vram_min)) {
        object("vram-total", error.to_string());
    }
    let policy = &options.policy;
    let timeouts = [
        ("tdr-timeout-compute", options.timeouts[0]),
        ("tdr-timeout-copy", options.timeouts[1]),
        ("compile-timeout", policy.compile_timeout),
    ];
    for (option, timeout) in timeouts {
        if let Some(text) = timeout_objection(timeout) {
            object(option, text);
        }
    }
    let times = [
        ("tdr-limit-time", policy.limit_time),
        ("spin", engines.spin),
        ("slice", engines.slice),
        ("freeze-limit", options.freeze_limit),
        ("d3-after", engines.d3_after.unwrap_or_default()),
    ];
    for (option, time) in times {
        if let Some(text) = time_objection(time) {
            object(option, text);
        }
    }
    if policy.limit_count == 0 || policy.limit_time.is_zero() {
        let option = if policy.limit_count == 0 { "tdr-limit-count" } else { "tdr-limit-time" };
        object(option, "a TDR limit of nothing; 1 or more in 1 s or more are possible".to_owned());
    }
}

/// LM-02, DIRTY-10: live migration must know what is written. Side files need no tracking (DIRTY-60).
pub(super) fn check_live_migration(options: &HostOptions, tracking: Method) -> Result<(), HostError> {
    let live = options.migration.peer.is_some() || options.listens().is_some();
    if live && tracking == Method::Off {
        let text = "--migrate-to and --migrate-listen need dirty tracking, and --dirty-tracking says off";
        return Err(HostError::Options(text.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use campanile_host_gpu::adapter::program::Program;
    use campanile_host_gpu::dirty::method::Method;

    use super::HostOptions;
    use super::Listening;
    use super::Peer;
    use super::TrackingChoice;
    use super::VgpuOptions;
    use super::check;
    use super::objections;
    use crate::host::engines::EngineOptions;
    use crate::migration::settings::Settings as MigrationSettings;

    #[test]
    fn lm_02_live_migration_without_tracking_is_no_configuration() {
        let program = Program::new(PathBuf::new(), Vec::new());
        let options = HostOptions::new(Vec::new(), program);
        assert!(super::check_live_migration(&options, Method::Off).is_ok());
        let to = |peer: Option<Peer>, listen: Option<Peer>| {
            let migration = MigrationSettings { peer, ..MigrationSettings::default() };
            let listening = listen.map_or(Listening::Nowhere, Listening::All);
            HostOptions { migration, listening, ..options.clone() }
        };
        let peer: Option<Peer> = "unix:/run/a".parse().ok();
        for live in [to(peer.clone(), None), to(None, peer.clone())] {
            assert!(super::check_live_migration(&live, Method::Off).is_err());
            assert!(super::check_live_migration(&live, Method::WriteProtect).is_ok());
        }
    }

    #[test]
    fn peers_by_name_need_a_door_that_proves_names() {
        let vgpu = VgpuOptions::new("a".to_owned(), PathBuf::from("a.sock"), 64 << 20);
        let program = Program::new(PathBuf::new(), Vec::new());
        let outcome = |name: &str, listen: Option<&str>| {
            let vgpu = VgpuOptions { migrate_from: vec![name.parse().unwrap()], ..vgpu.clone() };
            let options = HostOptions::new(vec![vgpu], program.clone());
            let listening = listen.map_or(Listening::Nowhere, |at| Listening::All(at.parse().unwrap()));
            check(&HostOptions { listening, ..options })
        };
        assert!(outcome("host-b.example", Some("tls:0.0.0.0:1")).is_ok());
        assert!(outcome("uid:7", Some("unix:/run/door")).is_ok());
        for (name, listen) in [
            ("host-b.example", Some("tcp:0.0.0.0:1")),
            ("host-b.example", Some("unix:/run/door")),
            ("uid:7", Some("tls:0.0.0.0:1")),
            ("uid:7", None),
        ] {
            let refused = outcome(name, listen).unwrap_err().to_string();
            assert!(refused.contains(&format!("migrate-from={name}")), "{refused}");
        }
    }

    #[test]
    fn a_vgpu_has_an_address_of_its_own_where_its_process_is_of_it_alone() {
        let vgpu = |name: &str, at: &str| {
            let (socket, migrate_listen) = (PathBuf::from(name), at.parse().ok());
            VgpuOptions { migrate_listen, ..VgpuOptions::new(name.to_owned(), socket, 64 << 20) }
        };
        let outcome = |vgpus: [VgpuOptions; 2], listening: Listening| {
            let options = HostOptions::new(vgpus.into(), Program::new(PathBuf::new(), Vec::new()));
            let options = HostOptions { listening, ..options };
            objections(&options).into_iter().map(|found| (found.vgpu, found.option)).collect::<Vec<_>>()
        };
        let two = || [vgpu("a", "unix:/run/a.peer"), vgpu("b", "unix:/run/b.peer")];
        assert_eq!(outcome(two(), Listening::Each), []);
        let of = |name: &str| (Some(name.to_owned()), "migrate-listen");
        for one in [Listening::Nowhere, Listening::All("unix:/run/all".parse().unwrap())] {
            assert_eq!(outcome(two(), one), [of("a"), of("b")]);
        }
        let both = [vgpu("a", "unix:/run/a.peer"), vgpu("b", "unix:/run/a.peer")];
        assert_eq!(outcome(both, Listening::Each), [of("b")]);
        for (at, is_taken) in [("tcp:0.0.0.0:7", true), ("tls:0.0.0.0:7", true), ("tcp:0.0.0.0:0", false)] {
            let found = outcome([vgpu("a", "tcp:0.0.0.0:7"), vgpu("b", at)], Listening::Each);
            assert_eq!(found, if is_taken { vec![of("b")] } else { vec![] }, "{at}");
        }
        let [a, b] = [vgpu("a", "tcp:0.0.0.0:0"), vgpu("b", "tcp:0.0.0.0:0")];
        assert_eq!(outcome([a, b], Listening::Each), []);
        let program = Program::new(PathBuf::new(), Vec::new());
        let untracked = HostOptions {
            listening: Listening::Each,
            tracking: TrackingChoice::Fixed(Method::Off),
            ..HostOptions::new(two().into(), program)
        };
        let untracked = objections(&untracked).into_iter().map(|found| (found.vgpu, found.option));
        assert_eq!(untracked.collect::<Vec<_>>(), [of("a"), of("b")]);
        let [mut named, other] = two();
        named.migrate_from = vec!["uid:7".parse().unwrap()];
        assert_eq!(outcome([named.clone(), other.clone()], Listening::Each), []);
        named.migrate_listen = None;
        assert_eq!(outcome([named, other], Listening::Each), [(Some("a".to_owned()), "migrate-from")]);
    }

    #[test]
    fn a_time_that_cannot_be_counted_is_refused() {
        let socket = PathBuf::from("a.sock");
        let vgpu = VgpuOptions::new("a".to_owned(), socket, 64 << 20);
        let program = Program::new(PathBuf::from("campanile"), Vec::new());
        let good = HostOptions::new(vec![vgpu], program);
        check(&good).unwrap();
        let engines = |engines| HostOptions { engines, ..good.clone() };
        for wrong in [
            HostOptions { timeouts: [Duration::MAX; 2], ..good.clone() },
            engines(EngineOptions { d3_after: Some(Duration::MAX), ..good.engines.clone() }),
            engines(EngineOptions { spin: Duration::MAX, ..good.engines.clone() }),
            engines(EngineOptions { slice: Duration::MAX, ..good.engines.clone() }),
        ] {
            assert!(check(&wrong).unwrap_err().to_string().contains("a week"));
        }
    }

    #[test]
    fn a_budget_with_which_a_guest_could_do_nothing_is_refused() {
        let vgpu = VgpuOptions::new("a".to_owned(), PathBuf::from("a.sock"), 64 << 20);
        let program = Program::new(PathBuf::from("campanile"), Vec::new());
        let good = HostOptions::new(vec![vgpu], program);
        for vm_budget in [16 << 20, 64 << 30] {
            check(&HostOptions { vm_budget, ..good.clone() }).unwrap();
        }
        for vm_budget in [0, (16 << 20) - 1, (64 << 30) + 1, u64::MAX] {
            let wrong = check(&HostOptions { vm_budget, ..good.clone() });
            assert!(wrong.unwrap_err().to_string().contains("16M to 64G"), "{vm_budget}");
        }
    }

    #[test]
    fn every_objection_names_its_option_and_its_vgpu() {
        let vgpu =
            |name: &str, socket: &str| VgpuOptions::new(name.to_owned(), PathBuf::from(socket), 64 << 20);
        let small = VgpuOptions { vram_bytes: 1, vram_min: 40 << 20, ..vgpu("b", "a.sock") };
        let least = VgpuOptions { vram_min: 40 << 20, ..vgpu("a", "a.sock") };
        let options = HostOptions::new(vec![least, small], Program::new(PathBuf::new(), Vec::new()));
        let control = Some(PathBuf::from("a.sock"));
        let options = HostOptions { vram_total: Some(64 << 20), control, vm_budget: 1, ..options };
        let all: Vec<_> =
            objections(&options).into_iter().map(|found| (found.vgpu, found.option, found.text)).collect();
        let of_b = |option| (Some("b".to_owned()), option);
        let places: Vec<_> = all.iter().map(|(vgpu, option, _)| (vgpu.clone(), *option)).collect();
        let expected = [
            of_b("vram"),
            of_b("vram-min"),
            of_b("socket"),
            (None, "control"),
            (None, "vm-budget"),
            (None, "vram-total"),
        ];
        assert_eq!(places, expected, "{all:?}");
        assert!(all[2].2.contains("a.sock") && all[2].2.contains("vGPU a"), "{:?}", all[2]);
        assert!(all[5].2.contains("83886080") && all[5].2.contains("67108864"), "{:?}", all[5]);
    }
}
