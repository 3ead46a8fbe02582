//! Nothing that is tracked names a place on the machine it was written on.

use std::env;
use std::path::Path;

use crate::finding::Finding;
use crate::tree::Tree;

/// Folders that mean the same on every machine.
const COMMON: [&str; 9] = ["/", "/home", "/opt", "/srv", "/tmp", "/usr", "/usr/src", "/var", "/var/tmp"];

/// The folders that the project must not name: the home of the user that runs this, and where the checkout lies.
pub fn of_this_machine(root: &Path) -> Vec<String> {
    let home = env::var("HOME").unwrap_or_default();
    let parent = root.parent().map(|parent| parent.to_string_lossy().into_owned()).unwrap_or_default();
    let is_telling = |place: &String| place.starts_with('/') && !COMMON.contains(&place.as_str());
    [home, parent]
        .into_iter()
        .map(|place| place.trim_end_matches('/').to_owned())
        .filter(is_telling)
        .collect()
}

/// Finds paths below one of `places`.
pub fn check(tree: &Tree, places: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files() {
        for place in places {
            for (offset, _) in file.text.match_indices(&format!("{place}/")) {
                if starts_path(&file.text[..offset]) {
                    let line = 1 + file.text[..offset].matches('\n').count();
                    let message = format!("names a place on this machine, {place}");
                    findings.push(Finding::new(&file.path, line, message));
                }
            }
        }
    }
    findings
}

/// True unless what is before makes the place a part of some longer path.
fn starts_path(before: &str) -> bool {
    !before.ends_with(|c: char| {
        c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '}' | '*' | '~' | ')' | '>')
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::check;
    use super::of_this_machine;
    use crate::tree::Tree;

    #[test]
    fn a_place_of_this_machine_is_found_with_its_line() {
        let tree =
            Tree::of([("run", "a\ncd \"/home/me/src\""), ("a.md", "see docs/home/me/x, {x}/home/me/x")]);
        let found = check(&tree, &["/home/me".to_owned()]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].to_string(), "run:2: names a place on this machine, /home/me");
    }

    #[test]
    fn places_of_every_machine_may_be_named() {
        assert!(!of_this_machine(Path::new("/tmp/campanile")).contains(&"/tmp".to_owned()));
        assert!(of_this_machine(Path::new("/data/me/campanile")).contains(&"/data/me".to_owned()));
    }
}
