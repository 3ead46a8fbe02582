//! `#[test]` functions, those of `proptest!` and loom included.

use super::attributes::attribute_groups;
use super::tokens::Tokens;

/// A function that a test runner calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestFn {
    /// Its name.
    pub name: String,
    /// Line of the first of its attributes.
    pub start: usize,
    /// Line of the name.
    pub line: usize,
    /// True if the runner skips it, always or under some condition.
    pub ignored: bool,
}

/// All test functions. One whose name a macro makes up is not found.
pub fn test_fns(tokens: &Tokens) -> Vec<TestFn> {
    let mut found = Vec::new();
    for group in attribute_groups(tokens) {
        let is_test = group.attributes.iter().any(|inside| tokens.span(inside.clone()) == "test");
        let mut head = (group.item..tokens.count()).take_while(|at| !matches!(tokens.text(*at), "{" | ";"));
        if let Some(at) = head.find(|at| is_test && tokens.text(*at) == "fn") {
            let ignores = |at: usize| match tokens.text(at) {
                "ignore" => true,
                "cfg_attr" => (at..tokens.behind(at + 1)).any(|at| tokens.text(at) == "ignore"),
                _ => false,
            };
            found.push(TestFn {
                name: tokens.text(at + 1).to_owned(),
                start: tokens.line(group.start),
                line: tokens.line(at + 1),
                ignored: group.attributes.iter().any(|inside| ignores(inside.start)),
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::TestFn;
    use crate::source::tokens::Tokens;

    fn test_fns(code: &str) -> Vec<TestFn> {
        super::test_fns(&Tokens::new(code))
    }

    fn names(code: &str) -> Vec<(String, bool)> {
        test_fns(code).into_iter().map(|test| (test.name, test.ignored)).collect()
    }

    #[test]
    fn tests_are_found_wherever_they_stand() {
        let code =
            "proptest! {\n #[test]\n fn a(x in 0..9) {}\n}\n#[test]\n#[should_panic]\nfn b() {}\nfn c() {}";
        assert_eq!(names(code), [("a".to_owned(), false), ("b".to_owned(), false)]);
        assert_eq!((test_fns(code)[1].start, test_fns(code)[1].line), (5, 7));
    }

    #[test]
    fn ignored_tests_are_marked() {
        let code = "#[ignore]\n#[test]\nfn a() {}\n#[test]\n#[cfg_attr(not(x), ignore)]\nfn b() {}";
        assert_eq!(names(code), [("a".to_owned(), true), ("b".to_owned(), true)]);
    }

    #[test]
    fn an_item_made_by_a_macro_is_passed_over() {
        assert_eq!(names("#[test] $item; fn f() {}"), []);
    }
}
