//! Modules that several tests use.

use spirv::Op;

use crate::shader::interface::Place;
use crate::shader::interface::Refusal;
use crate::shader::interface::Shader;
use crate::shader::interface::Wish;
use crate::shader::module::Module;
use crate::shader::pass::judge;
use crate::shader::profile::Profile;
use crate::shader::tests::assembly::assemble;
use crate::shader::tests::frame;
use crate::shader::tests::frame::Parts;

/// Where the grid is put.
pub(super) const GRID: Place = Place { set: 0, binding: 16 };

pub(super) fn pass(text: &str) -> Result<Shader, Refusal> {
    pass_for(&Profile::ALL, text)
}

pub(super) fn pass_for(profile: &Profile, text: &str) -> Result<Shader, Refusal> {
    whole(&assemble(3, text), &Wish { profile, entry: None, constants: &[], rename: "main", grid: GRID })
}

/// Judges all of a module, also what its kernels do not reach.
pub(super) fn whole(words: &[u32], wish: &Wish<'_>) -> Result<Shader, Refusal> {
    judge(Module::split(words)?, wish)
}

/// Asserts that `text` is refused with words that contain `why`.
pub(super) fn says(text: &str, why: &str) {
    let words = pass(text).expect_err(text).to_string();
    assert!(words.contains(why), "`{why}` is not in: {words}");
}

/// Asserts that `good` passes, and that each change of it, from and to, is refused with these words.
pub(super) fn breaks(good: &str, changes: &[(&str, &str, &str)]) {
    if let Err(error) = pass(good) {
        panic!("{good}\n{error}");
    }
    for (from, to, why) in changes {
        assert!(good.contains(from), "`{from}` is not in: {good}");
        says(&good.replacen(from, to, 1), why);
    }
}

/// The instructions `op` of a module, without their first words.
pub(super) fn all(words: &[u32], op: Op) -> Vec<Vec<u32>> {
    let (mut at, mut found) = (5, Vec::new());
    while at < words.len() {
        let len = usize::try_from(words[at] >> 16).unwrap();
        if words[at] & 0xffff == op as u32 {
            found.push(words[at + 1..at + len].to_vec());
        }
        at += len;
    }
    found
}

/// A kernel with capabilities, decorations, declarations and a body put in.
pub(super) fn kernel(capabilities: &str, decorations: &str, declarations: &str, body: &str) -> String {
    frame::kernel(&Parts { size: "8 4 2", capabilities, decorations, declarations, variables: "", body })
}

/// The end of a body that stores `%y` where the invocation is.
pub(super) const STORE: &str = "%place = OpAccessChain %pword %o %0 %x
     OpStore %place %y
     OpReturn";

/// A kernel that needs nothing special.
pub(super) fn plain(body: &str) -> String {
    kernel("", "", "", &format!("{body}\n{STORE}"))
}
