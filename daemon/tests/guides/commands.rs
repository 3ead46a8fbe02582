//! Command lines of the programs, and whether the programs take them.

use std::path::Path;
use std::path::PathBuf;
use std::process::Command;

use crate::blocks::Block;
use crate::blocks::lines;

/// An option that no command has: parsing gets to it only past all that is right.
const LAST: &str = "--what-no-command-has";

/// The folder of the programs that the workspace builds.
pub(crate) fn programs() -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_campanile")).parent().unwrap().to_owned();
    let guest = folder.join("campanile-guest");
    assert!(
        guest.exists(),
        "{} is not there: `cargo build --package campanile-guest` makes it",
        guest.display()
    );
    folder
}

/// The words of each command of this project's programs in a block.
pub(crate) fn of(block: &Block) -> Vec<Vec<String>> {
    let commands = lines(block).into_iter().flat_map(|line| split(&line));
    let commands = commands.filter_map(|words| {
        // Variables of the environment may stand before it.
        let begin = words.iter().position(|word| !word.contains('=') && word != "sudo")?;
        let program = words[begin].as_str();
        if !matches!(program, "campanile" | "campanile-guest") {
            return None;
        }
        // What is left out in the guide is left out, but where it stands for the value of an option.
        let mut kept: Vec<String> = Vec::new();
        for word in &words[begin..] {
            if word != "…" || kept.last().is_some_and(|last| last.starts_with("--")) {
                kept.push(word.clone());
            }
        }
        Some(kept)
    });
    commands.collect()
}

/// A line as commands of words, as far as the guides use the shell: quotes, comments, and what ends a command.
fn split(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut quote = None;
    for character in line.chars().chain([' ']) {
        match (character, quote) {
            (_, Some(mark)) if character == mark => quote = None,
            (_, Some(_)) => word.get_or_insert_default().push(character),
            ('\'' | '"', None) => {
                quote = Some(character);
                let _begun = word.get_or_insert_default();
            }
            ('#', None) if word.is_none() => break,
            (' ' | ';' | '&' | '|' | '>' | '<', None) => {
                commands.last_mut().unwrap().extend(word.take());
                match character {
                    ' ' => {}
                    // The file of a redirection is a command of its own here, and none of ours.
                    _ => commands.push(Vec::new()),
                }
            }
            (_, None) => word.get_or_insert_default().push(character),
        }
    }
    commands.retain(|words| !words.is_empty());
    commands
}

/// Has the program read a command line, without doing what it says.
pub(crate) fn try_to_parse(words: &[String]) -> Result<(), String> {
    let output = Command::new(programs().join(&words[0])).args(&words[1..]).arg(LAST).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if said.contains(&format!("unexpected argument '{LAST}'")) { Ok(()) } else { Err(said) }
}

#[test]
fn commands_are_found_among_quotes_comments_and_pipes() {
    let text = "# campanile no\nA=b campanile ctl \\\n  --x 'y z' | jq . && campanile-guest info > f & # campanile\nls campanile\n";
    let block =
        Block { line: 1, language: "sh".to_owned(), kind: crate::blocks::Kind::Run, text: text.to_owned() };
    assert_eq!(of(&block), [vec!["campanile", "ctl", "--x", "y z"], vec!["campanile-guest", "info"]]);
}

#[test]
fn a_command_with_an_unknown_option_or_a_wrong_value_is_refused() {
    let words = |line: &str| split(line).remove(0);
    assert_eq!(try_to_parse(&words("campanile serve --socket a --vram 64M")), Ok(()));
    // The value of the last option is read only after all of them were.
    for wrong in [
        "campanile serve --sockets a",
        "campanile serve --vram many --spin 1",
        "campanile ctl stats",
        "campanile-guest runs",
    ] {
        assert!(try_to_parse(&words(wrong)).is_err(), "{wrong}");
    }
}
