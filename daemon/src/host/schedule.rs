//! Bringing up what gives turns: the supervisor of a daemon, the broker of a host, and a daemon's place in that one's schedule.

use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use campanile_host_gpu::outside;

use super::error::HostError;
use super::heartbeat::Heartbeat;
use super::linked::Machine;
use super::options::HostOptions;
use super::options::Scheduling;
use crate::confine::Confinement;
use crate::confine::confiner::Confiner;
use crate::confine::roles::Reach;
use crate::confine::roles::Role;
use crate::listener::Listener;
use crate::sched::awake::Awake;
use crate::sched::broker::devices::names;
use crate::sched::broker::member::Member;
use crate::sched::broker::serve::Broker;
use crate::sched::schedule::Schedule;
use crate::sched::thread::Supervisor;

/// A broker that gives turns. Dropping it ends that; engines keep what they have.
#[derive(Debug)]
pub struct ScheduleHost {
    _heartbeat: Option<Heartbeat>,
    _broker: Broker,
}

impl ScheduleHost {
    /// Gives turns to the daemons that connect at `path`.
    ///
    /// # Errors
    /// The socket, a thread or descriptors cannot be had.
    pub fn start(
        path: &Path,
        scheduling: &Scheduling,
        awake: Awake,
        confinement: Confinement,
    ) -> Result<Self, HostError> {
        let failed = |source| HostError::Schedule { path: path.into(), source };
        let confiner = Confiner::new(confinement);
        if confinement == Confinement::On {
            outside::start()?;
        }
        let supervisor = start_supervisor(&confiner, scheduling, awake)?;
        let schedule: Arc<dyn Schedule> = Arc::clone(&supervisor) as _;
        let heartbeat = start_heartbeat(&confiner, &schedule)?;
        let listener = Listener::bind_packets_for_group(path).map_err(|error| failed(error.into()))?;
        log::info!("{}: giving turns to daemons", path.display());
        // It connects to nothing.
        let serve = || Broker::serve(listener, supervisor);
        let broker = confiner.within(Role::Turns, &Reach::default(), serve)?;
        Ok(Self { _heartbeat: heartbeat, _broker: broker.map_err(|error| failed(error.into()))? })
    }
}

/// The supervisor of this process.
pub(super) fn start_supervisor(
    confiner: &Confiner,
    scheduling: &Scheduling,
    awake: Awake,
) -> Result<Arc<Supervisor>, HostError> {
    let Scheduling { policy, normal_share, .. } = *scheduling;
    let start = move || Supervisor::start(policy, normal_share, awake);
    Ok(Arc::new(confiner.within(Role::Schedule, &Reach::default(), start)??))
}

/// Signs of life, as long as turns are given, or asked for.
pub(super) fn start_heartbeat(
    confiner: &Confiner,
    schedule: &Arc<dyn Schedule>,
) -> Result<Option<Heartbeat>, HostError> {
    let its = Arc::clone(schedule);
    Ok(confiner.within(Role::Schedule, &Reach::default(), move || Heartbeat::start(&its))??)
}

/// What gives turns to a daemon with these options: its own supervisor, or the broker that the operator names; one that `follows` a
/// daemon with VMs does not need that broker to be there.
pub(super) fn start_schedule(
    (options, follows): (&HostOptions, bool),
    machine: &Machine,
    confiner: &Confiner,
    reach: &Reach,
    awake: Awake,
) -> Result<Arc<dyn Schedule>, HostError> {
    let Some(path) = options.scheduling.broker.clone() else {
        return Ok(start_supervisor(confiner, &options.scheduling, awake)?);
    };
    let devices = names(&machine.identities(options.engines.count));
    let its: PathBuf = path.clone();
    let begin = if follows { Member::follow } else { Member::start };
    let member = confiner.within(Role::Turns, reach, move || begin(&its, devices))?;
    let member =
        member.map_err(|source| HostError::Schedule { path: path.clone(), source: source.into() })?;
    Ok(Arc::new(member))
}
