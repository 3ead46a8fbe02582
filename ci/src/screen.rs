//! The screen of a terminal as a picture: text with its colours (SGR escapes, as `tmux capture-pane -e` prints it) becomes SVG.

use std::fmt::Write;

/// Width and height of a cell, and how far below its top letters stand.
const CELL: (f64, f64, f64) = (8.4, 18.0, 13.5);
/// The sixteen colours of a terminal.
const NAMED: [u32; 16] = [
    0x1d_1f21, 0xcc_6666, 0x8f_b573, 0xf0_c674, 0x6f_9fcf, 0xb2_94bb, 0x8a_beb7, 0xc5_c8c6, 0x80_8080,
    0xe0_7070, 0xa5_d080, 0xff_e090, 0x8f_bfef, 0xd0_b0e0, 0xa0_e0d8, 0xff_ffff,
];
/// Of text and of the screen, where nothing else is said.
const PLAIN: (u32, u32) = (0xd0_d4d8, 0x16_181b);

/// How text looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Style {
    text: Option<u32>,
    ground: Option<u32>,
    is_bold: bool,
    is_reversed: bool,
}

/// Text of one look, from this column on.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    column: usize,
    style: Style,
    text: String,
}

impl Style {
    /// Text and ground.
    fn colours(self) -> (u32, Option<u32>) {
        let text = self.text.unwrap_or(PLAIN.0);
        if self.is_reversed { (self.ground.unwrap_or(PLAIN.1), Some(text)) } else { (text, self.ground) }
    }

    /// As the parameters of an SGR escape say.
    fn set(&mut self, parameters: &str) {
        let mut numbers = parameters.split([';', ':']).map(|number| number.parse().unwrap_or(0));
        while let Some(number) = numbers.next() {
            match number {
                0 => *self = Self::default(),
                1 => self.is_bold = true,
                7 => self.is_reversed = true,
                22 => self.is_bold = false,
                27 => self.is_reversed = false,
                30..=37 => self.text = named(number - 30),
                38 => self.text = colour(&mut numbers),
                39 => self.text = None,
                40..=47 => self.ground = named(number - 40),
                48 => self.ground = colour(&mut numbers),
                49 => self.ground = None,
                90..=97 => self.text = named(number - 82),
                100..=107 => self.ground = named(number - 92),
                _ => {}
            }
        }
    }
}

fn named(index: u32) -> Option<u32> {
    NAMED.get(usize::try_from(index).ok()?).copied()
}

/// What follows 38 or 48: 5 and an index, or 2 and three parts.
fn colour(numbers: &mut impl Iterator<Item = u32>) -> Option<u32> {
    match numbers.next()? {
        2 => Some(numbers.take(3).fold(0, |all, part| (all << 8) | (part & 0xff))),
        5 => match numbers.next()? {
            index @ 16..=231 => {
                let step = |of: u32| (of % 6).checked_sub(1).map_or(0, |step| 95 + 40 * step);
                let index = index - 16;
                Some((step(index / 36) << 16) | (step(index / 6) << 8) | step(index))
            }
            index @ 232..=255 => Some((8 + 10 * (index - 232)) * 0x01_0101),
            index => named(index),
        },
        _ => None,
    }
}

/// The runs of each line.
fn runs(screen: &str) -> Vec<Vec<Run>> {
    let mut style = Style::default();
    screen.lines().map(|line| runs_of(line, &mut style)).collect()
}

fn runs_of(line: &str, style: &mut Style) -> Vec<Run> {
    let (mut runs, mut column) = (Vec::<Run>::new(), 0);
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        if character == '\u{1b}' {
            let mut escape: String =
                characters.by_ref().take_while(|next| !next.is_ascii_alphabetic()).collect();
            if escape.starts_with('[') {
                style.set(&escape.split_off(1));
            }
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.style == *style => run.text.push(character),
            _ => runs.push(Run { column, style: *style, text: character.to_string() }),
        }
        column += 1;
    }
    runs
}

/// The picture of a screen.
pub fn svg(screen: &str) -> String {
    let lines = runs(screen);
    let ends = lines.iter().filter_map(|line| line.last()).map(|run| run.column + run.text.chars().count());
    let (width, height, base) = CELL;
    let x = |column: usize| 8.0 + width * count(column);
    let (right, bottom) = (x(ends.max().unwrap_or(0)) + 8.0, 16.0 + height * count(lines.len()));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {right:.1} {bottom:.1}\" font-family=\"DejaVu Sans Mono, monospace\" \
         font-size=\"14\">\n<rect width=\"100%\" height=\"100%\" fill=\"#{:06x}\"/>\n",
        PLAIN.1
    );
    for (row, line) in lines.iter().enumerate() {
        let top = 8.0 + height * count(row);
        for run in line {
            let (text, ground) = run.style.colours();
            let (at, length) = (x(run.column), width * count(run.text.chars().count()));
            if let Some(ground) = ground {
                let _ = writeln!(
                    out,
                    "<rect x=\"{at:.1}\" y=\"{top:.1}\" width=\"{length:.1}\" height=\"{height}\" fill=\"#{ground:06x}\"/>"
                );
            }
            if run.text.trim().is_empty() {
                continue;
            }
            let weight = if run.style.is_bold { " font-weight=\"bold\"" } else { "" };
            let escaped = run.text.replace('&', "&amp;").replace('<', "&lt;");
            let _ = writeln!(
                out,
                "<text x=\"{at:.1}\" y=\"{:.1}\" textLength=\"{length:.1}\" lengthAdjust=\"spacingAndGlyphs\" fill=\"#{text:06x}\"{weight} \
                 xml:space=\"preserve\">{escaped}</text>",
                top + base
            );
        }
    }
    out.push_str("</svg>\n");
    out
}

fn count(of: usize) -> f64 {
    u32::try_from(of).map_or(f64::MAX, f64::from)
}

#[cfg(test)]
mod tests {
    use super::NAMED;
    use super::Style;
    use super::runs;
    use super::svg;

    #[test]
    fn text_is_cut_where_its_look_changes_and_a_look_goes_on_to_the_next_line() {
        let lines = runs("ab\u{1b}[1;31mcd\u{1b}[0m e\n\u{1b}[7mf\ng");
        let looks: Vec<Vec<(usize, &str)>> = lines
            .iter()
            .map(|line| line.iter().map(|run| (run.column, run.text.as_str())).collect())
            .collect();
        assert_eq!(looks, [vec![(0, "ab"), (2, "cd"), (4, " e")], vec![(0, "f")], vec![(0, "g")]]);
        assert_eq!(lines[0][1].style, Style { text: Some(NAMED[1]), is_bold: true, ..Style::default() });
        assert!(lines[2][0].style.is_reversed);
    }

    #[test]
    fn colours_are_those_of_all_three_kinds() {
        let of = |parameters: &str| {
            let mut style = Style::default();
            style.set(parameters);
            (style.text, style.ground)
        };
        assert_eq!(of("38;5;9;48;2;1;2;3"), (Some(NAMED[9]), Some(0x01_0203)));
        assert_eq!(of("38;5;16;48;5;231"), (Some(0), Some(0xff_ffff)));
        assert_eq!(of("38;5;196"), (Some(0xff_0000), None));
        assert_eq!(of("38;5;232"), (Some(0x08_0808), None));
        assert_eq!(of("94;41"), (Some(NAMED[12]), Some(NAMED[1])));
        assert_eq!(of("94;41;39;49"), (None, None));
        assert_eq!(of("38"), (None, None));
    }

    #[test]
    fn a_picture_has_the_text_of_the_screen_and_no_markup_of_it() {
        let picture = svg("a <b> & \u{1b}[42mc\u{1b}[0m\n   \n");
        assert!(picture.contains(">a &lt;b> &amp; </text>") && picture.contains(">c</text>"), "{picture}");
        assert_eq!(picture.matches("<text").count(), 2, "spaces need no text");
        assert_eq!(picture.matches("<rect").count(), 2, "the screen, and the ground of c");
    }
}
