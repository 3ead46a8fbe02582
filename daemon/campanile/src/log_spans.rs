//! Spans of `tracing` in the log: the lines of a thread have those that it is in, and one that ends is a line at debug level.
//!
//! ```text
//!   span!(…) ──▶ Registry ──▶ Spans: what it is about, since when
//!   log::warn!(…) ──▶ Output ── around() ──▶ the fields of the spans that the thread is in
//!   a span ends ──▶ Spans ──▶ log::debug!("submission ended after 153 µs: …") ──▶ Output
//! ```
//!
//! A span is made where a line of its level and target would be logged.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use log::Level;
use log::Log;
use log::Record;
use serde_json::Map;
use serde_json::Value;
use serde_json::json;
use tracing::Metadata;
use tracing::Span;
use tracing::Subscriber;
use tracing::field::Field;
use tracing::field::Visit;
use tracing::level_filters::LevelFilter;
use tracing::span::Attributes;
use tracing::span::Id;
use tracing::span::Record as Values;
use tracing_subscriber::Layer;
use tracing_subscriber::Registry;
use tracing_subscriber::layer::Context;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::registry::SpanRef;

thread_local! {
    /// The span that has just ended, behind those that it was in, while its line is written.
    static ENDED: RefCell<Vec<Value>> = const { RefCell::new(Vec::new()) };
}

/// What is known of a span.
#[derive(Debug)]
struct Told {
    begun: Instant,
    fields: Map<String, Value>,
}

impl Visit for Told {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.fields.insert(field.name().to_owned(), json!(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.fields.insert(field.name().to_owned(), json!(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name().to_owned(), json!(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.fields.insert(field.name().to_owned(), json!(format!("{value:?}")));
    }
}

/// Takes spans, and logs those that this writes.
struct Spans(Arc<dyn Log>);

/// From now on spans are made for what this writes.
pub(crate) fn start(output: Arc<dyn Log>) {
    let all = Registry::default().with(Spans(output));
    // Nothing was there before.
    let _first = tracing::subscriber::set_global_default(all);
}

/// The spans that this thread is in, the outermost first, and then the one whose end is being written: each with its name, and its fields.
pub(crate) fn around() -> Vec<Value> {
    let entered = Span::current().with_subscriber(|(id, dispatch)| {
        let spans = dispatch.downcast_ref::<Registry>().and_then(|registry| registry.span(id));
        spans.map(|span| scope(&span))
    });
    let mut all = entered.flatten().unwrap_or_default();
    all.extend(ENDED.with_borrow(Clone::clone));
    all
}

/// A span, behind those that it is in.
fn scope<'a, R: LookupSpan<'a>>(span: &SpanRef<'a, R>) -> Vec<Value> {
    span.scope().from_root().filter_map(|span| object(&span)).collect()
}

fn object<'a, R: LookupSpan<'a>>(span: &SpanRef<'a, R>) -> Option<Value> {
    let extensions = span.extensions();
    let mut fields = extensions.get::<Told>()?.fields.clone();
    fields.insert("name".to_owned(), json!(span.name()));
    Some(Value::Object(fields))
}

/// A level in the words of the log.
fn level(of: tracing::Level) -> Level {
    match of {
        tracing::Level::ERROR => Level::Error,
        tracing::Level::WARN => Level::Warn,
        tracing::Level::INFO => Level::Info,
        tracing::Level::DEBUG => Level::Debug,
        tracing::Level::TRACE => Level::Trace,
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn enabled(&self, span: &Metadata<'_>, _context: Context<'_, S>) -> bool {
        let level = level(*span.level());
        level <= log::max_level()
            && self.0.enabled(&log::Metadata::builder().level(level).target(span.target()).build())
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match log::max_level() {
            log::LevelFilter::Off => LevelFilter::OFF,
            log::LevelFilter::Error => LevelFilter::ERROR,
            log::LevelFilter::Warn => LevelFilter::WARN,
            log::LevelFilter::Info => LevelFilter::INFO,
            log::LevelFilter::Debug => LevelFilter::DEBUG,
            log::LevelFilter::Trace => LevelFilter::TRACE,
        })
    }

    fn on_new_span(&self, values: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut told = Told { begun: Instant::now(), fields: Map::new() };
        values.record(&mut told);
        span.extensions_mut().insert(told);
    }

    fn on_record(&self, id: &Id, values: &Values<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(told) = span.extensions_mut().get_mut::<Told>() {
            values.record(told);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let metadata = log::Metadata::builder().level(Level::Debug).target(span.metadata().target()).build();
        if Level::Debug > log::max_level() || !self.0.enabled(&metadata) {
            return;
        }
        let took = span.extensions().get::<Told>().map(|told| told.begun.elapsed()).unwrap_or_default();
        let mut spans = scope(&span);
        if let Some(ended) = spans.last_mut() {
            ended["took_us"] = json!(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        }
        let (name, took, about) = (span.name(), took.as_micros(), text(&spans));
        ENDED.set(spans);
        let line = format_args!("{name} ended after {took} µs:{about}");
        log::logger().log(&Record::builder().metadata(metadata).args(line).build());
        ENDED.set(Vec::new());
    }
}

/// The fields of spans as a person reads them.
fn text(spans: &[Value]) -> String {
    let fields = spans.iter().filter_map(Value::as_object).flatten();
    let each =
        fields.filter(|(name, _)| !["name", "took_us"].contains(&name.as_str())).map(|(name, value)| {
            match value {
                Value::String(text) => format!(" {name}={text}"),
                other => format!(" {name}={other}"),
            }
        });
    each.collect()
}
