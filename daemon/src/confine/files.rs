//! Which files and ports a role can open: Landlock.

use landlock::ABI;
use landlock::Access;
use landlock::AccessFs;
use landlock::AccessNet;
use landlock::BitFlags;
use landlock::NetPort;
use landlock::Ruleset;
use landlock::RulesetAttr;
use landlock::RulesetCreatedAttr;
use landlock::RulesetStatus;
use landlock::Scope;
use landlock::path_beneath_rules;

use super::error::ConfineError;
use super::roles::Ports;
use super::roles::Reach;

/// The newest Landlock that was tested. Older kernels enforce what they know of it.
const TESTED: ABI = ABI::V6;

/// How much of what was asked for the kernel enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enforced {
    /// All of it.
    Fully,
    /// Files, but not ports (Linux 6.7) or abstract sockets (Linux 6.12).
    Partly,
}

/// Leaves the calling thread, and those that it starts, only this reach. What is open stays usable. No role executes a program,
/// and none but the "engines" thread, which has no domain, looks into other processes.
///
/// # Errors
/// This kernel has no Landlock, or refuses the rules.
pub fn restrict(reach: &Reach) -> Result<Enforced, ConfineError> {
    let keep: BitFlags<AccessFs> = AccessFs::ReadFile
        | AccessFs::ReadDir
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::RemoveFile;
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let ports = match reach.ports {
        Ports::Any => AccessNet::BindTcp.into(),
        Ports::None | Ports::One(_) => AccessNet::from_all(TESTED),
    };
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(TESTED))?
        .handle_access(ports)?
        // Engines, which this thread may have to end by a signal, are outside of the domain.
        .scope(Scope::AbstractUnixSocket)?
        .create()?
        .add_rules(path_beneath_rules(&reach.folders, keep))?
        .add_rules(path_beneath_rules(&reach.reads, read))?;
    if let Ports::One(port) = reach.ports {
        rules = rules.add_rule(NetPort::new(port, AccessNet::ConnectTcp))?;
    }
    match rules.restrict_self()?.ruleset {
        RulesetStatus::FullyEnforced => Ok(Enforced::Fully),
        RulesetStatus::PartiallyEnforced => Ok(Enforced::Partly),
        RulesetStatus::NotEnforced => Err(ConfineError::NoLandlock),
    }
}
