//! What the scheduler makes of two guests: shares of a node, and how long urgent work waits.
//!
//! ```text
//!   daemon of a round ─┬─ vGPU v0 ◀── busy guest ── groups that ran, counted by its kernel
//!                      ├─ vGPU v1 ◀── busy guest, or an urgent one: clock, ring, TIMESTAMP as the first packet
//!                      └─ control socket ── status: time held, as the supervisor charges it; slices and what they took
//! ```

use std::fmt;
use std::time::Duration;

use serde::Serialize;

pub mod guest;
pub mod latency;
pub mod scene;
pub mod settings;
pub mod shares;

use guest::Load;
use latency::InTheWay;
use latency::LatencyFigures;
use settings::Settings;
use shares::Case;
use shares::ShareFigures;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Rounds, each with new daemons; cases take turns.
    pub rounds: usize,
    /// Windows of a second in a round, of each pair of guests.
    pub windows: usize,
    /// Urgent submissions of each way in a round.
    pub submissions: u64,
}

/// All figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SchedulingFigures {
    /// Shares of the first of two guests, in the first profile.
    pub shares: Vec<ShareFigures>,
    /// Waits of urgent work, in each profile.
    pub latencies: Vec<LatencyFigures>,
}

impl fmt::Display for SchedulingFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (guests, of) = ("percent of the first of two guests", "of");
        writeln!(f, "{guests:<34} {of:<12}   due  median  furthest from its due  windows")?;
        self.shares.iter().try_for_each(|figures| figures.fmt(f))?;
        let (what, way) = ("in the way", "ring to packet");
        writeln!(
            f,
            "\nprofile   {what:<14} {way:<13}   p50 us   p99 us   max us round p99    bound  samples"
        )?;
        self.latencies.iter().try_for_each(|figures| figures.fmt(f))?;
        writeln!(
            f,
            "\nround p99: of the median round. bound: slices in flight at the profile's length, and 200 us\n\
             What slices cost: campanile bench slicing"
        )
    }
}

/// Equal guests, unequal weights, tiny buffers beside long ones.
const CASES: [Case; 3] = {
    let long = Load { each: Some(Duration::from_millis(100)), at_a_time: 2 };
    let longer = Load { each: Some(Duration::from_millis(500)), at_a_time: 2 };
    let tiny = Load { each: None, at_a_time: 16 };
    [
        Case { name: "weights 1 : 1", vgpus: ["", ""], loads: [long, long], due: 50.0 },
        Case { name: "weights 3 : 1", vgpus: ["weight=300", "weight=100"], loads: [long, long], due: 75.0 },
        Case {
            name: "tiny buffers, dispatches of 500 ms",
            vgpus: ["", ""],
            loads: [tiny, longer],
            due: 50.0,
        },
    ]
};

/// Measures: shares with the first profile, waits with each.
pub fn measure(profiles: &[Settings], effort: Effort) -> anyhow::Result<SchedulingFigures> {
    let mut windows = CASES.map(|_| shares::Windows::default());
    let ways =
        [InTheWay::Nobody, InTheWay::OtherVgpu, InTheWay::OtherDaemon, InTheWay::SameVgpu, InTheWay::Both];
    let mut rounds: Vec<[Vec<latency::Round>; 5]> = profiles.iter().map(|_| Default::default()).collect();
    for _ in 0..effort.rounds {
        if let Some(settings) = profiles.first() {
            for (case, windows) in CASES.iter().zip(&mut windows) {
                shares::measure(case, &settings.arguments, effort.windows, windows)?;
            }
        }
        for (settings, rounds) in profiles.iter().zip(&mut rounds) {
            for (way, rounds) in ways.into_iter().zip(rounds) {
                rounds.push(latency::measure(&settings.arguments, way, effort.submissions)?);
            }
        }
    }
    let shares = CASES.iter().zip(windows).map(|(case, windows)| shares::figures(case, windows)).collect();
    let latencies = profiles.iter().zip(rounds).flat_map(|(settings, rounds)| {
        let each = ways.into_iter().zip(rounds);
        each.map(|(way, rounds)| latency::figures(settings, way, &rounds))
    });
    Ok(SchedulingFigures { shares, latencies: latencies.collect() })
}
