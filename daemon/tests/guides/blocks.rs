//! The blocks of code of a page.

use std::fs;
use std::path::Path;
use std::path::PathBuf;

/// What is done with a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It runs here.
    Run,
    /// A script runs it, of this mark.
    Script(String),
    /// It does not run, as no machine of the tests has this.
    Needs(String),
    /// It is written into this file.
    File(String),
    /// Commands before it print this.
    Says,
    /// Nothing.
    Shown,
}

/// A block of code.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// Line of its first mark, from 1.
    pub(crate) line: usize,
    pub(crate) language: String,
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

/// The folder of the checkout.
pub(crate) fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The README and the guides, by the names of their files.
pub(crate) fn pages() -> Vec<(String, String)> {
    let docs = checkout().join("docs");
    let mut files = vec![checkout().join("README.md")];
    for folder in [docs.clone(), docs.join("book")] {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        files.extend(entries.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    files.sort();
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    files.iter().map(|path| (name(path), fs::read_to_string(path).unwrap())).collect()
}

/// The blocks of a page, in order.
pub(crate) fn of(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut is_open = false;
    for (index, line) in page.lines().enumerate() {
        if let Some(mark) = line.strip_prefix("```") {
            is_open = !is_open;
            if is_open {
                let mut words = mark.split_whitespace();
                let language = words.next().unwrap_or_default().to_owned();
                let kind = words.next().map_or(Kind::Shown, kind);
                blocks.push(Block { line: index + 1, language, kind, text: String::new() });
            }
        } else if is_open && let Some(block) = blocks.last_mut() {
            block.text.push_str(line);
            block.text.push('\n');
        }
    }
    assert!(!is_open, "a block has no end");
    blocks
}

fn kind(word: &str) -> Kind {
    match word.split_once('=') {
        None if word == "run" => Kind::Run,
        None if word == "says" => Kind::Says,
        Some(("run", mark)) => Kind::Script(mark.to_owned()),
        Some(("needs", needs)) => Kind::Needs(needs.to_owned()),
        Some(("file", path)) => Kind::File(path.to_owned()),
        _ => panic!("a block is marked {word:?}, which means nothing"),
    }
}

/// The command lines of a block: lines that end in \ go on.
pub(crate) fn lines(block: &Block) -> Vec<String> {
    let joined = block.text.replace("\\\n", " ");
    joined.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}
