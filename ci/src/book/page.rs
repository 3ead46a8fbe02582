//! What one page of Markdown has: headings, and links to other files.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

/// A link, as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link<'a> {
    /// The line, from 1.
    pub line: usize,
    /// Where it leads to.
    pub target: &'a str,
}

/// The lines that are text: with their number, from 1, and without those of code.
fn text_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        (!in_code && !is_fence).then_some((index + 1, line))
    })
}

/// The links and pictures of a page that lead to files, and to headings of its own.
pub fn links(text: &str) -> Vec<Link<'_>> {
    let mut found = Vec::new();
    for (line, text) in text_lines(text) {
        for (index, part) in text.split("](").enumerate() {
            let target = part.split_once(')').map(|(target, _)| target).filter(|_| index > 0);
            // In code it is no link: an odd number of marks stands before it.
            let before = text.split("](").take(index).map(|part| part.matches('`').count()).sum::<usize>();
            let leads_out = |target: &str| target.contains("://") || target.starts_with("mailto:");
            if let Some(target) = target
                && before % 2 == 0
                && !leads_out(target)
            {
                found.push(Link { line, target });
            }
        }
    }
    found
}

/// The names of the headings of a page, as mdBook and the usual hosts of repositories make them.
pub fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for (_, line) in text_lines(text) {
        let heading = line.trim_start_matches('#');
        if heading.len() == line.len() || !heading.starts_with(' ') {
            continue;
        }
        let anchor = anchor(heading.trim());
        let count = seen.entry(anchor.clone()).or_default();
        anchors.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    anchors
}

fn anchor(heading: &str) -> String {
    // Of a link in a heading its words count.
    let mut words = String::new();
    for (index, part) in heading.split("](").enumerate() {
        words.push_str(if index == 0 { part } else { part.split_once(')').map_or(part, |(_, rest)| rest) });
    }
    let name = |character: char| match character {
        ' ' => Some('-'),
        '-' | '_' => Some(character),
        _ => character.is_alphanumeric().then_some(character),
    };
    words.chars().filter_map(name).collect::<String>().to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::anchors;
    use super::links;

    #[test]
    fn links_are_found_outside_of_code_with_their_lines() {
        let text = "a [b](c.md) and ![d](e.svg)\n```sh\n[x](y.md)\n```\n`[x](y)` [f](#g) [h](https://i) `j` [k](l.md#m)";
        let found: Vec<_> = links(text).iter().map(|link| (link.line, link.target)).collect();
        assert_eq!(found, [(1, "c.md"), (1, "e.svg"), (5, "#g"), (5, "l.md#m")]);
    }

    #[test]
    fn headings_have_the_names_that_links_use() {
        let text = "# A b, c: `d-e`\n## [1](x.md). 5 µs\n```sh\n# comment\n```\n## Same\n## Same\n#none";
        let found: Vec<_> = anchors(text).into_iter().collect();
        assert_eq!(found, ["1-5-µs", "a-b-c-d-e", "same", "same-1"]);
    }
}
