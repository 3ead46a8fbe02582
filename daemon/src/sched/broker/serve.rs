//! The broker's thread.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use campanile_host_gpu::essential_thread;
use campanile_host_gpu::event::Event;
use campanile_host_gpu::log_limit::LogLimit;

use super::server::Server;
use crate::listener::Listener;
use crate::listener::SocketError;
use crate::sched::thread::Supervisor;

/// The broker, which serves until this is dropped. Its engines keep then what they have.
#[derive(Debug)]
pub struct Broker {
    stop: Arc<Event>,
    thread: Option<JoinHandle<()>>,
}

impl Broker {
    /// Serves daemons that connect there, over a supervisor that has no engines yet.
    ///
    /// # Errors
    /// A thread or descriptors cannot be had.
    pub fn serve(listener: Listener, supervisor: Arc<Supervisor>) -> Result<Self, SocketError> {
        let path = listener.path().to_owned();
        let failed = |source| SocketError::Thread { path: path.clone(), source };
        let stop = Arc::new(Event::new().map_err(failed)?);
        supervisor.hold_back(true);
        let server = Server::new(listener, supervisor, &stop, Instant::now()).map_err(failed)?;
        let run = move || LogLimit::new("broker").within(|| server.run());
        let thread = Some(essential_thread::spawn("broker", run).map_err(failed)?);
        Ok(Self { stop, thread })
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop.signal();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            log::error!("the broker's thread panicked");
        }
    }
}
