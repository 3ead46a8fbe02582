//! What is measured, and how it is printed.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use super::socket_copy::SocketCopy;
use super::socket_copy::per_second;

/// One pass, as the source's daemon counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Pass {
    /// Whether the VM stood still.
    pub is_last: bool,
    /// Pages sent, zero pages too.
    pub pages: u64,
    /// Pages of zeros, of which only the place is sent.
    pub zero_pages: u64,
    /// Bytes on the line.
    pub wire_bytes: u64,
    /// How long it took.
    pub microseconds: u64,
}

/// One move.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Move {
    /// What the guest stood still.
    pub pause_ms: f64,
    /// Of it: until the rings had stopped.
    pub stop_ms: f64,
    /// Of it: until the state had been read; the last pages go meanwhile.
    pub save_ms: f64,
    /// Of it: until the target had taken the state.
    pub load_ms: f64,
    /// From the first message to the end of the pause.
    pub total_ms: f64,
    /// Bytes of the device's state.
    pub state_bytes: usize,
    /// The passes.
    pub passes: Vec<Pass>,
}

impl Move {
    /// Pages of all passes.
    pub fn pages(&self) -> u64 {
        self.passes.iter().map(|pass| pass.pages).sum()
    }

    /// Bytes of pages that were sent as they are, per second of live passes.
    pub fn brownout_bytes_per_second(&self) -> f64 {
        let live = || self.passes.iter().filter(|pass| !pass.is_last);
        let bytes: u64 = live().map(|pass| (pass.pages - pass.zero_pages) * 4096).sum();
        let micros: u64 = live().map(|pass| pass.microseconds).sum();
        per_second(bytes, micros)
    }
}

/// What an innocent guest got done, in round trips per second.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Innocent {
    /// With nothing beside it but the guest that will move.
    pub alone_per_s: f64,
    /// While that guest moves.
    pub beside_move_per_s: f64,
    /// Beside as much CPU load as the move made.
    pub beside_load_per_s: f64,
    /// CPUs that the move kept busy, on average, both daemons together, their engines aside.
    pub cpus_of_move: f64,
}

/// All figures of one size of video memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// Video memory of the vGPU, bytes.
    pub vram_bytes: u64,
    /// Of it: filled by the guest with what no compression shortens.
    pub filled_bytes: u64,
    /// What the guest writes anew all the time, bytes per second.
    pub dirtied_bytes_per_s: u64,
    /// What a plain copy through a Unix socket does here.
    pub socket_copy: SocketCopy,
    /// The brownout of the second move, with nobody else there, over the copy of memory.
    pub brownout_over_socket_copy: f64,
    /// A move while the guest runs and writes.
    pub live: Move,
    /// Straight after it, back again, without anything written in between but by the guest.
    pub second: Move,
    /// All in the pause.
    pub stopped: Move,
    /// Pause of the move in one piece over the live one's.
    pub stopped_over_live_pause: f64,
    /// What others notice.
    pub innocent: Innocent,
}

/// Passes in what a daemon says of itself, wherever they stand in it.
pub fn passes(status: &Value) -> Vec<Pass> {
    let number = |pass: &Value, name: &str| pass.get(name).and_then(Value::as_u64).unwrap_or_default();
    let Some(list) = find(status, "passes").and_then(Value::as_array) else { return Vec::new() };
    list.iter()
        .map(|pass| Pass {
            is_last: pass.get("is_last").and_then(Value::as_bool).unwrap_or_default(),
            pages: number(pass, "pages"),
            zero_pages: number(pass, "zero_pages"),
            wire_bytes: number(pass, "wire_bytes"),
            microseconds: number(pass, "microseconds"),
        })
        .collect()
}

/// The value of this name, however deep.
pub fn find<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Object(fields) => {
            fields.get(name).or_else(|| fields.values().find_map(|value| find(value, name)))
        }
        Value::Array(values) => values.iter().find_map(|value| find(value, name)),
        _ => None,
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        writeln!(
            f,
            "{} MiB of video memory, {} MiB filled, {} MB/s written",
            mib(self.vram_bytes),
            mib(self.filled_bytes),
            self.dirtied_bytes_per_s / 1_000_000
        )?;
        writeln!(
            f,
            "brownout                  {:.0} MB/s, {:.2} of a plain copy of memory through a socket",
            self.second.brownout_bytes_per_second() / 1e6,
            self.brownout_over_socket_copy
        )?;
        writeln!(
            f,
            "plain copies              {:.0} MB/s memory to memory, {:.0} MB/s of one chunk over and over",
            self.socket_copy.memory_bytes_per_s / 1e6,
            self.socket_copy.chunk_bytes_per_s / 1e6
        )?;
        for (name, one) in [("live", &self.live), ("straight back", &self.second), ("stopped", &self.stopped)]
        {
            writeln!(
                f,
                "{name:<25} pause {:.1} ms (stop {:.1}, save {:.1}, load {:.1}); {} pages in {} passes, {:.0} ms",
                one.pause_ms,
                one.stop_ms,
                one.save_ms,
                one.load_ms,
                one.pages(),
                one.passes.len(),
                one.total_ms
            )?;
        }
        writeln!(f, "pause, stopped over live  {:.1} x", self.stopped_over_live_pause)?;
        let innocent = &self.innocent;
        writeln!(
            f,
            "innocent guest            {:.0} round trips/s; {:.0} beside a move, {:.0} beside {:.2} CPUs of other load",
            innocent.alone_per_s,
            innocent.beside_move_per_s,
            innocent.beside_load_per_s,
            innocent.cpus_of_move
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::passes;

    #[test]
    fn passes_are_found_wherever_they_stand() {
        let status = json!({"vgpus": [{"name": "v0"}, {"migration": {"passes": [
            {"pass": 0, "is_last": false, "pages": 7, "zero_pages": 2, "wire_bytes": 9, "microseconds": 3}]}}]});
        let passes = passes(&status);
        assert_eq!(
            (passes.len(), passes[0].pages, passes[0].zero_pages, passes[0].is_last),
            (1, 7, 2, false)
        );
    }
}
