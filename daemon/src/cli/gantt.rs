//! The answer of `campanile ctl timeline` as a picture: one row a context, time to the right.

use std::fmt;
use std::fmt::Display;
use std::fmt::Write;

use campanile_protocol::handle::Handle;
use serde::Deserialize;

use crate::vgpu::control::history::BandName;
use crate::vgpu::control::history::ContextHistory;
use crate::vgpu::control::history::EngineHistory;
use crate::vgpu::control::history::Stretch;

/// The answer.
#[derive(Debug, Clone, Deserialize)]
pub struct Timeline {
    /// What each vGPU ran.
    pub vgpus: Vec<VgpuHistory>,
}

/// What the engines of one vGPU ran.
#[derive(Debug, Clone, Deserialize)]
pub struct VgpuHistory {
    /// Its name.
    pub name: String,
    /// Those of its engines that have a process.
    pub engines: Vec<EngineHistory>,
    /// Why that is not all.
    #[serde(default)]
    pub error: Option<String>,
}

const WIDTH: u64 = 960;
const LEFT: u64 = 196;
const RIGHT: u64 = 930;
const TOP: u64 = 62;
const ROW: u64 = 22;
const HEAD: u64 = 28;
const BAR: u64 = 14;
/// Most ticks of the axis.
const TICKS: u64 = 12;
const NANOSECONDS: u64 = 1_000_000;
const BANDS: [(BandName, &str, &str); 4] = [
    (BandName::Idle, "idle", "#9aa7b3"),
    (BandName::Normal, "normal", "#3d78c2"),
    (BandName::Focus, "focus", "#3c8f55"),
    (BandName::Realtime, "realtime", "#c2483d"),
];

/// Hundredths of a pixel, as numbers in SVG.
struct Hundredths(u64);

impl Display for Hundredths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

/// Text between tags.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                // Most of these must not be in XML at all.
                character if character.is_control() => f.write_char(' ')?,
                character => f.write_char(character)?,
            }
        }
        Ok(())
    }
}

/// The time that the picture shows, nanoseconds.
#[derive(Clone, Copy)]
struct Span {
    begin: u64,
    length: u64,
}

impl Span {
    fn of(timeline: &Timeline) -> Self {
        let stretches = || {
            let engines = timeline.vgpus.iter().flat_map(|vgpu| &vgpu.engines);
            engines.flat_map(|engine| &engine.contexts).flat_map(|context| &context.stretches)
        };
        let begin = stretches().map(|stretch| stretch.begin_ns).min().unwrap_or(0);
        let end = stretches().map(|stretch| stretch.end_ns).max().unwrap_or(begin);
        Self { begin, length: end.saturating_sub(begin).max(1) }
    }

    /// Where a time lies, from the left.
    fn place(self, time: u64) -> Hundredths {
        let from_begin = u128::from(time.saturating_sub(self.begin).min(self.length));
        let offset = from_begin * u128::from((RIGHT - LEFT) * 100) / u128::from(self.length);
        Hundredths(LEFT * 100 + u64::try_from(offset).unwrap_or(0))
    }

    /// Nanoseconds between two ticks: a round number of 0.01 ms or more.
    fn tick(self) -> u64 {
        let mut power = NANOSECONDS / 100;
        loop {
            for step in [1, 2, 5] {
                let tick = power.saturating_mul(step);
                if self.length / tick <= TICKS {
                    return tick;
                }
            }
            power = power.saturating_mul(10);
        }
    }
}

/// Nanoseconds as milliseconds, with two digits at the most behind the point.
pub fn milliseconds(time: u64) -> String {
    let hundredths = time / (NANOSECONDS / 100);
    match hundredths % 100 {
        0 => (hundredths / 100).to_string(),
        rest if rest % 10 == 0 => format!("{}.{}", hundredths / 100, rest / 10),
        rest => format!("{}.{rest:02}", hundredths / 100),
    }
}

/// A context, for people.
pub fn label(context: &ContextHistory) -> String {
    match (context.process, context.context) {
        (Some(process), Some(handle)) => format!("process {process}, context {}", Handle(handle).index()),
        _ => format!("ended, entry {}.{}", context.entry.0, context.entry.1),
    }
}

fn draw_stretch(svg: &mut String, span: Span, stretch: &Stretch, y: u64) -> fmt::Result {
    let (from, to) = (span.place(stretch.begin_ns), span.place(stretch.end_ns));
    let name = BANDS.iter().find(|band| band.0 == stretch.band).map_or("", |band| band.1);
    // What is too short to be seen is seen.
    let width = Hundredths((to.0 - from.0.min(to.0)).max(60));
    writeln!(svg, r#"    <rect class="{name}" x="{from}" y="{y}" width="{width}" height="{BAR}"/>"#)?;
    if stretch.preempted {
        let (top, bottom) = (y - 3, y + BAR + 3);
        writeln!(svg, r#"    <path class="cut" d="M {to} {top} V {bottom}"/>"#)?;
    }
    Ok(())
}

fn draw_legend(svg: &mut String) -> fmt::Result {
    let mut x = LEFT;
    for (_, name, _) in BANDS {
        writeln!(svg, r#"  <rect class="{name}" x="{x}" y="40" width="12" height="12"/>"#)?;
        writeln!(svg, r#"  <text class="small" x="{}" y="50.5">{name}</text>"#, x + 18)?;
        x += 88;
    }
    writeln!(svg, r#"  <path class="cut" d="M {} 37 V 55"/>"#, x + 6)?;
    writeln!(svg, r#"  <text class="small" x="{}" y="50.5">put aside with work left</text>"#, x + 14)
}

fn draw_axis(svg: &mut String, span: Span, bottom: u64) -> fmt::Result {
    let tick = span.tick();
    for count in 0..=span.length / tick {
        let time = count * tick;
        let x = span.place(span.begin.saturating_add(time));
        writeln!(svg, r#"  <path class="rule" d="M {x} {TOP} V {bottom}"/>"#)?;
        let (y, text) = (bottom + 18, milliseconds(time));
        writeln!(svg, r#"  <text class="small mid" x="{x}" y="{y}">{text}</text>"#)?;
    }
    let y = bottom + 36;
    writeln!(svg, r#"  <text class="small mid" x="{}" y="{y}">milliseconds</text>"#, LEFT.midpoint(RIGHT))
}

fn draw_engine(svg: &mut String, span: Span, engine: &EngineHistory, mut y: u64) -> Result<u64, fmt::Error> {
    for context in &engine.contexts {
        writeln!(svg, r#"  <g class="row">"#)?;
        writeln!(
            svg,
            r#"    <text class="small" x="34" y="{}">{}</text>"#,
            y + 12,
            Escaped(&label(context))
        )?;
        for stretch in &context.stretches {
            draw_stretch(svg, span, stretch, y)?;
        }
        writeln!(svg, "  </g>")?;
        y += ROW;
    }
    Ok(y)
}

/// The node of an engine, for people.
pub fn node(engine: &EngineHistory) -> String {
    if engine.engine == 0 { engine.node.clone() } else { format!("{}@{}", engine.node, engine.engine) }
}

/// Engines that ran something, with a heading for each.
fn groups(timeline: &Timeline) -> impl Iterator<Item = (String, &EngineHistory)> {
    timeline.vgpus.iter().flat_map(|vgpu| {
        let engines = vgpu.engines.iter().filter(|engine| !engine.contexts.is_empty());
        engines.map(|engine| (format!("vGPU {}, {}", vgpu.name, node(engine)), engine))
    })
}

/// Draws it.
///
/// # Errors
/// None: text takes all that is written.
pub fn draw(timeline: &Timeline) -> Result<String, fmt::Error> {
    let span = Span::of(timeline);
    let rows: u64 = groups(timeline).map(|(_, engine)| HEAD + ROW * engine.contexts.len() as u64).sum();
    let bottom = TOP + rows + 6;
    let height = bottom + 50;
    let mut svg = String::new();
    writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" aria-labelledby="title desc" font-family="Helvetica, Arial, 'DejaVu Sans', sans-serif" font-size="15">"#
    )?;
    writeln!(svg, r#"  <title id="title">Who had the engines, and when</title>"#)?;
    writeln!(
        svg,
        r#"  <desc id="desc">One row for each context, grouped by vGPU and node; a bar is a stretch of time in which the context had the engine, coloured by its band, with a mark at the end where it was put aside with work left.</desc>"#
    )?;
    writeln!(svg, "  <style>")?;
    writeln!(svg, "    text {{ fill: #1c2733; }}")?;
    writeln!(svg, "    .head {{ font-size: 18px; font-weight: bold; }}")?;
    writeln!(svg, "    .part {{ font-weight: bold; }}")?;
    writeln!(svg, "    .small {{ font-size: 13.5px; fill: #4a5866; }}")?;
    writeln!(svg, "    .mid {{ text-anchor: middle; }}")?;
    writeln!(svg, "    .rule {{ stroke: #dde3e9; stroke-width: 1; }}")?;
    writeln!(svg, "    .cut {{ stroke: #1c2733; stroke-width: 1.6; }}")?;
    for (_, name, colour) in BANDS {
        writeln!(svg, "    .{name} {{ fill: {colour}; }}")?;
    }
    writeln!(svg, "  </style>")?;
    let (width, frame) = (WIDTH - 2, height - 2);
    writeln!(
        svg,
        r##"  <rect x="1" y="1" width="{width}" height="{frame}" rx="10" fill="#fbfcfd" stroke="#c9d1d9"/>"##
    )?;
    writeln!(svg, r#"  <text class="head" x="20" y="30">Who had the engines</text>"#)?;
    draw_legend(&mut svg)?;
    draw_axis(&mut svg, span, bottom)?;
    let mut y = TOP;
    for (heading, engine) in groups(timeline) {
        writeln!(svg, r#"  <text class="part" x="20" y="{}">{}</text>"#, y + 19, Escaped(&heading))?;
        y = draw_engine(&mut svg, span, engine, y + HEAD)?;
    }
    writeln!(svg, "</svg>")?;
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::Span;
    use super::Timeline;
    use super::draw;
    use super::milliseconds;

    fn timeline(name: &str) -> Timeline {
        let stretch = |begin: u64, end: u64, band: &str, preempted: bool| serde_json::json!({ "begin_ns": begin, "end_ns": end, "band": band, "preempted": preempted });
        let context = |entry: u32, stretches: Vec<serde_json::Value>| serde_json::json!({ "process": 1, "context": 1u64 << 32, "entry": [entry, 1], "stretches": stretches });
        serde_json::from_value(serde_json::json!({ "vgpus": [{ "name": name, "engines": [
            { "node": "compute", "engine": 0, "forgotten": 0, "contexts": [
                context(0, vec![stretch(1_000_000, 3_000_000, "normal", true),
                                stretch(3_500_000, 9_000_000, "normal", false)]),
                context(1, vec![stretch(3_000_000, 3_500_000, "realtime", false)]) ] },
            { "node": "copy", "engine": 1, "forgotten": 0, "contexts": [] },
        ] }] }))
        .unwrap()
    }

    #[test]
    fn a_row_a_context_a_bar_a_stretch_a_mark_where_one_was_put_aside() {
        let svg = draw(&timeline("a")).unwrap();
        let count = |what: &str| svg.matches(what).count();
        // One of each in the legend.
        assert_eq!((count(r#"<g class="row">"#), count("process 1, context 0")), (2, 2));
        assert_eq!((count(r#"<rect class="normal""#), count(r#"<rect class="realtime""#)), (3, 2));
        assert_eq!(count(r#"<path class="cut""#), 2);
        // A quarter of the way, which is 8 ms: from 196 to 930.
        assert!(svg.contains(r#"<rect class="realtime" x="379.50""#), "{svg}");
    }

    #[test]
    fn a_name_cannot_leave_its_text() {
        let svg = draw(&timeline("</text><script>\u{7}&\"")).unwrap();
        assert!(svg.contains("vGPU &lt;/text&gt;&lt;script&gt; &amp;&quot;, compute"), "{svg}");
    }

    #[test]
    fn any_span_has_a_few_round_ticks() {
        for length in [1, 9_999, 123_456, 7_000_000, 99_000_000, u64::MAX] {
            let span = Span { begin: 0, length };
            assert!(span.length / span.tick() <= 12, "{length}");
        }
        assert_eq!([10_000, 500_000, 3_000_000].map(milliseconds), ["0.01", "0.5", "3"]);
        assert!(draw(&Timeline { vgpus: Vec::new() }).unwrap().contains("</svg>"));
    }
}
