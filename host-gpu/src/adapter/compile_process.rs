//! A process that compiles kernels for an engine that there is not yet: what its driver makes of them goes into the log that the
//! engine is given when it starts.
//!
//! ```text
//!   daemon thread ──kernels─▶ compute engine without guests ──▶ log ─── later ──▶ the engine compiles the same, and its driver finds it
//!                 ◀─compiled, or why not─
//! ```
//!
//! One process writes to a log: this one is gone before an engine is given it.

use std::io;
use std::time::Duration;

use campanile_protocol::PAGE_SIZE;

use super::code_log::CodeLog;
use super::launcher::Launcher;
use super::lone::Lone;
use super::lone::LoneMemory;
use super::lone::TABLE_BYTES;
use crate::dirty::method::Method;
use crate::engine::message::Local;
use crate::engine::message::NodeKind;
use crate::engine::message::Request;
use crate::engine::message::Response;
use crate::engine::message::Start;
use crate::event::Event;
use crate::kernel::name::KernelName;
use crate::memory::vram::create_memfd;

/// What it is, where it fails.
const WHAT: &str = "the process that compiles ahead";
/// Bytes of a video memory that nothing is in.
const VRAM_BYTES: u64 = 16 * PAGE_SIZE;
/// The address space of its kernels.
const ROOT: u64 = 1;

/// What a kernel is compiled from.
#[derive(Debug, Clone, Copy)]
pub struct KernelText<'a> {
    /// `LANGUAGE_*` of the protocol.
    pub language: u32,
    /// Entry point, where there are several.
    pub entry: Option<&'a str>,
    /// Text or words.
    pub bytes: &'a [u8],
}

/// The process. It ends when this is dropped.
#[derive(Debug)]
pub struct CompileProcess {
    engine: Lone,
    /// How many kernels it was asked for.
    asked: u64,
}

impl CompileProcess {
    /// Starts one, and waits until it could compile, or `stop` is signalled. `start` is what the engine will be told, whose memory it
    /// gets none of.
    ///
    /// # Errors
    /// It cannot be started, refuses to, or takes too long; `Interrupted` for `stop`.
    pub fn start(launcher: &dyn Launcher, start: &Start, log: &CodeLog, stop: &Event) -> io::Result<Self> {
        let (vram_bytes, table_bytes) = (VRAM_BYTES, TABLE_BYTES);
        let start = Start {
            node: NodeKind::Compute,
            vram_bytes,
            table_bytes,
            code_mib: log.mib(),
            is_realtime: false,
            is_ahead: false,
            tracking: Method::Off,
            local: Local::Host,
            ..start.clone()
        };
        let vram = create_memfd("campanile-no-memory", vram_bytes)?;
        let memory = LoneMemory { vram: &vram, local: None, code: Some(log) };
        Ok(Self { engine: Lone::start(launcher, &start, memory, WHAT, Some(stop))?, asked: 0 })
    }

    /// Has it compile a kernel, beside those that it was asked for before. The number of the kernel. After an error the process is of no
    /// more use.
    ///
    /// # Errors
    /// It has ended, or reads nothing of what it was asked before for `limit`; `Interrupted` for `stop`.
    pub fn begin(&mut self, kernel: KernelText<'_>, limit: Duration, stop: &Event) -> io::Result<u64> {
        let KernelText { language, entry, bytes } = kernel;
        self.asked += 1;
        let (kernel, entry) = (KernelName { root: ROOT, handle: self.asked }, entry.map(str::to_owned));
        let create = Request::CreateKernel { kernel, language, entry, alone: false };
        self.engine.tell(&create, bytes, limit, Some(stop))?;
        Ok(self.asked)
    }

    /// Waits for the next kernel that is compiled, or refused, and has it forgotten: what its driver made of it is in the log, now or soon.
    /// Its number; the inner error is the engine's reason for refusing it. After the outer one the process is of no more use.
    ///
    /// # Errors
    /// It has ended, breaks the protocol, or says nothing for `limit`; `Interrupted` for `stop`.
    pub fn finish(&mut self, limit: Duration, stop: &Event) -> io::Result<(u64, Result<(), String>)> {
        loop {
            match self.engine.hear(limit, Some(stop))? {
                Response::KernelCreated { kernel, .. } => {
                    self.engine.tell(&Request::DestroyKernel { kernel }, &[], limit, Some(stop))?;
                    return Ok((kernel.handle, Ok(())));
                }
                Response::KernelRefused { kernel, reason } => return Ok((kernel.handle, Err(reason))),
                Response::KernelDestroyed { .. } => {}
                other => return Err(self.engine.amiss(&other)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use campanile_protocol::control::message::LANGUAGE_WGSL;
    use campanile_protocol::named_profile::GpuProfile;

    use super::CodeLog;
    use super::CompileProcess;
    use super::Event;
    use super::KernelText;
    use super::Local;
    use super::Method;
    use super::NodeKind;
    use super::Response;
    use super::Start;
    use crate::adapter::stand_in::StandIn;
    use crate::engine::channel::Channel;

    #[test]
    fn a_process_that_has_not_read_what_it_was_asked_is_waited_for() {
        let (stand_in, processes) = mpsc::channel();
        let standing = thread::spawn(move || {
            let process: Channel = processes.recv().unwrap();
            let device = "a device".to_owned();
            let started = Response::Started { device, is_cpu: true, vram: 0, profile: None };
            process.send(&started, &[], &[], true).unwrap();
            process
        });
        let start = Start {
            node: NodeKind::Compute,
            vram_bytes: 0,
            table_bytes: 0,
            spin_microseconds: 0,
            slice_microseconds: 0,
            sandbox: false,
            policy: "fair".to_owned(),
            vulkan_device: None,
            profile: GpuProfile::Host,
            tracking: Method::Off,
            local: Local::Host,
            code_mib: 1,
            is_realtime: false,
            is_ahead: false,
        };
        let (log, stop) = (CodeLog::new(1).unwrap().unwrap(), Event::new().unwrap());
        let mut compiler = CompileProcess::start(&StandIn(stand_in), &start, &log, &stop).unwrap();
        let process = standing.join().unwrap();
        stop.signal();
        let kernel = KernelText { language: LANGUAGE_WGSL, entry: None, bytes: &[b' '; 64 << 10] };
        let asked = (0..1000).map(|_| compiler.begin(kernel, Duration::from_secs(60), &stop));
        let refused = asked.filter_map(Result::err).next().unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::Interrupted, "{refused}");
        drop(process);
        let refused = compiler.begin(kernel, Duration::from_secs(60), &stop).unwrap_err();
        assert_ne!(refused.kind(), io::ErrorKind::Interrupted, "it has ended");
    }
}
