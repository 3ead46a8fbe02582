//! A process that copies local memory of a device's own for the daemon itself, beside the engines of guests.
//!
//! ```text
//!   daemon thread ──Move──▶ copy engine without guests ──▶ local memory ◀─▶ a file that the daemon maps
//!                 ◀─Moved──    its own shared block, device instance
//! ```
//!
//! It is a copy engine like any other, sandbox and all, with no guest process in its tables. So it works whether the engines of
//! the vGPU run or have all ended, and its caller, a thread that may wait, waits for each answer.

use campanile_protocol::named_profile::GpuProfile;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::launcher::Launcher;
use super::lone::Lone;
use super::lone::LoneMemory;
use super::lone::TABLE_BYTES;
use crate::dirty::method::Method;
use crate::engine::message::Local;
use crate::engine::message::MoveSide;
use crate::engine::message::NodeKind;
use crate::engine::message::Request;
use crate::engine::message::Response;
use crate::engine::message::Start;
use crate::memory::local::LocalMemory;

/// How long a step may take.
const STEP_LIMIT: Duration = Duration::from_secs(10);
/// Bytes of a step.
const STEP: u64 = 64 << 20;
/// What a copy process copies between.
#[derive(Debug)]
pub struct CopyFiles<'a> {
    /// What [`MoveSide::Visible`] is in.
    pub visible: &'a File,
    /// Local memory.
    pub local: BorrowedFd<'a>,
    /// What [`MoveSide::Evicted`] is in.
    pub evicted: &'a File,
}

/// How a copy process is started.
#[derive(Debug, Clone)]
pub struct CopyOptions {
    /// Local memory. How long the file is that what is evicted lies in does not count: it is looked at.
    pub local: LocalMemory,
    /// Part of the name of the Vulkan device, or none for the best.
    pub vulkan_device: Option<String>,
    /// Whether it drops its privileges.
    pub sandbox: bool,
    /// The policy of its schedule, of which it has none.
    pub policy: String,
}

/// The process. It ends when this is dropped.
#[derive(Debug)]
pub struct CopyProcess {
    engine: Lone,
    serial: u64,
}

/// What it is, where it fails.
const WHAT: &str = "the process that copies local memory";

impl CopyProcess {
    /// Starts one, and waits until it could copy.
    ///
    /// # Errors
    /// It cannot be started, refuses to, or takes too long.
    pub fn start(launcher: &dyn Launcher, options: &CopyOptions, files: CopyFiles<'_>) -> io::Result<Self> {
        let CopyOptions { local, vulkan_device, sandbox, policy } = options.clone();
        let evicted_bytes = files.evicted.metadata()?.len();
        let start = Start {
            node: NodeKind::Copy,
            vram_bytes: files.visible.metadata()?.len(),
            table_bytes: TABLE_BYTES,
            spin_microseconds: 0,
            slice_microseconds: 0,
            sandbox,
            policy,
            vulkan_device,
            profile: GpuProfile::Host,
            tracking: Method::Off,
            local: Local::Device(LocalMemory { evicted_bytes, ..local }),
            code_mib: 0,
            is_realtime: false,
            is_ahead: false,
        };
        let local = Some([files.local, files.evicted.as_fd()]);
        let memory = LoneMemory { vram: files.visible, local, code: None };
        Ok(Self { engine: Lone::start(launcher, &start, memory, WHAT, None)?, serial: 0 })
    }

    /// Copies `bytes`, whole pages, and returns when they are there. After an error it is of no more use, and nothing is known
    /// of what is in the target.
    ///
    /// # Errors
    /// The device did not do it, or the process has ended, or takes too long.
    pub fn carry_out(&mut self, from: MoveSide, to: MoveSide, bytes: u64) -> io::Result<()> {
        let mut done = 0;
        while done < bytes {
            let step = STEP.min(bytes - done);
            self.serial += 1;
            let (from, to) = (from.advanced(done), to.advanced(done));
            let request = Request::Move { serial: self.serial, from, to, bytes: step };
            match self.engine.ask(&request, &[], STEP_LIMIT, None)? {
                // Of this step: an answer to another is a breach, which ends the process.
                Response::Moved { .. } => {}
                Response::MoveRefused { reason, .. } => return Err(io::Error::other(reason)),
                other => return Err(self.engine.amiss(&other)),
            }
            done += step;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::adapter::stand_in::StandIn;
    use crate::engine::channel::Channel;
    use crate::memory::vram::create_memfd;

    fn options() -> CopyOptions {
        let local = LocalMemory { start: 8 << 20, bytes: 8 << 20, ..LocalMemory::default() };
        CopyOptions { local, vulkan_device: None, sandbox: true, policy: "fair".to_owned() }
    }

    /// Starts one whose process is played by `plays`, on a thread, and has it copy 65 MiB.
    fn copy(plays: impl FnOnce(&Channel, Start) + Send) -> io::Result<()> {
        let (stand_in, starts) = mpsc::channel();
        let files = ["visible", "local", "evicted"].map(|name| create_memfd(name, 1 << 20).unwrap());
        let [visible, local, evicted] = &files;
        let files = CopyFiles { visible, local: local.as_fd(), evicted };
        thread::scope(|scope| {
            scope.spawn(move || {
                let channel: Channel = starts.recv().unwrap();
                let start = channel.receive::<Start>(true).unwrap().unwrap();
                assert_eq!(start.descriptors.len(), 9, "local memory and what is evicted are the last two");
                plays(&channel, start.message);
            });
            CopyProcess::start(&StandIn(stand_in), &options(), files)?.carry_out(
                MoveSide::Local(8 << 20),
                MoveSide::Visible(0),
                65 << 20,
            )
        })
    }

    fn say(channel: &Channel, response: &Response) {
        channel.send(response, &[], &[], true).unwrap();
    }

    fn started(channel: &Channel) {
        let device = "a device".to_owned();
        say(channel, &Response::Started { device, is_cpu: true, vram: 0, profile: None });
        let begin = channel.receive::<Request>(true).unwrap().unwrap().message;
        assert_eq!(begin, Request::Begin { segments: 0 });
    }

    fn next_move(channel: &Channel) -> (u64, MoveSide, MoveSide, u64) {
        match channel.receive::<Request>(true).unwrap().unwrap().message {
            Request::Move { serial, from, to, bytes } => (serial, from, to, bytes),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_long_is_copied_in_steps_each_of_which_is_waited_for() {
        copy(|channel, start| {
            let Local::Device(local) = start.local else { panic!("{start:?}") };
            assert_eq!((local.start, local.evicted_bytes, start.vram_bytes), (8 << 20, 1 << 20, 1 << 20));
            assert_eq!((start.node, start.tracking, start.sandbox), (NodeKind::Copy, Method::Off, true));
            started(channel);
            for (done, bytes) in [(0, STEP), (STEP, 1 << 20)] {
                let (serial, from, to, length) = next_move(channel);
                let sides = (MoveSide::Local((8 << 20) + done), MoveSide::Visible(done));
                assert_eq!(((from, to), length), (sides, bytes));
                say(channel, &Response::Moved { serial });
            }
        })
        .unwrap();
    }

    #[test]
    fn one_that_refuses_to_start_or_to_copy_or_ends_is_an_error_in_words() {
        let refuses = copy(|channel, _| say(channel, &Response::Refused { reason: "no device".to_owned() }));
        assert!(refuses.unwrap_err().to_string().contains("no device"));
        let refuses = copy(|channel, _| {
            started(channel);
            let (serial, ..) = next_move(channel);
            say(channel, &Response::MoveRefused { serial, reason: "it is not there".to_owned() });
        });
        assert!(refuses.unwrap_err().to_string().contains("it is not there"));
        let ends = copy(|channel, _| {
            started(channel);
            next_move(channel);
        });
        assert!(ends.unwrap_err().to_string().contains("the process that copies local memory"));
    }

    #[test]
    fn an_answer_to_another_step_is_none_to_this_one() {
        // The first: one before it, and one after it. The second: the first once more.
        for (first, second) in [(-1, 0), (1, 0), (0, -1)] {
            let answered = copy(|channel, _| {
                started(channel);
                for away in [first, second] {
                    // The process is ended where an answer is refused.
                    let Ok(Some(asked)) = channel.receive::<Request>(true) else { return };
                    let Request::Move { serial, .. } = asked.message else { panic!("{:?}", asked.message) };
                    let moved = Response::Moved { serial: serial.wrapping_add_signed(away) };
                    // It may have been ended by now.
                    let _gone = channel.send(&moved, &[], &[], true);
                }
            });
            let text = answered.unwrap_err().to_string();
            assert!(text.contains("it answers what was not asked: Moved"), "{first} {second}: {text}");
        }
    }
}
