//! The trace of an edit, on its way from the manifest to the agents, as a real OpenTelemetry
//! collector receives it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use tests::answers::{lease, metric};
use tests::process::{Coordinator, Process, Replica, eventually, free_address, put_manifest};
use tests::toolbox::{self, Missing};

const WHAT: &str = "the trace of a change";

fn manifest(jobs_max: u32) -> String {
    format!(
        "apiVersion: leasehold.dev/v1alpha1\n\
         kind: WorkerCluster\n\
         metadata: {{name: builds}}\n\
         spec: {{maxJobs: {jobs_max}, maxJobsPerWorker: {jobs_max}, lease: {{ttl: 2s}}}}\n"
    )
}

#[test]
fn an_edit_is_one_trace_from_the_manifest_to_the_agent_that_applied_it() {
    let Some(collector) = Collector::start() else { return };
    let mut coordinator = Coordinator::start(&[("builds.yaml", &manifest(2))]);
    coordinator.process.kill();
    let mut command = Replica::command(coordinator.folder(), [coordinator.grpc, coordinator.http]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint);
    command.env("OTEL_BSP_SCHEDULE_DELAY", "100");
    let log = coordinator.folder().join("traced.log");
    let _traced = Process::start(&mut command, &log);
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

/// A running collector. It ends when it is dropped.
struct Collector {
    endpoint: String,
    process: Process,
    _folder: tempfile::TempDir,
}

impl Collector {
    /// Starts one, or notes that the test is left out because it is not built.
    fn start() -> Option<Self> {
        let program = toolbox::root().join(".cache/otelcol/otelcol");
        if !program.is_file() {
            toolbox::leave_out(WHAT, "`make tools` builds otelcol", Missing::Installable);
            return None;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let address = free_address();
        let config = format!(
            "receivers: {{otlp: {{protocols: {{grpc: {{endpoint: '{address}'}}}}}}}}\n\
             exporters: {{debug: {{verbosity: detailed, use_internal_logger: false}}}}\n\
             service:\n\
             \x20 telemetry: {{metrics: {{level: none}}}}\n\
             \x20 pipelines: {{traces: {{receivers: [otlp], exporters: [debug]}}}}\n"
        );
        let file = folder.path().join("collector.yaml");
        std::fs::write(&file, config).expect("a configuration");
        let process = Self::process(&program, &file, &folder.path().join("collector.log"));
        let is_ready = || process.log().contains("Everything is ready").then_some(());
        eventually("the collector", is_ready);
        Some(Self { endpoint: format!("http://{address}"), process, _folder: folder })
    }

    fn process(program: &Path, config: &Path, log: &Path) -> Process {
        Process::start(Command::new(program).arg("--config").arg(config), log)
    }

    /// The spans that it has received, by their ids.
    fn spans(&self) -> BTreeMap<String, Span> {
        let log = self.process.log();
        let spans = log.split("\nSpan #").skip(1).map(Span::parse);
        spans.map(|span| (span.id.clone(), span)).collect()
    }
}

/// A span, as the collector shows it.
#[derive(Clone)]
struct Span {
    trace: String,
    parent: String,
    id: String,
    name: String,
    text: String,
}

impl Span {
    fn parse(text: &str) -> Self {
        // The next scope or resource begins with another line that is not indented.
        let is_part = |line: &&str| line.starts_with(' ') || *line == "Attributes:";
        let text: Vec<&str> = text.lines().skip(1).take_while(is_part).collect();
        let field = |name: &str| {
            let mut fields = text.iter().filter_map(|line| line.split_once(':'));
            let value =
                fields.find(|(field, _)| field.trim() == name).map(|(_, value)| value.trim());
            value.unwrap_or_default().to_owned()
        };
        Self {
            trace: field("Trace ID"),
            parent: field("Parent ID"),
            id: field("ID"),
            name: field("Name"),
            text: text.join("\n"),
        }
    }

    /// Whether it has this attribute, with its type.
    fn has(&self, attribute: &str) -> bool {
        self.text.lines().any(|line| line.trim_start() == format!("-> {attribute}"))
    }
}
