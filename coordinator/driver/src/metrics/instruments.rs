//! Creates OpenTelemetry's instruments from the table.

use leasehold_types::metric::{Metric, MetricKind};
use opentelemetry::metrics::{
    AsyncInstrumentBuilder, Counter, Gauge, Histogram, Meter, ObservableGauge,
};

/// What the exporter for Prometheus puts behind the name of a counter.
const TOTAL: &str = "_total";

/// A counter. Its metric is one.
pub(super) fn counter(meter: &Meter, metric: &Metric) -> Counter<u64> {
    debug_assert_eq!(metric.kind, MetricKind::Counter, "{}", metric.name);
    let name = metric.name.strip_suffix(TOTAL).unwrap_or(metric.name);
    meter.u64_counter(name).with_description(metric.meaning).with_unit(metric.unit).build()
}

/// A histogram with these upper bounds of its buckets. Its metric is one.
pub(super) fn histogram(meter: &Meter, metric: &Metric, bounds: &[f64]) -> Histogram<f64> {
    meter
        .f64_histogram(metric.name)
        .with_description(metric.meaning)
        .with_unit(metric.unit)
        .with_boundaries(bounds.to_vec())
        .build()
}

/// A gauge that is set. Its metric is a gauge.
pub(super) fn gauge(meter: &Meter, metric: &Metric) -> Gauge<f64> {
    debug_assert_eq!(metric.kind, MetricKind::Gauge, "{}", metric.name);
    meter.f64_gauge(metric.name).with_description(metric.meaning).with_unit(metric.unit).build()
}

/// A gauge of whole numbers that is read at each collection.
pub(super) fn observed<'a>(
    meter: &'a Meter,
    metric: &Metric,
) -> AsyncInstrumentBuilder<'a, ObservableGauge<u64>, u64> {
    debug_assert_eq!(metric.kind, MetricKind::Gauge, "{}", metric.name);
    let gauge = meter.u64_observable_gauge(metric.name);
    gauge.with_description(metric.meaning).with_unit(metric.unit)
}

/// A gauge that is read at each collection.
pub(super) fn observed_f64<'a>(
    meter: &'a Meter,
    metric: &Metric,
) -> AsyncInstrumentBuilder<'a, ObservableGauge<f64>, f64> {
    debug_assert_eq!(metric.kind, MetricKind::Gauge, "{}", metric.name);
    let gauge = meter.f64_observable_gauge(metric.name);
    gauge.with_description(metric.meaning).with_unit(metric.unit)
}
