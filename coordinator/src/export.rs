//! Exporters of metrics: Prometheus scrapes them, and they are pushed to an OTLP collector.

mod collector;

use leasehold_driver::metrics::{Exposition, SERIES_MAX, WORKERS};
use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry_otlp::MetricExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{
    Aggregation, Instrument, InstrumentKind, SdkMeterProvider, Stream, StreamBuilder,
};

use self::collector::ScrapeReader;
use crate::telemetry::pushes_classic_buckets;

/// The buckets of histograms that are pushed: the defaults of OpenTelemetry's specification.
const PUSHED_HISTOGRAMS: Aggregation =
    Aggregation::Base2ExponentialHistogram { max_size: 160, max_scale: 20, record_min_max: true };

/// The exporters of one process.
#[derive(Debug)]
pub(crate) struct Exporters {
    reader: ScrapeReader,
    provider: SdkMeterProvider,
}

impl Exporters {
    /// An exporter that Prometheus scrapes, and the exporter `otlp` if given.
    pub(crate) fn new(resource: Resource, otlp: Option<MetricExporter>) -> Self {
        let reader = ScrapeReader::default();
        let is_classic = pushes_classic_buckets();
        let mut provider = SdkMeterProvider::builder()
            .with_resource(resource)
            .with_reader(reader.clone())
            .with_view(move |instrument: &Instrument| view(instrument, is_classic)?.build().ok());
        if let Some(exporter) = otlp {
            provider = provider.with_periodic_exporter(exporter);
        }
        Self { reader, provider: provider.build() }
    }

    /// The meter that creates the instruments.
    pub(crate) fn meter(&self) -> Meter {
        self.provider.meter("leasehold")
    }

    /// What Prometheus scrapes: the counters and gauges of the meter.
    pub(crate) fn exposition(&self) -> Exposition {
        let mut exposition = Exposition::default();
        exposition.register_collector(self.reader.clone());
        exposition
    }

    /// Flushes the exporters.
    pub(crate) fn shutdown(&self) {
        if let Err(error) = self.provider.shutdown() {
            tracing::debug!(%error, "metrics were not flushed");
        }
    }
}

/// How an instrument is aggregated, if not by default. `is_classic` says that histograms are.
fn view(instrument: &Instrument, is_classic: bool) -> Option<StreamBuilder> {
    match instrument.kind() {
        InstrumentKind::Histogram if !is_classic => {
            Some(Stream::builder().with_aggregation(PUSHED_HISTOGRAMS))
        }
        _ if instrument.name() == WORKERS.name => {
            Some(Stream::builder().with_cardinality_limit(SERIES_MAX))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_driver::metrics::{ExpositionFormat, METRICS, Metrics};
    use leasehold_types::metric::{Metric, MetricKind};
    use opentelemetry::KeyValue;
    use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData, ResourceMetrics};
    use opentelemetry_sdk::metrics::reader::MetricReader;

    use super::*;

    fn exporters() -> Exporters {
        Exporters::new(Resource::builder_empty().build(), None)
    }

    fn written(exposition: &Exposition, format: ExpositionFormat) -> String {
        String::from_utf8(exposition.encode(format).expect("an exposition")).expect("UTF-8")
    }

    #[test]
    fn every_counter_exists_from_the_start_with_help_and_type() {
        let exporters = exporters();
        let mut exposition = exporters.exposition();
        let metrics = Metrics::new(exporters.meter(), &mut exposition, false);
        let first = written(&exposition, ExpositionFormat::Text);
        let counters = METRICS.iter().filter(|metric| metric.kind == MetricKind::Counter);
        for Metric { name, meaning, .. } in counters {
            for line in [&format!("# HELP {name} {meaning}"), &format!("# TYPE {name} counter")] {
                assert!(first.lines().any(|written| written == line), "{line} in\n{first}");
            }
            assert!(first.lines().any(|line| line.starts_with(name)), "{name} in\n{first}");
        }
        for line in ["leasehold_revokes_total 0", "leasehold_grants_total{kind=\"pool\"} 0"] {
            assert!(first.lines().any(|written| written == line), "{line} in\n{first}");
        }
        assert!(!first.contains("leasehold_settle_duration_seconds"), "{first}");
        metrics.record_settle(Duration::from_micros(300), None);
        let text = written(&exposition, ExpositionFormat::Text);
        assert!(text.contains("leasehold_settle_duration_seconds_count 1"), "{text}");
    }

    #[test]
    fn series_have_their_labels_in_order_and_escaped_and_whole_numbers_no_fraction() {
        let exporters = exporters();
        let exposition = exporters.exposition();
        let meter = exporters.meter();
        let odd = KeyValue::new("name", "a \"b\"\\\nc");
        let orders = meter.u64_counter("orders").with_description("Orders.").build();
        orders.add(2, &[KeyValue::new("order", "drain"), KeyValue::new("by", "person")]);
        let _ = meter
            .f64_observable_gauge("workers")
            .with_description("Workers.")
            .with_callback(move |observer| {
                observer.observe(30.0, std::slice::from_ref(&odd));
                observer.observe(0.5, &[]);
            })
            .build();
        let _ = meter.u64_observable_gauge("unseen").with_callback(|_| ()).build();
        let text = "# HELP orders_total Orders.\n\
                    # TYPE orders_total counter\n\
                    orders_total{by=\"person\",order=\"drain\"} 2\n\
                    # HELP workers Workers.\n\
                    # TYPE workers gauge\n";
        let written = |format| written(&exposition, format);
        let (got, open_metrics) =
            (written(ExpositionFormat::Text), written(ExpositionFormat::OpenMetrics));
        assert!(got.starts_with(text), "{got}");
        let mut series: Vec<&str> = got[text.len()..].lines().collect();
        series.sort_unstable();
        assert_eq!(series, ["workers 0.5", r#"workers{name="a \"b\"\\\nc"} 30"#], "{got}");
        let head = "# HELP orders Orders.\n# TYPE orders counter\norders_total{";
        assert!(open_metrics.starts_with(head), "{open_metrics}");
        assert!(open_metrics.ends_with("# EOF\n"), "{open_metrics}");
    }

    /// The clusters beyond the limit share one series.
    #[test]
    fn the_largest_metric_has_no_more_series_than_its_limit() {
        let exporters = exporters();
        let exposition = exporters.exposition();
        let _ = exporters
            .meter()
            .u64_observable_gauge(WORKERS.name)
            .with_callback(|observer| {
                for cluster in 0..SERIES_MAX + 10 {
                    observer.observe(1, &[KeyValue::new("cluster", cluster.to_string())]);
                }
            })
            .build();
        let text = written(&exposition, ExpositionFormat::Text);
        let series: Vec<&str> =
            text.lines().filter(|line| line.starts_with("leasehold_workers{")).collect();
        assert!(series.len() <= SERIES_MAX + 1, "{}", series.len());
        let rest = "leasehold_workers{otel_metric_overflow=\"true\"} ";
        assert!(series.iter().any(|line| line.starts_with(rest)), "{series:?}");
    }

    /// The histograms that the meter has, each with whether its buckets are exponential.
    fn pushed(exporters: &Exporters) -> Vec<(String, bool)> {
        let mut collected = ResourceMetrics::default();
        exporters.reader.collect(&mut collected).expect("metrics");
        let metrics = collected.scope_metrics().flat_map(|scope| scope.metrics());
        let histograms = metrics.filter_map(|metric| match metric.data() {
            AggregatedMetrics::F64(MetricData::Histogram(_)) => Some((metric.name(), false)),
            AggregatedMetrics::F64(MetricData::ExponentialHistogram(_)) => {
                Some((metric.name(), true))
            }
            _ => None,
        });
        histograms.map(|(name, is_exponential)| (name.to_owned(), is_exponential)).collect()
    }

    #[test]
    fn histograms_are_pushed_with_exponential_buckets_and_not_recorded_if_nothing_is_pushed() {
        for (is_pushed, expected) in
            [(false, vec![]), (true, vec![("leasehold_settle_duration_seconds".to_owned(), true)])]
        {
            let exporters = exporters();
            let mut exposition = exporters.exposition();
            let metrics = Metrics::new(exporters.meter(), &mut exposition, is_pushed);
            metrics.record_settle(Duration::from_micros(300), None);
            assert_eq!(pushed(&exporters), expected);
            let text = written(&exposition, ExpositionFormat::Text);
            let types = text.matches("# TYPE leasehold_settle_duration_seconds histogram").count();
            assert_eq!(types, 1, "{text}");
        }
    }
}
