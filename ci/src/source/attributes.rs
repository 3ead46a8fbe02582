//! Outer attributes and the items that they stand before.

use super::words::behind_matching;

/// The attributes of one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttributeGroup {
    /// Where the first `#` is.
    pub start: usize,
    /// Where the item begins.
    pub item: usize,
    /// What stands between the brackets of each, trimmed.
    pub attributes: Vec<String>,
}

/// Every group of `#[…]` in masked code, in order, those inside other items included.
pub fn attribute_groups(code: &str) -> Vec<AttributeGroup> {
    let mut groups = Vec::new();
    let mut at = 0;
    while let Some(found) = code[at..].find("#[") {
        let start = at + found;
        let mut group = AttributeGroup { start, item: start, attributes: Vec::new() };
        while code[group.item..].starts_with("#[") {
            let open = group.item + 1;
            let end = behind_matching(code, open);
            let inside = &code[open + 1..end];
            group.attributes.push(inside.strip_suffix(']').unwrap_or(inside).trim().to_owned());
            group.item = end + (code[end..].len() - code[end..].trim_start().len());
        }
        at = group.item;
        groups.push(group);
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::attribute_groups;

    #[test]
    fn attributes_of_one_item_are_one_group() {
        let code = "#[test]\n#[ignore = x] fn a() {}\n#[inline]\nfn b() {}";
        let groups = attribute_groups(code);
        assert_eq!(groups.len(), 2);
        assert_eq!(groups[0].attributes, ["test", "ignore = x"]);
        assert!(code[groups[0].item..].starts_with("fn a"));
        assert!(code[groups[1].item..].starts_with("fn b"));
    }

    #[test]
    fn an_attribute_may_hold_brackets() {
        assert_eq!(attribute_groups("#[a([b])] x")[0].attributes, ["a([b])"]);
    }
}
