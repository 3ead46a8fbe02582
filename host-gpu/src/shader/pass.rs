//! The whole pass: words of a guest in, words for drivers out.

use crate::shader::emit::Emission;
use crate::shader::guard::Guard;
use crate::shader::interface::Refusal;
use crate::shader::interface::Shader;
use crate::shader::interface::Wish;
use crate::shader::module::Module;
use crate::shader::reach;
use crate::shader::reflect::Reflection;
use crate::shader::reflect::Used;

/// Leaves out of `words` what no kernel that is wished for reaches, checks the rest, keeps one entry point and what it uses, bounds its indices and reads
/// off what it needs.
///
/// Time and memory grow linearly with the words, but for the nesting of loops, and at the worst, of blocks that very many lead to, with the square of blocks
/// (dominators). Nothing is trusted, and nothing panics.
pub fn guard(words: &[u32], wish: &Wish<'_>) -> Result<Shader, Refusal> {
    let mut module = Module::split(words)?;
    reach::keep(&mut module, wish.entry);
    judge(module, wish)
}

/// The same of a module of which nothing is left out.
pub(super) fn judge(module: Module<'_>, wish: &Wish<'_>) -> Result<Shader, Refusal> {
    let mut guard = Guard::new(module, wish);
    guard.declare()?;
    guard.declare_functions()?;
    guard.check_functions()?;
    let mut fitting =
        guard.entries.list.iter().filter(|entry| wish.entry.is_none_or(|asked| asked == entry.name));
    let entry = match (fitting.next(), fitting.next()) {
        (Some(entry), None) => entry.clone(),
        _ => {
            let choices = guard.entries.list.iter().map(|entry| entry.name.clone()).collect();
            return Err(Refusal::Entry { asked: wish.entry.map(str::to_owned), choices });
        }
    };
    let used = Used::of(&guard, &entry)?;
    let mut shader = Reflection { guard: &mut guard }.reflect(&entry, &used)?;
    shader.words = Emission { guard: &guard }.emit(&entry, &used, shader.workgroup, wish)?;
    Ok(shader)
}
