//! From a bare process to a running engine.

use std::iter;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use campanile_protocol::PAGE_SIZE;
use campanile_protocol::engine::block::BLOCK_BYTES;
use campanile_protocol::engine::fences::MAX_FENCES;
use campanile_protocol::engine::written::Layout;
use campanile_protocol::page_table::SegmentId;
use campanile_protocol::profile::Profile;

use super::channel::Channel;
use super::channel::Received;
use super::code_start::open_log;
use super::code_start::store;
use super::commands::CommandSender;
use super::commands::Commands;
use super::compiling;
use super::compiling::Compiler;
use super::control::Control;
use super::events::Events;
use super::execution::Execution;
use super::local_start::LocalFiles;
use super::local_start::allocate;
use super::local_start::begin_copies;
use super::machine::Machine;
use super::message::Local;
use super::message::Request;
use super::message::Response;
use super::message::START_DESCRIPTORS;
use super::message::Start;
use super::mover::Mover;
use super::opening::Opened;
use super::opening::OpenedCompute;
use super::opening::OpenedNode;
use super::opening::open;
use super::sandbox::Workload;
use super::sandbox::driver_profiles::Requests;
use super::sandbox::driver_profiles::requests_of;
use super::sandbox::error::SandboxError;
use super::sandbox::system_calls::restrict_system_calls;
use super::secondary_pipelines;
use super::signals::Signals;
use super::start_error::StartError;
use crate::code_cache::log::Log;
use crate::code_cache::store::Store;
use crate::cpu_slice;
use crate::dirty::protect::Guard;
use crate::memory::mapping::Access;
use crate::memory::mapping::Mapping;
use crate::memory::segment::Segments;
use crate::memory::wants::Uses;
use crate::memory::writes::Writes;
use crate::node::buffer::Node;
use crate::node::compute::ComputeNode;
use crate::node::device_instance::DeviceInstance;
use crate::node::local_copies::LocalCopies;
use crate::sched::choice::Choice;
use crate::sched::choice::NoSuchPolicy;
use crate::vulkan::info::Info;
use crate::vulkan::info::Kind;
use crate::vulkan::local::Exported;

/// Runs an engine over the channel `socket`; returns only when it cannot start.
pub fn main(socket: OwnedFd) -> StartError {
    let channel = Channel::from_socket(socket);
    // The kernel takes it from the path that was executed, which is `/proc/self/exe`.
    let _named = rustix::thread::set_name(c"campanile");
    // The thread that started this process has short ones, and here are compilers and a driver.
    cpu_slice::restore();
    match prepare(&channel) {
        Ok(Prepared::Ready(ready)) => match ready.go(channel) {
            Ok(never) => never,
            Err(error) => error,
        },
        Ok(Prepared::Allocated(exported)) => {
            let told = Response::Allocated { passport: exported.passport() };
            match channel.send(&told, &[], &[exported.descriptor.as_fd()], true) {
                // The daemon closes the channel when it has the descriptor, and this process goes with it.
                Ok(()) => {
                    let closed = channel.receive::<Request>(true).err();
                    log::debug!("what was allocated is taken: {closed:?}");
                    StartError::NotNeeded
                }
                Err(error) => error.into(),
            }
        }
        Err(error) => {
            // The daemon may be gone too; then the reason is of no use.
            let _sent = channel.send(&Response::Refused { reason: error.to_string() }, &[], &[], true);
            error
        }
    }
}

struct Ready {
    start: Start,
    execution: Execution,
    commands: CommandSender,
    compiler: Option<Compiler>,
    mover: Option<Mover>,
    device: String,
    workload: Workload,
    /// What it asks of its driver.
    requests: Vec<Requests>,
    guard: Option<Guard>,
    vram: u64,
    profile: Option<Box<Profile>>,
}

/// What a process has come to.
enum Prepared {
    /// It is an engine.
    Ready(Box<Ready>),
    /// It was to allocate memory, and has.
    Allocated(Exported),
}

fn receive_start(channel: &Channel) -> Result<Received<Start>, StartError> {
    loop {
        if let Some(received) = channel.receive::<Start>(true)? {
            return Ok(received);
        }
    }
}

fn prepare(channel: &Channel) -> Result<Prepared, StartError> {
    let first = receive_start(channel)?;
    let Opened { guard, node } = open(&first.message)?;
    let received = if first.message.is_ahead {
        channel.send(&Response::Opened, &[], &[], true)?;
        let received = receive_start(channel)?;
        if received.message.is_ahead || !received.message.opens_as(&first.message) {
            return Err(StartError::OpenedOther);
        }
        received
    } else {
        first
    };
    let start = received.message;
    if let (Local::Allocate(bytes), OpenedNode::Allocates(driver)) = (start.local, &node) {
        return allocate(driver, bytes).map(Prepared::Allocated);
    }
    let count = received.descriptors.len();
    let mut descriptors = received.descriptors;
    let local = LocalFiles::take(&start, &mut descriptors)?;
    let planes = if start.tracking.has_planes() { descriptors.pop() } else { None };
    let code = if start.code_mib == 0 { None } else { descriptors.pop() };
    let wanted =
        START_DESCRIPTORS + usize::from(start.tracking.has_planes()) + usize::from(start.code_mib > 0);
    let descriptors: [OwnedFd; START_DESCRIPTORS] =
        descriptors.try_into().map_err(|_| StartError::Descriptors(count, wanted))?;
    let [block, vram, tables, event, grant, wake, fences] = descriptors;
    let shared = Arc::new(Mapping::new(block.into(), 0, BLOCK_BYTES, Access::ReadWrite)?);
    let vram = Arc::new(Mapping::new(vram.into(), 0, start.vram_bytes, Access::ReadWrite)?);
    let tables = Mapping::new(tables.into(), 0, start.table_bytes, Access::ReadOnly)?;
    let fence_bytes = u64::from(MAX_FENCES) * PAGE_SIZE;
    let fences = Arc::new(Mapping::new(fences.into(), 0, fence_bytes, Access::ReadWrite)?);
    let writes = match planes {
        None => Writes::default(),
        Some(planes) => {
            let layout = Layout::new(start.vram_bytes);
            let planes = Mapping::new(planes.into(), 0, layout.bytes(), Access::ReadWrite)?;
            Writes::new(Arc::new(planes), layout)
        }
    };
    let vram_address = vram.host_pointer().addr() as u64;
    if let Some(guard) = &guard {
        guard.protect(vram_address, vram.len()).map_err(StartError::Tracking)?;
    }
    let events = Events { event: event.into(), grant: grant.into(), wake: wake.into() };
    let (sender, receiver) = mpsc::channel();
    let pending = Arc::new(AtomicBool::new(false));
    let wake = Arc::new(events.wake.try_clone()?);
    let kernels = Arc::default();
    let sender = CommandSender { sender, kernels: Arc::clone(&kernels), pending: Arc::clone(&pending), wake };
    let commands = Commands { receiver, kernels, pending };
    let (mut copies, mut mover, mut driver) = (None, None, String::new());
    let (node, compiler, device, workload, profile) = match (node, &local) {
        (OpenedNode::Copies, None) => {
            (Node::Copy, None, "copies on the CPU".to_owned(), Workload::Copies, None)
        }
        (OpenedNode::CopiesByDevice { guests, daemons }, Some(files)) => {
            let opened = begin_copies([*guests, *daemons], files, &vram)?;
            (copies, mover) = (Some(opened.copies), Some(opened.mover));
            let device = format!("copies by {}", opened.info);
            driver.clone_from(&opened.info.driver);
            (Node::Copy, None, device, workload_of(&opened.info), None)
        }
        (OpenedNode::Computes(opened), local) => {
            let code = code.map(|log| open_log(log, start.code_mib)).transpose()?;
            let begun = begin_compute(*opened, &start, &shared, &vram, local.as_ref(), code, &sender)?;
            copies = begun.copies;
            let Compute { node, compiler, info, profile, .. } = begun;
            driver.clone_from(&info.driver);
            (node, Some(compiler), info.to_string(), workload_of(&info), Some(Box::new(profile)))
        }
        _ => return Err(StartError::OpenedOther),
    };
    if guard.is_some() && workload == Workload::KernelsOnGpu {
        // What the device writes by itself is not tracked.
        return Err(StartError::Tracking(std::io::ErrorKind::Unsupported.into()));
    }
    let choice: Choice =
        start.policy.parse().map_err(|error: NoSuchPolicy| StartError::Node(error.to_string()))?;
    let policy = choice.make();
    let spin = Duration::from_micros(start.spin_microseconds);
    let mut segments = Segments::default();
    segments.uses = Uses::new(Arc::clone(&shared), start.vram_bytes);
    segments.writes = writes;
    if let Some(copies) = copies {
        segments.set_device(Box::new(copies));
    }
    segments.insert(SegmentId::VRAM, vram);
    segments.insert(SegmentId::FENCES, fences);
    let signals = Signals::new(Arc::clone(&shared), events.event.try_clone()?);
    let execution =
        Execution::new(Machine { shared, tables, segments, node, signals }, policy, commands, events, spin);
    let (commands, vram) = (sender, vram_address);
    let requests = requests_of(&driver).map_err(SandboxError::from)?;
    let ready = Ready {
        start,
        execution,
        commands,
        compiler,
        mover,
        device,
        workload,
        requests,
        guard,
        vram,
        profile,
    };
    Ok(Prepared::Ready(Box::new(ready)))
}

fn workload_of(info: &Info) -> Workload {
    if info.kind == Kind::Cpu { Workload::KernelsOnCpu } else { Workload::KernelsOnGpu }
}

/// A compute node, and what it was made of.
struct Compute {
    node: Node,
    compiler: Compiler,
    info: Info,
    profile: Profile,
    /// Where local memory is a device's own.
    copies: Option<LocalCopies>,
}

fn begin_compute(
    opened: OpenedCompute,
    start: &Start,
    shared: &Arc<Mapping>,
    vram: &Arc<Mapping>,
    local: Option<&LocalFiles>,
    code: Option<Log>,
    commands: &CommandSender,
) -> Result<Compute, StartError> {
    let refused = |error: &dyn std::fmt::Display| StartError::Node(error.to_string());
    let OpenedCompute { driver, secondary, compilers, copier, sanitizer, cache } = opened;
    let cache = cache.zip(code).and_then(|(found, log)| store(found, log));
    let copies = local.zip(copier).map(|(files, copier)| files.copies(copier)).transpose()?;
    let slice = Duration::from_micros(start.slice_microseconds);
    let (info, profile) = (driver.info().clone(), *driver.device_profile());
    let pipelines = driver.compiler();
    let mut instances: Vec<_> = iter::once(driver).chain(secondary).map(DeviceInstance::new).collect();
    if let Some(files) = local {
        let import = |instance: &mut DeviceInstance| {
            instance.import_local(files.local, files.memory.try_clone()?).map_err(|e| refused(&e))
        };
        instances.iter_mut().try_for_each(import)?;
    }
    let imported = instances.iter_mut().try_for_each(|instance| instance.import_ahead(SegmentId::VRAM, vram));
    imported.map_err(|e| refused(&e))?;
    let mut node = ComputeNode::new(instances, Arc::clone(shared), slice);
    if let Some((compiler, lock)) = node.second_compiler() {
        node.ask_second_compiler(secondary_pipelines::start(compiler, lock, commands.clone())?);
    }
    let apart = if cache.is_some() { compilers } else { Vec::new() };
    let compiler = Compiler { sanitizer, pipelines, apart, cache };
    Ok(Compute { node: Node::Compute(Box::new(node)), compiler, info, profile, copies })
}

impl Ready {
    fn go(self, channel: Channel) -> Result<StartError, StartError> {
        let Self {
            start,
            execution,
            commands,
            compiler,
            mover,
            device,
            workload,
            requests,
            guard,
            vram,
            profile,
        } = self;
        let (begin, begin_rx) = mpsc::channel();
        let notes = guard.as_ref().map(Guard::number);
        let cache = compiler.as_ref().and_then(|compiler| compiler.cache.as_ref()).map(Store::descriptors);
        let (segments, begins_at) = (0, None);
        let channel = Arc::new(channel);
        // Threads start before the filter forbids it, and nothing of a guest is read before the filter is there.
        let compile = |compiler| compiling::start(compiler, Arc::clone(&channel), commands.clone());
        let compiler = compiler.map(compile).transpose()?;
        let has_begun = false;
        let control =
            Control { channel, commands, compiler, mover, begin, segments, begins_at, has_begun, guard };
        let (outcome_tx, outcome_rx) = mpsc::channel();
        let builder = thread::Builder::new().name("control".to_owned());
        let thread = builder.spawn(move || {
            let Ok(outcome) = outcome_rx.recv() else { return };
            let is_refused = matches!(outcome, Response::Refused { .. });
            let sent = control.channel.send(&outcome, &[], &[], true);
            if is_refused {
                return;
            }
            let error = sent.err().unwrap_or_else(|| control.run());
            log::debug!("engine ends: {error}");
            // The daemon is gone, and with it the reader of any result.
            std::process::exit(0);
        })?;
        // This thread's only, which has no more to start.
        cpu_slice::shorten();
        let sealed = if start.sandbox {
            restrict_system_calls(workload, notes, cache, &requests).map_err(StartError::from)
        } else {
            Ok(())
        };
        let outcome = match &sealed {
            Ok(()) => Response::Started { device, is_cpu: workload != Workload::KernelsOnGpu, vram, profile },
            Err(error) => Response::Refused { reason: error.to_string() },
        };
        // Received or not: a control thread that is gone has ended the process.
        let _sent = outcome_tx.send(outcome);
        if let Err(error) = sealed {
            let _ended = thread.join();
            return Err(error);
        }
        if begin_rx.recv().is_err() {
            // The control thread is gone, and the process with it.
            let _ended = thread.join();
            return Err(StartError::NotNeeded);
        }
        execution.run()
    }
}
