//! Exporters of metrics: Prometheus scrapes them, and they are pushed to an OTLP collector.

use leasehold_driver::metrics::{SERIES_MAX, WORKERS};
use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry_otlp::MetricExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{Instrument, SdkMeterProvider, Stream};
use prometheus::Registry;

/// The exporters of one process.
#[derive(Debug)]
pub(crate) struct Exporters {
    registry: Registry,
    provider: SdkMeterProvider,
}

impl Exporters {
    /// A registry for Prometheus, and the exporter `otlp` if given.
    ///
    /// # Errors
    /// If the exporters cannot be set up.
    pub(crate) fn new(resource: Resource, otlp: Option<MetricExporter>) -> anyhow::Result<Self> {
        let registry = Registry::new();
        let reader = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .without_units()
            .without_target_info()
            .scope_info_enabled(false)
            .build()?;
        let mut provider = SdkMeterProvider::builder()
            .with_resource(resource)
            .with_reader(reader)
            .with_view(|instrument: &Instrument| match instrument.name() {
                name if name == WORKERS.name => {
                    Stream::builder().with_cardinality_limit(SERIES_MAX).build().ok()
                }
                _ => None,
            });
        if let Some(exporter) = otlp {
            provider = provider.with_periodic_exporter(exporter);
        }
        Ok(Self { registry, provider: provider.build() })
    }

    /// The meter that creates the instruments.
    pub(crate) fn meter(&self) -> Meter {
        self.provider.meter("leasehold")
    }

    /// The registry that Prometheus scrapes.
    pub(crate) fn registry(&self) -> Registry {
        self.registry.clone()
    }

    /// Flushes the exporters.
    pub(crate) fn shutdown(&self) {
        if let Err(error) = self.provider.shutdown() {
            tracing::debug!(%error, "metrics were not flushed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use leasehold_driver::metrics::{METRICS, Metrics};
    use leasehold_types::metric::{Metric, MetricKind};
    use prometheus::TextEncoder;

    use super::*;

    #[test]
    fn every_counter_exists_from_the_start_with_help_and_type() {
        let exporters = Exporters::new(Resource::builder_empty().build(), None).expect("exporters");
        let metrics = Metrics::new(exporters.meter(), false);
        let text = || {
            let gathered = exporters.registry.gather();
            TextEncoder::new().encode_to_string(&gathered).expect("text")
        };
        let first = text();
        let counters = METRICS.iter().filter(|metric| metric.kind == MetricKind::Counter);
        for Metric { name, meaning, .. } in counters {
            for line in [&format!("# HELP {name} {meaning}"), &format!("# TYPE {name} counter")] {
                assert!(first.lines().any(|written| written == line), "{line} in\n{first}");
            }
            assert!(first.lines().any(|line| line.starts_with(name)), "{name} in\n{first}");
        }
        metrics.record_settle(Duration::from_micros(300));
        let text = text();
        assert!(text.contains("leasehold_settle_duration_seconds_count 1"), "{text}");
    }
}
