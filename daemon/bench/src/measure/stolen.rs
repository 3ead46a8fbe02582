//! What the host of this machine gave to others while something was measured: figures of a disturbed machine say so.

use std::fmt;

use serde::Serialize;

use super::cpu_time;
use super::cpu_time::Machine;

/// A measurement that has begun.
#[derive(Debug)]
pub struct Watch {
    /// What CPUs had had by then; absent where nobody says.
    before: Option<Machine>,
}

impl Watch {
    /// Begins.
    pub fn begin() -> Self {
        Self { before: cpu_time::machine().ok() }
    }

    /// Percent of the time of all CPUs that was stolen since; absent where nobody says.
    fn percent(&self) -> Option<f64> {
        let (before, now) = (self.before?, cpu_time::machine().ok()?);
        let all = now.all.saturating_sub(before.all).as_secs_f64();
        (all > 0.0).then(|| 100.0 * now.stolen.saturating_sub(before.stolen).as_secs_f64() / all)
    }
}

/// Figures, and how disturbed the machine was meanwhile.
#[derive(Debug, Serialize)]
pub struct Witnessed<F> {
    #[serde(flatten)]
    figures: F,
    /// Percent of the time of all CPUs; 0 on a machine that is no VM.
    #[serde(skip_serializing_if = "Option::is_none")]
    stolen_percent: Option<f64>,
}

impl<F> Witnessed<F> {
    /// These figures, which were measured since `watch` began.
    pub fn new(figures: F, watch: &Watch) -> Self {
        Self { figures, stolen_percent: watch.percent() }
    }
}

impl<F: fmt::Display> fmt::Display for Witnessed<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.figures.fmt(f)?;
        match self.stolen_percent {
            Some(percent) => {
                writeln!(f, "the machine's host gave {percent:.1} % of its CPUs' time to others meanwhile")
            }
            None => Ok(()),
        }
    }
}
