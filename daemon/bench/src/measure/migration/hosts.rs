//! Two daemons that are each other's peers.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;
use tempfile::TempDir;

use super::figures::Pass;
use super::figures::find;
use super::figures::passes;
use crate::measure::cpu_time;
use crate::measure::daemon::DaemonProcess;
use campanile_daemon::operator::client;
use campanile_daemon::operator::verb::Verb;

/// A pair of daemons. The guest to move is on vGPU v0 of one of them, innocent ones on v1 of the first.
#[derive(Debug)]
pub struct Hosts {
    daemons: [DaemonProcess; 2],
    _peers: TempDir,
}

impl Hosts {
    /// Two daemons with a vGPU of `vram` bytes to move, and a small one.
    pub fn start(vram: u64, settings: &[OsString]) -> anyhow::Result<Self> {
        let peers = tempfile::tempdir()?;
        let peer = |index: usize| format!("unix:{}", peers.path().join(format!("peer{index}")).display());
        let daemon = |own: usize, other: usize| {
            let more =
                ["--migrate-listen".into(), peer(own).into(), "--migrate-to".into(), peer(other).into()];
            let settings: Vec<OsString> = settings.iter().cloned().chain(more).collect();
            DaemonProcess::with_specs(&[format!("vram={vram}"), "vram=64M".to_owned()], &settings)
        };
        Ok(Self { daemons: [daemon(0, 1)?, daemon(1, 0)?], _peers: peers })
    }

    /// Socket of the vGPU that guests move from and to, at this host.
    pub fn socket(&self, host: usize) -> PathBuf {
        self.daemons[host].socket_of(0)
    }

    /// Socket of the other vGPU.
    pub fn innocent_socket(&self, host: usize) -> PathBuf {
        self.daemons[host].socket_of(1)
    }

    fn migration(&self, host: usize) -> anyhow::Result<Value> {
        client::ask(&self.daemons[host].control(), &Verb::Migration).context("asking a daemon how far it is")
    }

    /// What the source's daemon has sent.
    pub fn passes(&self, host: usize) -> anyhow::Result<Vec<Pass>> {
        Ok(passes(&self.migration(host)?))
    }

    /// Whether what is left would go in so much time.
    pub fn is_nearly_there(&self, host: usize, pause: Duration) -> anyhow::Result<bool> {
        let status = self.migration(host)?;
        let estimate = find(&status, "estimate_ms").and_then(Value::as_u64);
        let fits = estimate.is_some_and(|left| Duration::from_millis(left) <= pause);
        Ok(fits && !passes(&status).is_empty())
    }

    /// CPU time of both daemons, without their engines: what a move uses.
    pub fn cpu_time(&self) -> anyhow::Result<Duration> {
        Ok(cpu_time::of_process(self.daemons[0].pid())? + cpu_time::of_process(self.daemons[1].pid())?)
    }
}
