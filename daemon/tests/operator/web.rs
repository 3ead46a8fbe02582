//! What a browser of this host sees.

use std::io::Read;
use std::io::Write;
use std::net::SocketAddr;
use std::net::TcpListener;
use std::net::TcpStream;

use serde_json::Value;

use crate::served::NEVER;
use crate::served::Served;
use crate::served::campanile;
use crate::served::text;
use crate::served::until;
use crate::work::work;

const VGPUS: &str = "[[vgpu]]\nname = \"<b>&a\"\nsocket = \"@/a.sock\"\nvram = \"64M\"\n\
                     [[vgpu]]\nname = \"b\"\nsocket = \"@/b.sock\"\nvram = \"64M\"\n";

struct Site {
    served: Served,
    address: SocketAddr,
}

impl Site {
    fn new() -> Self {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Self { served: Served::with(&format!("web = \"{address}\"\nspin = 600000000\n{VGPUS}")), address }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(NEVER)).unwrap();
        stream
    }

    /// Head and body of the answer to one request.
    fn exchange(&self, request: &str) -> (String, String) {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer}"));
        (head.to_owned(), body.to_owned())
    }

    fn get(&self, path: &str) -> (String, String) {
        self.exchange(&format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address))
    }

    fn json(&self, path: &str) -> Value {
        let (head, body) = self.get(path);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("application/json"), "{head}");
        serde_json::from_str(&body).unwrap()
    }
}

#[test]
fn the_page_and_its_files_load_nothing_but_themselves() {
    let site = Site::new();
    for (path, kind) in [("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")] {
        let (head, body) = site.get(path);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains(kind) && !body.is_empty(), "{head}");
        assert!(
            head.contains("Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'")
        );
        assert!(head.contains("frame-ancestors 'none'") && !head.contains("unsafe"), "{head}");
        assert!(head.contains("X-Content-Type-Options: nosniff"), "{head}");
    }
}

#[test]
fn the_page_has_what_each_vgpu_runs_holds_and_suffered() {
    let site = Site::new();
    work(&site.served, || {
        let vgpus = site.json("/vgpus.json");
        // Names of the configuration are data, whatever they look like.
        assert_eq!((&vgpus["vgpus"][0]["name"], &vgpus["vgpus"][1]["name"]), (&"<b>&a".into(), &"b".into()));
        let memory = &vgpus["vgpus"][0]["session"]["memory"];
        let taken = memory["visible_cells"]
            .as_array()
            .unwrap()
            .iter()
            .chain(memory["local_cells"].as_array().unwrap());
        assert!(taken.filter(|cell| cell.as_u64() > Some(0)).count() > 0, "{memory}");
        until("the work in the timeline", || {
            let timeline = site.json("/timeline.json");
            let engines = timeline["vgpus"][0]["engines"].as_array().unwrap();
            let contexts = engines.iter().flat_map(|engine| engine["contexts"].as_array().unwrap());
            contexts.flat_map(|context| context["stretches"].as_array().unwrap()).count() > 0
        });
        let departures = &site.json("/migration.json")["departures"];
        assert_eq!((&departures[1]["vgpu"], &departures[1]["phase"]), (&"b".into(), &"idle".into()));
        assert!(departures[1]["progress"]["passes"].is_array(), "{departures}");
        assert_eq!(site.json("/reports.json")["vgpus"][0]["reports"], Value::Array(Vec::new()));
        site.served.ask(&["reset", "--vgpu", "<b>&a", "--node", "copy"]);
        until("the report on the reset", || {
            let reports = site.json("/reports.json");
            let report = &reports["vgpus"][0]["reports"][0];
            report["node"] == "copy" && report["vgpu"] == "<b>&a" && report["engine"].is_object()
        });
    });
}

#[test]
fn nothing_is_changed_and_no_other_origin_is_answered() {
    let site = Site::new();
    let at = site.address;
    for (request, status) in [
        (format!("GET /reset HTTP/1.1\r\nHost: {at}\r\n\r\n"), "404"),
        (format!("GET /../etc/passwd HTTP/1.1\r\nHost: {at}\r\n\r\n"), "404"),
        (format!("POST /vgpus.json HTTP/1.1\r\nHost: {at}\r\n\r\n"), "405"),
        (format!("GET /vgpus.json HTTP/1.1\r\nHost: rebound.example:{}\r\n\r\n", at.port()), "421"),
        ("GET /vgpus.json HTTP/1.1\r\n\r\n".to_owned(), "421"),
        ("nonsense\r\n\r\n".to_owned(), "400"),
    ] {
        let (head, _) = site.exchange(&request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {head}");
    }
}

#[test]
fn clients_that_never_ask_keep_no_browser_out() {
    let site = Site::new();
    let _crowd: Vec<TcpStream> = (0..200).map(|_| site.connect()).collect();
    assert!(site.get("/").0.starts_with("HTTP/1.1 200 OK\r\n"));
    assert!(site.served.ask(&["status"])["vgpus"].is_array());
}

#[test]
fn only_this_host_is_served() {
    let output = campanile(&["serve", "--web", "0.0.0.0:9465"]);
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("only this host may see it"), "{said}");
}
