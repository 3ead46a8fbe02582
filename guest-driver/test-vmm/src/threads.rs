//! The threads of a VM, from its first message to its end.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;

use super::alarm::Alarm;
use super::front_end::FrontEnd;
use campanile_guest_driver::transport::error::TransportError;

/// The VM's threads, and what ends them.
pub(super) struct Threads {
    pub(super) alarm: Arc<Alarm>,
    pub(super) front_end: Arc<FrontEnd>,
    /// The VMM's end of the device's channel.
    pub(super) back_channel: UnixStream,
    pub(super) handles: Vec<JoinHandle<()>>,
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.alarm.end();
        self.front_end.hang_up();
        // Fails only where the device has closed the other end: then the thread has seen that.
        let _closed = self.back_channel.shutdown(Shutdown::Both);
        for handle in self.handles.drain(..) {
            if handle.join().is_err() {
                log::error!("a thread of the loopback VM panicked");
            }
        }
    }
}

impl Threads {
    /// Runs one more thread.
    pub(super) fn start(
        &mut self,
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), TransportError> {
        let refused =
            |source: std::io::Error| TransportError::System { what: "a thread", source: source.into() };
        self.handles.push(std::thread::Builder::new().name(name.to_owned()).spawn(run).map_err(refused)?);
        Ok(())
    }
}
