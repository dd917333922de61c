//! Counters and gauges of OpenTelemetry in what Prometheus scrapes.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, Metric, MetricData, ResourceMetrics};
use opentelemetry_sdk::metrics::reader::MetricReader;
use opentelemetry_sdk::metrics::{InstrumentKind, ManualReader, Pipeline, Temporality};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    CounterValueEncoder, DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue,
    GaugeValueEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;

/// A float represents every whole number below this one.
const WHOLE_BELOW: f64 = 9_007_199_254_740_992.0;

/// A reader of a meter provider. Each scrape collects what it reads.
#[derive(Clone, Debug, Default)]
pub(super) struct ScrapeReader(Arc<ManualReader>);

impl MetricReader for ScrapeReader {
    fn register_pipeline(&self, pipeline: Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, metrics: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(metrics)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, kind: InstrumentKind) -> Temporality {
        self.0.temporality(kind)
    }
}

impl Collector for ScrapeReader {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut collected = ResourceMetrics::default();
        if let Err(error) = self.collect(&mut collected) {
            tracing::error!(%error, "cannot collect the counters and gauges");
            return Err(fmt::Error);
        }
        for metric in collected.scope_metrics().flat_map(|scope| scope.metrics()) {
            match metric.data() {
                AggregatedMetrics::U64(data) => encode(&mut encoder, metric, data)?,
                AggregatedMetrics::I64(data) => encode(&mut encoder, metric, data)?,
                AggregatedMetrics::F64(data) => encode(&mut encoder, metric, data)?,
            }
        }
        Ok(())
    }
}

/// Writes a counter or a gauge with all its series. The histograms are in the exposition by
/// themselves; here they are only where metrics are pushed, too.
fn encode<T: Copy + Into<Number>>(
    encoder: &mut DescriptorEncoder<'_>,
    metric: &Metric,
    data: &MetricData<T>,
) -> fmt::Result {
    let (is_counter, series): (_, Vec<(Vec<_>, Number)>) = match data {
        MetricData::Sum(sum) => {
            let points = sum.data_points();
            let series = points.map(|point| (labels(point.attributes()), point.value().into()));
            (sum.is_monotonic(), series.collect())
        }
        MetricData::Gauge(gauge) => {
            let points = gauge.data_points();
            let series = points.map(|point| (labels(point.attributes()), point.value().into()));
            (false, series.collect())
        }
        MetricData::Histogram(_) | MetricData::ExponentialHistogram(_) => return Ok(()),
    };
    if series.is_empty() {
        return Ok(());
    }
    // The encoder appends `_total` to the name of a counter. Units are not part of names here.
    let kind = if is_counter { MetricType::Counter } else { MetricType::Gauge };
    let mut family = encoder.encode_descriptor(metric.name(), metric.description(), None, kind)?;
    for (labels, number) in &series {
        let mut series = family.encode_family(labels)?;
        if is_counter {
            series.encode_counter::<NoLabelSet, Number, f64>(number, None)?;
        } else {
            series.encode_gauge(number)?;
        }
    }
    Ok(())
}

/// A series' labels by name.
fn labels<'a>(attributes: impl Iterator<Item = &'a KeyValue>) -> Vec<(String, String)> {
    // Only the series of what exceeds the limit of series has a name with dots.
    let name = |attribute: &KeyValue| attribute.key.as_str().replace('.', "_");
    let labels = attributes.map(|attribute| (name(attribute), attribute.value.to_string()));
    let mut labels: Vec<_> = labels.collect();
    labels.sort();
    labels
}

/// The value of a series. A whole number is written without a fraction.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    Whole(u64),
    Real(f64),
}

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        Self::Whole(number)
    }
}

impl From<i64> for Number {
    fn from(number: i64) -> Self {
        u64::try_from(number).map_or(Self::Real(number as f64), Self::Whole)
    }
}

impl From<f64> for Number {
    fn from(number: f64) -> Self {
        let is_whole = number.fract() == 0.0 && (0.0..WHOLE_BELOW).contains(&number);
        if is_whole { Self::Whole(number as u64) } else { Self::Real(number) }
    }
}

impl EncodeCounterValue for Number {
    fn encode(&self, encoder: &mut CounterValueEncoder<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => EncodeCounterValue::encode(number, encoder),
            Self::Real(number) => EncodeCounterValue::encode(number, encoder),
        }
    }
}

impl EncodeGaugeValue for Number {
    fn encode(&self, encoder: &mut GaugeValueEncoder<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => EncodeGaugeValue::encode(number, encoder),
            Self::Real(number) => EncodeGaugeValue::encode(number, encoder),
        }
    }
}
