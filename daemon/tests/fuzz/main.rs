//! What fuzzers look for, on stable Rust: inputs that are right, and all that were found to be wrong once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod engines;
mod targets;

use std::path::Path;

use campanile_daemon::frontend::fs::state::Fs;
use campanile_daemon::frontend::gpu::device::Gpu;

use crate::targets::NAMES;
use crate::targets::chain;
use crate::targets::change::changed;
use crate::targets::control;
use crate::targets::front;
use crate::targets::instructions;
use crate::targets::seeds;
use crate::targets::shader;
use crate::targets::state;
use crate::targets::state::Became;
use crate::targets::stream;
use crate::targets::stream::Came;

fn seed(target: &str, name: &str) -> Vec<u8> {
    let all = seeds::of(target);
    all.into_iter().find(|(its, _)| its == name).unwrap().1
}

#[test]
fn what_fuzzers_once_found_is_right_now() {
    let crashes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ci/fuzz/crashes");
    for target in NAMES {
        let Ok(folder) = std::fs::read_dir(crashes.join(target)) else { continue };
        for file in folder {
            let path = file.unwrap().path();
            if path.file_name().is_some_and(|name| name == ".gitkeep") {
                continue;
            }
            println!("{}", path.display());
            targets::run(target, &std::fs::read(path).unwrap());
        }
    }
}

#[test]
fn lm_30_a_source_that_says_what_it_should_gets_as_far_as_it_should() {
    let came = |name: &str| stream::run(&seed("stream", name));
    assert_eq!(came("granted"), Came { accepted: 1, stored: 1, claimed: 1, ran: 1 });
    assert_eq!(came("revoked-too-late"), Came { accepted: 1, stored: 1, claimed: 1, ran: 1 });
    for name in ["declined", "revoked", "forgotten"] {
        assert_eq!(came(name), Came { accepted: 1, stored: 1, claimed: 1, ran: 0 }, "{name}");
    }
    assert_eq!(came("given-up"), Came { accepted: 1, stored: 1, claimed: 0, ran: 0 });
    assert_eq!(came("two-lines"), Came { accepted: 2, stored: 1, claimed: 0, ran: 0 });
}

#[test]
fn lm_32_golden_states_and_those_of_busy_devices_are_taken() {
    for (name, bytes) in seeds::of("state") {
        let became = state::run(&bytes);
        if name.starts_with("as-it-is") {
            let Became::Refused(why) = became else { panic!("{name}: a front that is none") };
            assert!(why.contains("cannot be read"), "{name}: {why}");
        } else {
            assert_eq!(became, Became::Taken, "{name}");
        }
    }
}

#[test]
fn guests_that_do_nothing_wrong_are_answered_and_move() {
    let came = front::run::<Fs>(&seed("fs", "guest"));
    assert_eq!((came.moves, came.waiting), (1, 0));
    let fuse: Vec<i32> =
        came.answers.iter().filter_map(|it| it.get(4..8)?.try_into().ok()).map(i32::from_le_bytes).collect();
    // One is interrupted.
    assert!(fuse.iter().all(|error| matches!(error, 0 | -4)), "{fuse:?}");
    let calls: Vec<u32> = came
        .answers
        .iter()
        .filter(|it| it.len() > 200)
        .map(|it| u32::from_le_bytes(*it[32..].first_chunk().unwrap()))
        .collect();
    assert!(calls.iter().all(|status| *status == 0), "{calls:x?}");
    let came = front::run::<Gpu>(&seed("gpu", "guest"));
    assert_eq!((came.moves, came.waiting), (1, 0));
    let codes: Vec<u32> =
        came.answers.iter().filter_map(|it| it.get(..4)?.try_into().ok()).map(u32::from_le_bytes).collect();
    assert!(codes.iter().all(|code| *code < 0x1200), "{codes:x?}");
}

#[test]
fn an_operator_is_answered_line_by_line_however_the_bytes_come() {
    let came = control::run(&seed("control", "all"));
    assert_eq!(came.done.iter().filter(|done| **done).count(), control::DONE, "{came:?}");
    assert_eq!(came.done.len(), 23);
    assert_eq!(control::run(&seed("control", "byte-by-byte")), came);
    assert_eq!(control::run(&seed("control", "too-long")).done, [false]);
    assert_eq!(control::run(&seed("control", "long-name")).done, [false]);
}

#[test]
fn a_chain_comes_back_once_for_each_time_that_it_was_handed_over() {
    let seeds = seeds::of("chain");
    let asked: Vec<_> = seeds.iter().filter(|(name, _)| name.starts_with("asked")).collect();
    assert_eq!(asked.len(), 8);
    for (name, bytes) in asked {
        assert_eq!(chain::run(bytes), 3, "{name}");
    }
    let came = |name: &str| chain::run(&seed("chain", name)) - 3;
    for name in ["loop", "beyond", "far", "huge", "nothing"] {
        assert_eq!(came(name), 1, "{name}: what cannot be read is given back");
    }
    // The first is answered before the second is looked at.
    assert!((2..=3).contains(&came("twice")));
    assert_eq!(came("jump"), 0, "the ring is at its end");
    assert_eq!(came("no-head"), 1, "what is no head is passed over, and the next is looked at");
}

#[test]
fn every_shader_of_the_project_passes_the_guard_and_its_words_pass_again() {
    let seeds = seeds::of("shader");
    assert_eq!(seeds.len(), 5);
    for (name, bytes) in seeds {
        let made = shader::run(&bytes).unwrap_or_else(|| panic!("{name} is refused"));
        assert!(made.bindings.iter().any(|binding| binding.is_written), "{name}");
        // Its first instruction, behind the header, is a capability that it needs.
        let cut = [&bytes[..20], &bytes[28..]].concat();
        assert!(shader::run(&cut).is_none(), "{name} without its first instruction");
    }
}

#[test]
fn every_stored_crash_is_that_of_a_target_and_none_lies_elsewhere() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ci/fuzz");
    let names = |folder: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = entries.map(|name| name.into_string().unwrap()).collect();
        names.sort_unstable();
        names
    };
    let mut known = NAMES.map(str::to_owned);
    known.sort_unstable();
    assert_eq!(names(&fuzz.join("crashes")), known, "a folder for each target, which is replayed");
    let left = ["crash-", "oom-", "timeout-", "leak-", "slow-unit-"];
    for folder in [fuzz.clone(), fuzz.join("..").join("..")] {
        let lost = names(&folder).into_iter().find(|name| left.iter().any(|kind| name.starts_with(kind)));
        assert_eq!(lost, None, "a file of a fuzzer that nothing replays, in {}", folder.display());
    }
}

/// Numbers that look random, and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(end).unwrap()).unwrap()
    }
}

/// One change of a few bytes.
fn spoil(bytes: &mut Vec<u8>, random: &mut Numbers) {
    let at = random.below(bytes.len().max(1));
    if at >= bytes.len() {
        return;
    }
    let [value, bit, ..] = random.next().to_le_bytes();
    match random.below(4) {
        0 => bytes[at] = value,
        1 => bytes[at] ^= 1 << (bit % 8),
        2 => drop(bytes.drain(at..(at + 1 + random.below(40)).min(bytes.len()))),
        _ => {
            let copy = bytes[at..(at + 60).min(bytes.len())].to_vec();
            bytes.splice(at..at, copy);
        }
    }
}

/// A few thousand inputs near to right ones. `ci/fuzz` has more, and knows where they lead.
#[test]
fn lm_39_lm_40_what_is_near_to_right_breaks_nothing() {
    let mut random = Numbers(1);
    for target in NAMES {
        let all = seeds::of(target);
        for round in 0..400 {
            let mut bytes = all[random.below(all.len())].1.clone();
            match changed(&bytes, 17, random.next()) {
                Some(near) if target == "state" && round % 2 == 0 => bytes = near,
                _ if target == "shader" && round % 8 != 0 => {
                    let near = instructions::changed(&shader::words(&bytes), random.next()).unwrap();
                    bytes = shader::bytes(&near);
                }
                _ => (0..=random.below(3)).for_each(|_| spoil(&mut bytes, &mut random)),
            }
            targets::run(target, &bytes);
        }
    }
}

#[test]
#[ignore = "writes inputs for fuzzers into the folder CAMPANILE_FUZZ_SEEDS"]
fn write_seeds() {
    let folder = std::env::var_os("CAMPANILE_FUZZ_SEEDS").unwrap();
    for target in NAMES {
        let folder = Path::new(&folder).join(target);
        std::fs::create_dir_all(&folder).unwrap();
        for (name, bytes) in seeds::of(target) {
            std::fs::write(folder.join(name), bytes).unwrap();
        }
    }
}
