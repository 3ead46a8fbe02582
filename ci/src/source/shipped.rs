//! The part of a file that is compiled outside tests.

use super::attributes::attribute_groups;
use super::masked::blank;
use super::words::behind_matching;
use super::words::words;

/// Code without its test items.
#[derive(Clone, Debug)]
pub struct Shipped {
    /// Masked code in which every `#[cfg(test)]` item is blanked.
    pub code: String,
    /// Names of modules in other files that are declared as test items (`#[cfg(test)] mod tests;`).
    pub test_modules: Vec<String>,
}

impl Shipped {
    /// Cuts the test items out of masked code.
    pub fn new(code: &str) -> Self {
        let mut shipped = Self { code: String::with_capacity(code.len()), test_modules: Vec::new() };
        for group in attribute_groups(code) {
            let done = shipped.code.len();
            if group.start < done || !group.attributes.iter().any(|attribute| is_for_tests(attribute)) {
                continue;
            }
            let end = behind_item(code, group.item);
            shipped.test_modules.extend(declared_module(&code[group.item..end]));
            shipped.code.push_str(&code[done..group.start]);
            shipped.code.push_str(&blank(&code[group.start..end]));
        }
        shipped.code.push_str(&code[shipped.code.len()..]);
        shipped
    }
}

/// True for `cfg(test)` and `cfg(all(…, test, …))`: without tests, the item does not exist.
fn is_for_tests(attribute: &str) -> bool {
    let dense: String = attribute.chars().filter(|c| !c.is_whitespace()).collect();
    let conditions = match dense.strip_prefix("cfg(all(") {
        Some(all) => all.trim_end_matches(')'),
        None => dense.strip_prefix("cfg(").map_or("", |one| one.trim_end_matches(')')),
    };
    conditions.split(',').any(|condition| condition == "test")
}

/// The offset just behind the item that starts at `item`: behind its `;` or its block.
fn behind_item(code: &str, item: usize) -> usize {
    let mut at = item;
    while let Some(found) = code[at..].find([';', '{', '(', '[', '}', ')', ']']) {
        at += found;
        match code.as_bytes()[at] {
            b';' => return at + 1,
            b'{' => return behind_matching(code, at),
            b'(' | b'[' => at = behind_matching(code, at),
            // The end of what the item is in, such as the last field of a struct.
            _ => return at,
        }
    }
    code.len()
}

/// The name in `mod name;`, with any visibility.
fn declared_module(item: &str) -> Option<String> {
    if !item.ends_with(';') {
        return None;
    }
    let mut names = words(item).map(|(_, word)| word).skip_while(|word| *word != "mod");
    (names.next() == Some("mod")).then(|| names.next().map(str::to_owned)).flatten()
}

#[cfg(test)]
mod tests {
    use super::Shipped;

    fn kept(code: &str) -> String {
        Shipped::new(code).code.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn test_items_are_cut() {
        assert_eq!(kept("a; #[cfg(test)] mod tests { use b; fn c() {} } d;"), "a; d;");
        assert_eq!(kept("#[cfg(all(test, loom))] fn f(x: [u8; 3]) {} d;"), "d;");
        assert_eq!(kept("#[inline] #[cfg(test)] use a::b; d;"), "d;");
        assert_eq!(kept("struct S { a: u8, #[cfg(test)] b: u8 } d;"), "struct S { a: u8, } d;");
    }

    #[test]
    fn other_conditions_stay() {
        for code in ["#[cfg(not(test))] a;", "#[cfg(loom)] a;", "#[cfg(any(test, loom))] a;", "#[test] a;"] {
            assert_eq!(kept(code), code);
        }
    }

    #[test]
    fn test_modules_in_other_files_are_named() {
        let shipped = Shipped::new("#[cfg(test)]\nmod tests;\n#[cfg(test)] pub(crate) mod kit;\nmod a;");
        assert_eq!(shipped.test_modules, ["tests", "kit"]);
    }

    #[test]
    fn length_stays() {
        let code = "a;\n#[cfg(test)]\nmod tests {\n}\nb;";
        assert_eq!(Shipped::new(code).code.len(), code.len());
    }
}
