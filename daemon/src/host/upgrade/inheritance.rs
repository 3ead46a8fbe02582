//! vGPUs with a VM that this daemon goes on with: of a predecessor that hands them over, or of one that was killed.
//!
//! ```text
//!   add ─▶ take, when the vGPU is there ─▶ ready: its device is made, frozen ─▶ go: its rings run
//! ```

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::Sender;
use std::time::Duration;

use campanile_host_gpu::adapter::ahead::OpenedEngines;

use crate::frontend::vhost::handed::Handed as HandedConnection;
use crate::frontend::vhost::handed::Inherited;
use crate::ledger::log::Log;
use crate::ledger::words::Words;
use crate::migration::handed::Becomes;
use crate::migration::handed::HandedDevice;
use crate::operator::held::Held;
use crate::vgpu::memory::vidmm::device_local::DeviceLocal;

/// How long a vGPU may take for each step.
const LIMIT: Duration = Duration::from_secs(60);

/// A ledger that goes on.
#[derive(Debug)]
pub(in crate::host) struct Resumed {
    pub(in crate::host) log: Log,
    pub(in crate::host) words: Arc<Words>,
    /// Roles of what lies in the store.
    pub(in crate::host) stored: BTreeSet<String>,
    /// Devices of guest processes that were lost.
    pub(in crate::host) lost: u64,
}

/// A vGPU on its way.
#[derive(Debug)]
pub(in crate::host) struct Arrived {
    pub(in crate::host) connection: HandedConnection,
    pub(in crate::host) device: HandedDevice,
    /// Its ledger, where the daemon before this one was killed.
    pub(in crate::host) ledger: Option<Resumed>,
}

/// A vGPU that begins as one that was there before.
#[derive(Debug)]
pub(in crate::host) struct Taken {
    pub(in crate::host) connection: Inherited,
    pub(in crate::host) device: HandedDevice,
    pub(in crate::host) ledger: Option<Resumed>,
}

/// How a vGPU is told to go on, and what came of it.
#[derive(Debug)]
pub(in crate::host) struct Waiting {
    pub(in crate::host) name: String,
    ready: Receiver<Result<(), String>>,
    go: Sender<()>,
}

impl Waiting {
    /// Waits until its device is made, and, once it was told to go on, until it does.
    ///
    /// # Errors
    /// Why it is not, or does not.
    pub(in crate::host) fn wait(&self) -> Result<(), String> {
        self.ready.recv_timeout(LIMIT).map_err(|_| "its thread has ended".to_owned()).and_then(|ready| ready)
    }

    /// It may go on.
    pub(in crate::host) fn go(&self) {
        // Its thread may have ended: that is seen when it is waited for.
        let _ended = self.go.send(());
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(in crate::host) struct Inheritance {
    arrived: Mutex<BTreeMap<String, Arrived>>,
    /// Local memory that is a device's own, by vGPU.
    locals: Mutex<BTreeMap<String, DeviceLocal>>,
    /// What launches the engines of a vGPU that are open already, and how those are held.
    opened: Mutex<BTreeMap<String, (Held, Arc<OpenedEngines>)>>,
    waiting: Mutex<Vec<Waiting>>,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inheritance {
    /// One has come.
    pub(in crate::host) fn add(&self, name: String, arrived: Arrived) {
        locked(&self.arrived).insert(name, arrived);
    }

    /// The local memory of one has come, which is a device's own.
    pub(in crate::host) fn add_local(&self, name: String, local: DeviceLocal) {
        locked(&self.locals).insert(name, local);
    }

    /// Takes the local memory of a vGPU.
    pub(in crate::host) fn take_local(&self, name: &str) -> Option<DeviceLocal> {
        locked(&self.locals).remove(name)
    }

    /// Engines of a vGPU are open.
    pub(in crate::host) fn add_opened(&self, name: String, held: Held, engines: Arc<OpenedEngines>) {
        locked(&self.opened).insert(name, (held, engines));
    }

    /// What launches the engines of a vGPU that are open already, and how those are held.
    pub(in crate::host) fn opened(&self, name: &str) -> Option<(Held, Arc<OpenedEngines>)> {
        locked(&self.opened).get(name).cloned()
    }

    /// The users as which engines run that are open already.
    pub(in crate::host) fn opened_users(&self) -> Vec<u32> {
        locked(&self.opened).values().filter_map(|(held, _)| held.uid()).collect()
    }

    /// All devices are as they were: engines that none of them has taken end.
    pub(in crate::host) fn end_opened(&self) {
        // A vGPU of the same name that comes later has nothing of that.
        let all = std::mem::take(&mut *locked(&self.opened));
        let left: usize = all.values().map(|(_, engines)| engines.end()).sum();
        if left > 0 {
            log::info!("upgrade: {left} engines that are open ahead have nothing to go on with, and end");
        }
    }

    /// Whether a vGPU goes on with all that its VM has in it.
    pub(in crate::host) fn is_whole(&self, name: &str) -> bool {
        let arrived = locked(&self.arrived);
        arrived.get(name).is_some_and(|arrived| matches!(arrived.device.state, Becomes::Whole(_)))
    }

    /// Takes the device and the connection of a vGPU that a VM has.
    pub(in crate::host) fn take(&self, name: &str) -> Option<Taken> {
        let Arrived { connection, device, ledger } = locked(&self.arrived).remove(name)?;
        let (ready, its_ready) = mpsc::channel();
        let (go, its_go) = mpsc::channel();
        locked(&self.waiting).push(Waiting { name: name.to_owned(), ready: its_ready, go });
        let connection = Inherited { handed: connection, ready, go: its_go, is_orphan: ledger.is_some() };
        Some(Taken { connection, device, ledger })
    }

    /// One that nothing has taken.
    pub(in crate::host) fn unclaimed(&self) -> Option<String> {
        locked(&self.arrived).keys().next().cloned()
    }

    /// Those that were taken.
    pub(in crate::host) fn waiting(&self) -> Vec<Waiting> {
        std::mem::take(&mut *locked(&self.waiting))
    }
}
