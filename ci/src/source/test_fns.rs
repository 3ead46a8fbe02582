//! `#[test]` functions, those of `proptest!` and loom included.

use super::attributes::attribute_groups;
use super::words::line_of;
use super::words::words;

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

/// All test functions in masked code. One whose name a macro makes up is not found.
pub fn test_fns(code: &str) -> Vec<TestFn> {
    let mut found = Vec::new();
    for group in attribute_groups(code) {
        if !group.attributes.iter().any(|attribute| attribute == "test") {
            continue;
        }
        let head = code[group.item..].split(['(', '{', ';', '<']).next().unwrap_or_default();
        let mut names = words(head).skip_while(|(_, word)| *word != "fn").skip(1);
        if let Some((offset, name)) = names.next() {
            let ignored = group.attributes.iter().any(|attribute| is_ignore(attribute));
            let start = line_of(code, group.start);
            found.push(TestFn {
                name: name.to_owned(),
                start,
                line: line_of(code, group.item + offset),
                ignored,
            });
        }
    }
    found
}

fn is_ignore(attribute: &str) -> bool {
    let mut names = words(attribute).map(|(_, word)| word);
    match names.next() {
        Some("ignore") => true,
        Some("cfg_attr") => names.any(|word| word == "ignore"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::test_fns;

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
