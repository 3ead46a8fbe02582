//! Reading the metrics of a worker, and putting those of all into one text.

use std::collections::HashMap;
use std::collections::HashSet;
use std::fmt::Write as _;
use std::io;
use std::io::Read;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use crate::operator::client::Until;
use crate::operator::client::connect_at_once;

/// How long a worker may take to say all of it.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of the longest answer.
const LONGEST: u64 = 1 << 20;
/// What ends a text of OpenMetrics.
const END: &str = "# EOF";
/// What all names of this program begin with.
const PREFIX: &str = "campanile_";

/// The text that is served there (`GET /metrics`).
///
/// # Errors
/// Nothing answers, or with something else than all of a text.
pub fn scrape(path: &Path) -> io::Result<String> {
    let mut stream = connect_at_once(path)?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut answer = String::new();
    Until::new(stream, TIMEOUT).take(LONGEST).read_to_string(&mut answer)?;
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "its metrics are no text of OpenMetrics");
    let (head, text) = answer.split_once("\r\n\r\n").ok_or_else(wrong)?;
    let is_whole = head.starts_with("HTTP/1.1 200 ") && text.trim_end().ends_with(END);
    if is_whole { Ok(text.to_owned()) } else { Err(wrong()) }
}

/// A family of samples: what is said of it, and its samples, a line each.
#[derive(Debug)]
struct Family<'a> {
    name: &'a str,
    said: Vec<&'a str>,
    samples: Vec<&'a str>,
    /// The same, to be found.
    known: HashSet<&'a str>,
}

/// One text of several, each of the vGPU of that name, or of none: families as in the first that has them, with the samples of all.
/// What a worker says of another vGPU than its own is left out, and so is what another has said already.
pub fn join(texts: &[(Option<&str>, &str)]) -> String {
    let mut families: Vec<Family<'_>> = Vec::new();
    let mut by_name: HashMap<&str, usize> = HashMap::new();
    for (vgpu, text) in texts {
        let own = vgpu.map(|name| ["{", ","].map(|before| format!("{before}vgpu=\"{}\"", escaped(name))));
        let mut at = None;
        for line in text.lines() {
            if let Some(said) = line.strip_prefix("# ") {
                let Some(name) = said.split(' ').nth(1).filter(|name| name.starts_with(PREFIX)) else {
                    continue;
                };
                let found = *by_name.entry(name).or_insert_with(|| {
                    families.push(Family {
                        name,
                        said: Vec::new(),
                        samples: Vec::new(),
                        known: HashSet::new(),
                    });
                    families.len() - 1
                });
                at = Some(found);
                let kind = said.split(' ').next();
                let is_type = kind != Some("TYPE")
                    || said
                        .split(' ')
                        .nth(2)
                        .is_some_and(|of| ["counter", "gauge", "histogram"].contains(&of));
                if !is_type || ![Some("HELP"), Some("TYPE"), Some("UNIT")].contains(&kind) {
                    continue;
                }
                let family = &mut families[found];
                if !family.said.iter().any(|other| other.split(' ').nth(1) == kind) {
                    family.said.push(line);
                }
                continue;
            }
            let Some(family) = at.map(|at| &mut families[at]) else { continue };
            let is_of_another = own.as_ref().is_some_and(|own| match line.matches("vgpu=\"").count() {
                0 => false,
                1 => !own.iter().any(|own| line.contains(own)),
                _ => true,
            });
            if is_sample(line, family.name) && !is_of_another && family.known.insert(line) {
                family.samples.push(line);
            }
        }
    }
    let mut text = String::new();
    for family in families {
        for line in family.said.iter().chain(&family.samples) {
            let _infallible = writeln!(text, "{line}");
        }
    }
    text.push_str(END);
    text.push('\n');
    text
}

/// Whether a line is a sample of the family: its name with a suffix or none, labels or none, and a number. One that is none would
/// have a scraper refuse the metrics of all.
fn is_sample(line: &str, family: &str) -> bool {
    let Some(rest) = line.strip_prefix(family) else { return false };
    let end = rest.find(['{', ' ']).unwrap_or(rest.len());
    let (suffix, rest) = rest.split_at(end);
    let value = match rest.strip_prefix('{') {
        Some(labels) => labels.rsplit_once("} ").map(|(_, value)| value),
        None => rest.strip_prefix(' '),
    };
    let is_known = ["", "_total", "_bucket", "_sum", "_count"].contains(&suffix);
    is_known && value.is_some_and(|value| value.parse::<f64>().is_ok())
}

/// A value of a label as the text has it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::io::BufRead;
    use std::io::BufReader;
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::is_sample;
    use super::join;
    use super::scrape;

    const INFO: &str = "# HELP campanile_build_info The version.\n# TYPE campanile_build_info gauge\ncampanile_build_info{version=\"1\"} 1\n";

    fn of(vgpu: &str, count: u32) -> String {
        let family = "# HELP campanile_resets Resets.\n# TYPE campanile_resets counter\n";
        format!("{INFO}{family}campanile_resets_total{{vgpu=\"{vgpu}\"}} {count}\n# EOF\n")
    }

    #[test]
    fn families_of_all_are_there_once_with_the_samples_of_each() {
        let (a, b) = (of("a", 3), of("b", 4));
        let text = join(&[(Some("a"), &a), (Some("b"), &b)]);
        let family = "# HELP campanile_resets Resets.\n# TYPE campanile_resets counter\n";
        let samples = "campanile_resets_total{vgpu=\"a\"} 3\ncampanile_resets_total{vgpu=\"b\"} 4\n";
        assert_eq!(text, format!("{INFO}{family}{samples}# EOF\n"));
        assert_eq!(join(&[]), "# EOF\n");
    }

    #[test]
    fn what_a_worker_says_of_the_vgpu_of_another_or_of_no_family_is_left_out() {
        for (line, is) in [
            ("a 1", true),
            ("a_total{vgpu=\"x } 3\"} 1.5", true),
            ("a_bucket{le=\"+Inf\"} 3", true),
            ("a_other 1", false),
            ("a_total{vgpu=\"x\"", false),
            ("a {} junk", false),
            ("a", false),
            ("b 1", false),
        ] {
            assert_eq!(is_sample(line, "a"), is, "{line}");
        }
        let lies = "loose 1\n# TYPE campanile_resets counter\ncampanile_resets_total{vgpu=\"b\"} 9\n\
                    campanile_resets_total{vgpu=\"b\",vgpu=\"a\\\"x\"} 9\ncampanile_resets_total{of_vgpu=\"a\\\"x\"} 9\n\
                    campanile_resets_total{vgpu=\"a\\\"x\"} 1\nother{vgpu=\"a\\\"x\"} 1\n# TYPE up gauge\nup 0\n# EOF\n";
        let odd = "# TYPE campanile_resets summary\n# TYPE campanile_resets counter\n# NOTE campanile_resets x\ncampanile_resets_total 1\n";
        assert_eq!(
            join(&[(None, odd)]),
            "# TYPE campanile_resets counter\ncampanile_resets_total 1\n# EOF\n"
        );
        let text = join(&[(Some("a\"x"), lies)]);
        assert_eq!(
            text,
            "# TYPE campanile_resets counter\ncampanile_resets_total{vgpu=\"a\\\"x\"} 1\n# EOF\n"
        );
    }

    #[test]
    fn only_a_whole_text_is_read() {
        let folder = tempfile::tempdir().unwrap();
        for (name, answer, is_read) in [
            ("well", "HTTP/1.1 200 OK\r\nA: b\r\n\r\na 1\n# EOF\n", true),
            ("cut", "HTTP/1.1 200 OK\r\nA: b\r\n\r\na 1\n", false),
            ("none", "HTTP/1.1 404 Not Found\r\n\r\n# EOF\n", false),
            ("no-head", "a 1\n# EOF\n", false),
        ] {
            let path = folder.path().join(name);
            let listener = UnixListener::bind(&path).unwrap();
            let served = thread::spawn(move || {
                let (stream, _) = listener.accept().unwrap();
                let lines = BufReader::new(&stream).lines().map(Result::unwrap);
                let asked: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
                (&stream).write_all(answer.as_bytes()).unwrap();
                asked
            });
            let read = scrape(&path);
            assert_eq!(read.is_ok(), is_read, "{name}: {read:?}");
            assert_eq!(served.join().unwrap()[0], "GET /metrics HTTP/1.1");
        }
        assert!(scrape(&folder.path().join("gone")).is_err());
    }
}
