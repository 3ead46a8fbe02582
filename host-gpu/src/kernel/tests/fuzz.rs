//! Mutated kernels, the same ones on every run.

use crate::kernel::error::KernelError;
use crate::kernel::program::BINDING_LIMIT;
use crate::kernel::program::CONSTANTS_LIMIT;
use crate::kernel::program::SET_LIMIT;
use crate::kernel::sanitizer::Sanitizer;
use crate::kernel::source::Language;
use crate::kernel::source::Source;
use crate::kernel::tests::samples;
use crate::shader::profile::Profile;

/// About two seconds of work.
const ROUNDS: u32 = 6000;

/// xorshift64*: good enough to pick bytes, the same everywhere.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let roll = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        usize::try_from(roll).unwrap() % limit
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).unwrap()
    }
}

fn mutate(dice: &mut Dice, bytes: &mut Vec<u8>, unit: usize) {
    for _ in 0..=dice.below(4) {
        let at = dice.below(bytes.len() / unit) * unit;
        let other = dice.below(bytes.len() / unit) * unit;
        match dice.below(5) {
            0 => bytes[at] = dice.byte(),
            1 => bytes[at] ^= 1 << dice.below(8),
            2 => bytes.copy_within(other..other + unit, at),
            3 => drop(bytes.drain(at..at + unit)),
            _ => {
                let copy = bytes[other..other + unit].to_vec();
                bytes.splice(at..at, copy);
            }
        }
    }
}

#[test]
fn no_mutation_of_good_kernels_takes_the_sanitizer_down() {
    let sanitizer = Sanitizer::start(Profile::default()).unwrap();
    let mut seeds = Vec::new();
    for text in [samples::SAXPY, samples::MANDELBROT, samples::REDUCE] {
        let spirv = sanitizer.sanitize(&Source::wgsl(text)).unwrap().spirv;
        seeds.push((Language::Wgsl, 1, text.as_bytes().to_vec()));
        seeds.push((Language::SpirV, 4, spirv.iter().flat_map(|word| word.to_le_bytes()).collect()));
    }
    let mut dice = Dice(0x00c0_ffee);
    let (mut accepted, mut crashed) = (0, 0);
    for _ in 0..ROUNDS {
        let (language, unit, mut bytes) = seeds[dice.below(seeds.len())].clone();
        mutate(&mut dice, &mut bytes, unit);
        match sanitizer.sanitize(&Source { language, bytes, ..Source::wgsl("") }) {
            Ok(kernel) => {
                accepted += 1;
                assert!(kernel.constants <= CONSTANTS_LIMIT);
                assert!(kernel.bindings.iter().all(|b| b.set < SET_LIMIT && b.binding < BINDING_LIMIT));
                assert!(kernel.workgroup.iter().product::<u32>() <= 1024);
            }
            Err(KernelError::Crashed(_)) => crashed += 1,
            Err(KernelError::NoThread(e)) => panic!("the sanitizer is gone: {e}"),
            Err(_) => {}
        }
    }
    println!("{ROUNDS} mutations: {accepted} accepted, {crashed} naga panics caught");
    assert!(accepted > 0, "mutations too wild to test anything");
}
