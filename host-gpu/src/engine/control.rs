//! The control thread: what needs system calls. What needs the compiler goes to [`super::compiling`].

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use campanile_protocol::page_table::SegmentId;

use zerocopy::FromBytes;

use super::channel::Channel;
use super::channel::ChannelError;
use super::channel::Received;
use super::commands::Command;
use super::commands::CommandSender;
use super::message::MAX_RUNS;
use super::message::Request;
use super::message::Response;
use super::message::RunRecord;
use super::mover::Mover;
use super::orders::Create;
use super::orders::Order;
use super::orders::Orders;
use crate::dirty::protect::Guard;
use crate::memory::mapping::Mapping;
use crate::memory::view::FileRange;

/// How long what runs may take to stop when the daemon is gone: as long as what keeps the daemon waits, and no longer.
const END_LIMIT: Duration = Duration::from_millis(200);

/// The control thread's state.
pub struct Control {
    /// To the daemon.
    pub channel: Arc<Channel>,
    /// To the execution thread.
    pub commands: CommandSender,
    /// On the compute node.
    pub compiler: Option<Orders>,
    /// On the copy node, where local memory is a device's own.
    pub mover: Option<Mover>,
    /// Told when it may begin.
    pub begin: mpsc::Sender<()>,
    /// The serial of the last request to add or remove a segment.
    pub segments: u64,
    /// That from which on it may begin, once it was told.
    pub begins_at: Option<u64>,
    /// Whether it has begun.
    pub has_begun: bool,
    /// Protects what is mapped, where stores are noted by the kernel. Lives as long as the process.
    pub guard: Option<Guard>,
}

impl Control {
    /// Serves until the daemon closes the channel. What runs then is put aside, if that is soon enough, and the process ends with it.
    pub fn run(mut self) -> ChannelError {
        let error = self.serve_all();
        if self.has_begun {
            self.commands.send(Command::End);
            // The execution thread ends the process.
            thread::park_timeout(END_LIMIT);
        }
        error
    }

    fn serve_all(&mut self) -> ChannelError {
        loop {
            let received = match self.channel.receive(true) {
                Ok(Some(received)) => received,
                Ok(None) => continue,
                Err(error) => return error,
            };
            let response = self.serve(received);
            self.begin_if_due();
            if let Some(response) = response
                && let Err(error) = self.channel.send(&response, &[], &[], true)
            {
                return error;
            }
        }
    }

    fn serve(&mut self, received: Received<Request>) -> Option<Response> {
        match received.message {
            Request::Begin { segments } => {
                self.begins_at = Some(segments);
                self.order(Order::Begin);
                None
            }
            Request::AddSegment { segment, serial, runs } => {
                let files: Vec<File> = received.descriptors.into_iter().map(File::from).collect();
                Some(match add_segment(files, runs) {
                    Ok(mapping) => {
                        // Before the first store there.
                        let address = self.protect(&mapping);
                        let id = SegmentId(segment);
                        self.segments = serial;
                        self.commands.send(Command::AddSegment(serial, id, Arc::new(mapping)));
                        Response::SegmentAdded { segment, serial, address }
                    }
                    Err(reason) => Response::SegmentRefused { segment, reason },
                })
            }
            Request::RemoveSegment { segment, serial } => {
                self.segments = serial;
                self.commands.send(Command::RemoveSegment(serial, SegmentId(segment)));
                None
            }
            // Answered by the threads that compile.
            Request::CreateKernel { kernel, language, entry, alone } => {
                let create = Create { kernel, language, entry, bytes: received.bytes, alone };
                let is_asked = self.order(Order::Create(create));
                let reason = || "this node runs no kernels".to_owned();
                (!is_asked).then(|| Response::KernelRefused { kernel, reason: reason() })
            }
            Request::DestroyKernel { kernel } => {
                let is_asked = self.order(Order::Destroy { kernel });
                (!is_asked).then_some(Response::KernelDestroyed { kernel })
            }
            Request::Move { serial, from, to, bytes } => {
                let moved = match &mut self.mover {
                    Some(mover) => mover.carry_out(from, to, bytes).map_err(|error| error.to_string()),
                    None => Err("this engine moves no memory".to_owned()),
                };
                Some(match moved {
                    Ok(()) => Response::Moved { serial },
                    Err(reason) => Response::MoveRefused { serial, reason },
                })
            }
        }
    }

    /// Has a thread that compiles do it, where there are any.
    fn order(&self, order: Order) -> bool {
        match &self.compiler {
            Some(compiler) => {
                compiler.give(order);
                true
            }
            None => false,
        }
    }

    /// Starts the execution thread, which takes the segments that it was sent before it looks at anything else.
    fn begin_if_due(&mut self) {
        if self.begins_at.take_if(|serial| *serial <= self.segments).is_some() {
            // It is not waited for a second time.
            let _unheard = self.begin.send(());
            self.has_begun = true;
        }
    }

    /// Where a mapping begins whose stores are noted from here on; none where that cannot be, or need not.
    fn protect(&self, mapping: &Mapping) -> Option<u64> {
        let address = mapping.host_pointer().addr() as u64;
        match self.guard.as_ref()?.protect(address, mapping.len()) {
            Ok(()) => Some(address),
            Err(error) => {
                log::debug!("stores to a segment are not noted: {error}");
                None
            }
        }
    }
}

fn add_segment(mut files: Vec<File>, runs: u64) -> Result<Mapping, String> {
    if files.is_empty() || runs == 0 || runs > MAX_RUNS {
        return Err(format!("a segment of {runs} runs in {} files", files.len()));
    }
    let list = files.remove(0);
    let mut bytes = vec![0; usize::try_from(runs).unwrap_or(0) * size_of::<RunRecord>()];
    list.read_exact_at(&mut bytes, 0).map_err(|e| e.to_string())?;
    let mut ranges = Vec::with_capacity(bytes.len() / size_of::<RunRecord>());
    for bytes in bytes.chunks_exact(size_of::<RunRecord>()) {
        let run = RunRecord::read_from_bytes(bytes).map_err(|_| "a run record is short".to_owned())?;
        let file = usize::try_from(run.file).ok().and_then(|index| files.get(index));
        let file = file.ok_or_else(|| format!("file {} did not come along", run.file))?;
        ranges.push(FileRange { file, offset: run.offset, length: run.length });
    }
    Mapping::of_ranges(&ranges).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc;
    use std::sync::mpsc::TryRecvError;
    use std::thread;

    use super::Channel;
    use super::CommandSender;
    use super::Control;
    use super::Request;
    use super::Response;
    use crate::event::Event;
    use crate::kernel::name::KernelName;

    /// Sends what is answered: after it, whatever was sent before has been served.
    fn round_trip(daemon: &Channel) {
        let kernel = KernelName { root: 1, handle: 1 };
        let request = Request::CreateKernel { kernel, language: 0, entry: None, alone: false };
        daemon.send(&request, &[], &[], true).unwrap();
        let answer = daemon.receive::<Response>(true).unwrap().unwrap().message;
        assert!(matches!(answer, Response::KernelRefused { .. }), "{answer:?}");
    }

    #[test]
    fn tdr_57_an_engine_begins_only_with_the_segments_that_it_was_told_of_before() {
        let (daemon, channel) = Channel::pair().unwrap();
        let (sender, _commands) = mpsc::channel();
        let (pending, wake) = (Arc::new(AtomicBool::new(false)), Arc::new(Event::new().unwrap()));
        let commands = CommandSender { sender, kernels: Arc::default(), pending, wake };
        let (begin, begun) = mpsc::channel();
        let control = Control {
            channel: Arc::new(channel),
            commands,
            compiler: None,
            mover: None,
            begin,
            segments: 0,
            begins_at: None,
            has_begun: false,
            guard: None,
        };
        thread::scope(|scope| {
            scope.spawn(move || control.run());
            let remove = |serial| {
                daemon.send(&Request::RemoveSegment { segment: 1, serial }, &[], &[], true).unwrap();
                round_trip(&daemon);
            };
            remove(1);
            // The channel had no room for two of three requests before this one.
            daemon.send(&Request::Begin { segments: 3 }, &[], &[], true).unwrap();
            round_trip(&daemon);
            assert_eq!(begun.try_recv(), Err(TryRecvError::Empty));
            remove(2);
            assert_eq!(begun.try_recv(), Err(TryRecvError::Empty));
            remove(3);
            assert_eq!(begun.try_recv(), Ok(()));
            remove(4);
            assert_eq!(begun.try_recv(), Err(TryRecvError::Empty), "once");
            drop(daemon);
        });
    }
}
