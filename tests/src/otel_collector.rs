//! A real OpenTelemetry collector that receives the traces of a test.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use crate::process::{Coordinator, Process, Replica, eventually, free_address};
use crate::toolbox::{self, Missing};

/// A cluster with this budget, which one worker may use up. An edit of it is traced.
#[must_use]
pub fn manifest(jobs_max: u32) -> String {
    format!(
        "apiVersion: leasehold.dev/v1alpha1\n\
         kind: WorkerCluster\n\
         metadata: {{name: builds}}\n\
         spec: {{maxJobs: {jobs_max}, maxJobsPerWorker: {jobs_max}, lease: {{ttl: 2s}}}}\n"
    )
}

/// A running collector. It ends when it is dropped.
#[derive(Debug)]
pub struct OtelCollector {
    endpoint: String,
    process: Process,
    _folder: tempfile::TempDir,
}

impl OtelCollector {
    /// Starts one, or notes that `what` is left out because it is not built.
    ///
    /// # Panics
    /// If it cannot be started, or if it is not built and `CI=true`.
    #[must_use]
    pub fn start(what: &str) -> Option<Self> {
        let program = toolbox::root().join(".cache/otelcol/otelcol");
        if !program.is_file() {
            toolbox::leave_out(what, "`make tools` builds otelcol", Missing::Installable);
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

    /// Starts the coordinator again, with traces that are sent here.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn trace(&self, coordinator: &mut Coordinator) {
        coordinator.process.kill();
        let mut command =
            Replica::command(coordinator.folder(), [coordinator.grpc, coordinator.http]);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &self.endpoint);
        command.env("OTEL_BSP_SCHEDULE_DELAY", "100");
        let log = coordinator.folder().join("traced.log");
        coordinator.process = Process::start(&mut command, &log);
    }

    /// The spans that it has received, by their ids.
    #[must_use]
    pub fn spans(&self) -> BTreeMap<String, Span> {
        let log = self.process.log();
        let spans = log.split("\nSpan #").skip(1).map(Span::parse);
        spans.map(|span| (span.id.clone(), span)).collect()
    }
}

/// A span, as the collector shows it.
#[derive(Clone, Debug)]
pub struct Span {
    /// The id of its trace.
    pub trace: String,
    /// The id of the span that it belongs to; empty if it begins the trace.
    pub parent: String,
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// All of it.
    pub text: String,
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
    #[must_use]
    pub fn has(&self, attribute: &str) -> bool {
        self.text.lines().any(|line| line.trim_start() == format!("-> {attribute}"))
    }
}
