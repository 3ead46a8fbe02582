//! Standard error, in the format that is set.

use std::io::Write;
use std::thread;

use campanile_daemon::cli::log_format::LogFormat;
use env_logger::Builder;
use env_logger::Env;
use env_logger::Logger;
use log::LevelFilter;
use log::Log;
use log::Metadata;
use log::Record;
use serde_json::Value;
use serde_json::json;

use crate::log_spans;

/// The same lines in each format.
#[derive(Debug)]
pub(crate) struct Output {
    text: Logger,
    json: Logger,
}

impl Output {
    /// With the filter of the environment, or, without one, with none: the level that is set says it, and may change.
    pub(crate) fn new(has_filter: bool) -> Self {
        let builder = || {
            let mut builder = Builder::from_env(Env::default());
            if !has_filter {
                builder.filter_level(LevelFilter::Trace);
            }
            builder
        };
        let json = builder()
            .format(|line, record| {
                let mut object = json!({
                    "time": line.timestamp_micros().to_string(),
                    "level": record.level().as_str(),
                    "target": record.target(),
                    "thread": thread::current().name(),
                    "message": record.args().to_string(),
                });
                let spans = log_spans::around();
                if !spans.is_empty() {
                    object["spans"] = Value::Array(spans);
                }
                writeln!(line, "{object}")
            })
            .build();
        Self { text: builder().build(), json }
    }

    /// The most that the environment's filter lets through.
    pub(crate) fn filter(&self) -> LevelFilter {
        self.text.filter()
    }

    fn current(&self) -> &Logger {
        match LogFormat::current() {
            LogFormat::Text => &self.text,
            LogFormat::Json => &self.json,
        }
    }
}

impl Log for Output {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.current().enabled(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        self.current().log(record);
    }

    fn flush(&self) {
        self.current().flush();
    }
}
