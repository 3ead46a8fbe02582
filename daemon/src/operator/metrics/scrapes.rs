//! The one page that scrapers read.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;

use crate::operator::http::page::Asked;
use crate::operator::http::page::Page;
use crate::operator::http::page::Pages;

/// The form of the answer.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// How old a text may be: however many ask, vGPUs are asked no more often.
const FRESH: Duration = Duration::from_secs(1);

/// Where texts come from.
pub trait Texts: fmt::Debug + Send {
    /// All numbers of now, as OpenMetrics.
    fn text(&self) -> String;
}

/// What scrapers read, and the last of it.
#[derive(Debug)]
pub struct Scrapes {
    source: Box<dyn Texts>,
    text: Option<(Instant, Arc<str>)>,
}

impl Scrapes {
    /// Numbers from there.
    pub fn new(source: impl Texts + 'static) -> Self {
        Self { source: Box::new(source), text: None }
    }

    /// The text that is there, or a new one.
    fn fresh(&mut self) -> Arc<str> {
        match &self.text {
            Some((made, text)) if made.elapsed() < FRESH => Arc::clone(text),
            _ => {
                let new: Arc<str> = self.source.text().into();
                self.text = Some((Instant::now(), Arc::clone(&new)));
                new
            }
        }
    }
}

impl Pages for Scrapes {
    fn page(&mut self, asked: Asked<'_>) -> Result<Page, &'static str> {
        match asked.path {
            "/metrics" => Ok(Page { kind: OPENMETRICS, headers: "", body: self.fresh() }),
            _ => Err("404 Not Found"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::metrics::gather::Source;

    #[test]
    fn a_text_is_good_for_a_second() {
        let (now, old) = (Instant::now(), Arc::from("old"));
        let mut scrapes =
            Scrapes { text: Some((now + FRESH, old)), ..Scrapes::new(Source::new(Arc::default())) };
        assert_eq!(&*scrapes.fresh(), "old");
        scrapes.text = Some((now.checked_sub(FRESH).unwrap(), Arc::from("old")));
        assert!(scrapes.fresh().contains("campanile_build_info"));
        let (made, kept) = scrapes.text.unwrap();
        assert!(made >= now && kept.contains("campanile_build_info"));
    }
}
