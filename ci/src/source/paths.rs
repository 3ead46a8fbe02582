//! Paths, `a::b::c`, in imports and everywhere else.

use super::shipped::Source;

/// A path of two words or more in shipped code. Those that start with `::` lead out of the crate and are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path<'a> {
    /// Its words; what stands behind generic arguments is left out.
    pub words: Vec<&'a str>,
    /// Its line.
    pub line: usize,
}

/// All paths, in order.
pub fn paths(source: &Source) -> Vec<Path<'_>> {
    let is_word = |at: usize| source.text(at).starts_with(|c: char| c == '_' || c.is_alphabetic());
    let goes_on = |at: usize| source.has(at, &[":", ":"]);
    let starts =
        source.shipped().filter(|at| is_word(*at) && goes_on(at + 1) && !(*at >= 2 && goes_on(at - 2)));
    let path = |start: usize| {
        let mut words = vec![source.text(start)];
        let mut at = start + 1;
        while goes_on(at) && is_word(at + 2) {
            words.push(source.text(at + 2));
            at += 3;
        }
        Path { words, line: source.line(start) }
    };
    starts.map(path).filter(|path| path.words.len() > 1).collect()
}

#[cfg(test)]
mod tests {
    use super::paths;
    use crate::source::shipped::Source;

    #[test]
    fn paths_are_found_wherever_they_stand() {
        let source = Source::new(
            "use crate::a::B;\nfn f(x: u8) -> c::D::<e::F> { $crate::m!(::std::n) }\n#[cfg(test)] use g::H; x: y::z",
        );
        let found: Vec<_> =
            paths(&source).into_iter().map(|path| (path.line, path.words.join("::"))).collect();
        let expected = [(1, "crate::a::B"), (2, "c::D"), (2, "e::F"), (2, "crate::m"), (3, "y::z")];
        assert_eq!(found, expected.map(|(line, path)| (line, path.to_owned())));
    }
}
