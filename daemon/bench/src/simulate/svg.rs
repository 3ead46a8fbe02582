//! Writes SVG.

use std::fmt::Display;
use std::fmt::Write;

/// A picture. Lengths are in pixels, from the upper left corner.
#[derive(Debug)]
pub struct Svg {
    text: String,
}

/// Where a text is held.
#[derive(Debug, Clone, Copy)]
pub enum Anchor {
    /// At its beginning.
    Start,
    /// In its middle.
    Middle,
    /// At its end.
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Svg {
    /// Empty, with a title for readers that cannot see it.
    pub fn new(width: u32, height: u32, title: &str) -> Self {
        let mut svg = Self { text: String::new() };
        svg.push(format_args!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" font-family="Helvetica, Arial, 'DejaVu Sans', sans-serif" font-size="14">"#
        ));
        svg.push(format_args!("<title>{}</title>", escaped(title)));
        svg.push(format_args!(
            r##"<rect width="{width}" height="{height}" rx="10" fill="#fbfcfd" stroke="#c9d1d9"/>"##
        ));
        svg
    }

    fn push(&mut self, element: impl Display) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{element}");
    }

    /// A text.
    pub fn text(&mut self, at: (f64, f64), anchor: Anchor, colour: &str, size: u32, text: &str) {
        let ((x, y), anchor, text) = (at, anchor.name(), escaped(text));
        self.push(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">{text}</text>"#
        ));
    }

    /// A line.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.push(format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{colour}" stroke-width="{width}"/>"#
        ));
    }

    /// A dot.
    pub fn dot(&mut self, at: (f64, f64), radius: f64, colour: &str) {
        let (x, y) = at;
        self.push(format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius}" fill="{colour}"/>"#));
    }

    /// A line through points.
    pub fn polyline(&mut self, points: &[(f64, f64)], colour: &str, width: f64) {
        let mut list = String::new();
        for (x, y) in points {
            let _ = write!(list, "{x:.1},{y:.1} ");
        }
        let list = list.trim_end();
        self.push(format_args!(
            r#"<polyline points="{list}" fill="none" stroke="{colour}" stroke-width="{width}"/>"#
        ));
    }

    /// The file's text.
    pub fn finish(mut self) -> String {
        self.push("</svg>");
        self.text
    }
}
