//! What scrapers read.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::io::Read;
use std::io::Write;
use std::net::SocketAddr;
use std::net::TcpListener;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use crate::served::NEVER;
use crate::served::Served;
use crate::served::until;
use crate::work::work;

/// The files that packages install.
const DASHBOARD: &str = include_str!("../../../packaging/grafana-dashboard.json");
const ALERTS: &str = include_str!("../../../packaging/prometheus-alerts.yml");
/// The page that says what there is.
const PAGE: &str = include_str!("../../../docs/book/metrics.md");

const VGPUS: &str = "[[vgpu]]\nname = \"a\"\nsocket = \"@/a.sock\"\nvram = \"64M\"\n\
                     [[vgpu]]\nname = \"b\"\nsocket = \"@/b.sock\"\nvram = \"64M\"\nweight = 300\nvram-min = \"16M\"\nvram-max = \"128M\"\n";

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: campanile\r\n\r\n";

fn with_unix_metrics() -> Served {
    // Engines poll as long as a test takes, and keep their doorbells.
    Served::with(&format!("metrics = \"unix:@/metrics\"\nspin = 600000000\n{VGPUS}"))
}

/// The body of an answer with the status 200.
fn body(mut stream: impl Read + Write) -> String {
    stream.write_all(REQUEST).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("openmetrics-text"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    body.to_owned()
}

fn connect(served: &Served) -> UnixStream {
    let stream = UnixStream::connect(served.folder.file("metrics")).unwrap();
    stream.set_read_timeout(Some(NEVER)).unwrap();
    stream
}

pub(crate) fn scrape(served: &Served) -> String {
    body(connect(served))
}

/// The value of a sample.
pub(crate) fn value(text: &str, sample: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{sample} is missing in\n{text}")).parse().unwrap()
}

/// Names of samples, without their labels.
fn names(text: &str) -> BTreeSet<String> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples.filter_map(|line| Some(line.split(['{', ' ']).next()?.to_owned())).collect()
}

/// What a text calls a metric.
fn mentioned(text: &str) -> BTreeSet<String> {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let words = text.split(|character| !is_part(character));
    words.filter(|word| word.starts_with("campanile_")).map(str::to_owned).collect()
}

#[test]
fn a_scrape_shows_what_each_vgpu_got_and_did() {
    let served = with_unix_metrics();
    work(&served, || {
        let text = scrape(&served);
        assert!(text.ends_with("# EOF\n"));
        for (sample, expected) in [
            ("campanile_vm_connected{vgpu=\"a\"}", 1.0),
            ("campanile_vm_connected{vgpu=\"b\"}", 0.0),
            ("campanile_responds{vgpu=\"b\"}", 1.0),
            ("campanile_submissions_total{vgpu=\"a\",mode=\"kernel\"}", 1.0),
            ("campanile_submissions_total{vgpu=\"a\",mode=\"user\"}", 1.0),
            ("campanile_submissions_total{vgpu=\"b\",mode=\"user\"}", 0.0),
            ("campanile_connects_total{vgpu=\"a\"}", 1.0),
            ("campanile_submit_to_fence_seconds_count{vgpu=\"a\"}", 1.0),
            ("campanile_submit_to_fence_seconds_bucket{le=\"+Inf\",vgpu=\"a\"}", 1.0),
            ("campanile_doorbells_connected{vgpu=\"a\",engine=\"0\",node=\"copy\"}", 1.0),
            ("campanile_queue_depth{vgpu=\"a\",engine=\"0\",node=\"copy\"}", 0.0),
            ("campanile_engine_up{vgpu=\"a\",engine=\"0\",node=\"copy\"}", 1.0),
            ("campanile_vram_size_bytes{vgpu=\"b\"}", 67_108_864.0),
            ("campanile_vram_guaranteed_bytes{vgpu=\"b\"}", 16_777_216.0),
            ("campanile_vram_limit_bytes{vgpu=\"b\"}", 134_217_728.0),
            ("campanile_vram_committed_bytes{vgpu=\"b\"}", 0.0),
            ("campanile_budget_limit_bytes{vgpu=\"a\"}", 268_435_456.0),
            ("campanile_budget_held_bytes{vgpu=\"b\"}", 0.0),
            ("campanile_budget_refusals_total{vgpu=\"a\"}", 0.0),
            ("campanile_engine_memory_limit_bytes{vgpu=\"a\"}", 4_294_967_296.0),
            ("campanile_quarantined{vgpu=\"a\"}", 0.0),
            ("campanile_migration_active{vgpu=\"a\"}", 0.0),
            ("campanile_engine_up{vgpu=\"a\",engine=\"0\",node=\"compute\"}", 0.0),
            ("campanile_resets_total{vgpu=\"a\",cause=\"forced\"}", 0.0),
        ] {
            assert_eq!(value(&text, sample), expected, "{sample} in\n{text}");
        }
        for sample in [
            "campanile_node_busy_seconds_total{vgpu=\"a\",engine=\"0\",node=\"copy\"}",
            "campanile_node_due_seconds_total{vgpu=\"a\",engine=\"0\",node=\"copy\"}",
            "campanile_node_wanted_seconds_total{vgpu=\"a\",engine=\"0\",node=\"copy\"}",
            "campanile_vram_committed_bytes{vgpu=\"a\"}",
            "campanile_budget_held_bytes{vgpu=\"a\"}",
            "campanile_submit_to_fence_seconds_sum{vgpu=\"a\"}",
            "campanile_engine_memory_bytes{vgpu=\"a\"}",
        ] {
            // Times are added up at the next decision of the supervisor.
            until(sample, || value(&scrape(&served), sample) > 0.0);
        }
        let in_vram = ["visible", "local"]
            .map(|place| value(&text, &format!("campanile_vram_bytes{{vgpu=\"a\",place=\"{place}\"}}")));
        assert!(in_vram.iter().sum::<f64>() >= f64::from(1 << 20), "{text}");
        assert_eq!(
            value(&text, "campanile_node_busy_seconds_total{vgpu=\"b\",engine=\"0\",node=\"copy\"}"),
            0.0
        );
        served.ask(&["reset", "--vgpu", "a", "--node", "copy"]);
        let forced = "campanile_resets_total{vgpu=\"a\",cause=\"forced\"}";
        until("the reset in a scrape", || value(&scrape(&served), forced) == 1.0);
    });
    // Neither the reset of the engine nor the end of the session takes away what was counted.
    work(&served, || {
        let submissions = served.ask(&["status"])["vgpus"][0]["submissions"].clone();
        assert_eq!(submissions, serde_json::json!({ "kernel": 2, "user": 2 }));
    });
}

#[test]
fn every_metric_of_the_dashboard_the_alerts_and_the_guide_is_in_a_scrape_and_the_guide_has_all() {
    let served = with_unix_metrics();
    work(&served, || {
        let there = names(&scrape(&served));
        for (file, text) in [("dashboard", DASHBOARD), ("alerts", ALERTS)] {
            let mentioned = mentioned(text);
            assert!(mentioned.len() > 5, "{file}");
            for name in mentioned {
                assert!(there.contains(&name), "{name} of the {file} is in no scrape");
            }
        }
        // The guide has a histogram by its name alone.
        let in_guide = mentioned(PAGE);
        let is_told = |name: &str| {
            let whole = ["_bucket", "_count", "_sum"].iter().find_map(|end| name.strip_suffix(end));
            in_guide.contains(name) || whole.is_some_and(|name| in_guide.contains(name))
        };
        for name in &there {
            assert!(is_told(name), "docs/book/metrics.md does not say what {name} is");
        }
        for name in &in_guide {
            let is_there = there.contains(name) || there.contains(&format!("{name}_bucket"));
            assert!(is_there, "docs/book/metrics.md has {name}, which is in no scrape");
        }
    });
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 5);
}

#[test]
fn clients_that_never_read_or_never_ask_keep_nobody_out_and_cost_no_more_than_so_many() {
    let served = with_unix_metrics();
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", served.pid())).unwrap().count();
    // Of clients of the operator's socket the last that has gone is closed when the next comes.
    served.ask(&["status"]);
    let before = descriptors();
    let mut crowd = Vec::new();
    for index in 0..1000 {
        let mut stream = connect(&served);
        if index % 2 == 0 {
            // It asks, and does not read; it may have been dropped already.
            let _dropped = stream.write_all(REQUEST);
        }
        crowd.push(stream);
        if index % 250 == 0 {
            assert!(scrape(&served).ends_with("# EOF\n"));
        }
    }
    assert!(scrape(&served).ends_with("# EOF\n"));
    assert!(served.ask(&["status"])["vgpus"].is_array(), "the operator's socket is another thread's");
    assert!(descriptors() <= before + 64, "{before} descriptors before, {} now", descriptors());
    drop(crowd);
    until("their connections are closed", || descriptors() <= before);
}

#[test]
fn what_is_no_request_gets_an_answer_that_says_so() {
    let served = with_unix_metrics();
    for (request, status) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"hello\n\n", "400"),
        (&[b'x'; 9000], "431"),
    ] {
        let mut stream = connect(&served);
        // The last may be answered before all of it is taken.
        let _taken = stream.write_all(request);
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(String::from_utf8_lossy(&answer), format!("HTTP/1.1 {status}"));
    }
}

#[test]
fn a_loopback_port_serves_and_no_other_address_is_taken() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let served = Served::with(&format!("metrics = \"tcp:127.0.0.1:{port}\"\n{VGPUS}"));
    let stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    stream.set_read_timeout(Some(NEVER)).unwrap();
    assert!(value(&body(stream), "campanile_build_info{version=\"0.1.0\"}") == 1.0);
    let output = crate::served::campanile(&["serve", "--metrics", "tcp:0.0.0.0:1"]);
    let said = crate::served::text(&output.stderr);
    assert!(!output.status.success() && said.contains("tcp:127.0.0.1:PORT"), "{said}");
    drop(served);
    let gone = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::ConnectionRefused);
}
