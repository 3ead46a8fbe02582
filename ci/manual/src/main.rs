//! Writes manual pages and shell completions of `campanile` and `campanile-guest`, as their command lines are defined. Packages have
//! them; the programs themselves do not carry what writes them.
//!
//! ```text
//!   FOLDER/man1/PROGRAM[-COMMAND…].1                a page for each command that is not hidden
//!   FOLDER/completions/{PROGRAM,_PROGRAM,PROGRAM.fish}    for bash, zsh and fish
//! ```

use std::env;
use std::fs;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Context;
use anyhow::Result;
use campanile_top::args::TopArguments;
use clap::Args;
use clap::Command;
use clap::CommandFactory;
use clap_complete::Shell;
use clap_complete::generate_to;

fn main() -> Result<()> {
    let folder = env::args_os().nth(1).map(PathBuf::from).context("usage: campanile-manual FOLDER")?;
    write(&folder)
}

/// Writes all of both programs. What they have for tests of a checkout belongs to features that packages do not have.
fn write(folder: &Path) -> Result<()> {
    let (pages, completions) = (folder.join("man1"), folder.join("completions"));
    for made in [&pages, &completions] {
        fs::create_dir_all(made).with_context(|| format!("making {}", made.display()))?;
    }
    let top = TopArguments::augment_args(Command::new("top"));
    let programs = [
        ("campanile", campanile_daemon::cli::args::Arguments::command().subcommand(top)),
        ("campanile-guest", campanile_guest::args::Arguments::command()),
    ];
    for (name, program) in programs {
        clap_mangen::generate_to(program.clone(), &pages)
            .with_context(|| format!("manual pages of {name}"))?;
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            generate_to(shell, &mut visible(name, &program), name, &completions)
                .with_context(|| format!("{shell} completions of {name}"))?;
        }
        fs::rename(completions.join(format!("{name}.bash")), completions.join(name))?;
    }
    Ok(())
}

/// Without the commands that are hidden, which completions would offer.
fn visible(name: &'static str, program: &Command) -> Command {
    let shown = program.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let all = Command::new(name).version(env!("CARGO_PKG_VERSION"));
    all.args(program.get_arguments().cloned()).subcommands(shown)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::write;

    #[test]
    fn every_command_has_a_page_and_a_completion_but_for_hidden_ones() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        for (page, says) in [
            ("campanile", "campanile\\-ctl(1)"),
            ("campanile-serve", "\\-\\-vgpu"),
            ("campanile-ctl", "campanile\\-ctl\\-status(1)"),
            ("campanile-ctl-status", "\\-\\-json"),
            ("campanile-top", "\\-\\-once"),
            ("campanile-guest", "campanile\\-guest\\-info(1)"),
            ("campanile-guest-run", "\\-\\-groups"),
        ] {
            let text = read(&format!("man1/{page}.1"));
            assert!(text.contains(says), "{page}: {text}");
        }
        for hidden in ["campanile-engine", "campanile-guest-selftest"] {
            assert!(!folder.path().join(format!("man1/{hidden}.1")).exists(), "{hidden}");
        }
        for completion in ["campanile", "_campanile", "campanile.fish"] {
            assert!(read(&format!("completions/{completion}")).contains("snapshot"), "{completion}");
        }
        // Words that bash offers.
        let offered = read("completions/campanile");
        assert!(
            offered.contains(" serve ") && offered.contains(" top ") && !offered.contains(" engine "),
            "{offered}"
        );
    }
}
