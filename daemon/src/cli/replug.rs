//! Moves a QEMU guest whose GPU QEMU does not migrate: takes the device away, migrates the VM, gives it the device again
//! (decision 64).
//!
//! ```text
//!   1 detach      source daemon   programs let go of the vGPU, all of it is in a file
//!   2 unplug      source QEMU     device_del, DEVICE_DELETED, chardev-remove
//!   3 migrate     both QEMUs      migrate-incoming, migrate, completed       (only with a target QEMU)
//!   4 attach      target daemon   the next connection begins as that file
//!   5 plug        target QEMU     chardev-add, device_add
//!   6 return      target daemon   programs are back
//! ```
//!
//! What fails before 3 is done is undone: the source's daemon takes the file again, and the device is plugged in there.

use std::path::Path;
use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use serde_json::Value;
use serde_json::json;

use super::output::print;
use super::qmp::Monitor;
use super::qmp::QmpError;
use crate::operator::client;
use crate::operator::verb::Verb;

/// How long a guest may take to let go of the device.
const UNPLUG: Duration = Duration::from_secs(60);
/// How long programs may take to come back.
const RETURN: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// With a VMM that does not migrate the device: where its monitor is, and what the device is called there.
#[derive(Debug, Clone, Args)]
pub struct ReplugArguments {
    /// The monitor (QMP) of the QEMU that the VM runs in. Then the device is taken away, and given back where the VM is then.
    #[arg(long, value_name = "SOCKET", requires = "file")]
    pub qmp_source: Option<PathBuf>,
    /// That of the QEMU that waits for it (`-incoming defer`); without it the VM stays, and its device moves to another daemon.
    #[arg(long, value_name = "SOCKET", requires = "qmp_source", requires = "uri")]
    pub qmp_target: Option<PathBuf>,
    /// Where the VM goes, as QEMU's `migrate` has it.
    #[arg(long, value_name = "URI", requires = "qmp_target")]
    pub uri: Option<String>,
    /// Where the vGPU lies meanwhile, as both daemons see it.
    #[arg(long, value_name = "FILE", requires = "qmp_source")]
    pub file: Option<PathBuf>,
    /// The other daemon's control socket, if there is another.
    #[arg(long, value_name = "PATH", requires = "qmp_source")]
    pub target_control: Option<PathBuf>,
    /// QEMU's name for the device.
    #[arg(long, value_name = "ID", default_value = "gpu0")]
    pub device: String,
    /// QEMU's name for its chardev.
    #[arg(long, value_name = "ID", default_value = "gpu0-socket")]
    pub chardev: String,
    /// QEMU's name for the root port that it is plugged into.
    #[arg(long, value_name = "ID", default_value = "rp0")]
    pub bus: String,
    /// Milliseconds that programs may take to let go; one that takes longer loses its device.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 5000)]
    pub limit: u64,
}

/// One side: its daemon, and its VMM.
struct Side<'a> {
    control: &'a Path,
    vgpu: &'a str,
    monitor: Monitor,
}

/// Says a step, and how long the one before took.
struct Teller {
    begun: Instant,
    since: Instant,
}

impl Teller {
    fn done(&mut self, step: &str) {
        // The VM is between two daemons: what cannot be said must not end this.
        let _unsaid = print(&format!("{step}: {} ms\n", self.since.elapsed().as_millis()));
        self.since = Instant::now();
    }
}

fn status(control: &Path, vgpu: &str) -> anyhow::Result<Value> {
    let status = client::ask(control, &Verb::Status)?;
    let vgpus = status["vgpus"].as_array();
    let ours = vgpus.and_then(|all| all.iter().find(|of| of["name"] == *vgpu));
    ours.cloned().with_context(|| format!("{}: there is no vGPU {vgpu}", control.display()))
}

/// How many programs have come back to a vGPU so far, and how many have not, and were ended.
fn returns(control: &Path, vgpu: &str) -> anyhow::Result<[u64; 2]> {
    let metrics = client::ask(control, &Verb::Metrics)?;
    let vgpus = metrics["vgpus"].as_array();
    let ours = vgpus.and_then(|all| all.iter().find(|of| of["name"] == *vgpu));
    let counter = |name: &str| ours.and_then(|of| of["counters"][name].as_u64()).unwrap_or(0);
    Ok([counter("returned"), counter("stayed_away")])
}

impl Side<'_> {
    fn unplug(&mut self, arguments: &ReplugArguments) -> Result<(), QmpError> {
        self.monitor.forget_events();
        self.monitor.run("device_del", &json!({ "id": arguments.device }))?;
        let is_it = |data: &Value| data["device"] == *arguments.device;
        self.monitor.wait_for("DEVICE_DELETED", is_it, UNPLUG)?;
        let begun = Instant::now();
        loop {
            match self.monitor.run("chardev-remove", &json!({ "id": arguments.chardev })) {
                // The device lets go of it a moment after it says that it is gone.
                Err(QmpError::Refused { .. }) if begun.elapsed() < UNPLUG => std::thread::sleep(LOOK),
                removed => return removed.map(drop),
            }
        }
    }

    /// Gives the device back to the VM that has not moved; says what came of it.
    fn again(&mut self, arguments: &ReplugArguments, file: &Path) -> String {
        match self.plug(arguments, file) {
            Ok(()) => "the device is plugged in again at the source".to_owned(),
            Err(why) => format!("and at the source: {why:#}; the vGPU is in {}", file.display()),
        }
    }

    /// Begins as the file, and has the device plugged in. What fails leaves monitor, daemon and file as they were.
    fn plug(&mut self, arguments: &ReplugArguments, file: &Path) -> anyhow::Result<()> {
        let begun = Instant::now();
        let status = loop {
            let status = status(self.control, self.vgpu)?;
            // The daemon may not have seen yet that the VMM has hung up.
            if status["vm_connected"] == false {
                break status;
            }
            anyhow::ensure!(begun.elapsed() < UNPLUG, "{}: a VM is connected", self.control.display());
            std::thread::sleep(LOOK);
        };
        let attach = Verb::Attach { vgpu: self.vgpu.to_owned(), file: Some(file.to_owned()) };
        client::ask(self.control, &attach)?;
        let Err(why) = self.add(arguments, &status["socket"]) else { return Ok(()) };
        // Nobody else is to begin as it.
        let forget = Verb::Attach { vgpu: self.vgpu.to_owned(), file: None };
        match client::ask(self.control, &forget) {
            Ok(_) => Err(why.into()),
            Err(also) => {
                let also = anyhow::Error::new(also);
                let still = format!("{} still begins as the file: {also:#}", self.control.display());
                Err(anyhow::Error::new(why).context(still))
            }
        }
    }

    fn add(&mut self, arguments: &ReplugArguments, socket: &Value) -> Result<(), QmpError> {
        let backend = json!({ "type": "socket", "data": { "server": false,
            "addr": { "type": "unix", "data": { "path": socket } } } });
        self.monitor.run("chardev-add", &json!({ "id": arguments.chardev, "backend": backend }))?;
        let added = self.monitor.run(
            "device_add",
            &json!({ "driver": "vhost-user-test-device-pci", "id": arguments.device, "bus": arguments.bus,
                     "chardev": arguments.chardev, "virtio-id": 16, "num_vqs": 2, "config_size": 16,
                     "vq_size": 256 }),
        );
        if added.is_err() {
            // What was refused is said; where this is, too, the next attempt says so.
            let _gone = self.monitor.run("chardev-remove", &json!({ "id": arguments.chardev }));
        }
        added.map(drop)
    }
}

/// Moves the VM to the target's QEMU.
fn migrate_vm(source: &mut Monitor, target: &mut Monitor, uri: &str) -> anyhow::Result<Value> {
    let path = json!({ "capabilities": [{ "capability": "return-path", "state": true }] });
    for monitor in [&mut *source, &mut *target] {
        monitor.run("migrate-set-capabilities", &path)?;
    }
    target.run("migrate-incoming", &json!({ "uri": uri }))?;
    source.run("migrate", &json!({ "uri": uri }))?;
    loop {
        let of = source.run("query-migrate", &json!({}))?;
        match of["status"].as_str() {
            Some("completed") => return Ok(of),
            Some("failed" | "cancelled") => {
                anyhow::bail!("the VM did not move: {}", of["error-desc"].as_str().unwrap_or("no reason"));
            }
            _ => std::thread::sleep(LOOK),
        }
    }
}

/// Takes the device away from a VM, moves the VM where that is asked for, and gives it the device again.
///
/// # Errors
/// Which step failed, and where vGPU and file are.
pub fn replug(control: &Path, vgpu: &str, as_vgpu: &str, arguments: &ReplugArguments) -> anyhow::Result<()> {
    let (monitor, file) = (arguments.qmp_source.as_ref(), arguments.file.as_ref());
    let (monitor, file) = monitor.zip(file).context("--qmp-source and --file are needed")?;
    let file = std::path::absolute(file)?;
    let target_control = arguments.target_control.as_deref().unwrap_or(control);
    let mut source = Side { control, vgpu, monitor: Monitor::connect(monitor)? };
    let target = arguments.qmp_target.as_deref().map(Monitor::connect).transpose()?;
    if (target_control, as_vgpu) != (control, vgpu) {
        let is_free = status(target_control, as_vgpu)?["vm_connected"] == false;
        anyhow::ensure!(is_free, "{}: a VM is connected to {as_vgpu}", target_control.display());
    }
    let before = returns(target_control, as_vgpu)?;
    let mut teller = Teller { begun: Instant::now(), since: Instant::now() };
    let detach = Verb::Detach { vgpu: vgpu.to_owned(), file: file.clone(), limit: arguments.limit };
    let gone = client::ask(control, &detach).context("detach")?;
    let parked = gone["parked"].as_u64().unwrap_or(0);
    teller.done(&format!("1 detach, {parked} programs, lost {}", gone["lost"]));
    if let Err(error) = source.unplug(arguments) {
        let stayed = client::ask(control, &Verb::Attach { vgpu: vgpu.to_owned(), file: None });
        let what = match stayed {
            Ok(_) => {
                // What is here goes on, so no device is to begin as what it was.
                match std::fs::remove_file(&file) {
                    Ok(()) => "programs go on where they were".to_owned(),
                    Err(why) => {
                        let file = file.display();
                        format!(
                            "programs go on where they were; no device may begin as {file}, remove it: {why}"
                        )
                    }
                }
            }
            Err(why) => {
                let why = anyhow::Error::new(why);
                format!("and programs could not be called back: {why:#}; the vGPU is in {}", file.display())
            }
        };
        return Err(anyhow::Error::new(error).context(format!("unplug: {what}")));
    }
    teller.done("2 unplug");
    let mut target = match (target, arguments.uri.as_deref()) {
        (Some(mut monitor), Some(uri)) => match migrate_vm(&mut source.monitor, &mut monitor, uri) {
            Ok(of) => {
                teller.done(&format!("3 migrate, QEMU says {} ms", of["downtime"]));
                Side { control: target_control, vgpu: as_vgpu, monitor }
            }
            Err(error) => return Err(error.context(format!("migrate: {}", source.again(arguments, &file)))),
        },
        _ => Side { control: target_control, vgpu: as_vgpu, monitor: source.monitor },
    };
    if let Err(error) = target.plug(arguments, &file) {
        let what = if arguments.qmp_target.is_some() {
            format!("the vGPU is in {}, and programs wait for it", file.display())
        } else {
            Side { control, vgpu, ..target }.again(arguments, &file)
        };
        return Err(error.context(format!("attach: {what}")));
    }
    teller.done("4 attach, 5 plug");
    let begun = Instant::now();
    loop {
        let after = returns(target_control, as_vgpu)?;
        let [returned, ended] = [after[0] - before[0].min(after[0]), after[1] - before[1].min(after[1])];
        if returned + ended >= parked {
            teller.done(&format!("6 return, {returned} programs"));
            let _unsaid = print(&format!("all: {} ms\n", teller.begun.elapsed().as_millis()));
            anyhow::ensure!(ended == 0, "{ended} programs have not come back, and were ended");
            return Ok(());
        }
        anyhow::ensure!(begun.elapsed() < RETURN, "only {returned} of {parked} programs have come back");
        std::thread::sleep(LOOK);
    }
}
