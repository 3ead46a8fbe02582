//! The files of the checkout, as text in memory.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use anyhow::Result;
use anyhow::ensure;
use xxhash_rust::xxh3::Xxh3;

use crate::source::shipped::Source;

/// One text file.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// Path relative to the root of the checkout, with `/`.
    pub path: String,
    /// The whole content.
    pub text: String,
    source: OnceCell<Source>,
}

impl SourceFile {
    /// True for Rust source.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// The tokens of Rust source, read when first asked for.
    pub fn source(&self) -> &Source {
        self.source.get_or_init(|| Source::new(&self.text))
    }

    /// The last component of the path.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

/// All text files that git tracks or would offer to track, ordered by path.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    files: Vec<SourceFile>,
    sources: String,
}

/// A hash of all that tests depend on.
#[derive(Default)]
struct Sources(Xxh3);

impl Sources {
    /// Adds one file. Documents are left out: no test reads them, and results stay those of the same sources.
    fn add(&mut self, path: &str, bytes: &[u8]) {
        if path.starts_with("docs/") || path.ends_with(".md") {
            return;
        }
        for part in [path.as_bytes(), bytes] {
            self.0.update(&part.len().to_le_bytes());
            self.0.update(part);
        }
    }

    fn fingerprint(&self) -> String {
        format!("{:032x}", self.0.digest128())
    }
}

/// The paths of the files at `root` that git tracks or would offer to track, in order.
pub fn listing(root: &Path) -> Result<BTreeSet<String>> {
    let listing = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("git, which tells the project's files, could not be run")?;
    ensure!(listing.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listing.stderr).trim());
    // Tracked files come before others, wherever they lie: a file that becomes tracked keeps its place in this order.
    let listing = String::from_utf8_lossy(&listing.stdout).into_owned();
    Ok(listing.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect())
}

impl Tree {
    /// Reads the checkout at `root`. Binary files are left out, ignored ones are never seen.
    pub fn read(root: &Path) -> Result<Self> {
        let mut files = Vec::new();
        let mut sources = Sources::default();
        for path in listing(root)? {
            let bytes = match fs::read(root.join(&path)) {
                Ok(bytes) => bytes,
                // Deleted but still in the index, or a link to a folder.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::IsADirectory) => {
                    continue;
                }
                Err(error) => return Err(error).context(format!("{path} could not be read")),
            };
            sources.add(&path, &bytes);
            if let Ok(text) = String::from_utf8(bytes) {
                files.push((path, text));
            }
        }
        Ok(Self { sources: sources.fingerprint(), ..Self::of(files) })
    }

    /// A tree of the given files.
    pub fn of<P: Into<String>, T: Into<String>>(files: impl IntoIterator<Item = (P, T)>) -> Self {
        let mut files: Vec<SourceFile> = files
            .into_iter()
            .map(|(path, text)| SourceFile { path: path.into(), text: text.into(), source: OnceCell::new() })
            .collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        files.dedup_by(|a, b| a.path == b.path);
        Self { files, sources: String::new() }
    }

    /// All files.
    pub fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// A fingerprint of all files but documents, binary ones included; empty for a tree of given files.
    pub fn sources(&self) -> &str {
        &self.sources
    }

    /// All Rust files.
    pub fn rust(&self) -> impl Iterator<Item = &SourceFile> {
        self.files.iter().filter(|file| file.is_rust())
    }

    /// One file by its path.
    pub fn file(&self, path: &str) -> Option<&SourceFile> {
        self.files.iter().find(|file| file.path == path)
    }
}

#[cfg(test)]
mod tests {
    use super::Sources;
    use super::Tree;

    fn fingerprint(files: &[(&str, &[u8])]) -> String {
        let mut sources = Sources::default();
        for (path, bytes) in files {
            sources.add(path, bytes);
        }
        sources.fingerprint()
    }

    #[test]
    fn sources_are_told_apart_by_path_and_bytes_and_documents_do_not_count() {
        let one = fingerprint(&[("a.rs", b"1"), ("b.bin", b"\xff")]);
        assert_eq!(one.len(), 32);
        for other in [
            [("a.rs", b"2"), ("b.bin", b"\xff")],
            [("a.rs", b"1"), ("b.bin", b"\xfe")],
            [("a.rs", b"1"), ("c.bin", b"\xff")],
        ] {
            assert_ne!(fingerprint(&other.map(|(path, bytes)| (path, bytes.as_slice()))), one);
        }
        assert_ne!(fingerprint(&[("a", b"bc")]), fingerprint(&[("ab", b"c")]));
        let documents: [(&str, &[u8]); 4] =
            [("README.md", b"x"), ("a.rs", b"1"), ("b.bin", b"\xff"), ("docs/conformance-na.txt", b"y")];
        assert_eq!(fingerprint(&documents), one);
    }

    #[test]
    fn files_are_ordered_and_counted_once() {
        let tree = Tree::of([("b.rs", "1"), ("a.toml", "2"), ("b.rs", "1")]);
        let paths: Vec<&str> = tree.files().iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["a.toml", "b.rs"]);
        assert_eq!(tree.rust().count(), 1);
    }

    #[test]
    fn this_checkout_can_be_read() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let tree = Tree::read(&root).unwrap();
        assert!(tree.file("ci/src/tree.rs").is_some());
        assert_eq!(tree.sources(), Tree::read(&root).unwrap().sources());
        assert!(tree.files().iter().all(|file| !file.path.starts_with("target/")));
    }
}
