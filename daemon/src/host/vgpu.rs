//! A vGPU for a program that serves within itself.

use std::path::Path;
use std::path::PathBuf;
use std::sync::Arc;

use super::ground::Served;
use crate::frontend::vhost::counters::Counters as ShellCounters;
use crate::vgpu::control::orders::Orders;
use crate::vgpu::counters::Counters;
use crate::vgpu::doorbells::switch::NotifySwitch;
use crate::vgpu::memory::dirty::TrackerBoard;

/// A vGPU as it was at the start, for a program that serves within itself.
#[derive(Debug)]
pub struct Vgpu {
    /// Its name.
    pub name: String,
    /// What its sessions count.
    pub counters: Arc<Counters>,
    /// What its rings count.
    pub shell_counters: Arc<ShellCounters>,
    /// Switches nodes to notify mode and back.
    pub notify: Arc<NotifySwitch>,
    /// Where orders to its thread go.
    pub orders: Arc<Orders>,
    /// Where its memory's writes are known.
    pub trackers: Arc<TrackerBoard>,
    path: PathBuf,
}

impl From<&Served> for Vgpu {
    fn from(served: &Served) -> Self {
        let known = &served.known;
        Self {
            name: known.name.clone(),
            counters: Arc::clone(&known.counters),
            shell_counters: Arc::clone(&known.shell_counters),
            notify: Arc::clone(&known.notify),
            orders: Arc::clone(&known.commands),
            trackers: Arc::clone(&served.trackers),
            path: known.socket.clone(),
        }
    }
}

impl Vgpu {
    /// The path of its socket.
    pub fn socket(&self) -> &Path {
        &self.path
    }
}
