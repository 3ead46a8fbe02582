//! Life, limits and rights of the process.

use rustix::process::Resource;
use rustix::process::Rlimit;
use rustix::thread::CapabilitySet;
use rustix::thread::CapabilitySets;

use super::error::SandboxError;

/// Open files of one engine: a driver's own and one message full of guest memory at a time.
const OPEN_FILES: u64 = 4096;

/// Gains no privilege, leaves no core with guest memory behind. Whether it ends with the daemon is for what starts it to say
/// ([`Containment::outlives`](crate::adapter::containment::Containment::outlives)).
pub fn harden_process() -> Result<(), SandboxError> {
    rustix::thread::set_no_new_privs(true).map_err(SandboxError::of("giving up new privileges"))?;
    limit(Resource::Core, 0).map_err(SandboxError::of("giving up core dumps"))?;
    limit(Resource::Nofile, OPEN_FILES).map_err(SandboxError::of("limiting open files"))
}

/// Gives up what root, or a service manager, gave. The user stays: device nodes belong to groups or to root, and
/// one without rights could not open them.
pub fn drop_capabilities() -> Result<(), SandboxError> {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    // None left in these sets means none in the ambient one either.
    rustix::thread::set_capabilities(None, sets).map_err(SandboxError::of("giving up capabilities"))
}

/// Never raises a limit.
fn limit(resource: Resource, most: u64) -> rustix::io::Result<()> {
    let maximum = rustix::process::getrlimit(resource).maximum.map_or(most, |old| old.min(most));
    rustix::process::setrlimit(resource, Rlimit { current: Some(maximum), maximum: Some(maximum) })
}
