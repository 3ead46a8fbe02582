//! What holds engines, on the command line.

use std::path::Path;
use std::str::FromStr;

use anyhow::Context;
use clap::Args;
use rustix::process::geteuid;

use crate::config::size::parse_size;
use crate::confine::identity::Identity;
use crate::confine::identity::UserSpec;
use crate::host::accounts::Accounts;
use crate::host::accounts::may_change_user;
use crate::host::holding::Holding;

/// Limits and account of engines.
#[derive(Debug, Clone, Args)]
pub struct HoldingArguments {
    /// Memory that each engine process may allocate beside the video memory; 0 for no limit.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "4G")]
    pub engine_memory: u64,
    /// CPUs that the engines of each vGPU may use together; needs a cgroup (version 2) that was delegated to the daemon.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub engine_cpus: Option<u32>,
    /// Account of engine processes, where the daemon serves as root: `auto` for the account campanile-engine, where there is
    /// one, else for a user of each vGPU's own that needs no account, in the groups of GPU device nodes; `none` for the
    /// daemon's; or NAME or UID, and where wanted :GROUP or :GID. Driver files must be readable for it.
    #[arg(long, value_name = "auto|none|USER", default_value = "auto", conflicts_with = "user")]
    pub engine_user: EngineUser,
}

/// What the operator says of the account of engines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineUser {
    /// One of their own, where that is possible.
    Auto,
    /// The daemon's.
    None,
    /// This one.
    Named(UserSpec),
}

impl FromStr for EngineUser {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            name => name.parse().map(Self::Named),
        }
    }
}

impl HoldingArguments {
    /// What it comes to for vGPUs with these sockets; cgroups are not made yet. With `gives_up_root` the daemon is not root any
    /// more when it starts engines.
    pub fn holding(&self, sockets: &[&Path], gives_up_root: bool) -> anyhow::Result<Holding> {
        let accounts = match &self.engine_user {
            EngineUser::Auto if gives_up_root => Accounts::of_the_daemon("--user gives up what it takes"),
            EngineUser::Auto => Accounts::automatic(sockets),
            EngineUser::None => Accounts::of_the_daemon("--engine-user none"),
            EngineUser::Named(user) => named(user).context("--engine-user")?,
        };
        let memory = Some(self.engine_memory).filter(|memory| *memory > 0);
        Ok(Holding { memory, cpus: self.engine_cpus, accounts, ..Holding::default() })
    }
}

fn named(user: &UserSpec) -> anyhow::Result<Accounts> {
    let identity = Identity::find(user)?;
    if !may_change_user() {
        anyhow::bail!("only root can start engines as another user, and this is user {}", geteuid().as_raw());
    }
    Ok(Accounts::named(&identity))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::cli::args::Arguments;
    use crate::cli::args::Command;
    use crate::host::holding::ENGINE_MEMORY;

    #[test]
    fn memory_is_limited_where_nothing_is_said_and_not_with_0() {
        let memory = |line: &[&str]| {
            let line = Arguments::try_parse_from([&["campanile", "serve"], line].concat()).unwrap();
            let Command::Serve(arguments) = line.command else { panic!("no serve") };
            arguments.holding.holding(&[], false).unwrap().memory
        };
        assert_eq!(memory(&[]), Some(ENGINE_MEMORY));
        assert_eq!(memory(&["--engine-memory", "512M"]), Some(512 << 20));
        assert_eq!(memory(&["--engine-memory", "0"]), None);
        assert!(Arguments::try_parse_from(["campanile", "serve", "--engine-cpus", "0"]).is_err());
        let users = ["campanile", "serve", "--user", "1:1", "--engine-user", "2:2"];
        assert!(Arguments::try_parse_from(users).is_err(), "only root starts processes of another user");
    }
}
