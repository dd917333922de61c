//! The metrics of one process in the formats of Prometheus.

use std::mem;

use leasehold_types::metric::Metric;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::prometheus_protobuf::EncodeError;
use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::{
    Histogram, MetricFamily,
};
use prometheus_client::encoding::{prometheus_protobuf, prometheus_text, text};
use prometheus_client::registry::{Metric as Encoded, Registry};
use prost::Message;

/// A format in which Prometheus scrapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpositionFormat {
    /// Text 0.0.4: classic buckets, no exemplars.
    Text,
    /// OpenMetrics 1.0.0: classic buckets with exemplars.
    OpenMetrics,
    /// Delimited protobuf: classic buckets with exemplars, and native buckets.
    Protobuf,
}

impl ExpositionFormat {
    /// The media type of the format, with its parameters.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Text => prometheus_text::CONTENT_TYPE,
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Protobuf => {
                "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; \
                 encoding=delimited"
            }
        }
    }
}

/// Everything that Prometheus scrapes. A histogram of prometheus-client 0.26 has either exemplars
/// or native buckets, so each histogram is there twice, and the protobuf format joins the two.
#[derive(Debug, Default)]
pub struct Exposition {
    metrics: Registry,
    /// The histograms of `metrics`, by the same names, with native buckets.
    native: Registry,
}

impl Exposition {
    /// Registers a collector of counters and gauges.
    pub fn register_collector(&mut self, collector: impl Collector) {
        self.metrics.register_collector(Box::new(collector));
    }

    /// Registers a histogram with classic buckets and exemplars, and the same one with native
    /// buckets.
    pub(super) fn register_histogram(
        &mut self,
        metric: &Metric,
        classic: impl Encoded,
        native: impl Encoded,
    ) {
        // The registry appends the full stop.
        let help = metric.meaning.strip_suffix('.').unwrap_or(metric.meaning);
        self.metrics.register(metric.name, help, classic);
        self.native.register(metric.name, help, native);
    }

    /// All metrics.
    ///
    /// # Errors
    /// If a metric cannot be written in this format.
    pub fn encode(&self, format: ExpositionFormat) -> Result<Vec<u8>, EncodeError> {
        let mut written = String::new();
        match format {
            ExpositionFormat::Text => prometheus_text::encode(&mut written, &self.metrics)?,
            ExpositionFormat::OpenMetrics => text::encode(&mut written, &self.metrics)?,
            ExpositionFormat::Protobuf => return self.encode_protobuf(),
        }
        Ok(written.into_bytes())
    }

    fn encode_protobuf(&self) -> Result<Vec<u8>, EncodeError> {
        let mut families = prometheus_protobuf::encode(&self.metrics)?;
        for native in prometheus_protobuf::encode(&self.native)? {
            let classic = families.iter_mut().find(|family| family.name == native.name);
            if let Some(classic) = classic {
                add_native_buckets(classic, native);
            }
        }
        let mut encoded = Vec::new();
        for family in families {
            family.encode_length_delimited(&mut encoded)?;
        }
        Ok(encoded)
    }
}

/// Takes everything from the native histogram but the classic buckets, whose exemplars Prometheus
/// stores with the native one. Prometheus refuses a native histogram whose count is not the sum of
/// its native buckets, so the count comes from there, and may be ahead of the classic buckets.
fn add_native_buckets(classic: &mut MetricFamily, native: MetricFamily) {
    for (classic, native) in classic.metric.iter_mut().zip(native.metric) {
        if let (Some(classic), Some(native)) = (&mut classic.histogram, native.histogram) {
            *classic = Histogram { bucket: mem::take(&mut classic.bucket), ..native };
        }
    }
}
