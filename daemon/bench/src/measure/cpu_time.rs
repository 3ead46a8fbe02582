//! CPU time of a process and its children, from /proc.

use std::fs;
use std::time::Duration;

use anyhow::Context;

/// Ticks of CPU time that a process has used, and that its children had used that are gone: fields 14 and 15, 16 and 17
/// of its stat file.
fn ticks(pid: u32) -> anyhow::Result<(u64, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("process {pid}"))?;
    // The name in field 2 may hold anything, but ends with the last parenthesis.
    let (_, rest) = stat.rsplit_once(')').context("a stat file without a name")?;
    let mut fields = rest.split_whitespace().skip(11);
    let mut next = || fields.next().and_then(|field| field.parse::<u64>().ok()).context("a short stat file");
    Ok((next()? + next()?, next()? + next()?))
}

/// The children of a process.
fn children(pid: u32) -> anyhow::Result<Vec<u32>> {
    let mut found = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        found.extend(text.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
    }
    Ok(found)
}

/// CPU time of `pid` and its children so far.
pub fn used(pid: u32) -> anyhow::Result<Duration> {
    let mut total = ticks(pid)?.0;
    for child in children(pid)? {
        total += ticks(child)?.0;
    }
    Ok(time(total))
}

/// CPU time of `pid` and its children so far, those that are gone among them.
pub fn used_by_all(pid: u32) -> anyhow::Result<Duration> {
    Ok(used(pid)? + time(ticks(pid)?.1))
}

/// CPU time of `pid` alone so far.
pub fn of_process(pid: u32) -> anyhow::Result<Duration> {
    Ok(time(ticks(pid)?.0))
}

/// What all CPUs of this machine have had so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// Idle or not.
    pub all: Duration,
    /// Of that, what this machine's host gave to others although there was something to run; zero where it does not say.
    pub stolen: Duration,
}

/// Fields 1 to 8 of the first line of /proc/stat; the last of them is stolen, and guests are in the first two.
pub fn machine() -> anyhow::Result<Machine> {
    let stat = fs::read_to_string("/proc/stat").context("/proc/stat")?;
    parse(&stat).context("no stolen time in /proc/stat")
}

fn parse(stat: &str) -> Option<Machine> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8);
    let ticks = fields.map(|field| field.parse().ok()).collect::<Option<Vec<u64>>>()?;
    Some(Machine { all: time(ticks.iter().sum()), stolen: time(*ticks.get(7)?) })
}

fn time(ticks: u64) -> Duration {
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_millis(ticks * 1000 / per_second)
}

#[cfg(test)]
mod tests {
    use super::Machine;
    use super::parse;
    use super::time;

    #[test]
    fn what_was_stolen_is_the_eighth_field_of_all_cpus() {
        let machine = parse("cpu  10 20 30 400 5 0 6 70 3 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n");
        assert_eq!(machine, Some(Machine { all: time(541), stolen: time(70) }));
        assert_eq!(parse("cpu  10 20 30 400\n"), None);
        assert_eq!(parse("intr 1"), None);
    }
}
