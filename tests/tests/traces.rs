//! The trace of an edit, on its way from the manifest to the agents, as a real OpenTelemetry
//! collector receives it.

use tests::answers::{lease, metric};
use tests::otel_collector::{OtelCollector, manifest};
use tests::process::{Coordinator, eventually, put_manifest};

#[test]
fn an_edit_is_one_trace_from_the_manifest_to_the_agent_that_applied_it() {
    let Some(collector) = OtelCollector::start("the trace of a change") else { return };
    let mut coordinator = Coordinator::start(&[("builds.yaml", &manifest(2))]);
    collector.trace(&mut coordinator);
    let agent = coordinator.agent("builds", "w-0", &[]);
    let pool = |size: u64| {
        eventually("the pool", || (lease(agent.api)?["pool"]["size"] == size).then_some(()));
    };
    pool(2);
    // Of an agent one grant is traced at a time.
    let pushes = "leasehold_push_duration_seconds_count";
    eventually("the first push", || (metric(coordinator.http, pushes)? >= 1.0).then_some(()));
    put_manifest(coordinator.folder(), "builds.yaml", &manifest(5));
    pool(5);

    let [push, settle, change] = eventually("the trace of the edit", || {
        let spans = collector.spans();
        let push = spans.values().find(|span| {
            let is_applied = span.name == "push" && span.has("applied: Bool(true)");
            is_applied && span.has("worker: Str(w-0)") && span.has("pool: Int(5)")
        })?;
        let settle = spans.get(&push.parent)?;
        let change = spans.get(&settle.parent)?;
        Some([push, settle, change].map(Clone::clone))
    });
    for span in [&change, &settle, &push] {
        println!("{}", span.text);
    }
    assert_eq!((settle.name.as_str(), change.name.as_str()), ("settle", "change"));
    assert_eq!(change.parent, "", "the edit begins the trace");
    assert!([&settle, &push].iter().all(|span| span.trace == change.trace));
    assert!(push.has("cluster: Str(builds)"), "{}", push.text);
}
