//! A move as a picture: what each pass sent, and the pause.

use super::figures::Move;
use crate::simulate::svg::Anchor;
use crate::simulate::svg::Svg;

const INK: &str = "#33414e";
const GREY: &str = "#7a8794";
const LIVE: &str = "#1d4ed8";
const PAUSED: &str = "#c2410c";
const LEFT: f64 = 130.0;
const RIGHT: f64 = 860.0;
const ROW: f64 = 26.0;
const TOP: f64 = 70.0;

/// Draws it: a bar for each pass, as long as the logarithm of its pages, and the parts of the pause in words.
pub fn draw(title: &str, one: &Move) -> String {
    let rows = u32::try_from(one.passes.len()).unwrap_or(u32::MAX);
    let mut svg = Svg::new(960, 140 + 26 * rows, title);
    svg.text((24.0, 34.0), Anchor::Start, INK, 18, title);
    svg.text((LEFT, 58.0), Anchor::Start, GREY, 12, "pages of each pass, logarithmic");
    let most = one.passes.iter().map(|pass| pass.pages).max().unwrap_or(1);
    let mut y = TOP;
    for (number, pass) in one.passes.iter().enumerate() {
        let colour = if pass.is_last { PAUSED } else { LIVE };
        let name = if pass.is_last { "in the pause".to_owned() } else { format!("pass {number}") };
        svg.text((LEFT - 10.0, y + 14.0), Anchor::End, INK, 13, &name);
        let end = LEFT + (RIGHT - LEFT) * share(pass.pages, most);
        svg.line((LEFT, y + 9.0), (end.max(LEFT + 1.0), y + 9.0), colour, 14.0);
        let label = format!("{} pages, {:.1} ms", pass.pages, milliseconds(pass.microseconds));
        svg.text((end.max(LEFT + 1.0) + 8.0, y + 14.0), Anchor::Start, GREY, 12, &label);
        y += ROW;
    }
    let pause = format!(
        "pause {:.1} ms: rings stopped after {:.1}, state saved in {:.1}, loaded in {:.1}; {} bytes of state",
        one.pause_ms, one.stop_ms, one.save_ms, one.load_ms, one.state_bytes
    );
    svg.text((24.0, y + 34.0), Anchor::Start, PAUSED, 14, &pause);
    svg.finish()
}

fn share(pages: u64, most: u64) -> f64 {
    let log = |pages: u64| ((pages + 1) as f64).ln();
    log(pages) / log(most).max(1.0) * 0.8
}

fn milliseconds(micros: u64) -> f64 {
    micros as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::super::figures::Move;
    use super::super::figures::Pass;
    use super::draw;

    #[test]
    fn every_pass_has_its_bar_and_the_pause_its_words() {
        let pass = |is_last, pages| Pass { is_last, pages, zero_pages: 0, wire_bytes: 1, microseconds: 1500 };
        let one = Move {
            pause_ms: 12.5,
            stop_ms: 1.0,
            save_ms: 2.0,
            load_ms: 3.0,
            total_ms: 100.0,
            state_bytes: 77,
            passes: vec![pass(false, 100_000), pass(false, 300), pass(true, 0)],
        };
        let text = draw("a move", &one);
        assert!(text.contains("100000 pages, 1.5 ms") && text.contains("in the pause"));
        assert!(text.contains("pause 12.5 ms") && text.contains("77 bytes of state"));
    }
}
