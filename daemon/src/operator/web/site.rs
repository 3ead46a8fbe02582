//! The files of the page, and the JSON that it asks for.

use std::net::IpAddr;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use serde_json::Value;
use serde_json::json;

use crate::operator::console::Console;
use crate::operator::console::HandlerError;
use crate::operator::http::page::Asked;
use crate::operator::http::page::Page;
use crate::operator::http::page::Pages;
use crate::operator::verb::Verb;

/// How old an answer may be: however many look, vGPUs are asked no more often.
const FRESH: Duration = Duration::from_millis(500);
/// Milliseconds of the timeline that the page draws.
const LAST_MS: u64 = 5000;
/// The page loads only its own files, and nothing shows it in a frame.
const HEADERS: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\nX-Content-Type-Options: nosniff\r\n\
     Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\nCache-Control: no-store\r\n";
const JSON: &str = "application/json";
/// Path, Content-Type and content.
const FILES: [(&str, &str, &str); 3] = [
    ("/", "text/html; charset=utf-8", include_str!("page.html")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("page.js")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page.css")),
];
/// What is asked of vGPUs, by path.
const LOOKS: [&str; 4] = ["/vgpus.json", "/timeline.json", "/migration.json", "/reports.json"];

/// The page, and the last of each look.
#[derive(Debug)]
pub struct Site {
    handler: Arc<dyn Console>,
    address: SocketAddr,
    looks: [Option<(Instant, Arc<str>)>; LOOKS.len()],
}

impl Site {
    /// Over what the handler knows, served there.
    pub fn new(handler: Arc<dyn Console>, address: SocketAddr) -> Self {
        Self { handler, address, looks: [const { None }; LOOKS.len()] }
    }

    fn look(&mut self, index: usize) -> Arc<str> {
        if let Some((made, text)) = &self.looks[index]
            && made.elapsed() < FRESH
        {
            return Arc::clone(text);
        }
        let found = match LOOKS[index] {
            "/vgpus.json" => self.handler.serve(&Verb::Vram),
            "/timeline.json" => {
                self.handler.serve(&Verb::Timeline { vgpu: None, last: Some(LAST_MS), svg: None })
            }
            "/migration.json" => self.handler.serve(&Verb::Migration),
            _ => self.handler.serve(&Verb::Reports),
        };
        let text: Arc<str> = as_text(found).into();
        self.looks[index] = Some((Instant::now(), Arc::clone(&text)));
        text
    }
}

fn as_text(found: Result<Value, HandlerError>) -> String {
    found.unwrap_or_else(|error| json!({ "error": error.to_string() })).to_string()
}

impl Pages for Site {
    fn page(&mut self, asked: Asked<'_>) -> Result<Page, &'static str> {
        if !asked.host.is_some_and(|host| is_here(host, self.address)) {
            return Err("421 Misdirected Request");
        }
        if let Some((_, kind, content)) = FILES.iter().find(|(path, ..)| *path == asked.path) {
            return Ok(Page { kind, headers: HEADERS, body: (*content).into() });
        }
        match LOOKS.iter().position(|path| *path == asked.path) {
            Some(index) => Ok(Page { kind: JSON, headers: HEADERS, body: self.look(index) }),
            None => Err("404 Not Found"),
        }
    }
}

/// Whether a Host header names this host and the port of the page.
fn is_here(host: &str, address: SocketAddr) -> bool {
    if let Ok(named) = host.parse::<SocketAddr>() {
        return named.ip().is_loopback() && named.port() == address.port();
    }
    let (name, port) = host.rsplit_once(':').map_or((host, None), |(name, port)| (name, Some(port)));
    let port = port.map_or(Some(80), |port| port.parse().ok());
    let is_named =
        name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    is_named && port == Some(address.port())
}

#[cfg(test)]
mod tests {
    use super::FILES;
    use super::LOOKS;
    use super::is_here;

    #[test]
    fn only_names_of_this_host_with_the_port_of_the_page_are_here() {
        let address = "127.0.0.1:9465".parse().unwrap();
        for here in ["127.0.0.1:9465", "localhost:9465", "LocalHost:9465", "[::1]:9465"] {
            assert!(is_here(here, address), "{here}");
        }
        for elsewhere in [
            "",
            "127.0.0.1",
            "localhost",
            "localhost:1",
            "example.org:9465",
            "10.0.0.1:9465",
            "localhost.example.org:9465",
        ] {
            assert!(!is_here(elsewhere, address), "{elsewhere}");
        }
        assert!(is_here("localhost", "127.0.0.1:80".parse().unwrap()));
    }

    #[test]
    fn the_page_asks_for_all_there_is_and_brings_no_text_into_the_document_as_markup() {
        let [(_, _, html), (_, _, script), (_, _, style)] = FILES;
        for path in LOOKS {
            assert!(script.contains(path), "{path}");
        }
        for way in [
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "Function(",
            "setAttribute(\"style",
            "://",
        ] {
            let is_there = script.replace("http://www.w3.org/2000/svg", "").contains(way);
            assert!(!is_there, "{way}");
        }
        // The policy allows neither.
        assert!(!html.contains("<style") && !html.contains("style=") && !html.contains("://"));
        assert!(html.contains("src=\"page.js\"") && html.matches("<script").count() == 1);
        assert!(!style.contains("url(") && !style.contains("@import"));
    }
}
