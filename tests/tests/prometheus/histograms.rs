//! Native histograms, and exemplars with the traces of what was measured: a real Prometheus scrapes
//! a coordinator whose traces a real OpenTelemetry collector receives.

use serde_json::Value;
use tests::answers::{lease, metric};
use tests::otel_collector::{OtelCollector, manifest};
use tests::process::{Coordinator, eventually, put_manifest};
use tests::prometheus::{Prometheus, Target};

const WHAT: &str = "the test of native histograms and exemplars";
const PUSH: &str = "leasehold_push_duration_seconds";

#[test]
fn prometheus_stores_native_histograms_and_the_traces_of_pushes() {
    let Some(collector) = OtelCollector::start(WHAT) else { return };
    let mut coordinator = Coordinator::start(&[("builds.yaml", &manifest(2))]);
    collector.trace(&mut coordinator);
    let targets = [Target { pod: "coordinator-0", address: coordinator.http }];
    let features: [&[&str]; 2] =
        [&["exemplar-storage"], &["exemplar-storage", "native-histograms"]];
    let [Some(classic), Some(native)] =
        features.map(|features| Prometheus::start_with(WHAT, &targets, features))
    else {
        return;
    };
    let agent = coordinator.agent("builds", "w-0", &[]);
    let pushes = || metric(coordinator.http, &format!("{PUSH}_count"));
    eventually("the first push", || (pushes()? >= 1.0).then_some(()));
    put_manifest(coordinator.folder(), "builds.yaml", &manifest(5));
    eventually("the pool", || (lease(agent.api)?["pool"]["size"] == 5).then_some(()));
    let push = eventually("the span of the push", || {
        let is_edit = |text: &str| text.contains("pool: Int(5)") && text.contains("applied: Bool");
        let found = collector.spans().into_values();
        found.into_iter().find(|span| span.name == "push" && is_edit(&span.text))
    });

    let answers = |prometheus: &Prometheus, expression: String| {
        eventually(&expression, || prometheus.number(&expression).filter(|number| *number > 0.0));
    };
    answers(&native, format!("histogram_count({PUSH}) > 1"));
    answers(&native, format!("histogram_quantile(0.5, {PUSH})"));
    assert_eq!(native.query(&format!("{PUSH}_bucket")), Ok(vec![]), "native buckets replace them");
    answers(&classic, format!("{PUSH}_count > 1"));
    answers(&classic, format!("histogram_quantile(0.5, {PUSH}_bucket)"));
    assert_eq!(classic.query(&format!("histogram_count({PUSH})")), Ok(vec![]));

    let series = format!("{PUSH}_bucket");
    eventually("the exemplar of the push", || {
        let of_push =
            |labels: &Value| labels["trace_id"] == *push.trace && labels["span_id"] == *push.id;
        classic.exemplars(&series).iter().any(of_push).then_some(())
    });
    // Before 2.46, Prometheus takes one exemplar of a native histogram in each scrape.
    eventually("an exemplar of a trace that the collector has", || {
        let exemplars = native.exemplars(PUSH);
        let spans = collector.spans();
        let of_span = |labels: &Value| {
            let span = labels["span_id"].as_str().and_then(|id| spans.get(id));
            span.is_some_and(|span| span.name == "push" && labels["trace_id"] == *span.trace)
        };
        exemplars.iter().any(of_span).then_some(())
    });
}
