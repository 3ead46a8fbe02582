//! What a packaged daemon is built from: nothing of guests, of tests and of measurements.

use crate::finding::Finding;

/// Where the packaged daemon's dependencies are written down.
pub const PATH: &str = "daemon/campanile/Cargo.toml";

/// Arguments with which cargo lists the packages that a packaged daemon links, one a line, by name and version.
pub const TREE: [&str; 10] = [
    "tree",
    "--package",
    PACKAGE,
    "--no-default-features",
    "--edges",
    "normal",
    "--prefix",
    "none",
    "--format",
    "{p}",
];

const PACKAGE: &str = "campanile";

/// What it must not link, and why not.
const ABSENT: [(&str, &str); 6] = [
    ("campanile-bench", "measurements are of a checkout: feature `bench`"),
    ("campanile-guest", "the guest's tool runs in guests"),
    ("campanile-guest-driver", "the guest driver runs in guests"),
    ("campanile-test-vmm", "the VMM for tests stops threads by a signal, and replaces the memory allocator"),
    ("io-uring", "the guest driver alone needs it"),
    ("png", "the demo alone writes pictures"),
];

/// Checks the list that cargo printed.
pub fn check(tree: &str) -> Vec<Finding> {
    let linked: Vec<&str> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    if !linked.contains(&PACKAGE) {
        return vec![Finding::in_file(
            PATH,
            format!("cargo's list of what {PACKAGE} links does not begin with it"),
        )];
    }
    let found = ABSENT.iter().filter(|(name, _)| linked.contains(name));
    found
        .map(|(name, why)| Finding::in_file(PATH, format!("a packaged daemon links {name}: {why}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn a_packaged_daemon_links_nothing_of_guests_and_tests() {
        let lean =
            "campanile v0.1.0 (/a/daemon/campanile)\nlog v0.4.1\ncampanile-daemon v0.1.0 (/a/daemon)\n";
        assert!(check(lean).is_empty());
        let fat = format!("{lean}campanile-test-vmm v0.1.0 (/a/guest-driver/test-vmm)\npng v0.18.0 (*)\n");
        let found: Vec<String> = check(&fat).iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("links campanile-test-vmm") && found[1].contains("links png"), "{found:?}");
    }

    #[test]
    fn an_empty_list_is_no_proof() {
        assert_eq!(check("").len(), 1);
        assert_eq!(check("campanile-daemon v0.1.0\n").len(), 1);
    }
}
