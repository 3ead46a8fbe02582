//! What the machine does all day: frames, what its options want, and beginning anew after a loss.

use crate::arena::Arena;
use crate::clock;
use crate::clock::Patience;
use crate::fault::Fault;
use crate::front::Front;
use crate::options::Options;
use crate::ports;
use crate::serial::say;
use crate::session::Session;
use crate::session::Way;
use crate::virtio::Device;

/// Time between two attempts to begin a session.
const PAUSE_MS: u32 = 500;
/// Attempts before the device is reset.
const ATTEMPTS: u32 = 60;

/// All that the machine ever does.
pub(crate) fn live(start_info: u64) -> ! {
    clock::begin();
    let options = Options::read(start_info);
    say!("machine words={} log={}", options.words, u8::from(options.log));
    match Machine::new(options).and_then(Machine::run) {
        Ok(End::PowerOff) => say!("ended 0"),
        Ok(End::Reboot) => {
            say!("reboots");
            ports::reboot();
        }
        Err(fault) => say!("ended 1: {fault}"),
    }
    ports::power_off()
}

/// How the machine ends.
pub(crate) enum End {
    /// Switched off.
    PowerOff,
    /// Begun anew.
    Reboot,
}

/// Why a session is over.
enum Over {
    Machine(End),
    /// Another session is wanted.
    Session,
    /// The device is to be reset.
    Device,
}

/// The machine.
pub(crate) struct Machine {
    options: Options,
    arena: Arena,
    device: Option<Device>,
    frames: u64,
    sessions: u32,
}

impl Machine {
    /// Finds its device.
    pub(crate) fn new(options: Options) -> Result<Self, Fault> {
        let mut arena = Arena::new();
        let device = Some(Front::find(&mut arena)?);
        Ok(Self { options, arena, device, frames: 0, sessions: 0 })
    }

    /// Works until it is told to end.
    pub(crate) fn run(mut self) -> Result<End, Fault> {
        while let Some(device) = self.device.take() {
            let mut arena = self.arena;
            let mut front = Front::begin(device, &self.options, &mut arena)?;
            loop {
                match self.session(&mut front, arena)? {
                    Over::Machine(end) => return Ok(end),
                    Over::Session => {}
                    Over::Device => break,
                }
            }
            self.device = Some(front.end());
            say!("device is reset");
        }
        Err(Fault::Device("there is no device"))
    }

    /// Begins a session, as soon as the device answers; none where it never does.
    fn begin(&mut self, front: &mut Front, arena: Arena) -> Result<Option<Session>, Fault> {
        self.sessions += 1;
        for attempt in 0..ATTEMPTS {
            let capset = match front.capset() {
                Ok(capset) => capset,
                Err(fault) if attempt == 0 => {
                    say!("LOST the device: {fault}");
                    continue;
                }
                Err(_) => {
                    let mut pause = Patience::new(PAUSE_MS);
                    while !pause.is_over() {}
                    continue;
                }
            };
            return match Session::begin(front, self.sessions, &self.options, arena) {
                Ok(session) => {
                    let (vram, nodes) = (capset.vram_bytes >> 20, capset.node_count);
                    say!("session {} nodes {nodes} vram {vram} MiB", self.sessions);
                    Ok(Some(session))
                }
                Err(fault) if fault.is_loss() => {
                    say!("LOST session {} while it began: {fault}", self.sessions);
                    Ok(None)
                }
                Err(fault) => Err(fault),
            };
        }
        Ok(None)
    }

    /// What the options want done after this many frames.
    fn due(&self, front: &Front) -> Result<Option<Over>, Fault> {
        let Options { config_every, reset_every, reboot_after, frames, .. } = self.options;
        let is_due = |every: u64| every != 0 && self.frames.is_multiple_of(every);
        if is_due(config_every) {
            front.check_config()?;
        }
        Ok(if is_due(frames) {
            Some(Over::Machine(End::PowerOff))
        } else if is_due(reboot_after) {
            Some(Over::Machine(End::Reboot))
        } else {
            is_due(reset_every).then_some(Over::Device)
        })
    }

    /// A session from its beginning to its end.
    fn session(&mut self, front: &mut Front, arena: Arena) -> Result<Over, Fault> {
        let Some(mut session) = self.begin(front, arena)? else { return Ok(Over::Device) };
        for step in 1u32.. {
            let way = if u64::from(step).is_multiple_of(self.options.kernel_mode_every) {
                Way::Kernel
            } else {
                Way::User
            };
            match session.frame(front, step, way) {
                Ok(sum) => {
                    let way = if way == Way::User { "user" } else { "kernel" };
                    let (connects, time) = (session.connects(), session.time());
                    let (number, own) = (self.frames, self.sessions);
                    say!("frame {number} {way} session {own} sum {sum:08x} connects {connects} at {time}");
                    self.frames += 1;
                }
                Err(fault) if fault.is_loss() => {
                    say!("LOST session {}: {fault}", self.sessions);
                    return Ok(if fault.is_forgotten() { Over::Session } else { Over::Device });
                }
                Err(fault) => {
                    say!("WRONG frame {}: {fault}", self.frames);
                    return Err(fault);
                }
            }
            if let Some(over) = self.due(front)? {
                return Ok(over);
            }
        }
        Ok(Over::Session)
    }
}
