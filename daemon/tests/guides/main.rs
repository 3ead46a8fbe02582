//! The commands of the guides do what the guides say.
//!
//! ```text
//!   docs/*.md, README.md ──▶ blocks ─┬─▶ commands   each `campanile` command line of any block is one that the program takes
//!                                    └─▶ shell      blocks marked `run` run, a page in one shell, beside daemons of its own
//! ```
//!
//! A block of commands begins with ```` ```sh run ````, with ```` ```sh run=WHERE ```` where a script of `ci` runs it (`ci/blocks.sh` lists them), or with
//! ```` ```sh needs=… ```` and what no machine of the tests has. What
//! ```` ```toml file=PATH ```` has is written there first, and each line of ```` ```text says ```` is among what the commands before it
//! print, where `…` stands for anything. `/run/campanile`, `/etc/campanile`, `/var/lib/campanile` and the ports of metrics and of the web page are the test's own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod blocks;
mod commands;
mod runners;
mod shell;

use crate::blocks::Block;
use crate::blocks::Kind;
use crate::blocks::pages;

/// The scripts that run blocks elsewhere, by the blocks' mark.
const RUNNERS: [(&str, &str); 7] = [
    ("vm", "ci/e2e/guides.sh"),
    ("guest", "ci/e2e/guides.sh"),
    ("move", "ci/e2e/guides.sh"),
    ("checkout", "ci/guides"),
    ("debian", "packaging/check"),
    ("libvirt", "ci/libvirt"),
    ("cloud-hypervisor", "ci/e2e/cloud-hypervisor-guide.sh"),
];

/// What no machine of the tests has; the guides say that these commands were not tried so.
const NEEDS: [&str; 3] = ["incus", "proxmox", "two-gpus"];

/// The pages with blocks that run here, each with a test of its own.
macro_rules! pages_that_run {
    ($($test:ident: $page:literal,)*) => {
        const RUN: &[&str] = &[$($page),*];
        $(
            #[test]
            fn $test() {
                shell::run_page($page);
            }
        )*
    };
}

pages_that_run! {
    the_commands_of_the_readme_run: "README.md",
    the_commands_about_configuration_run: "configuration.md",
    the_commands_about_the_control_api_run: "control-api.md",
    the_commands_about_gpus_run: "gpus.md",
    the_commands_about_guest_programs_run: "guest-programs.md",
    the_commands_about_metrics_run: "metrics.md",
    the_commands_about_scheduling_run: "scheduling.md",
    the_commands_about_serving_run: "serving.md",
    the_commands_about_daemons_that_die_run: "survival.md",
    the_commands_about_workers_run: "workers.md",
    the_commands_about_gpu_profiles_run: "vulkan.md",
    the_commands_about_the_web_page_run: "web.md",
}

fn is_command(block: &Block) -> bool {
    matches!(block.language.as_str(), "sh" | "console" | "bash" | "shell")
}

#[test]
fn every_block_of_commands_runs_or_says_what_it_needs() {
    let mut blocks = 0;
    for (page, text) in pages() {
        let of_page = blocks::of(&text);
        for block in of_page.iter().filter(|block| is_command(block)) {
            blocks += 1;
            let at = format!("{page}:{}", block.line);
            match &block.kind {
                Kind::Run => {
                    assert!(RUN.contains(&page.as_str()), "{at}: no test runs the blocks of this page")
                }
                Kind::Script(mark) if mark == "ci" => runners::are_scripts_of_ci(&at, block),
                Kind::Script(mark) => {
                    let runner = RUNNERS.iter().find(|(name, _)| name == mark);
                    let (_, script) = runner.unwrap_or_else(|| panic!("{at}: run={mark}: nothing runs that"));
                    let number =
                        of_page.iter().filter(|other| other.kind == block.kind && other.line <= block.line);
                    runners::runs(script, &page, mark, number.count())
                        .unwrap_or_else(|why| panic!("{at}: {why}"));
                }
                Kind::Needs(needs) => {
                    assert!(NEEDS.contains(&needs.as_str()), "{at}: needs={needs} is no known reason");
                }
                _ => panic!("{at}: ```sh is to be followed by run, run=WHERE or needs=WHAT"),
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
