//! Families of samples, and their text.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::MetricEncoder;
use prometheus_client::encoding::NoLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::latencies::BOUNDS_US;
use crate::latencies::Distribution;

/// What every name begins with.
const PREFIX: &str = "campanile";

/// A name, what it says, and what is known of it.
#[derive(Debug, Clone)]
pub struct Family {
    /// Without the prefix, and of a counter without `_total`.
    pub name: String,
    /// What it says.
    pub help: &'static str,
    /// All values are of this kind.
    pub kind: Kind,
    /// By their labels.
    pub samples: Vec<(Labels, Value)>,
}

/// The kinds of families.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It only rises, but when the daemon starts anew.
    Counter,
    /// It rises and falls.
    Gauge,
    /// How often what took how long.
    Histogram,
}

/// Names and values of labels.
pub type Labels = Vec<(&'static str, String)>;

/// What a sample is.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A number.
    Whole(u64),
    /// A number with a fraction: seconds.
    Fraction(f64),
    /// A histogram.
    Distribution(Distribution),
}

/// All families of one look.
#[derive(Debug, Default)]
pub struct Families(Vec<Family>);

impl Families {
    /// The family of this name, made where it is not there.
    pub fn family(&mut self, name: &str, help: &'static str, kind: Kind) -> &mut Family {
        let at = self.0.iter().position(|family| family.name == name).unwrap_or_else(|| {
            self.0.push(Family { name: name.to_owned(), help, kind, samples: Vec::new() });
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    /// As OpenMetrics 1.0.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn text(self) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix(PREFIX);
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        encode(&mut text, &registry)?;
        Ok(text)
    }
}

impl Family {
    /// One more sample.
    pub fn add(&mut self, labels: Labels, value: Value) {
        self.samples.push((labels, value));
    }
}

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for family in &self.0 {
            let kind = match family.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut metric = encoder.encode_descriptor(&family.name, family.help, None, kind)?;
            for (labels, value) in &family.samples {
                sample(metric.encode_family(labels)?, family.kind, value)?;
            }
        }
        Ok(())
    }
}

fn sample(mut of: MetricEncoder<'_>, kind: Kind, value: &Value) -> Result<(), fmt::Error> {
    match (kind, value) {
        (Kind::Counter, Value::Whole(count)) => of.encode_counter::<NoLabelSet, _, u64>(count, None),
        (Kind::Counter, Value::Fraction(sum)) => of.encode_counter::<NoLabelSet, _, u64>(sum, None),
        (_, Value::Distribution(seen)) => {
            #[expect(clippy::cast_precision_loss, reason = "the bounds are small")]
            let ends = BOUNDS_US.iter().map(|bound| *bound as f64 / 1e6).chain([f64::INFINITY]);
            let buckets: Vec<(f64, u64)> = ends.zip(seen.buckets).collect();
            let count = seen.buckets.iter().sum();
            of.encode_histogram::<NoLabelSet>(seen.sum.as_secs_f64(), count, &buckets, None)
        }
        (_, Value::Whole(value)) => of.encode_gauge(value),
        (_, Value::Fraction(value)) => of.encode_gauge(value),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Families;
    use super::Kind;
    use super::Value;
    use crate::latencies::Latencies;

    #[test]
    fn families_are_written_as_openmetrics_with_what_is_in_labels_escaped() {
        let mut families = Families::default();
        let labels = vec![("vgpu", "a\"b\n".to_owned())];
        families.family("resets", "Resets.", Kind::Counter).add(labels.clone(), Value::Whole(3));
        families.family("depth", "Depth.", Kind::Gauge).add(labels.clone(), Value::Fraction(0.5));
        families.family("resets", "Resets.", Kind::Counter).add(Vec::new(), Value::Fraction(1.5));
        let latencies = Latencies::default();
        latencies.note(Duration::from_micros(25));
        latencies.note(Duration::from_secs(100));
        let seen = Value::Distribution(latencies.distribution());
        families.family("fence_seconds", "Fences.", Kind::Histogram).add(labels, seen);
        let text = families.text().unwrap();
        for line in [
            "# TYPE campanile_resets counter",
            "campanile_resets_total{vgpu=\"a\\\"b\\n\"} 3",
            "campanile_resets_total 1.5",
            "campanile_depth{vgpu=\"a\\\"b\\n\"} 0.5",
            "campanile_fence_seconds_bucket{le=\"0.00001\",vgpu=\"a\\\"b\\n\"} 0",
            "campanile_fence_seconds_bucket{le=\"+Inf\",vgpu=\"a\\\"b\\n\"} 2",
            "campanile_fence_seconds_count{vgpu=\"a\\\"b\\n\"} 2",
        ] {
            assert!(text.lines().any(|of| of == line), "{line} is missing in\n{text}");
        }
        assert!(text.ends_with("# EOF\n") && text.matches("# TYPE campanile_resets").count() == 1, "{text}");
    }
}
