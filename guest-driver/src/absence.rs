//! The device is taken away, and comes back: what this process does about it by itself (decision 64).
//!
//! ```text
//!   LEAVE of the device page ─▶ gate closed ─▶ PARK_DEVICE ─▶ pages put aside, device closed
//!        another device ─▶ blobs made again ─▶ pages back ─▶ ATTACH_DEVICE ─▶ fences asked for again ─▶ gate open
//! ```
//!
//! A thread of its own looks every [`LOOK`]: it costs a load, and holds nothing of the device in between.
//! What fails loses the device: its page, which is private by then, says so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::mpsc::Sender;
use std::time::Duration;
use std::time::Instant;

use campanile_protocol::PROTOCOL_VERSION;
use campanile_protocol::control::away;
use campanile_protocol::control::away::AttachDevice;
use campanile_protocol::control::away::PagesAgain;
use campanile_protocol::control::away::Parked;
use campanile_protocol::control::away::blob_name;
use campanile_protocol::control::status::Status;
use campanile_protocol::device_page;
use zerocopy::FromBytes;
use zerocopy::IntoBytes;

use crate::control::Control;
use crate::error::DriverError;
use crate::transport::Transport;
use crate::transport::away::Again;
use crate::transport::away::Migrant;
use crate::transport::away::StandIn;
use crate::transport::error::TransportError;
use crate::transport::shared_memory::SharedMemory;

/// How often it is looked whether the device is about to be taken away, or has come back.
const LOOK: Duration = Duration::from_millis(50);
/// How long threads of this process may take to end what they are saying.
const SILENCE: Duration = Duration::from_secs(2);
/// How long the daemon may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// How long the device that was left is not taken for the one that comes.
const UNPLUG: Duration = Duration::from_secs(10);
/// How long the device may be away.
const ABSENCE: Duration = Duration::from_secs(300);

/// Makes a device's control path, and sees to it when the device is taken away.
pub(crate) fn watch(make: impl FnOnce(Option<Sender<()>>) -> Control) -> Result<Arc<Control>, DriverError> {
    let (sender, receiver) = mpsc::channel();
    let control = Arc::new(make(Some(sender)));
    if control.transport().migrant().is_none() {
        return Ok(control);
    }
    let watched = Arc::downgrade(&control);
    let thread = std::thread::Builder::new().name("campanile-away".to_owned());
    let started = thread.spawn(move || look_on(&watched, &receiver));
    started.map_err(|source| TransportError::System { what: "a thread", source: source.into() })?;
    Ok(control)
}

fn look_on(watched: &Weak<Control>, end: &Receiver<()>) {
    let mut is_told = false;
    while end.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        let Some(control) = watched.upgrade() else { return };
        let word = control.page().word(device_page::LEAVE);
        let is_asked = word.is_some_and(|word| word.load(Ordering::Acquire) != 0);
        if is_asked && is_lost(&control) {
            return abandon(&control);
        }
        if is_asked
            && let Err(why) = go_and_come(&control)
            && !std::mem::replace(&mut is_told, true)
        {
            log::warn!("the device is about to be taken away, and cannot be parked: {why}");
        }
        is_told &= is_asked;
    }
}

fn is_lost(control: &Control) -> bool {
    let word = control.page().word(device_page::DEVICE_STATUS);
    word.is_none_or(|word| word.load(Ordering::Acquire) != device_page::DEVICE_ACTIVE)
}

/// The device goes, and the process has lost it: what it has mapped stays where it is, so that it finds out by its page,
/// and not by SIGBUS.
fn abandon(control: &Control) {
    let Some(migrant) = control.transport().migrant() else { return };
    let aside = migrant.views().map_err(DriverError::from).and_then(|views| put_aside(migrant, views, |_| 0));
    match aside {
        Ok(blobs) => log::warn!("the device is lost, {} blobs stay as they are", blobs.len()),
        Err(error) => log::error!("the device is lost, and with it what was mapped of it: {error}"),
    }
    control.put_away();
    migrant.leave();
}

/// The device's page says that it is lost: the next look finds out.
fn lose(control: &Control) {
    let word = control.page().word(device_page::DEVICE_STATUS);
    word.into_iter().for_each(|word| word.store(device_page::DEVICE_STOPPED, Ordering::Release));
    let word = control.page().word(device_page::LEAVE);
    word.into_iter().for_each(|word| word.store(0, Ordering::Release));
}

/// # Errors
/// Why it cannot go, or not now: nothing is changed. What fails later loses the device.
fn go_and_come(control: &Arc<Control>) -> Result<(), DriverError> {
    let transport = Arc::clone(control.transport());
    let Some(migrant) = transport.migrant() else { return Ok(()) };
    let slot = control.reserve().ok_or(DriverError::Timeout)?;
    let outcome = if control.gate().close(SILENCE, || is_lost(control)) {
        let outcome = park(control, slot, migrant).map(|(parked, views)| {
            if let Err(error) = away(control, slot, migrant, parked, views) {
                log::error!("the device was taken away, and has not come back: {error}");
                lose(control);
            }
        });
        control.gate().open();
        outcome
    } else {
        // Somebody waits for an answer.
        Err(DriverError::Timeout)
    };
    control.release(slot);
    outcome
}

/// What a process has mapped of each blob.
type Views = Vec<(u32, Option<SharedMemory>)>;

/// Nothing of the process runs any more.
fn park(control: &Arc<Control>, slot: u32, migrant: &dyn Migrant) -> Result<(Parked, Views), DriverError> {
    let views = migrant.views()?;
    let parked = control.call_alone(slot, "PARK_DEVICE", away::PARK_DEVICE, &[], ANSWER)?;
    let parked = Parked::read_from_bytes(&parked).map_err(|_| DriverError::BadAnswer("PARK_DEVICE"))?;
    Ok((parked, views))
}

fn away(
    control: &Arc<Control>,
    slot: u32,
    migrant: &dyn Migrant,
    parked: Parked,
    views: Views,
) -> Result<(), DriverError> {
    let transport = control.transport();
    let blobs = put_aside(migrant, views, |resource| blob_name(&parked, transport.number(resource)))?;
    control.put_away();
    migrant.leave();
    log::info!("the device is away, {} blobs are put aside", blobs.len());
    come(control, slot, migrant, parked, blobs)
}

/// One blob while the device is away.
struct Absent {
    /// Its number, as this process knows it.
    resource: u32,
    /// By which the daemon knows it.
    name: u64,
    /// Where its bytes are, if the process has mapped it.
    stand_in: Option<StandIn>,
}

fn put_aside(
    migrant: &dyn Migrant,
    views: Views,
    name: impl Fn(u32) -> u64,
) -> Result<Vec<Absent>, DriverError> {
    let mut blobs = Vec::new();
    for (resource, view) in views {
        let stand_in = view.map(|view| {
            let alias = migrant.alias(resource)?;
            let aside = StandIn::take_over(view, &alias);
            aside.map_err(|source| TransportError::System {
                what: "putting a blob aside",
                source: source.into(),
            })
        });
        blobs.push(Absent { resource, name: name(resource), stand_in: stand_in.transpose()? });
    }
    Ok(blobs)
}

/// Opens the device that comes instead of the one that was just left. It is waited for since `begun`.
fn next(migrant: &dyn Migrant, begun: Instant) -> Result<(), DriverError> {
    let left = Instant::now();
    while begun.elapsed() < ABSENCE {
        if migrant.arrive(left.elapsed() < UNPLUG)? {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
    Err(DriverError::Timeout)
}

/// Leaves a device that is about to be taken away, of which this process has nothing; false where the transport cannot.
pub(crate) fn leave(transport: &dyn Transport) -> bool {
    let migrant = transport.migrant();
    migrant.into_iter().for_each(Migrant::leave);
    migrant.is_some()
}

/// Waits for the device that comes, where the process has left one: since `begun`.
pub(crate) fn arrive(transport: &dyn Transport, begun: Instant) -> Result<(), DriverError> {
    match transport.migrant().filter(|migrant| migrant.has_left()) {
        Some(migrant) => next(migrant, begun),
        None => Ok(()),
    }
}

fn come(
    control: &Arc<Control>,
    slot: u32,
    migrant: &dyn Migrant,
    parked: Parked,
    mut blobs: Vec<Absent>,
) -> Result<(), DriverError> {
    let begun = Instant::now();
    loop {
        next(migrant, begun)?;
        let names: BTreeMap<u32, u64> = blobs.iter().map(|blob| (blob.resource, blob.name)).collect();
        let mut pages = Vec::new();
        for Absent { resource, name, stand_in } in blobs {
            let again = migrant.make_again(resource, name)?;
            if again != Again::Itself {
                let resource = control.transport().number(resource);
                pages.push(PagesAgain { name, resource, reserved: 0 });
            }
            if let Some(stand_in) = stand_in {
                let blob = migrant.alias(resource)?;
                stand_in.give_back(&blob, again == Again::Empty, |view| migrant.show(resource, view))?;
            }
        }
        let page_resource = control.transport().number(control.page_resource());
        let count = u32::try_from(pages.len()).unwrap_or(u32::MAX);
        let protocol_version = PROTOCOL_VERSION;
        let attach = AttachDevice { parked, protocol_version, page_resource, count, reserved: 0 };
        let parts = [attach.as_bytes(), pages.as_bytes()];
        match control.call_alone(slot, "ATTACH_DEVICE", away::ATTACH_DEVICE, &parts, ANSWER) {
            Ok(_) => {
                log::info!("the device is back after {:?}", begun.elapsed());
                return control.ask_again();
            }
            // This is the device that is still to be taken away.
            Err(DriverError::Refused { status: Status::Leaving, .. }) => {
                let name = |resource: u32| names.get(&resource).copied().unwrap_or(0);
                blobs = put_aside(migrant, migrant.views()?, name)?;
                migrant.leave();
                std::thread::sleep(LOOK);
            }
            Err(error) => return Err(error),
        }
    }
}
