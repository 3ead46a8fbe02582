//! One connection to a daemon: its socket, its channel, its threads, and what the device on it put into the window.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use vhost::vhost_user::VhostUserProtocolFeatures as Protocol;

use super::alarm::Alarm;
use super::back_channel;
use super::front_end::DeviceFacts;
use super::front_end::FrontEnd;
use super::guest_ram::GuestRam;
use super::memory_table::MemoryTable;
use super::options::VmOptions;
use super::threads::Threads;
use super::virt_queue::VirtQueue;
use super::virt_queue::Wiring;
use super::watch;
use super::window::Maps;
use campanile_guest_driver::transport::error::TransportError;

/// What a VM has of one daemon. Dropping it hangs up.
pub(super) struct Connection {
    pub(super) front_end: Arc<FrontEnd>,
    pub(super) alarm: Arc<Alarm>,
    pub(super) maps: Arc<Maps>,
    pub(super) facts: DeviceFacts,
    /// Our copy of the device's end of its channel, until the device has it.
    theirs: Option<UnixStream>,
    /// Dropped last: ends the threads.
    _threads: Threads,
}

/// What the VM brings.
pub(super) struct Machine<'a> {
    pub(super) options: &'a VmOptions,
    pub(super) ram: &'a Arc<GuestRam>,
    pub(super) ram_file: Arc<File>,
    pub(super) aperture: Option<&'a Arc<GuestRam>>,
    pub(super) queues: &'a [Arc<VirtQueue>],
    pub(super) wirings: &'a [Wiring],
}

/// How a VMM begins on a new connection.
#[derive(Debug, Clone, Copy)]
pub(super) enum Opening {
    /// As QEMU always, and cloud-hypervisor for a VM that boots.
    Negotiated,
    /// As cloud-hypervisor for a VM with a past: nothing is asked, everything is as it was.
    AsBefore { protocol: Protocol, facts: DeviceFacts },
}

impl Connection {
    /// Connects, and says what comes before features, memory and rings. While it is new its end loses nothing:
    /// [`Alarm::release`] changes that.
    pub(super) fn open(path: &Path, machine: &Machine<'_>, opening: Opening) -> Result<Self, TransportError> {
        let Machine { options, ram, ram_file, aperture, queues, wirings } = machine;
        let alarm = Alarm::new()?;
        alarm.hold();
        let table = MemoryTable::new(Arc::clone(ram), Arc::clone(ram_file), aperture.map(Arc::clone));
        let front_end =
            Arc::new(FrontEnd::connect(path, table, Arc::clone(&alarm), options.message_timeout)?);
        let refused =
            |source: std::io::Error| TransportError::System { what: "a socket pair", source: source.into() };
        let (theirs, ours) = UnixStream::pair().map_err(refused)?;
        let mut threads = Threads {
            alarm: Arc::clone(&alarm),
            front_end: Arc::clone(&front_end),
            back_channel: ours.try_clone().map_err(refused)?,
            handles: Vec::new(),
        };
        {
            let (front_end, alarm, queues) = (Arc::clone(&front_end), Arc::clone(&alarm), queues.to_vec());
            threads.start("loopback-watch", move || watch::watch(&front_end, &alarm, &queues))?;
        }
        let (facts, theirs) = match opening {
            Opening::Negotiated => (front_end.negotiate(wirings, &theirs, options.device)?, None),
            Opening::AsBefore { protocol, facts } => {
                front_end.reconnect(protocol)?;
                (facts, Some(theirs))
            }
        };
        let maps = Maps::new(facts.window_bytes);
        if options.window_in_memory_table {
            front_end.add_window(Arc::clone(&maps));
        }
        {
            let (front_end, maps, when) = (Arc::clone(&front_end), Arc::clone(&maps), options.back_channel);
            threads.start("loopback-back", move || back_channel::serve(&ours, &front_end, &maps, when))?;
        }
        Ok(Self { front_end, alarm, maps, facts, theirs, _threads: threads })
    }

    /// Gives the device its channel, where it has not had it.
    pub(super) fn give_back_channel(&self) -> Result<(), TransportError> {
        let is_agreed = self.front_end.protocol().contains(Protocol::BACKEND_REQ);
        match self.theirs.as_ref().filter(|_| is_agreed) {
            Some(theirs) => self.front_end.set_back_channel(theirs),
            None => Ok(()),
        }
    }
}
