//! What is asked for, and what there is to answer.

use std::fmt::Debug;
use std::sync::Arc;

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked<'a> {
    /// The path, without what stands behind `?`.
    pub path: &'a str,
    /// The host that the client believes to speak to, if it says so.
    pub host: Option<&'a str>,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Page {
    /// Its Content-Type.
    pub kind: &'static str,
    /// More headers, each with its end of line.
    pub headers: &'static str,
    /// Its content.
    pub body: Arc<str>,
}

/// What a server has.
pub trait Pages: Debug + Send {
    /// The page that is asked for; else a status with its words.
    ///
    /// # Errors
    /// There is none, or not for this client.
    fn page(&mut self, asked: Asked<'_>) -> Result<Page, &'static str>;
}
