//! The control thread: what needs system calls, or the compiler.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::control::message::LANGUAGE_SPIRV;
use campanile_protocol::control::message::LANGUAGE_SPIRV_PIPELINE;
use campanile_protocol::control::message::LANGUAGE_WGSL;
use campanile_protocol::control::pipeline;
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
use crate::code_cache::store::Store;
use crate::dirty::protect::Guard;
use crate::kernel::program::Kernel;
use crate::kernel::sanitizer::Sanitizer;
use crate::kernel::source::Fixed;
use crate::kernel::source::Language;
use crate::kernel::source::Source;
use crate::memory::mapping::Mapping;
use crate::memory::view::FileRange;
use crate::node::candidate::Candidate;
use crate::node::device_instance::Compiled;
use crate::vulkan::pipeline::Compiler as PipelineCompiler;
use crate::vulkan::pipeline::Pipeline;

/// What compiles kernels, on a node that has any.
pub struct Compiler {
    /// Checks and re-emits.
    pub sanitizer: Sanitizer,
    /// Makes pipelines.
    pub pipelines: PipelineCompiler,
    /// What it and processes before it have compiled, where the driver keeps that.
    pub cache: Option<Store>,
}

/// The control thread's state.
pub struct Control {
    /// To the daemon.
    pub channel: Channel,
    /// To the execution thread.
    pub commands: CommandSender,
    /// On the compute node.
    pub compiler: Option<Compiler>,
    /// On the copy node, where local memory is a device's own.
    pub mover: Option<Mover>,
    /// How many were compiled.
    pub kernels: u64,
    /// Told when it may begin.
    pub begin: mpsc::Sender<()>,
    /// The serial of the last request to add or remove a segment.
    pub segments: u64,
    /// That from which on it may begin, once it was told.
    pub begins_at: Option<u64>,
    /// Protects what is mapped, where stores are noted by the kernel. Lives as long as the process.
    pub guard: Option<Guard>,
}

impl Control {
    /// Serves until the daemon closes the channel.
    pub fn run(mut self) -> ChannelError {
        loop {
            let received = match self.next() {
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

    /// The next request. Meanwhile it is looked at what the driver has written of the last kernel.
    fn next(&mut self) -> Result<Option<Received<Request>>, ChannelError> {
        while let Some(cache) = self.cache()
            && let Some(wait) = cache.next_look()
            && !self.channel.has_message_within(wait)
        {
            self.cache().into_iter().for_each(Store::look);
        }
        self.channel.receive(true)
    }

    fn cache(&mut self) -> Option<&mut Store> {
        self.compiler.as_mut()?.cache.as_mut()
    }

    fn serve(&mut self, received: Received<Request>) -> Option<Response> {
        match received.message {
            Request::Begin { segments } => {
                self.begins_at = Some(segments);
                self.cache().into_iter().for_each(Store::begin);
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
            Request::CreateKernel { kernel, language, entry } => {
                Some(match self.compile(language, entry, received.bytes) {
                    Ok((program, pipeline, took)) => {
                        self.kernels += 1;
                        let created = Response::KernelCreated {
                            kernel,
                            workgroup: program.workgroup,
                            binding_count: u32::try_from(program.points().count()).unwrap_or(u32::MAX),
                            constant_bytes: program.constants,
                        };
                        let candidate = Some(Candidate::new(program, took));
                        let compiled = Compiled { serial: self.kernels, pipeline, candidate };
                        self.commands.add_kernel(kernel, compiled);
                        created
                    }
                    Err(reason) => Response::KernelRefused { kernel, reason },
                })
            }
            Request::DestroyKernel { kernel } => {
                self.commands.remove_kernel(kernel);
                Some(Response::KernelDestroyed { kernel })
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

    /// Starts the execution thread, which takes the segments that it was sent before it looks at anything else.
    fn begin_if_due(&mut self) {
        if self.begins_at.take_if(|serial| *serial <= self.segments).is_some() {
            // It is not waited for a second time.
            let _unheard = self.begin.send(());
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

    /// Also says how long the driver took for it.
    fn compile(
        &mut self,
        language: u32,
        entry: Option<String>,
        bytes: Vec<u8>,
    ) -> Result<(Kernel, Pipeline, Duration), String> {
        let Compiler { sanitizer, pipelines, cache } =
            self.compiler.as_mut().ok_or("this node runs no kernels")?;
        let source = source(language, entry, bytes)?;
        let kernel = sanitizer.sanitize(&source).map_err(|e| e.to_string())?;
        cache.as_mut().into_iter().for_each(Store::take);
        let started = Instant::now();
        let pipeline = pipelines.pipeline(&kernel).map_err(|e| e.to_string())?;
        let took = started.elapsed();
        cache.as_mut().into_iter().for_each(Store::compiled);
        Ok((kernel, pipeline, took))
    }
}

/// What CREATE_KERNEL brought, taken apart.
fn source(language: u32, entry: Option<String>, bytes: Vec<u8>) -> Result<Source, String> {
    let (language, bytes, fixed) = match language {
        LANGUAGE_WGSL => (Language::Wgsl, bytes, Fixed::default()),
        LANGUAGE_SPIRV => (Language::SpirV, bytes, Fixed::default()),
        LANGUAGE_SPIRV_PIPELINE => {
            let parts = pipeline::Parts::read(&bytes).map_err(|malformed| malformed.to_string())?;
            let constants = parts.constants().map(|constant| (constant.id, constant.value)).collect();
            let fixed = Fixed { constants, subgroup_size: parts.subgroup_size };
            (Language::SpirV, parts.words.to_vec(), fixed)
        }
        other => return Err(format!("kernel language {other} does not exist")),
    };
    Ok(Source { language, bytes, entry, fixed })
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
        let request = Request::CreateKernel { kernel, language: 0, entry: None };
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
            channel,
            commands,
            compiler: None,
            mover: None,
            kernels: 0,
            begin,
            segments: 0,
            begins_at: None,
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
