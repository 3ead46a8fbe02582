//! What guests want: a mix of loads.
//!
//! | guest, of ten | contexts |
//! |---|---|
//! | 5 busy | always work: tiny buffers, some milliseconds, 500 ms dispatches; weights 100, 200, 400 |
//! | 1 capped | the same, at half of its fair share |
//! | 2 bursty | work for some milliseconds, with pauses; different in-process priorities |
//! | 1 focus | busy, and one context that a user looks at |
//! | 1 realtime | busy, and one context of a level of realtime |

use std::time::Duration;

use campanile_host_gpu::sched::parameters::Band;
use campanile_host_gpu::sched::parameters::Parameters;
use campanile_host_gpu::sched::parameters::WHOLE_ENGINE;

use super::options::Options;
use super::random::Random;
use campanile_daemon::sched::turns::QUANTUM;

/// What a guest is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Always has work.
    Busy,
    /// The same, with a cap.
    Capped,
    /// Has work now and then.
    Bursty,
    /// Busy, with a context in focus.
    Focus,
    /// Busy, with a realtime context.
    Realtime,
}

/// A guest's kind, by its number: one of ten each, busy ones first.
pub fn kind(guest: usize) -> Kind {
    [
        Kind::Busy,
        Kind::Realtime,
        Kind::Busy,
        Kind::Focus,
        Kind::Busy,
        Kind::Bursty,
        Kind::Busy,
        Kind::Capped,
        Kind::Busy,
        Kind::Bursty,
    ][guest % 10]
}

/// What the context of a guest wants.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// How it is scheduled in its vGPU.
    pub parameters: Parameters,
    /// Length of a dispatch.
    pub dispatch: Duration,
    /// Work that comes at a time, from and to; None: always.
    pub burst: Option<(Duration, Duration)>,
    /// Pauses after bursts, from and to.
    pub pause: (Duration, Duration),
}

/// How a guest's vGPU is scheduled, apart from its band.
pub fn of_vgpu(guest: usize, options: &Options) -> Parameters {
    let parameters = Parameters { group: guest as u64, quantum: QUANTUM, ..Parameters::default() };
    match kind(guest) {
        Kind::Busy => Parameters { weight: [100, 100, 200, 100, 400][guest / 2 % 5], ..parameters },
        Kind::Capped => {
            let share = u64::from(WHOLE_ENGINE) / (2 * options.guests.max(1) as u64);
            Parameters { cap: u32::try_from(share.max(1)).unwrap_or(WHOLE_ENGINE), ..parameters }
        }
        Kind::Bursty | Kind::Focus | Kind::Realtime => parameters,
    }
}

/// What a context wants.
pub fn of_context(guest: usize, context: usize, options: &Options, random: &mut Random) -> Load {
    let ms = Duration::from_millis;
    let kind = kind(guest);
    let parameters = Parameters { group: (context / 2) as u64, ..Parameters::default() };
    let dispatch = match context % 4 {
        0 => random.time(Duration::from_micros(5), Duration::from_micros(100)),
        1 => random.time(ms(1), ms(8)),
        2 => ms(500),
        _ => random.time(Duration::from_micros(100), ms(2)),
    };
    // However many guests there are, those of a kind want a tenth of the engine together.
    let many = (options.guests as u64).div_ceil(10);
    let urgent = |band, level| {
        let (least, most) = (Duration::from_micros(100), Duration::from_micros(900));
        let pause = (
            ms(2) * u32::try_from(many).unwrap_or(u32::MAX),
            ms(8) * u32::try_from(many).unwrap_or(u32::MAX),
        );
        let parameters = Parameters { band, level, ..parameters };
        Load { parameters, dispatch: Duration::from_micros(300), burst: Some((least, most)), pause }
    };
    match (kind, context) {
        (Kind::Focus, 0) => urgent(Band::Focus, 0),
        (Kind::Realtime, 0) => urgent(Band::Realtime, u8::try_from(guest / 10 % 32).unwrap_or(0)),
        (Kind::Bursty, _) => {
            let priority = i8::try_from(random.between(0, 14)).unwrap_or(7) - 7;
            let pause = ms(20) * u32::try_from(many * options.queues as u64).unwrap_or(u32::MAX);
            let parameters = Parameters { priority, ..parameters };
            let dispatch = dispatch.min(ms(8));
            Load { parameters, dispatch, burst: Some((ms(1), ms(4))), pause: (pause / 2, pause * 2) }
        }
        _ => Load { parameters, dispatch, burst: None, pause: (Duration::ZERO, Duration::ZERO) },
    }
}
