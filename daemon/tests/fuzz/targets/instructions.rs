//! Changes to SPIR-V that leave it cut into instructions.

/// Words of the header.
const HEADER: usize = 5;
/// Of the header: its generator, which decides on the device; and the bound of ids.
const GENERATOR: usize = 2;
const BOUND: usize = 3;
/// Numbers that mean something: counts, widths, storage classes, scopes, semantics, signs.
const NUMBERS: [u32; 14] = [0, 1, 2, 3, 4, 7, 8, 16, 64, 264, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];

/// Numbers that look random, and are the same for the same seed.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from(self.0 >> 33).unwrap()
    }

    fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next()).unwrap() % end.max(1)
    }
}

/// Where instructions begin, as far as they are cut.
fn cut(words: &[u32]) -> Vec<usize> {
    let (mut at, mut found) = (HEADER, Vec::new());
    while let Some(first) = words.get(at) {
        let length = usize::try_from(first >> 16).unwrap();
        if length == 0 || at + length > words.len() {
            break;
        }
        found.push(at);
        at += length;
    }
    found
}

/// The instruction at `at`.
fn whole(words: &[u32], at: usize) -> Vec<u32> {
    words[at..at + usize::try_from(words[at] >> 16).unwrap()].to_vec()
}

/// A module with one change, or up to four; `None` where it has no instructions.
pub(crate) fn changed(words: &[u32], seed: u64) -> Option<Vec<u32>> {
    let mut random = Numbers(seed);
    let mut words = words.to_vec();
    for _ in 0..=random.below(2) * random.below(4) {
        change(&mut words, &mut random)?;
    }
    Some(words)
}

fn change(words: &mut Vec<u32>, random: &mut Numbers) -> Option<()> {
    let starts = cut(words);
    let at = *starts.get(random.below(starts.len()))?;
    // Like passes for like more often than not: the other may be of the same kind, and its operand in the same place.
    let alike: Vec<usize> =
        starts.iter().copied().filter(|other| (words[*other] ^ words[at]) & 0xffff == 0).collect();
    let others = if random.below(2) == 0 { &alike } else { &starts };
    let other = others[random.below(others.len())];
    let (own, copy) = (whole(words, at), whole(words, other));
    let place = 1 + random.below(own.len() - 1);
    let given = if random.below(2) == 0 { place } else { 1 + random.below(copy.len() - 1) };
    let (operand, given) = (at + place, copy.get(given).copied().unwrap_or(0));
    let has_operand = own.len() > 1;
    match random.below(13) {
        0 | 1 if has_operand => words[operand] = given,
        2 if has_operand => words[operand] = words[operand].wrapping_add(1),
        3 if has_operand => words[operand] = words[operand].wrapping_sub(1),
        4 if has_operand => words[operand] = NUMBERS[random.below(NUMBERS.len())],
        5 if has_operand => words[operand] ^= 1 << random.below(32),
        // Another instruction with the same operands.
        6 => words[at] = words[at] & 0xffff_0000 | (copy[0] & 0xffff),
        7 => words[at] = words[at] & 0xffff_0000 | (random.next() % 420),
        8 => drop(words.drain(at..at + own.len())),
        // The same once more, with a result of its own where it has one after its type.
        9 => {
            let mut copy = copy;
            if let Some(result) = copy.get_mut(2)
                && random.below(4) != 0
            {
                *result = words[BOUND];
                words[BOUND] = words[BOUND].wrapping_add(1);
            }
            words.splice(at..at, copy);
        }
        10 => {
            words.splice(at + own.len()..at + own.len(), [given]);
            words[at] = words[at].wrapping_add(1 << 16);
        }
        11 if has_operand => {
            words.remove(operand);
            words[at] -= 1 << 16;
        }
        12 => words[GENERATOR] ^= 1 << random.below(26),
        _ => {
            let (low, high) = (at.min(other), at.max(other));
            let (own, copy) = (whole(words, low), whole(words, high));
            if low != high {
                words.splice(high..high + copy.len(), own.clone());
                words.splice(low..low + own.len(), copy);
            }
        }
    }
    Some(())
}
