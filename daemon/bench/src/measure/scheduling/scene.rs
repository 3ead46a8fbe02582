//! Two guests and one realtime context, for a picture.

use std::ffi::OsString;
use std::thread;
use std::time::Duration;

use campanile_guest_driver::commands::CommandBuffer;
use campanile_guest_driver::device::Device;
use campanile_guest_driver::node::Node;
use campanile_guest_driver::scheduling::Band;
use campanile_guest_driver::scheduling::Properties;
use campanile_guest_driver::user_queue::QueueOptions;
use serde_json::Value;

use super::guest::Busy;
use super::guest::LIMIT;
use super::guest::Load;
use super::guest::Work;
use crate::measure::daemon::DaemonProcess;
use crate::measure::guests::attach;
use campanile_daemon::operator::client;
use campanile_daemon::operator::verb::Verb;

/// What the picture shows.
const LAST: Duration = Duration::from_millis(90);
/// Urgent submissions: more than the picture has room for, so that it shows no beginning.
const SUBMISSIONS: u32 = 12;
/// Between two of them.
const PAUSE: Duration = Duration::from_millis(14);
/// What each takes.
const URGENT: Duration = Duration::from_millis(3);
/// What a dispatch of the others takes, alone.
const LONG: Duration = Duration::from_millis(60);
const COPY_BYTES: u64 = 8 << 20;

/// Lets two guests compute all the time, and a process of the second be urgent now and then, and copy; what
/// `campanile ctl timeline` says then.
pub fn record(settings: &[OsString]) -> anyhow::Result<Value> {
    let daemon = DaemonProcess::with_vgpus(&["", "bands=realtime"], settings)?;
    let vms = [attach(&daemon.socket_of(0))?, attach(&daemon.socket_of(1))?];
    let open = |vgpu: usize, name: &str| anyhow::Ok(Device::open(vms[vgpu].open(name)?)?);
    let load = Load { each: Some(LONG), at_a_time: 2 };

    let urgent = open(1, "urgent")?;
    let context = urgent.create_context(Node::Compute)?;
    context.set_scheduling(&Properties { band: Band::Realtime(0), ..Properties::default() })?;
    let mut queue = context.create_user_queue(&QueueOptions::default())?;
    let work = Work::new(&urgent)?;
    let commands = work.long(&mut queue, URGENT)?;
    let mut copies = urgent.create_context(Node::Copy)?.create_user_queue(&QueueOptions::default())?;
    let target = urgent.create_buffer(COPY_BYTES)?;
    let mut copy = CommandBuffer::new();
    copy.fill(target.va(), COPY_BYTES, 7)?;

    let busy = [Busy::start(&daemon, open(0, "busy")?, load)?, Busy::start(&daemon, open(1, "busy")?, load)?];
    busy.iter().try_for_each(Busy::wait_until_it_runs)?;
    for _ in 0..SUBMISSIONS {
        thread::sleep(PAUSE);
        let copied = copies.submit(&copy)?;
        queue.submit(&commands)?.wait(Some(LIMIT))?;
        copied.wait(Some(LIMIT))?;
    }
    let last = Some(u64::try_from(LAST.as_millis())?);
    let timeline = client::ask(&daemon.control(), &Verb::Timeline { vgpu: None, last, svg: None })?;
    busy.into_iter().try_for_each(Busy::stop)?;
    Ok(timeline)
}
