//! Looks, draws, and listens to keys.

use std::io::Write;
use std::io::stdout;
use std::time::Duration;
use std::time::Instant;
use std::time::SystemTime;
use std::time::UNIX_EPOCH;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event;
use ratatui::crossterm::event::Event;
use ratatui::crossterm::event::KeyCode;
use ratatui::crossterm::event::KeyEventKind;
use ratatui::crossterm::event::KeyModifiers;
use serde_json::json;

use crate::args::TopArguments;
use crate::events::Events;
use crate::rows;
use crate::rows::Row;
use crate::sample::Sample;
use crate::state::Key;
use crate::state::Next;
use crate::state::State;
use crate::view;

/// Runs `campanile top`.
///
/// # Errors
/// The daemon does not answer at first, or the terminal cannot be used.
pub fn run(arguments: &TopArguments) -> anyhow::Result<()> {
    let first = Sample::take(&arguments.control)?;
    let interval = Duration::from_millis(arguments.interval);
    if arguments.once {
        std::thread::sleep(interval);
        let rows = rows::between(&first, &Sample::take(&arguments.control)?);
        let text = if arguments.json {
            serde_json::to_string_pretty(&json!({ "vgpus": rows }))? + "\n"
        } else {
            view::text(&rows)
        };
        stdout().write_all(text.as_bytes())?;
        return Ok(());
    }
    let terminal = ratatui::try_init()?;
    let outcome = Screen::new(first).run(terminal, arguments, interval);
    ratatui::try_restore()?;
    outcome
}

struct Screen {
    last: Sample,
    rows: Vec<Row>,
    state: State,
    events: Events,
    trouble: Option<String>,
}

impl Screen {
    fn new(first: Sample) -> Self {
        let rows = rows::between(&first, &first);
        Self { last: first, rows, state: State::default(), events: Events::default(), trouble: None }
    }

    fn run(
        mut self,
        mut terminal: DefaultTerminal,
        arguments: &TopArguments,
        interval: Duration,
    ) -> anyhow::Result<()> {
        let mut due = Instant::now() + interval;
        loop {
            let trouble = self.trouble.as_deref();
            terminal.draw(|frame| view::draw(frame, &self.rows, &self.state, &self.events, trouble))?;
            if event::poll(due.saturating_duration_since(Instant::now()))?
                && let Some(key) = key(&event::read()?)
                && self.state.press(key) == Next::Quit
            {
                return Ok(());
            }
            if Instant::now() >= due {
                due = Instant::now() + interval;
                if !self.state.is_paused {
                    self.look(arguments);
                }
            }
        }
    }

    /// A daemon that does not answer may do so later: it is shown, and asked again.
    fn look(&mut self, arguments: &TopArguments) {
        match Sample::take(&arguments.control) {
            Ok(sample) => {
                self.rows = rows::between(&self.last, &sample);
                self.events.note(&time(), &self.last, &sample);
                self.last = sample;
                self.trouble = None;
            }
            Err(error) => self.trouble = Some(format!("{error:#}")),
        }
    }
}

/// The time of day, UTC.
fn time() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() % 86_400;
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

fn key(event: &Event) -> Option<Key> {
    let Event::Key(key) = event else { return None };
    if key.kind == KeyEventKind::Release {
        return None;
    }
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Key::Interrupt),
        KeyCode::Char(character) => Some(Key::Character(character)),
        KeyCode::Backspace => Some(Key::Backspace),
        KeyCode::Enter => Some(Key::Enter),
        KeyCode::Esc => Some(Key::Escape),
        _ => None,
    }
}
