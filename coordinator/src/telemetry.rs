//! The log on standard error, and traces and metrics over OTLP if the standard `OTEL_*` variables
//! enable them. Without those variables nothing is sent.

use std::time::Duration;

use anyhow::Context;
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{MetricExporter, SpanExporter};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::Level;
use tracing_subscriber::filter::{EnvFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

use crate::config::LogFormat;

/// The service's name unless `OTEL_SERVICE_NAME` sets one.
const SERVICE: &str = "leasehold-coordinator";
/// The levels without RUST_LOG. Whenever a watched folder was replaced, the library that watches it
/// logs at INFO that its watch has gone with it.
const DIRECTIVES: &str = "info,notify=warn";
/// How long the last spans may take to be sent.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The exporters of this process.
#[derive(Debug)]
pub struct Telemetry {
    traces: Option<SdkTracerProvider>,
    /// The attributes of this process for collectors.
    pub resource: Resource,
    /// The exporter that pushes metrics, if any.
    pub metrics: Option<MetricExporter>,
}

impl Telemetry {
    /// Sets up the log and the exporters of this process. Must run within a Tokio runtime.
    ///
    /// # Errors
    /// If RUST_LOG or an `OTEL_*` variable is invalid.
    pub fn start(format: LogFormat) -> anyhow::Result<Self> {
        let resource = resource();
        let traces = if is_enabled("TRACES") {
            Some(traces(resource.clone()).context("OTLP traces (OTEL_* variables)")?)
        } else {
            None
        };
        let metrics = if is_enabled("METRICS") {
            let exporter = MetricExporter::builder().with_tonic().build();
            Some(exporter.context("OTLP metrics (OTEL_* variables)")?)
        } else {
            None
        };
        let spans = traces.as_ref().map(|provider| {
            // Only this program's spans: the exporter must not trace itself.
            let own = Targets::new().with_target("leasehold", Level::DEBUG);
            tracing_opentelemetry::layer().with_tracer(provider.tracer(SERVICE)).with_filter(own)
        });
        tracing_subscriber::registry()
            .with(log(format)?)
            .with(spans)
            .try_init()
            .context("the log is already set up")?;
        Ok(Self { traces, resource, metrics })
    }

    /// Flushes the traces, with a timeout.
    pub fn shutdown(&self) {
        let Some(traces) = &self.traces else { return };
        if let Err(error) = traces.shutdown_with_timeout(FLUSH_TIMEOUT) {
            tracing::debug!(%error, "traces were not flushed");
        }
    }
}

/// Whether the standard variable asks for the classic buckets of histograms that are pushed.
pub(crate) fn pushes_classic_buckets() -> bool {
    std::env::var("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION")
        .is_ok_and(|value| value.trim().eq_ignore_ascii_case("explicit_bucket_histogram"))
}

fn log(format: LogFormat) -> anyhow::Result<Box<dyn Layer<Registry> + Send + Sync>> {
    let directives = std::env::var("RUST_LOG").ok().filter(|level| !level.is_empty());
    let filter = EnvFilter::builder()
        .parse(directives.as_deref().unwrap_or(DIRECTIVES))
        .context("invalid RUST_LOG: expected levels such as info or leasehold=debug")?;
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    Ok(match format {
        LogFormat::Text => layer.with_ansi(false).with_filter(filter).boxed(),
        LogFormat::Json => {
            layer.json().flatten_event(false).with_span_list(false).with_filter(filter).boxed()
        }
    })
}

fn resource() -> Resource {
    let builder = Resource::builder();
    let attributes = std::env::var("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let is_named = std::env::var("OTEL_SERVICE_NAME").is_ok_and(|name| !name.is_empty())
        || attributes.split(',').any(|pair| pair.trim_start().starts_with("service.name="));
    if is_named { builder.build() } else { builder.with_service_name(SERVICE).build() }
}

fn traces(resource: Resource) -> anyhow::Result<SdkTracerProvider> {
    let exporter = SpanExporter::builder().with_tonic().build()?;
    Ok(SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter).build())
}

/// Whether the standard variables enable a signal and do not disable it.
fn is_enabled(signal: &str) -> bool {
    let is_set = |name: &str| std::env::var(name).is_ok_and(|value| !value.is_empty());
    let says = |name: &str, word: &str| {
        std::env::var(name).is_ok_and(|value| value.trim().eq_ignore_ascii_case(word))
    };
    let has_endpoint = is_set("OTEL_EXPORTER_OTLP_ENDPOINT")
        || is_set(&format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"));
    has_endpoint
        && !says("OTEL_SDK_DISABLED", "true")
        && !says(&format!("OTEL_{signal}_EXPORTER"), "none")
}
