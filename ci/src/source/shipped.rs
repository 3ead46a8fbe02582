//! Which tokens of a file are compiled outside tests.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::ops::Range;

use syn::Meta;
use syn::Token;
use syn::punctuated::Punctuated;

use super::attributes::attribute_groups;
use super::tokens::Tokens;

/// The tokens of a file, and which of them are shipped.
#[derive(Clone, Debug)]
pub struct Source {
    tokens: Tokens,
    /// The `#[cfg(test)]` items, attributes included, in order; one inside another is part of that.
    test_items: Vec<Range<usize>>,
}

impl Source {
    /// Reads `text`.
    pub fn new(text: &str) -> Self {
        let tokens = Tokens::new(text);
        let test_items = test_items(&tokens);
        Self { tokens, test_items }
    }

    /// True unless the token is part of a `#[cfg(test)]` item.
    pub fn is_shipped(&self, at: usize) -> bool {
        !self.test_items.iter().any(|item| item.contains(&at))
    }

    /// The indices of all shipped tokens.
    pub fn shipped(&self) -> impl Iterator<Item = usize> {
        let mut items = self.test_items.iter().peekable();
        (0..self.count()).filter(move |at| {
            while items.next_if(|item| item.end <= *at).is_some() {}
            items.peek().is_none_or(|item| !item.contains(at))
        })
    }

    /// The lines, from 1, that hold nothing but `#[cfg(test)]` items.
    pub fn test_lines(&self) -> BTreeSet<usize> {
        let lines = self.test_items.iter().flat_map(|item| self.line(item.start)..=self.line(item.end - 1));
        let shipped: BTreeSet<usize> = self.shipped().map(|at| self.line(at)).collect();
        lines.filter(|line| !shipped.contains(line)).collect()
    }

    /// Names of modules in other files that are declared as test items (`#[cfg(test)] mod tests;`).
    pub fn test_modules(&self) -> Vec<&str> {
        let declarations = self.test_items.iter().filter(|item| self.text(item.end - 1) == ";");
        let names = declarations.filter_map(|item| item.clone().find(|at| self.text(*at) == "mod"));
        names.map(|at| self.text(at + 1)).collect()
    }
}

impl Deref for Source {
    type Target = Tokens;

    fn deref(&self) -> &Tokens {
        &self.tokens
    }
}

fn test_items(tokens: &Tokens) -> Vec<Range<usize>> {
    let mut items: Vec<Range<usize>> = Vec::new();
    for group in attribute_groups(tokens) {
        let inside_another = items.last().is_some_and(|item| group.start < item.end);
        let cuts = |inside: &Range<usize>| {
            tokens.text(inside.start) == "cfg"
                && syn::parse_str(tokens.span(inside.clone())).is_ok_and(|meta| is_for_tests(&meta))
        };
        if !inside_another && group.attributes.iter().any(cuts) {
            items.push(group.start..behind_item(tokens, group.item));
        }
    }
    items
}

/// True for the attributes `cfg(test)` and `cfg(all(…, test, …))`: without tests, the item does not exist.
pub fn is_for_tests(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") || list.path.is_ident("all") => {
            let inside = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
            inside.is_ok_and(|conditions| conditions.iter().any(is_for_tests))
        }
        _ => false,
    }
}

/// The index behind the item that starts at `item`: behind its `;` or its block, or at the end of what it is in, such as
/// that of a struct of which it is the last field.
fn behind_item(tokens: &Tokens, item: usize) -> usize {
    let mut at = item;
    while at < tokens.count() {
        match tokens.text(at) {
            ";" => return at + 1,
            "{" => return tokens.behind(at),
            "}" | ")" | "]" => return at,
            _ => at = tokens.behind(at),
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::Source;

    fn kept(code: &str) -> String {
        let source = Source::new(code);
        source.shipped().map(|at| source.text(at)).collect()
    }

    #[test]
    fn test_items_are_cut() {
        assert_eq!(kept("a; #[cfg(test)] mod tests { use b; #[cfg(test)] fn c() {} } d;"), "a;d;");
        assert_eq!(kept("#[cfg(all(test, loom))] fn f(x: [u8; 3]) {} d;"), "d;");
        assert_eq!(kept("#[cfg(all(not(loom), test))] use a::b; d;"), "d;");
        assert_eq!(kept("#[inline] #[cfg(test)] use a::b; d;"), "d;");
        assert_eq!(kept("struct S { a: u8, #[cfg(test)] b: u8 } d;"), "structS{a:u8,}d;");
    }

    #[test]
    fn other_conditions_stay() {
        for code in ["#[cfg(not(test))]a;", "#[cfg(loom)]a;", "#[cfg(any(test,loom))]a;", "#[test]a;"] {
            assert_eq!(kept(code), code);
        }
    }

    #[test]
    fn test_modules_in_other_files_are_named() {
        let code = "#[cfg(test)]\nmod tests;\n#[cfg(test)] pub(crate) mod kit;\nmod a; #[cfg(test)] mod b { mod d; }";
        assert_eq!(Source::new(code).test_modules(), ["tests", "kit"]);
    }

    #[test]
    fn lines_of_tests_are_those_without_anything_shipped() {
        let source = Source::new("a;\n#[cfg(test)]\nmod b {\n}\nc; #[cfg(test)]\nd;");
        assert_eq!(source.test_lines().into_iter().collect::<Vec<_>>(), [2, 3, 4, 6]);
        assert!(source.shipped().all(|at| source.is_shipped(at)));
        assert_eq!((0..source.count()).filter(|at| source.is_shipped(*at)).count(), 4);
    }
}
