//! Mutated modules, the same ones on every run. What passes must pass again: the result is a module like any other.

use crate::shader::interface::Wish;
use crate::shader::pass::guard;
use crate::shader::profile::Profile;
use crate::shader::tests::assembly::assemble;
use crate::shader::tests::samples::GRID;
use crate::shader::tests::samples::plain;
use crate::shader::tests::texels;

const ROUNDS: u32 = 20_000;

/// xorshift64*: the same everywhere.
fn roll(state: &mut u64, below: usize) -> usize {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    usize::try_from(state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33).unwrap() % below
}

#[test]
fn every_mutation_gets_an_answer_and_what_passes_passes_again() {
    let body = "%v = OpLoad %uint3 %groups
         %c = OpULessThan %bool %x %7
         OpBranch %head
         %head = OpLabel
         %i = OpPhi %uint %0 %start %j %next
         OpLoopMerge %end %next 0
         OpBranch %body
         %body = OpLabel
         %more = OpULessThan %bool %i %7
         OpBranchConditional %more %next %end
         %next = OpLabel
         %j = OpIAdd %uint %i %1
         OpBranch %head
         %end = OpLabel
         %g = OpVectorExtractDynamic %uint %v %i
         %y = OpExtInst %uint %glsl UMin %g %i";
    let wish = Wish { profile: &Profile::ALL, entry: None, constants: &[], rename: "main", grid: GRID };
    for text in [plain(body), texels::everything()] {
        mutate(&assemble(3, &text), &wish);
    }
}

fn mutate(seed: &[u32], wish: &Wish<'_>) {
    assert!(guard(seed, wish).is_ok(), "{:?}", guard(seed, wish).map(|_| ()));
    let (mut state, mut passed) = (0x00c0_ffee, 0);
    for _ in 0..ROUNDS {
        let mut words = seed.to_vec();
        for _ in 0..=roll(&mut state, 3) {
            let (at, other) = (roll(&mut state, words.len()), roll(&mut state, words.len()));
            match roll(&mut state, 4) {
                0 => words[at] ^= 1 << roll(&mut state, 32),
                1 => words[at] = words[other],
                2 => words[at] = words[at].wrapping_add(1),
                _ => words.truncate(at.max(5)),
            }
        }
        if let Ok(shader) = guard(&words, wish) {
            passed += 1;
            let again = guard(&shader.words, wish);
            assert!(again.is_ok(), "{:?}", again.map(|_| ()));
        }
    }
    assert!(passed > 0, "mutations too wild to test anything");
}
