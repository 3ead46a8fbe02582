//! A configuration with every option, as a start.

use super::kind::Kind;
use super::known::Known;
use super::known::Options;
use super::vgpu::KEYS;

/// Characters of a line of its comments.
const WIDTH: usize = 100;

const HEAD: &str = "The configuration of campanile. Every option is here, as it is where nothing is said; take the # away from \
                    what you want to be different. Files that end in .toml in the folder conf.d beside this one are read after it, by \
                    name: an option that is there replaces this one, and vGPUs are added. `campanile config check` says what \
                    is wrong, and where; what the command line of `campanile serve` says wins.";

/// What an installed daemon has, beside the defaults.
const CHOSEN: [(&str, &str); 2] =
    [("control", "/run/campanile/control"), ("state-dir", "/var/lib/campanile")];

/// The vGPU that is there for a start.
const FIRST: [(&str, &str); 3] = [("name", "a"), ("socket", "/run/campanile/a.sock"), ("vram", "512M")];

/// The text of the file.
pub fn text(options: &Options) -> String {
    let mut text = String::new();
    comment(&mut text, HEAD);
    for known in options.all() {
        text.push('\n');
        let values = match known.values.as_slice() {
            [] => String::new(),
            _ => format!(" Possible: {}.", known.allowed()),
        };
        comment(&mut text, &format!("{}.{values}", known.help.trim_end_matches('.')));
        match CHOSEN.iter().find(|(name, _)| *name == known.name) {
            Some((name, value)) => text.push_str(&format!("{name} = \"{value}\"\n")),
            None => text.push_str(&format!("# {} = {}\n", known.name, value(known))),
        }
    }
    text.push('\n');
    comment(
        &mut text,
        "A vGPU. As many of these tables as there are vGPUs, each with its own name and socket.",
    );
    text.push_str("[[vgpu]]\n");
    for key in KEYS {
        comment(&mut text, &format!("{}.", key.help));
        match FIRST.iter().find(|(name, _)| *name == key.name) {
            Some((name, value)) => text.push_str(&format!("{name} = \"{value}\"\n")),
            None => text.push_str(&format!("# {} = {}\n", key.name, placeholder(key.kind, "…"))),
        }
    }
    text
}

fn value(known: &Known) -> String {
    match &known.default {
        Some(default) if known.kind == Kind::Number => default.clone(),
        // A size of the command line, or the bytes of a default.
        Some(default) if known.kind == Kind::Size && default.parse::<u64>().is_ok() => default.clone(),
        Some(default) => format!("\"{default}\""),
        None => placeholder(known.kind, &known.value_name),
    }
}

/// What stands where there is no default.
fn placeholder(kind: Kind, name: &str) -> String {
    match kind {
        Kind::Flag => "false".to_owned(),
        // No number: one has to be thought of.
        Kind::Number => name.to_owned(),
        Kind::Size | Kind::Path | Kind::Text => format!("\"{name}\""),
    }
}

/// Lines of a comment, broken between words.
fn comment(text: &mut String, words: &str) {
    let mut line = String::from("#");
    for word in words.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > WIDTH && line.len() > 1 {
            text.push_str(&line);
            text.push('\n');
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    text.push_str(&line);
    text.push('\n');
}
