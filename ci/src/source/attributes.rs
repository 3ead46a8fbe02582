//! Outer attributes and the items that they stand before.

use std::ops::Range;

use super::tokens::Tokens;

/// The attributes of one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeGroup {
    /// The first `#`.
    pub start: usize,
    /// The first token of the item.
    pub item: usize,
    /// What stands between the brackets of each.
    pub attributes: Vec<Range<usize>>,
}

/// Every group of `#[…]`, in order, those inside other items included.
pub fn attribute_groups(tokens: &Tokens) -> Vec<AttributeGroup> {
    let mut groups = Vec::new();
    let mut at = 0;
    while at < tokens.count() {
        let mut group = AttributeGroup { start: at, item: at, attributes: Vec::new() };
        while tokens.has(group.item, &["#", "["]) {
            let behind = tokens.behind(group.item + 1);
            group.attributes.push(group.item + 2..behind - 1);
            group.item = behind;
        }
        at = group.item.max(at + 1);
        if !group.attributes.is_empty() {
            groups.push(group);
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::attribute_groups;
    use crate::source::tokens::Tokens;

    #[test]
    fn attributes_of_one_item_are_one_group() {
        let source =
            Tokens::new("#[test]\n#[ignore = \"]\"]\n// why\n#[a([b])] fn a() {}\n#[inline]\nfn b() {}");
        let groups = attribute_groups(&source);
        let texts: Vec<&str> =
            groups[0].attributes.iter().map(|inside| source.span(inside.clone())).collect();
        assert_eq!((groups.len(), texts), (2, vec!["test", "ignore = \"]\"", "a([b])"]));
        assert!(source.has(groups[0].item, &["fn", "a"]));
        assert!(source.has(groups[1].item, &["fn", "b"]));
    }
}
