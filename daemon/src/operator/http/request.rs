//! As much of HTTP/1.1 as a GET needs.

use super::page::Asked;
use super::page::Page;

/// Bytes of the longest request.
pub const MAX_REQUEST: usize = 8 << 10;

/// What a client wants, as far as it has said so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request<'a> {
    /// There is more to come.
    Unfinished,
    /// A page.
    Get(Asked<'a>),
    /// Something else: a status with its words.
    Wrong(&'static str),
}

/// Reads what a client has sent until now.
pub fn read(bytes: &[u8]) -> Request<'_> {
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
    let mut lines = bytes.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let line = lines.next().unwrap_or_default();
    let mut words = line.split(|byte| byte.is_ascii_whitespace());
    let (method, target, version) = (words.next(), words.next(), words.next());
    let path = target.and_then(|target| target.split(|byte| *byte == b'?').next());
    let path = path.and_then(|path| str::from_utf8(path).ok());
    match (method, path, version.is_some_and(|version| version.starts_with(b"HTTP/1."))) {
        (Some(b"GET"), Some(path), true) => Request::Get(Asked { path, host: lines.find_map(host) }),
        (Some(_), Some(_), true) => Request::Wrong("405 Method Not Allowed"),
        _ => Request::Wrong("400 Bad Request"),
    }
}

/// What a header says of the host, if it is that one.
fn host(line: &[u8]) -> Option<&str> {
    let (name, value) = str::from_utf8(line).ok()?.split_once(':')?;
    name.eq_ignore_ascii_case("host").then_some(value.trim())
}

/// What goes before a page.
pub fn head(page: &Page) -> String {
    let Page { kind, headers, body } = page;
    let length = body.len();
    format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{headers}Connection: close\r\n\r\n"
    )
}

/// The answer to what is wrong.
pub fn refusal(status: &str) -> String {
    let text = format!("{status}\n");
    let length = text.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    )
}

#[cfg(test)]
mod tests {
    use super::Asked;
    use super::MAX_REQUEST;
    use super::Request;
    use super::read;

    #[test]
    fn only_a_whole_get_is_a_request() {
        let whole = b"GET /metrics?x=1 HTTP/1.1\r\nAccept: */*\r\nhOst:  a:1 \r\n\r\n";
        assert_eq!(read(whole), Request::Get(Asked { path: "/metrics", host: Some("a:1") }));
        for end in 0..whole.len() {
            assert_eq!(read(&whole[..end]), Request::Unfinished, "{end}");
        }
        assert_eq!(read(b"GET / HTTP/1.1\n\n"), Request::Get(Asked { path: "/", host: None }));
        for (wrong, status) in [
            (&b"POST /metrics HTTP/1.1\r\n\r\n"[..], "405"),
            (b"GET /metrics\r\n\r\n", "400"),
            (b"GET /\xff HTTP/1.1\r\n\r\n", "400"),
            (b"\0\xff\r\n\r\n", "400"),
            (b"\n\n", "400"),
        ] {
            let Request::Wrong(said) = read(wrong) else { panic!("{wrong:?}") };
            assert!(said.starts_with(status), "{wrong:?}: {said}");
        }
        assert!(matches!(read(&[b'x'; MAX_REQUEST]), Request::Wrong(_)));
    }
}
