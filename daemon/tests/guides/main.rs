//! The commands of the guides do what the guides say.
//!
//! ```text
//!   docs/*.md, README.md ──▶ blocks ─┬─▶ commands   each `campanile` command line of any block is one that the program takes
//!                                    └─▶ shell      blocks marked `run` run, a page in one shell, beside daemons of its own
//! ```
//!
//! A block of commands begins with ```` ```sh run ````, or with ```` ```sh needs=… ```` and why it cannot run on a bare machine. What
//! ```` ```toml file=PATH ```` has is written there first, and each line of ```` ```text says ```` is among what the commands before it
//! print, where `…` stands for anything. `/run/campanile`, `/etc/campanile`, `/var/lib/campanile` and the ports of metrics and of the web page are the test's own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod blocks;
mod commands;
mod shell;

use crate::blocks::Block;
use crate::blocks::Kind;
use crate::blocks::pages;

/// Why a block does not run here.
const NEEDS: [(&str, &str); 6] = [
    ("vm", "a VM, and what runs in its guest"),
    ("root", "root, or an installed package, on a machine of its own"),
    ("build", "a build for release, minutes long; ci/full runs it in another way"),
    ("peer", "a second host, or a second VMM"),
    ("gpu-guest", "a guest with the device"),
    ("gpu", "a GPU of that name; tests of the command itself run it on the CPU driver"),
];

/// The pages with blocks that run; each has a test of its own below.
const RUN: [&str; 9] = [
    "README.md",
    "configuration.md",
    "control-api.md",
    "gpus.md",
    "guest-programs.md",
    "metrics.md",
    "serving.md",
    "survival.md",
    "web.md",
];

fn is_command(block: &Block) -> bool {
    matches!(block.language.as_str(), "sh" | "console" | "bash" | "shell")
}

#[test]
fn every_block_of_commands_runs_or_says_what_it_needs() {
    let mut blocks = 0;
    for (page, text) in pages() {
        for block in blocks::of(&text).iter().filter(|block| is_command(block)) {
            blocks += 1;
            let at = format!("{page}:{}", block.line);
            match &block.kind {
                Kind::Run => {
                    assert!(RUN.contains(&page.as_str()), "{at}: no test runs the blocks of this page")
                }
                Kind::Needs(needs) => {
                    assert!(
                        NEEDS.iter().any(|(name, _)| name == needs),
                        "{at}: needs={needs} is no known reason"
                    );
                }
                _ => panic!("{at}: ```sh is to be followed by run, or by needs=REASON"),
            }
        }
    }
    assert!(blocks > 20, "{blocks}");
}

#[test]
fn every_command_of_campanile_is_one_that_it_takes() {
    let mut tried = 0;
    for (page, text) in pages() {
        for block in blocks::of(&text).iter().filter(|block| is_command(block)) {
            for command in commands::of(block) {
                tried += 1;
                let at = format!("{page}:{}", block.line);
                commands::try_to_parse(&command).unwrap_or_else(|said| panic!("{at}: {command:?}: {said}"));
            }
        }
    }
    assert!(tried > 20, "{tried}");
}

#[test]
fn the_commands_of_the_readme_run() {
    shell::run_page("README.md");
}

#[test]
fn the_commands_about_configuration_run() {
    shell::run_page("configuration.md");
}

#[test]
fn the_commands_about_the_control_api_run() {
    shell::run_page("control-api.md");
}

#[test]
fn the_commands_about_gpus_run() {
    shell::run_page("gpus.md");
}

#[test]
fn the_commands_about_guest_programs_run() {
    shell::run_page("guest-programs.md");
}

#[test]
fn the_commands_about_metrics_run() {
    shell::run_page("metrics.md");
}

#[test]
fn the_commands_about_serving_run() {
    shell::run_page("serving.md");
}

#[test]
fn the_commands_about_daemons_that_die_run() {
    shell::run_page("survival.md");
}

#[test]
fn the_commands_about_the_web_page_run() {
    shell::run_page("web.md");
}
