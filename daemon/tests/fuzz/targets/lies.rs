//! Inputs of [`super::liar`]: engines that do as they should behind a guest that does, and then one lie.

use super::conversation;
use super::front;
use super::input::piece;
use super::liar::ANSWER;
use super::liar::CLOSE;
use super::liar::HONEST;
use super::liar::OTHER;
use super::liar::PACKET;
use super::liar::SIGNAL;
use super::liar::WORD;
use super::words;

fn step(op: u8, kind: u8, wrong: u8, number: u16) -> Vec<u8> {
    [vec![op, kind, wrong], number.to_le_bytes().to_vec()].concat()
}

/// All that a guest does, with engines that do as they should after each request; `lie` comes after the `at`-th.
pub(crate) fn conversation_with(at: usize, lie: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    let parts = conversation::gpu_parts();
    for (index, part) in parts.iter().enumerate() {
        all.extend_from_slice(part);
        if index == at {
            all.extend_from_slice(lie);
        }
        for op in [OTHER, HONEST] {
            all.extend(step(op, 0, 0, 0));
        }
        all.push(front::EVENT);
        for op in [OTHER, HONEST] {
            all.extend(step(op, 1, 0, 0));
        }
        all.push(front::EVENT);
    }
    all
}

/// Inputs for what engines say.
pub(crate) fn engines() -> Vec<(String, Vec<u8>)> {
    let count = conversation::gpu_parts().len();
    let mut all = vec![("honest".to_owned(), conversation_with(count, &[]))];
    for kind in 0..7 {
        for wrong in [0, 2, 9, 31] {
            // Of segments the copy node's engine, of kernels the other one, which starts later.
            let which = step(OTHER, kind / 4, 0, 0);
            let lie = [which, step(ANSWER, kind, wrong, 1), vec![front::EVENT]].concat();
            let at = usize::from(kind * 3 + wrong) % count;
            all.push((format!("answer-{kind}-{wrong}"), conversation_with(at.max(16), &lie)));
        }
    }
    let packet = |descriptors: u8, bytes: &[u8]| {
        [step(PACKET, descriptors, 0, 0), piece(bytes), vec![front::EVENT]].concat()
    };
    for (name, lie) in [
        ("closed", [step(CLOSE, 0, 0, 0), vec![front::EVENT]].concat()),
        ("short", packet(0, b"CPE1")),
        ("empty", packet(0, b"")),
        ("descriptors", packet(33, b"CPE1\x86\0\0\0\x20\0\0\0\x21\0\0\0")),
        ("long", packet(0, &[0xff; 40_000])),
    ] {
        all.push((name.to_owned(), conversation_with(22, &[step(OTHER, 0, 0, 0), lie].concat())));
    }
    all
}

/// Inputs for what engines store.
pub(crate) fn blocks() -> Vec<(String, Vec<u8>)> {
    let count = conversation::gpu_parts().len();
    let lies = words::ALL.iter().zip(0u8..).map(|(words, index)| {
        let lie: Vec<u8> = (0..words::HOSTILE)
            .flat_map(|value| {
                [step(WORD, index, value, 0), step(SIGNAL, 0, 0, 0), vec![front::EVENT]].concat()
            })
            .collect();
        (words.name.to_owned(), conversation_with(16 + usize::from(index) % (count - 16), &lie))
    });
    lies.collect()
}
