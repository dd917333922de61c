//! Histograms: for Prometheus with classic buckets, native buckets and exemplars, and for OTLP.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_types::metric::{Metric, MetricKind};
use opentelemetry::metrics::Meter;
use opentelemetry::trace::{SpanId, TraceContextExt, TraceId};
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, LabelSetEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::histogram::{Histogram as NativeHistogram, NativeHistogramConfig};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use super::exposition::Exposition;
use super::instruments;
use crate::clock::Timestamp;

/// The growth of the native buckets, which is the factor that Prometheus recommends: eight buckets
/// for each power of two.
const BUCKET_FACTOR: f64 = 1.1;
/// The most native buckets of a histogram: values beyond halve the resolution. Also what
/// Prometheus and OpenTelemetry recommend.
const NATIVE_BUCKETS_MAX: usize = 160;

/// A histogram of durations in seconds, without labels.
#[derive(Debug)]
pub(super) struct Histogram {
    classic: HistogramWithExemplars<SampledSpan>,
    native: NativeHistogram,
    has_values: Arc<AtomicBool>,
    /// The instrument whose values are pushed, if any are.
    pushed: Option<opentelemetry::metrics::Histogram<f64>>,
}

impl Histogram {
    /// A histogram in `exposition`, and of `pushed` if that is given. Its metric is a histogram.
    pub(super) fn new(
        exposition: &mut Exposition,
        pushed: Option<&Meter>,
        metric: &Metric,
    ) -> Self {
        let MetricKind::Histogram(bounds) = metric.kind else {
            panic!("{} is no histogram", metric.name);
        };
        let config = NativeHistogramConfig::new(BUCKET_FACTOR).max_buckets(NATIVE_BUCKETS_MAX);
        let classic = HistogramWithExemplars::new(bounds.iter().copied());
        let native = NativeHistogram::new_native(config);
        let has_values = Arc::default();
        exposition.register_histogram(
            metric,
            Registered { histogram: classic.clone(), has_values: Arc::clone(&has_values) },
            Registered { histogram: native.clone(), has_values: Arc::clone(&has_values) },
        );
        let pushed = pushed.map(|meter| instruments::histogram(meter, metric, bounds));
        Self { classic, native, has_values, pushed }
    }

    /// Records a duration, with the span in which it was measured as exemplar.
    pub(super) fn record(&self, took: Duration, span: Option<SampledSpan>) {
        let seconds = took.as_secs_f64();
        // Prometheus drops exemplars of native histograms without a time.
        let at = span.map(|_| Timestamp::now().into());
        self.classic.observe(seconds, span, at);
        self.native.observe(seconds);
        self.has_values.store(true, Ordering::Release);
        if let Some(pushed) = &self.pushed {
            pushed.record(seconds, &[]);
        }
    }
}

/// A histogram in a registry. It is exported from its first value on.
#[derive(Debug)]
struct Registered<H> {
    histogram: H,
    has_values: Arc<AtomicBool>,
}

impl<H: EncodeMetric> EncodeMetric for Registered<H> {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        self.histogram.encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        self.histogram.metric_type()
    }

    fn is_empty(&self) -> bool {
        !self.has_values.load(Ordering::Acquire)
    }
}

/// A span of a trace that is sampled: the labels of an exemplar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledSpan {
    trace: TraceId,
    span: SpanId,
}

impl SampledSpan {
    /// This span, if it is exported.
    #[must_use]
    pub fn of(span: &Span) -> Option<Self> {
        let context = span.context();
        let span = context.span();
        let context = span.span_context();
        let (trace, span) = (context.trace_id(), context.span_id());
        (context.is_valid() && context.is_sampled()).then_some(Self { trace, span })
    }
}

impl EncodeLabelSet for SampledSpan {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        [("trace_id", self.trace.to_string()), ("span_id", self.span.to_string())].encode(encoder)
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::TracerProvider;
    use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
    use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::{
        Histogram as EncodedHistogram, MetricFamily,
    };
    use prost::Message;
    use tracing_subscriber::layer::SubscriberExt;

    use super::super::exposition::ExpositionFormat;
    use super::*;

    const PUSH: Metric = Metric::seconds("push_seconds", &[0.1, 1.0], "Time of a push.");

    fn histogram() -> (Histogram, Exposition) {
        let mut exposition = Exposition::default();
        (Histogram::new(&mut exposition, None, &PUSH), exposition)
    }

    fn written(exposition: &Exposition, format: ExpositionFormat) -> String {
        String::from_utf8(exposition.encode(format).expect("an exposition")).expect("UTF-8")
    }

    /// The only histogram in protobuf.
    fn encoded(exposition: &Exposition) -> EncodedHistogram {
        let bytes = exposition.encode(ExpositionFormat::Protobuf).expect("an exposition");
        let mut rest = bytes.as_slice();
        let family = MetricFamily::decode_length_delimited(&mut rest).expect("a family");
        assert!(rest.is_empty(), "one family");
        assert_eq!((family.name.as_str(), family.help.as_str()), (PUSH.name, PUSH.meaning));
        let [metric] = family.metric.as_slice() else { panic!("one series: {family:?}") };
        metric.histogram.clone().expect("a histogram")
    }

    /// Runs this where spans are sampled so.
    fn traced<T>(sampler: Sampler, run: impl FnOnce() -> T) -> T {
        let provider = SdkTracerProvider::builder().with_sampler(sampler).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), run)
    }

    #[test]
    fn a_histogram_is_exported_from_its_first_value_on() {
        let (histogram, exposition) = histogram();
        assert_eq!(written(&exposition, ExpositionFormat::Text), "");
        assert_eq!(written(&exposition, ExpositionFormat::OpenMetrics), "# EOF\n");
        assert_eq!(written(&exposition, ExpositionFormat::Protobuf), "");
        histogram.record(Duration::from_millis(250), None);
        let text = "# HELP push_seconds Time of a push.\n\
                    # TYPE push_seconds histogram\n\
                    push_seconds_bucket{le=\"0.1\"} 0\n\
                    push_seconds_bucket{le=\"1\"} 1\n\
                    push_seconds_bucket{le=\"+Inf\"} 1\n\
                    push_seconds_sum 0.25\n\
                    push_seconds_count 1\n";
        assert_eq!(written(&exposition, ExpositionFormat::Text), text);
        let open_metrics = written(&exposition, ExpositionFormat::OpenMetrics);
        assert!(open_metrics.contains("push_seconds_count 1\n"), "{open_metrics}");
        assert!(!open_metrics.contains(" # {"), "no trace: {open_metrics}");
    }

    #[test]
    fn protobuf_has_native_buckets_beside_the_classic_ones() {
        let (histogram, exposition) = histogram();
        for millis in 1..=1000 {
            histogram.record(Duration::from_millis(millis), None);
        }
        let encoded = encoded(&exposition);
        assert_eq!((encoded.sample_count, encoded.schema), (1000, 3));
        let classic = encoded.bucket.iter();
        let classic: Vec<_> =
            classic.map(|bucket| (bucket.upper_bound, bucket.cumulative_count)).collect();
        assert_eq!(classic, [(0.1, 100), (1.0, 1000), (f64::INFINITY, 1000)]);
        let counts = encoded.positive_delta.iter().scan(0, |count, delta| {
            *count += delta;
            Some(*count)
        });
        assert_eq!(counts.sum::<i64>(), 1000);
        assert!(encoded.start_timestamp.is_some(), "{encoded:?}");
    }

    /// There are 50 powers of two from a nanosecond to eleven days.
    #[test]
    fn native_buckets_have_a_limit() {
        let (histogram, exposition) = histogram();
        let mut nanos = 1;
        while nanos < 1_000_000_000_000_000 {
            histogram.record(Duration::from_nanos(nanos), None);
            nanos += nanos.div_ceil(16);
        }
        let encoded = encoded(&exposition);
        let buckets: u32 = encoded.positive_span.iter().map(|span| span.length).sum();
        assert!(buckets as usize <= NATIVE_BUCKETS_MAX, "{buckets}");
        assert!(encoded.schema < 3, "{}", encoded.schema);
    }

    #[test]
    fn an_exemplar_has_the_trace_and_the_span_of_its_value() {
        let (histogram, exposition) = histogram();
        let sampled = traced(Sampler::AlwaysOn, || {
            let span = tracing::info_span!("push");
            SampledSpan::of(&span).expect("a sampled span")
        });
        histogram.record(Duration::from_millis(250), Some(sampled));
        histogram.record(Duration::from_millis(50), None);
        let (trace, span) = (sampled.trace.to_string(), sampled.span.to_string());

        let open_metrics = written(&exposition, ExpositionFormat::OpenMetrics);
        let exemplar = format!("# {{trace_id=\"{trace}\",span_id=\"{span}\"}} 0.25 ");
        let bucket = format!("push_seconds_bucket{{le=\"1.0\"}} 2 {exemplar}");
        assert!(open_metrics.contains(&bucket), "{bucket} in\n{open_metrics}");
        assert_eq!(open_metrics.matches(" # {").count(), 1, "{open_metrics}");
        assert!(!written(&exposition, ExpositionFormat::Text).contains(" # {"));

        let encoded = encoded(&exposition);
        let exemplars: Vec<_> =
            encoded.bucket.iter().filter_map(|bucket| bucket.exemplar.as_ref()).collect();
        let [exemplar] = exemplars.as_slice() else { panic!("one exemplar: {exemplars:?}") };
        let labels = exemplar.label.iter().map(|label| (label.name.as_str(), label.value.as_str()));
        let expected = [("trace_id", trace.as_str()), ("span_id", span.as_str())];
        assert_eq!(labels.collect::<Vec<_>>(), expected);
        assert!(exemplar.timestamp.is_some(), "native histograms need it");
    }

    #[test]
    fn a_span_that_is_not_exported_is_no_exemplar() {
        let of_span = || SampledSpan::of(&tracing::info_span!("push"));
        assert_eq!(of_span(), None, "nobody collects spans");
        assert_eq!(traced(Sampler::AlwaysOff, of_span), None);
        assert_eq!(traced(Sampler::AlwaysOn, || SampledSpan::of(&Span::none())), None);
        assert_ne!(traced(Sampler::AlwaysOn, of_span), None);
    }
}
