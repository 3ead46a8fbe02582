//! The daemon that hands its vGPUs over.

use std::env;
use std::ffi::OsStr;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use campanile_host_gpu::memory::local::Passport;
use rustix::event::PollFd;
use rustix::event::PollFlags;
use rustix::event::Timespec;
use rustix::event::poll;
use rustix::process::Pid;
use rustix::process::PidfdFlags;
use rustix::process::pidfd_open;
use serde_json::Value;
use serde_json::json;

use super::builder::Builder;
use super::ground::Served;
use super::upgrade::channel::Channel;
use super::upgrade::message::Changes;
use super::upgrade::message::FORMAT;
use super::upgrade::message::Handed;
use super::upgrade::message::HandedEngines;
use super::upgrade::message::HandedLocal;
use super::upgrade::message::HandedVgpu;
use super::upgrade::message::NamedSocket;
use super::upgrade::message::Said;
use super::upgrade::message::WITHOUT_LOCAL;
use super::upgrade::successor::IS_SUCCESSOR;
use crate::fd_store;
use crate::frontend::vhost::parking::Parked;
use crate::migration::handed::Becomes;
use crate::migration::source::handover::Holding;
use crate::open_sockets;
use crate::service_manager;
use crate::vgpu::control::orders::Order;
use crate::vgpu::memory::vidmm::device_local::DeviceLocal;
use crate::vgpu::state::saved::bytes::Bytes;

/// What the kernel appends to the path of a program that is not there any more.
const DELETED: &[u8] = b" (deleted)";
/// How long a successor may take to be prepared: it starts an engine, to see what the machine computes.
const PREPARE_LIMIT: Duration = Duration::from_secs(30);
/// How long a vGPU's thread may take to say which engines it has.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a thread may take to come to rest between two messages.
const PARK_LIMIT: Duration = Duration::from_secs(2);
/// How long a device may take to come to rest.
const QUIESCE_LIMIT: Duration = Duration::from_secs(5);
/// How long the successor may take for each message, and to restore the devices: guests stand still.
const RESTORE_LIMIT: Duration = Duration::from_secs(10);
/// How long a successor whose channel is closed may take to end.
const END_LIMIT: Duration = Duration::from_secs(1);

/// Has `binary`, or the program that this process was started from, go on with all that is served, each with the operator's words for it where it
/// was made at run time. What came of it, for the operator.
///
/// # Errors
/// Why it cannot: all goes on here.
pub(super) fn upgrade<'t>(
    builder: &Builder,
    binary: Option<&Path>,
    line: Vec<OsString>,
    served: impl Iterator<Item = (&'t Served, Option<&'t str>)>,
    estate: Changes,
) -> Result<Value, String> {
    let binary = binary.map_or_else(own_program, |binary| Ok(binary.to_owned()))?;
    let served: Vec<(&Served, Option<&str>)> = served.collect();
    let has_local = served.iter().any(|(served, _)| local_of(served).is_some());
    let format = if has_local { FORMAT } else { WITHOUT_LOCAL };
    let mut successor = Successor::start(binary, line, builder, format)?;
    let opened = successor.have_engines_opened(&served)?;
    let (pid, version) = (successor.pid, successor.version.clone());
    let Done { stood, vgpus, lost } =
        successor.hand_over(served.into_iter().map(|(served, _)| served), estate)?;
    service_manager::say_main_process(pid);
    log::info!("upgrade: process {pid}, version {version}, goes on with {vgpus} VMs; this one ends");
    let lost: Vec<Value> = lost.iter().map(|(vgpu, why)| json!({ "vgpu": vgpu, "why": why })).collect();
    Ok(json!({
        "pid": pid,
        "version": version,
        "vms": vgpus,
        "engines_opened": opened,
        "lost": lost,
        "stood_still_ms": u64::try_from(stood.as_millis()).unwrap_or(u64::MAX),
    }))
}

/// The local memory of a vGPU, where that is a device's own.
fn local_of(served: &Served) -> Option<Arc<DeviceLocal>> {
    served.known.current.get().local.clone()
}

/// The file that this process was started from: what lies there now, where a package has replaced it.
fn own_program() -> Result<PathBuf, String> {
    let path = env::current_exe().map_err(|error| format!("the file of this program: {error}"))?;
    let bytes = path.as_os_str().as_bytes();
    let bytes = bytes.strip_suffix(DELETED).unwrap_or(bytes);
    Ok(PathBuf::from(OsStr::from_bytes(bytes)))
}

/// A program that is to be the successor. Killed and waited for when it is dropped, unless it was let go.
#[derive(Debug)]
struct Successor<'a> {
    channel: Channel,
    child: Option<Child>,
    builder: &'a Builder,
    pid: u32,
    version: String,
    opens_ahead: bool,
}

/// What changed hands.
#[derive(Debug)]
struct Done {
    /// How long guests stood still: from the first connection that was parked until all went on.
    stood: Duration,
    /// vGPUs with a VM.
    vgpus: u32,
    /// vGPUs that did not go on, and why.
    lost: Vec<(String, String)>,
}

/// A vGPU that stands still. It goes on when this is dropped.
struct Standing<'a> {
    served: &'a Served,
    parked: Option<Parked>,
    holding: Option<Holding>,
    is_left: bool,
}

impl Drop for Standing<'_> {
    fn drop(&mut self) {
        self.holding = None;
        if !self.is_left {
            let known = &self.served.known;
            known.endpoint.quiesce.go_on(|| known.commands.nudge());
        }
    }
}

impl<'a> Standing<'a> {
    /// Has it stand still.
    fn begin(served: &'a Served) -> Result<Self, String> {
        let parked = served.socket.park(PARK_LIMIT)?;
        let holding = parked.is_connected.then(|| served.known.endpoint.departure.begin_handover());
        let holding = holding.transpose().map_err(|error| error.to_string())?;
        Ok(Self { served, parked: Some(parked), holding, is_left: false })
    }

    /// What it is, if a VM has it.
    fn record(&self) -> Result<Option<(HandedVgpu, Vec<OwnedFd>)>, String> {
        let (Some(holding), Some(parked)) = (&self.holding, &self.parked) else { return Ok(None) };
        let known = &self.served.known;
        let state = known.endpoint.quiesce.save(|| known.commands.nudge(), QUIESCE_LIMIT)?;
        let device = holding.device(state).map_err(|error| error.to_string())?;
        let connection = parked.record(PARK_LIMIT)?;
        let runs = |run: &std::ops::Range<u64>| (run.start, run.end);
        let written = device.written.map(|set| (set.pages(), set.runs().iter().map(runs).collect()));
        let Becomes::Whole(state) = device.state else { return Err("it has no state".to_owned()) };
        let (name, state) = (known.name.clone(), Bytes(state));
        let mut files = vec![OwnedFd::from(connection.stream)];
        files.extend(device.files.map(OwnedFd::from));
        files.extend(connection.files);
        let code = device.code.iter().map(|kept| kept.engine).collect();
        files.extend(device.code.into_iter().map(|kept| OwnedFd::from(kept.file)));
        Ok(Some((HandedVgpu { name, shell: connection.shell, state, code, written }, files)))
    }

    /// It is the successor's.
    fn leave(mut self) {
        self.is_left = true;
        self.holding = None;
        if let Some(parked) = self.parked.take() {
            parked.leave();
        }
    }
}

impl<'a> Successor<'a> {
    /// Starts `binary` with this command line, and waits until it could serve.
    ///
    /// # Errors
    /// Why it cannot be the successor. It has ended.
    fn start(
        binary: PathBuf,
        line: Vec<OsString>,
        builder: &'a Builder,
        format: u32,
    ) -> Result<Self, String> {
        let shown = binary.display().to_string();
        let spawn = move || {
            let mut command = Command::new(binary);
            command.args(line.into_iter().skip(1)).env(IS_SUCCESSOR, "1");
            let (own, its) = UnixStream::pair()?;
            let child = command.stdin(Stdio::from(OwnedFd::from(its))).spawn()?;
            Ok::<_, io::Error>((child, own))
        };
        let spawned = builder.run(spawn).and_then(|spawned| spawned);
        let (child, own) = spawned.map_err(|error| format!("{shown}: {error}"))?;
        let pid = child.id();
        log::info!("upgrade: {shown} is process {pid}");
        let channel = Channel::from(own);
        let version = String::new();
        let mut successor = Self { channel, child: Some(child), builder, pid, version, opens_ahead: false };
        match successor.hear(PREPARE_LIMIT)? {
            Said::Hello { oldest, newest, version, opens_ahead } if (oldest..=newest).contains(&format) => {
                (successor.version, successor.opens_ahead) = (version, opens_ahead);
            }
            Said::Hello { oldest, newest, version, .. } => {
                return Err(format!(
                    "{shown} is version {version}, which goes on with what daemons of format {oldest} to {newest} hand over; this one \
                     has format {format}"
                ));
            }
            other => return Err(unexpected(&other)),
        }
        successor.send_sockets()?;
        match successor.hear(PREPARE_LIMIT)? {
            Said::Prepared => Ok(successor),
            other => Err(unexpected(&other)),
        }
    }

    fn send_sockets(&self) -> Result<(), String> {
        let sockets = open_sockets::all().map_err(|error| format!("no descriptor is left: {error}"))?;
        let named = sockets.iter().map(|socket| NamedSocket {
            name: Bytes(socket.name.clone().into_vec()),
            has_file: socket.has_file,
        });
        let files: Vec<_> = sockets.iter().map(|socket| socket.socket.as_fd()).collect();
        self.say(&Handed::Sockets(named.collect()), &files)
    }

    /// Has the successor open as many engines as there are, while those here still work. Their processes.
    ///
    /// # Errors
    /// The successor is gone, or does not answer.
    fn have_engines_opened(&mut self, served: &[(&Served, Option<&str>)]) -> Result<Vec<u32>, String> {
        if !self.opens_ahead {
            return Ok(Vec::new());
        }
        let engines_of = |(served, made): &(&Served, Option<&str>)| {
            let said = served.known.commands.ask(Order::Engines, LOOK_TIMEOUT).ok()?;
            let engines: Vec<u32> = serde_json::from_value(said).ok()?;
            let (vgpu, made) = (served.known.name.clone(), made.map(str::to_owned));
            Some(HandedEngines { vgpu, engines, made })
        };
        let engines: Vec<HandedEngines> =
            served.iter().filter_map(engines_of).filter(|of| !of.engines.is_empty()).collect();
        if engines.is_empty() {
            return Ok(Vec::new());
        }
        self.say(&Handed::Engines(engines), &[])?;
        match self.hear(PREPARE_LIMIT)? {
            Said::Opened { processes } => Ok(processes),
            other => Err(unexpected(&other)),
        }
    }

    fn say(&self, message: &Handed, files: &[std::os::fd::BorrowedFd<'_>]) -> Result<(), String> {
        self.channel
            .send(message, files, RESTORE_LIMIT)
            .map_err(|error| format!("telling the successor: {error}"))
    }

    /// Hands the local memory of a vGPU over, where that is a device's own.
    fn say_local(&self, served: &Served) -> Result<(), String> {
        let Some(local) = local_of(served) else { return Ok(()) };
        let Passport { length, type_index, uuids } = local.passport;
        let (vgpu, is_new) = (served.known.name.clone(), local.is_new());
        self.say(
            &Handed::Local(HandedLocal { vgpu, length, type_index, uuids, is_new }),
            &[local.descriptor()],
        )
    }

    /// What it says next; why it cannot go on.
    fn hear(&mut self, limit: Duration) -> Result<Said, String> {
        match self.channel.receive::<Said>(limit) {
            Ok((Said::Failed { why }, _)) => Err(why),
            Ok((said, _)) => Ok(said),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(format!("the successor, process {}, says nothing for {} s", self.pid, limit.as_secs()))
            }
            Err(error) => Err(self.end().map_or_else(
                || format!("the successor, process {}: {error}", self.pid),
                |how| {
                    format!(
                        "the successor, process {}, has ended ({how}); the log has its last words",
                        self.pid
                    )
                },
            )),
        }
    }

    /// Kills it if it runs, and waits for it. How it ended by itself, if it did.
    fn end(&mut self) -> Option<String> {
        let mut child = self.child.take()?;
        let waited = self.builder.run(move || {
            let _ended = child.kill();
            child.wait()
        });
        let status = waited.and_then(|status| status).ok()?;
        (status.signal() != Some(rustix::process::Signal::KILL.as_raw())).then(|| status.to_string())
    }

    /// Hands `tenants` over.
    ///
    /// # Errors
    /// Why it cannot be: the vGPUs go on here, and the successor has ended.
    fn hand_over<'t>(
        mut self,
        tenants: impl Iterator<Item = &'t Served>,
        estate: Changes,
    ) -> Result<Done, String> {
        let begun = Instant::now();
        let (mut standing, mut handed) = (Vec::new(), Vec::new());
        for served in tenants {
            let of_vgpu = |why: String| format!("vGPU {}: {why}", served.known.name);
            let stands = Standing::begin(served).map_err(of_vgpu)?;
            handed.extend(stands.record().map_err(of_vgpu)?);
            standing.push(stands);
        }
        for stands in &standing {
            self.say_local(stands.served)?;
        }
        let vgpus = u32::try_from(handed.len()).unwrap_or(u32::MAX);
        self.say(&Handed::Estate { changes: estate, vgpus }, &[])?;
        for (vgpu, files) in handed {
            let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
            self.say(&Handed::Vgpu(Box::new(vgpu)), &files)?;
        }
        match self.hear(RESTORE_LIMIT)? {
            Said::Restored => {}
            other => return Err(unexpected(&other)),
        }
        self.say(&Handed::Go, &[])?;
        // Nothing here goes on from here on, whatever becomes of the successor.
        open_sockets::leave();
        let mut runs = self.child.take();
        standing.into_iter().for_each(Standing::leave);
        let lost = match self.hear(RESTORE_LIMIT) {
            Ok(Said::Serving { lost }) => lost,
            Ok(other) => vec![("all".to_owned(), unexpected(&other))],
            Err(why) => {
                if fd_store::is_open() && runs.as_mut().is_some_and(has_ended) {
                    log::error!("upgrade: {why}; another daemon is to go on with what is stored");
                    // As one that is killed.
                    std::process::exit(1);
                }
                vec![("all".to_owned(), why)]
            }
        };
        Ok(Done { stood: begun.elapsed(), vgpus, lost })
    }
}

impl Drop for Successor<'_> {
    fn drop(&mut self) {
        let _how = self.end();
    }
}

/// Whether a successor has ended, or does at once.
fn has_ended(successor: &mut Child) -> bool {
    let pid = i32::try_from(successor.id()).ok().and_then(Pid::from_raw);
    let Some(ends) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        // No descriptor is left to wait with.
        return matches!(successor.try_wait(), Ok(Some(_)));
    };
    let limit = Timespec::try_from(END_LIMIT).unwrap_or_default();
    poll(&mut [PollFd::new(&ends, PollFlags::IN)], Some(&limit)).is_ok_and(|ended| ended > 0)
}

fn unexpected(said: &Said) -> String {
    format!("the successor says {said:?}, which it should not now")
}
