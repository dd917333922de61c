//! The log on standard error, and traces and metrics by OTLP where the standard `OTEL_*`
//! variables ask for them. Without those variables nothing is sent anywhere.

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

/// The service's name where `OTEL_SERVICE_NAME` gives none.
const SERVICE: &str = "leasehold-coordinator";
/// How long the last spans may take to be sent.
const FLUSH_WITHIN: Duration = Duration::from_secs(1);

/// What telemetry was set up.
#[derive(Debug)]
pub struct Telemetry {
    traces: Option<SdkTracerProvider>,
    /// The attributes of this process for collectors.
    pub resource: Resource,
    /// Where metrics go beside the Prometheus text.
    pub metrics: Option<MetricExporter>,
}

impl Telemetry {
    /// Sets up the log and the exporters of this process. Must run within a Tokio runtime.
    ///
    /// # Errors
    /// Where RUST_LOG or an `OTEL_*` variable cannot be understood.
    pub fn start(format: LogFormat) -> anyhow::Result<Self> {
        let resource = resource();
        let traces = match is_asked_for("TRACES") {
            true => Some(traces(resource.clone()).context("OTLP traces (OTEL_* variables)")?),
            false => None,
        };
        let metrics = match is_asked_for("METRICS") {
            true => {
                let exporter = MetricExporter::builder().with_tonic().build();
                Some(exporter.context("OTLP metrics (OTEL_* variables)")?)
            }
            false => None,
        };
        let spans = traces.as_ref().map(|provider| {
            // Only this program's own: an exporter's must not trace itself.
            let own = Targets::new().with_target("leasehold", Level::DEBUG);
            tracing_opentelemetry::layer().with_tracer(provider.tracer(SERVICE)).with_filter(own)
        });
        tracing_subscriber::registry()
            .with(log(format)?)
            .with(spans)
            .try_init()
            .context("the log is set up already")?;
        Ok(Self { traces, resource, metrics })
    }

    /// Sends what has not been sent, for a short time.
    pub fn shutdown(&self) {
        let Some(traces) = &self.traces else { return };
        if let Err(error) = traces.shutdown_with_timeout(FLUSH_WITHIN) {
            tracing::debug!(%error, "traces were not flushed");
        }
    }
}

fn log(format: LogFormat) -> anyhow::Result<Box<dyn Layer<Registry> + Send + Sync>> {
    let directives = std::env::var("RUST_LOG").unwrap_or_default();
    let filter = EnvFilter::builder()
        .with_default_directive(Level::INFO.into())
        .parse(directives)
        .context("RUST_LOG")?;
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
    match is_named {
        true => builder.build(),
        false => builder.with_service_name(SERVICE).build(),
    }
}

fn traces(resource: Resource) -> anyhow::Result<SdkTracerProvider> {
    let exporter = SpanExporter::builder().with_tonic().build()?;
    Ok(SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter).build())
}

/// Whether the standard variables ask for a signal, and do not switch it off.
fn is_asked_for(signal: &str) -> bool {
    let is_set = |name: &str| std::env::var(name).is_ok_and(|value| !value.is_empty());
    let says = |name: &str, word: &str| {
        std::env::var(name).is_ok_and(|value| value.trim().eq_ignore_ascii_case(word))
    };
    let wanted = is_set("OTEL_EXPORTER_OTLP_ENDPOINT")
        || is_set(&format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"));
    wanted
        && !says("OTEL_SDK_DISABLED", "true")
        && !says(&format!("OTEL_{signal}_EXPORTER"), "none")
}
