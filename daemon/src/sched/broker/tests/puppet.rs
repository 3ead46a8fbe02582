//! A daemon that says what a test wants.

use super::super::line::Line;
use super::super::message::ToBroker;
use super::super::message::ToDaemon;
use super::super::message::Tuning;
use super::super::message::VERSION;
use super::world::Host;
use super::world::NEVER;
use crate::sched::record::Record;
use crate::sched::share::Share;
use crate::sched::testing::block;
use campanile_host_gpu::adapter::process::GrantHandle;
use rustix::event::PollFlags;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;

/// A daemon that says what a test wants.
pub(in crate::sched::broker) struct Puppet {
    pub(in crate::sched::broker) line: Line,
    files: Vec<OwnedFd>,
    pub(in crate::sched::broker) handle: GrantHandle,
}

impl Puppet {
    pub(in crate::sched::broker) fn new(host: &Host) -> Self {
        let handle = block();
        let (_, record) = Record::new().unwrap();
        let own = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned().unwrap();
        let files = vec![own(&*handle.file), own(&*handle.wake), own(&*handle.asks), record.into()];
        Self { line: Line::connect(&host.path).unwrap(), files, handle }
    }

    pub(in crate::sched::broker) fn says(&self, message: &ToBroker) {
        self.line.send(message, &[]).unwrap();
    }

    pub(in crate::sched::broker) fn greets(&self, peers: u32, engines: u32) {
        let devices = vec!["gpu#0".to_owned()];
        self.says(&ToBroker::Hello { version: VERSION, devices, peers, engines });
    }

    /// Says that an engine takes part, with other descriptors than it should have.
    pub(super) fn adds_with(&self, message: &ToBroker, change: impl FnOnce(&mut Vec<OwnedFd>)) {
        let mut files = self.files.iter().map(|file| file.try_clone().unwrap()).collect();
        change(&mut files);
        let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        self.line.send(message, &files).unwrap();
    }

    pub(in crate::sched::broker) fn adds(&self, engine: u64) {
        self.adds_with(&add(engine), |_| {});
    }

    /// As [`Self::adds`]; false where the line has no room.
    pub(super) fn tries_to_add(&self, engine: u64) -> bool {
        let files: Vec<_> = self.files.iter().map(AsFd::as_fd).collect();
        self.line.send(&add(engine), &files).is_ok()
    }

    /// What the broker says, until it says something like that; or the end.
    pub(in crate::sched::broker) fn hears<T>(&self, wanted: impl Fn(ToDaemon) -> Option<T>) -> Option<T> {
        loop {
            assert!(self.line.wait(PollFlags::IN, NEVER), "the broker says nothing");
            match self.line.receive::<ToDaemon>() {
                Ok(Some((message, _))) => {
                    if let Some(found) = wanted(message) {
                        return Some(found);
                    }
                }
                Ok(None) => {}
                Err(_) => return None,
            }
        }
    }

    /// Why it is refused.
    pub(super) fn refused(&self) -> String {
        let why = |message| if let ToDaemon::Refused { why } = message { Some(why) } else { None };
        self.hears(why).expect("the line is closed, and nothing says why")
    }
}

pub(in crate::sched::broker) fn add(engine: u64) -> ToBroker {
    let tuning = Tuning::new(None, Share::default());
    ToBroker::Add { engine, vgpu: "a".to_owned(), adapter: 0, is_copy: false, tuning }
}

/// That of a daemon that was in no schedule before, and has no engines.
pub(super) fn hello() -> ToBroker {
    ToBroker::Hello { version: VERSION, devices: vec!["gpu#0".to_owned()], peers: 0, engines: 0 }
}
