//! Engines that are the test: what honest ones lead to, and that no word or message is left out.

use std::fs;
use std::path::Path;

use crate::seed;
use crate::targets::liar;
use crate::targets::seeds;
use crate::targets::words;

#[test]
fn engines_that_do_as_they_should_have_their_guest_answered() {
    let came = liar::run(&seed("engine", "honest"));
    assert_eq!(came.engines, 2, "one a node");
    assert!(came.requests > 4, "{}", came.requests);
    let codes: Vec<u32> =
        came.answers.iter().filter_map(|it| it.get(..4)?.try_into().ok()).map(u32::from_le_bytes).collect();
    // One waits for a value of a progress fence, which no engine here stores.
    assert_eq!(codes.len(), 29, "{codes:x?}");
    assert!(codes.iter().all(|code| *code < 0x1200), "{codes:x?}");
}

#[test]
fn engines_that_break_the_protocol_of_their_channel_are_replaced() {
    for (name, bytes) in seeds::of("engine") {
        let came = liar::run(&bytes);
        // The start is over by then: it was said once, and is said again, or that it was refused.
        let breaks = name.starts_with("answer-0") || name.starts_with("answer-1");
        if breaks || ["closed", "short", "descriptors", "long"].contains(&name.as_str()) {
            assert!(came.engines > 2, "{name}: {} engines", came.engines);
        }
    }
}

#[test]
fn an_engine_that_gives_a_buffer_back_again_and_again_does_not_keep_its_session_for_itself() {
    let most = liar::give_back_for_ever();
    // What one look takes, what is in the hardware queue, and what comes while the look begins and ends.
    assert!(most <= 64 + 8, "{most} results were taken in one look");
}

/// Names that a module of the protocol makes public: constants, and functions of places.
fn public_names(source: &str) -> Vec<&str> {
    let shipped = source.split("#[cfg(test)]").next().unwrap();
    shipped
        .lines()
        .filter_map(|line| {
            let line = line.strip_prefix("pub const ")?;
            let line = line.strip_prefix("fn ").unwrap_or(line);
            line.split([':', '(']).next()
        })
        .collect()
}

#[test]
fn every_word_of_the_shared_block_is_lied_about() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../protocol/src/engine");
    let mut missing = Vec::new();
    let mut seen = 0;
    for module in ["block", "fences", "hw_queue", "residency", "scheduling"] {
        let source = fs::read_to_string(folder.join(module).with_extension("rs")).unwrap();
        for name in public_names(&source) {
            seen += 1;
            let is_word = words::ALL.iter().any(|words| words.name == name);
            if !is_word && !words::OTHERS.contains(&name) {
                missing.push(format!("{module}::{name}"));
            }
        }
    }
    assert!(seen > 80, "{seen} names");
    assert_eq!(missing, Vec::<String>::new(), "words that no test lies about: list them in targets/words.rs");
    let block = campanile_protocol::engine::block::BLOCK_BYTES;
    for words in words::ALL {
        assert!(words.place(words.count - 1) + 8 <= block, "{} lies outside", words.name);
        assert!(words.first.is_multiple_of(8), "{}", words.name);
    }
}
