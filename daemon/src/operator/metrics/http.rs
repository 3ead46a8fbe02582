//! As much of HTTP/1.1 as a scrape needs.

/// Bytes of the longest request.
pub const MAX_REQUEST: usize = 8 << 10;

/// The form of the answer.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What a client wants, as far as it has said so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// There is more to come.
    Unfinished,
    /// The metrics.
    Metrics,
    /// Something else: a status with its words.
    Wrong(&'static str),
}

/// Reads what a client has sent until now.
pub fn read(bytes: &[u8]) -> Request {
    let is_whole =
        bytes.windows(4).any(|end| end == b"\r\n\r\n") || bytes.windows(2).any(|end| end == b"\n\n");
    if !is_whole {
        let is_long = bytes.len() >= MAX_REQUEST;
        return if is_long {
            Request::Wrong("431 Request Header Fields Too Large")
        } else {
            Request::Unfinished
        };
    }
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| byte.is_ascii_whitespace());
    let (method, target, version) = (words.next(), words.next(), words.next());
    let path = target.and_then(|target| target.split(|byte| *byte == b'?').next());
    match (method, path, version.is_some_and(|version| version.starts_with(b"HTTP/1."))) {
        (Some(b"GET"), Some(b"/metrics"), true) => Request::Metrics,
        (Some(b"GET"), Some(_), true) => Request::Wrong("404 Not Found"),
        (Some(_), Some(_), true) => Request::Wrong("405 Method Not Allowed"),
        _ => Request::Wrong("400 Bad Request"),
    }
}

/// What goes before the text.
pub fn head(length: usize) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {OPENMETRICS}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )
}

/// The answer to what is wrong.
pub fn refusal(status: &str) -> String {
    let text = format!("{status}: GET /metrics\n");
    let length = text.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    )
}

#[cfg(test)]
mod tests {
    use super::MAX_REQUEST;
    use super::Request;
    use super::read;

    #[test]
    fn only_a_whole_request_for_metrics_is_one() {
        let whole = b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_eq!(read(whole), Request::Metrics);
        for end in 0..whole.len() {
            assert_eq!(read(&whole[..end]), Request::Unfinished, "{end}");
        }
        for (wrong, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"GET /metrics\r\n\r\n", "400"),
            (b"\0\xff\r\n\r\n", "400"),
            (b"\n\n", "400"),
        ] {
            let Request::Wrong(said) = read(wrong) else { panic!("{wrong:?}") };
            assert!(said.starts_with(status), "{wrong:?}: {said}");
        }
        assert!(matches!(read(&[b'x'; MAX_REQUEST]), Request::Wrong(_)));
    }
}
