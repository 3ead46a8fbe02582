//! What keys change: order, filter, pause.

use crate::rows::Row;

/// What rows are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// The daemon's order.
    Configuration,
    /// Names.
    Name,
    /// The busiest node first.
    Busy,
    /// The longest queue first.
    Queue,
    /// The most memory first.
    Vram,
    /// The longest latency first.
    Latency,
}

impl Column {
    const ALL: [Self; 6] =
        [Self::Configuration, Self::Name, Self::Busy, Self::Queue, Self::Vram, Self::Latency];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Name => "name",
            Self::Busy => "busy",
            Self::Queue => "queue",
            Self::Vram => "vram",
            Self::Latency => "latency",
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|column| *column == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }
}

/// How rows are shown.
#[derive(Debug, Clone)]
pub struct State {
    /// The order.
    pub column: Column,
    /// The other way round.
    pub is_reversed: bool,
    /// Only vGPUs whose names contain this.
    pub filter: String,
    /// The filter is being typed.
    pub is_typing: bool,
    /// What is shown stays.
    pub is_paused: bool,
}

/// A key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Character(char),
    /// The last character goes.
    Backspace,
    /// Done typing.
    Enter,
    /// Not typing any more, and no filter.
    Escape,
    /// The end, whatever is typed.
    Interrupt,
}

/// Whether to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It goes on.
    GoOn,
    /// The end.
    Quit,
}

impl Default for State {
    fn default() -> Self {
        let column = Column::Configuration;
        Self { column, is_reversed: false, filter: String::new(), is_typing: false, is_paused: false }
    }
}

impl State {
    /// A key was pressed.
    pub fn press(&mut self, key: Key) -> Next {
        match (self.is_typing, key) {
            (_, Key::Interrupt) => return Next::Quit,
            (true, Key::Character(character)) => self.filter.push(character),
            (true, Key::Backspace) => {
                self.filter.pop();
            }
            (true, Key::Enter) => self.is_typing = false,
            (_, Key::Escape) => {
                self.is_typing = false;
                self.filter.clear();
            }
            (false, Key::Character('q')) => return Next::Quit,
            (false, Key::Character('s')) => self.column = self.column.next(),
            (false, Key::Character('r')) => self.is_reversed = !self.is_reversed,
            (false, Key::Character('p' | ' ')) => self.is_paused = !self.is_paused,
            (false, Key::Character('/')) => self.is_typing = true,
            (false, _) => {}
        }
        Next::GoOn
    }

    /// The rows to show, in their order.
    pub fn arrange<'a>(&self, rows: &'a [Row]) -> Vec<&'a Row> {
        let mut shown: Vec<&Row> = rows.iter().filter(|row| row.vgpu.contains(&self.filter)).collect();
        let busy = |row: &Row| row.nodes.iter().map(|node| node.busy_percent).fold(0.0, f64::max);
        match self.column {
            Column::Configuration => {}
            Column::Name => shown.sort_by(|a, b| a.vgpu.cmp(&b.vgpu)),
            Column::Busy => shown.sort_by(|a, b| busy(b).total_cmp(&busy(a))),
            Column::Queue => shown.sort_by_key(|row| std::cmp::Reverse(row.queued)),
            Column::Vram => shown.sort_by_key(|row| std::cmp::Reverse(row.vram_bytes)),
            Column::Latency => {
                shown.sort_by(|a, b| b.latency_us.unwrap_or(0.0).total_cmp(&a.latency_us.unwrap_or(0.0)))
            }
        }
        if self.is_reversed {
            shown.reverse();
        }
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::Column;
    use super::Key;
    use super::Next;
    use super::State;
    use crate::rows::Row;

    fn row(name: &str, queued: u64) -> Row {
        Row {
            vgpu: name.to_owned(),
            state: "running".to_owned(),
            nodes: Vec::new(),
            queued,
            doorbells: 0,
            submissions_per_second: 0.0,
            latency_us: None,
            vram_bytes: 0,
            vram_limit_bytes: 0,
            evicted_bytes: 0,
        }
    }

    #[test]
    fn keys_sort_reverse_filter_and_pause() {
        let rows = [row("beta", 1), row("alpha", 3), row("gamma", 2)];
        let mut state = State::default();
        let names =
            |state: &State| state.arrange(&rows).iter().map(|row| row.vgpu.clone()).collect::<Vec<_>>();
        assert_eq!(names(&state), ["beta", "alpha", "gamma"]);
        let press = |state: &mut State, keys: &str| {
            keys.chars().for_each(|key| assert_eq!(state.press(Key::Character(key)), Next::GoOn));
        };
        press(&mut state, "s");
        assert_eq!(names(&state), ["alpha", "beta", "gamma"]);
        press(&mut state, "ss");
        assert_eq!(
            (state.column, names(&state)),
            (Column::Queue, vec!["alpha".into(), "gamma".into(), "beta".into()])
        );
        press(&mut state, "r/q");
        assert!(names(&state).is_empty() && state.is_typing, "q is part of the filter");
        state.press(Key::Backspace);
        press(&mut state, "a");
        state.press(Key::Enter);
        press(&mut state, "p");
        assert!(state.is_paused && names(&state) == ["beta", "gamma", "alpha"]);
        press(&mut state, "/lp");
        assert_eq!(names(&state), ["alpha"]);
        state.press(Key::Escape);
        assert_eq!(names(&state).len(), 3);
        assert_eq!(state.press(Key::Character('q')), Next::Quit);
    }
}
