//! The modules whose mutants are tried: `examine_globs` of cargo-mutants' own configuration.

/// The configuration, of which only the list of globs is read here.
pub const PATH: &str = ".cargo/mutants.toml";

/// The folders and files that the configuration names, without `/**`, in its order: of `{a,b}` each one.
pub fn parse(text: &str) -> Vec<String> {
    let Some((_, list)) = text.split_once("examine_globs = [") else { return Vec::new() };
    let list = list.split_once(']').map_or(list, |(list, _)| list);
    let lines = list.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let quoted = lines.filter_map(|line| line.strip_prefix('"')?.split('"').next());
    quoted.flat_map(each).map(|glob| glob.trim_end_matches("/**").to_owned()).collect()
}

/// What a glob with at most one pair of braces stands for.
fn each(glob: &str) -> Vec<String> {
    let parts = glob.split_once('{').and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    let Some((before, (names, behind))) = parts else { return vec![glob.to_owned()] };
    names.split(',').map(|name| format!("{before}{name}{behind}")).collect()
}

/// The module of a file: of those that contain it, the last.
pub fn module<'a>(modules: &'a [String], path: &str) -> Option<&'a str> {
    let contains = |module: &&String| {
        path.strip_prefix(module.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    modules.iter().rev().find(contains).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::module;
    use super::parse;

    const TEXT: &str = "x = [\"no.rs\"]\nexamine_globs = [\n    # first\n    \"a/b/**\", # why\n    \"a/c.rs\",\n]\ny = [\"z\"]";

    #[test]
    fn modules_are_the_globs_that_are_examined() {
        assert_eq!(parse(TEXT), ["a/b", "a/c.rs"]);
        assert!(parse("").is_empty());
    }

    #[test]
    fn braces_stand_for_each_of_their_names() {
        assert_eq!(parse("examine_globs = [\n\"a/{b,c}.rs\",\n]"), ["a/b.rs", "a/c.rs"]);
    }

    #[test]
    fn a_file_belongs_to_the_module_that_contains_it() {
        let modules = parse(TEXT);
        assert_eq!(module(&modules, "a/b/d/e.rs"), Some("a/b"));
        assert_eq!(module(&modules, "a/c.rs"), Some("a/c.rs"));
        assert_eq!(module(&modules, "a/bb/d.rs"), None);
    }
}
