//! The picture.

use ratatui::Frame;
use ratatui::layout::Constraint;
use ratatui::layout::Layout;
use ratatui::layout::Rect;
use ratatui::style::Color;
use ratatui::style::Style;
use ratatui::style::Stylize;
use ratatui::text::Line;
use ratatui::widgets::Block;
use ratatui::widgets::Cell;
use ratatui::widgets::Paragraph;
use ratatui::widgets::Row as TableRow;
use ratatui::widgets::Table;

use crate::events::Events;
use crate::rows::NodeShare;
use crate::rows::Row;
use crate::state::State;

const HEAD: [&str; 8] = ["VGPU", "STATE", "BUSY/DUE %", "QUEUED", "DOORBELLS", "SUBMIT/S", "LATENCY", "VRAM"];
const WIDTHS: [Constraint; 8] = [
    Constraint::Length(14),
    Constraint::Length(12),
    Constraint::Length(30),
    Constraint::Length(6),
    Constraint::Length(9),
    Constraint::Length(8),
    Constraint::Length(10),
    Constraint::Min(30),
];
/// Characters of a bar.
const BAR: usize = 12;
const MIB: u64 = 1 << 20;

/// Draws everything. `trouble` is why there is nothing new, if there is a reason.
pub fn draw(frame: &mut Frame<'_>, rows: &[Row], state: &State, events: &Events, trouble: Option<&str>) {
    let [head, table, happened, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(4),
        Constraint::Length(8),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let paused = if state.is_paused { ", paused" } else { "" };
    let sorted = if state.is_reversed { ", reversed" } else { "" };
    let vgpus = if rows.len() == 1 { "vGPU" } else { "vGPUs" };
    let title = format!("campanile top: {} {vgpus}, by {}{sorted}{paused}", rows.len(), state.column.name());
    frame.render_widget(Line::from(trouble.map_or(title, str::to_owned)).bold(), head);
    draw_rows(frame, table, &state.arrange(rows));
    let lines: Vec<Line<'_>> = events.newest().map(|line| Line::from(line.to_owned())).collect();
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title("events")), happened);
    let keys = if state.is_typing || !state.filter.is_empty() {
        format!("filter: {}   Enter done, Esc none", state.filter)
    } else {
        "q quit   s sort   r reverse   / filter   p pause".to_owned()
    };
    frame.render_widget(Line::from(keys), foot);
}

fn draw_rows(frame: &mut Frame<'_>, area: Rect, rows: &[&Row]) {
    let lines = rows.iter().map(|row| {
        let is_fine = row.state == "running" || row.state == "no VM";
        let style = if is_fine { Style::default() } else { Style::default().fg(Color::Yellow) };
        TableRow::new(cells(row).map(Cell::from)).style(style)
    });
    let table = Table::new(lines, WIDTHS).header(TableRow::new(HEAD).bold()).block(Block::bordered());
    frame.render_widget(table, area);
}

/// The cells of a row, also where there is no terminal.
pub fn cells(row: &Row) -> [String; HEAD.len()] {
    let node = |share: &NodeShare| {
        let place =
            if share.engine == 0 { share.node.clone() } else { format!("{}@{}", share.node, share.engine) };
        format!("{place} {:.0}/{:.0}", share.busy_percent, share.due_percent)
    };
    let latency = row.latency_us.map_or_else(|| "-".to_owned(), |time| format!("{time:.0} us"));
    [
        row.vgpu.clone(),
        row.state.clone(),
        row.nodes.iter().map(node).collect::<Vec<_>>().join(" "),
        row.queued.to_string(),
        row.doorbells.to_string(),
        format!("{:.1}", row.submissions_per_second),
        latency,
        vram(row),
    ]
}

/// A bar of what is allocated, and the numbers.
fn vram(row: &Row) -> String {
    let scale = u64::try_from(BAR).unwrap_or(1);
    let filled = row.vram_bytes.saturating_mul(scale).div_ceil(row.vram_limit_bytes.max(1)).min(scale);
    let filled = usize::try_from(filled).unwrap_or(0);
    let bar = "█".repeat(filled) + &"░".repeat(BAR - filled);
    let evicted = match row.evicted_bytes.div_ceil(MIB) {
        0 => String::new(),
        evicted => format!(", {evicted} evicted"),
    };
    format!("{bar} {}/{} MiB{evicted}", row.vram_bytes.div_ceil(MIB), row.vram_limit_bytes / MIB)
}

/// The table as text.
pub fn text(rows: &[Row]) -> String {
    let lines: Vec<[String; HEAD.len()]> =
        std::iter::once(HEAD.map(str::to_owned)).chain(rows.iter().map(cells)).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; HEAD.len()] = std::array::from_fn(width);
    let line = |cells: &[String; HEAD.len()]| {
        let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    lines.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::draw;
    use super::text;
    use crate::events::Events;
    use crate::rows::NodeShare;
    use crate::rows::Row;
    use crate::state::State;

    fn row() -> Row {
        let node = |node: &str, busy_percent| NodeShare {
            engine: 0,
            node: node.to_owned(),
            busy_percent,
            due_percent: 50.0,
        };
        Row {
            vgpu: "blue".to_owned(),
            state: "running".to_owned(),
            nodes: vec![node("compute", 33.0), node("copy", 0.0)],
            queued: 3,
            doorbells: 2,
            submissions_per_second: 12.5,
            latency_us: Some(417.0),
            vram_bytes: 48 << 20,
            vram_limit_bytes: 64 << 20,
            evicted_bytes: 5 << 20,
        }
    }

    #[test]
    fn a_screen_shows_each_vgpu_with_its_share_queue_latency_and_memory() {
        let mut terminal = Terminal::new(TestBackend::new(140, 20)).unwrap();
        terminal.draw(|frame| draw(frame, &[row()], &State::default(), &Events::default(), None)).unwrap();
        let screen = terminal.backend().to_string();
        for part in [
            "blue",
            "compute 33/50 copy 0/50",
            "12.5",
            "417 us",
            "█████████░░░ 48/64 MiB, 5 evicted",
            "q quit",
        ] {
            assert!(screen.contains(part), "{part} is missing in\n{screen}");
        }
        terminal
            .draw(|frame| draw(frame, &[], &State::default(), &Events::default(), Some("no daemon")))
            .unwrap();
        assert!(terminal.backend().to_string().contains("no daemon"));
    }

    #[test]
    fn the_smallest_terminal_is_no_panic() {
        for (width, height) in [(0, 0), (1, 1), (20, 5)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal
                .draw(|frame| draw(frame, &[row()], &State::default(), &Events::default(), None))
                .unwrap();
        }
    }

    #[test]
    fn the_table_is_text_too() {
        let text = text(&[row()]);
        assert!(
            text.starts_with("VGPU  STATE") && text.lines().nth(1).unwrap().starts_with("blue  running"),
            "{text}"
        );
    }
}
