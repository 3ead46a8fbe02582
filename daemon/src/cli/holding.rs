//! What holds engines, on the command line.

use std::sync::Arc;

use anyhow::Context;
use campanile_host_gpu::adapter::containment::Account;
use clap::Args;
use nix::unistd::Gid;
use rustix::process::geteuid;

use super::size::parse_size;
use crate::confine::identity::Identity;
use crate::confine::identity::UserSpec;
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
    /// Account of engine processes, where the daemon serves as root: NAME or UID, and where wanted :GROUP or :GID. Driver
    /// files, and this program, must be readable for it, and it must be in the groups of GPU device nodes.
    #[arg(long, value_name = "USER", conflicts_with = "user")]
    pub engine_user: Option<UserSpec>,
}

impl HoldingArguments {
    /// What it comes to; cgroups are not made yet.
    pub fn holding(&self) -> anyhow::Result<Holding> {
        let account = self.engine_user.as_ref().map(account).transpose().context("--engine-user")?;
        let memory = Some(self.engine_memory).filter(|memory| *memory > 0);
        Ok(Holding { memory, cpus: self.engine_cpus, account: account.map(Arc::new), ..Holding::default() })
    }
}

fn account(user: &UserSpec) -> anyhow::Result<Account> {
    let Identity { uid, gid, groups } = Identity::find(user)?;
    if !geteuid().is_root() {
        anyhow::bail!("only root can start engines as another user, and this is user {}", geteuid().as_raw());
    }
    let groups = groups.into_iter().map(Gid::as_raw).collect();
    Ok(Account { uid: uid.as_raw(), gid: gid.as_raw(), groups })
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
            arguments.holding.holding().unwrap().memory
        };
        assert_eq!(memory(&[]), Some(ENGINE_MEMORY));
        assert_eq!(memory(&["--engine-memory", "512M"]), Some(512 << 20));
        assert_eq!(memory(&["--engine-memory", "0"]), None);
        assert!(Arguments::try_parse_from(["campanile", "serve", "--engine-cpus", "0"]).is_err());
        let users = ["campanile", "serve", "--user", "1:1", "--engine-user", "2:2"];
        assert!(Arguments::try_parse_from(users).is_err(), "only root starts processes of another user");
    }
}
