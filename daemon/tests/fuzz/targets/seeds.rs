//! Inputs that are right: what sources and guests say, and the golden states. Fuzzers begin with them.

use campanile_daemon::frontend::vhost::saved::SavedRing;
use campanile_daemon::frontend::vhost::saved::SavedShell;
use campanile_daemon::migration::channel::message::Hello;
use campanile_daemon::migration::channel::message::Message;
use campanile_daemon::migration::id::BundleId;
use campanile_daemon::migration::state;
use campanile_daemon::operator::line::MAX_LINE;
use campanile_daemon::vgpu::state::save::snapshot::immutable_of;
use campanile_daemon::vgpu::state::saved::bytes::Bytes;
use campanile_host_gpu::kernel::sanitizer::sanitize;
use campanile_host_gpu::kernel::source::Source;

use super::chain;
use super::control;
use super::conversation;
use super::input::piece;
use super::lies;
use super::shader;
use super::state as states;
use super::wire;
use super::world::SMALL;
use super::world::config;

/// An input, by its name.
pub(crate) type Seed = (String, Vec<u8>);

/// All inputs for a target.
///
/// # Panics
/// There is no such target, or no golden state.
pub(crate) fn of(target: &str) -> Vec<Seed> {
    match target {
        "stream" => streams(),
        "state" => golden(),
        "control" => vec![
            named("all", control::lines(255)),
            named("byte-by-byte", control::lines(1)),
            named("too-long", vec![b' '; MAX_LINE + 2]),
            named("long-name", control::allow(&"\u{1}".repeat(MAX_LINE / 8).into())),
        ],
        "fs" => vec![
            named("guest", conversation::fs()),
            named("hello", conversation::hello(true)),
            named("few", conversation::few()),
        ],
        "gpu" => vec![named("guest", conversation::gpu()), named("hello", conversation::hello(false))],
        "engine" => lies::engines(),
        "block" => lies::blocks(),
        "chain" => chain::seeds(),
        "shader" => kernels(),
        other => panic!("there is no target {other}"),
    }
}

fn named(name: &str, bytes: Vec<u8>) -> Seed {
    (name.to_owned(), bytes)
}

/// What the target of a stream awaits.
fn hello() -> Message {
    let config = config(SMALL);
    let mut immutable = Vec::new();
    ciborium::into_writer(&immutable_of(&config), &mut immutable).unwrap();
    let arriving = campanile_daemon::migration::target::arriving::Arriving::of(&config, Vec::new(), None);
    Message::Hello(Hello {
        version: 1,
        oldest: 1,
        vgpu: config.name.clone(),
        bundle: BundleId([7; 16]),
        streams: 2,
        memories: arriving.shape.lengths,
        immutable,
    })
}

fn say(message: &Message) -> Vec<u8> {
    [vec![wire::MESSAGE], piece(&message.encode().unwrap())].concat()
}

/// Records of both memories, packed and not.
fn pages() -> Vec<u8> {
    [(0u8, 3u16, 4u8, 1u8), (1, 0, 2, 9), (2, 8, 16, 7), (3, 4, 1, 0)]
        .into_iter()
        .flat_map(|(kind, page, count, fill)| {
            let [low, high] = page.to_le_bytes();
            [wire::FILLED, kind, low, high, count - 1, fill]
        })
        .collect()
}

fn streams() -> Vec<Seed> {
    let bundle = BundleId([7; 16]);
    let (pass, still) = (say(&Message::PassEnd { pass: 1 }), say(&Message::Still));
    let complete = say(&Message::Complete { records: 4, bytes: 23 * 4096 });
    let other_line = [say(&Message::Join { bundle }), pages(), pass.clone()].concat();
    let join = [vec![wire::LINE], piece(&other_line)].concat();
    let both = say(&Message::Complete { records: 8, bytes: 46 * 4096 });
    let received = [say(&hello()), pages(), pass.clone(), still.clone(), complete].concat();
    let with_lines = [say(&hello()), join, pages(), pass, both].concat();
    let then = |ops: &[&[u8]]| [received.clone(), ops.concat()].concat();
    let (granted, declined) = (say(&Message::Granted), say(&Message::Declined));
    let (revoke, give_up) = (say(&Message::Revoke), say(&Message::GiveUp { reason: "no more".to_owned() }));
    vec![
        named("granted", then(&[&[wire::CLAIM], &granted, &[wire::START]])),
        named("declined", then(&[&[wire::CLAIM], &declined, &[wire::START]])),
        named("revoked", then(&[&[wire::CLAIM], &revoke, &[wire::START]])),
        named("revoked-too-late", then(&[&[wire::CLAIM], &granted, &[wire::START], &revoke])),
        named("given-up", then(&[&give_up])),
        named("forgotten", then(&[&[wire::CLAIM, wire::DROP, wire::CLAIM], &still])),
        named("two-lines", with_lines),
    ]
}

/// The shaders of this project, as its sanitizer writes them.
fn kernels() -> Vec<Seed> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let tool = root.join("guest-driver/tool/src");
    let tests = root.join("ci/e2e");
    [
        tool.join("mandelbrot.wgsl"),
        tool.join("burn.wgsl"),
        tool.join("animation/frame.wgsl"),
        tests.join("spin.wgsl"),
        tests.join("squares.wgsl"),
    ]
    .iter()
    .map(|path| {
        let kernel = sanitize(&Source::wgsl(&std::fs::read_to_string(path).unwrap())).unwrap();
        named(path.file_stem().unwrap().to_str().unwrap(), shader::bytes(&kernel.spirv))
    })
    .collect()
}

/// The golden states as they are, without what their front keeps, and with the shell's part in front.
fn golden() -> Vec<Seed> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let in_flight = [(3, Some(vec![9])), (4, None)];
    let in_flight = in_flight.map(|(head, answer)| campanile_daemon::frontend::vhost::saved::Parked {
        head,
        shape: u64::MAX,
        answer,
    });
    let in_flight = in_flight.to_vec();
    let ring =
        SavedRing { position: 7, was_used: true, owes_interrupt: true, in_flight, repeated: Vec::new() };
    let mut rings = vec![SavedRing::default(); 9];
    rings[1] = ring;
    let shell = SavedShell { features: 5_637_144_576, config: Vec::new(), smallest_answer: 0, rings };
    let mut seeds = Vec::new();
    for version in 1..=state::VERSION {
        let bytes = std::fs::read(folder.join(format!("state-{version}.campanile"))).unwrap();
        let mut state = state::decode(&bytes).unwrap();
        state.front = Bytes::default();
        let mut plain = state.encode().unwrap();
        // As version 1 wrote it: nothing else of it has changed.
        plain[8] = u8::try_from(version).unwrap();
        plain[12] = plain[8];
        for (name, choice) in [("gpu", 0), ("fs", states::FS)] {
            seeds.push(named(&format!("golden-{version}-{name}"), [vec![choice], plain.clone()].concat()));
            let whole = shell.encode(&plain).unwrap();
            let choice = choice | states::SHELL;
            seeds.push(named(&format!("stream-{version}-{name}"), [vec![choice], whole].concat()));
        }
        seeds.push(named(&format!("as-it-is-{version}"), [vec![0], bytes].concat()));
    }
    let fronts = [("gpu", 0, conversation::moved(false)), ("fs", states::FS, conversation::moved(true))];
    seeds.extend(
        fronts.map(|(name, choice, bytes)| named(&format!("busy-{name}"), [vec![choice], bytes].concat())),
    );
    seeds
}
