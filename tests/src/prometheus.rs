//! A real Prometheus that scrapes programs of a test and evaluates the shipped alerts, and
//! promtool, which checks rules.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::kube::local;
use crate::process::{Process, eventually, free_address, get};
use crate::toolbox::{self, Missing};

/// The file of the rules.
const RULES: &str = "rules.yaml";

/// A program that Prometheus scrapes.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The pod that the samples are labelled with, as a PodMonitor labels them.
    pub pod: &'static str,
    /// Where its metrics are.
    pub address: SocketAddr,
}

/// A running Prometheus. It ends when it is dropped.
#[derive(Debug)]
pub struct Prometheus {
    address: SocketAddr,
    _process: Process,
    // The last field: Prometheus writes there until it has ended.
    _folder: tempfile::TempDir,
}

impl Prometheus {
    /// Starts one that scrapes these targets every second and evaluates the shipped alerts as
    /// often, each without the time that it waits; or notes that `what` is left out because
    /// Prometheus is not installed.
    ///
    /// # Panics
    /// If it cannot be started, or if it is not installed and `CI=true`.
    #[must_use]
    pub fn start(what: &str, targets: &[Target]) -> Option<Self> {
        Self::start_with(what, targets, &[])
    }

    /// The same, with these features enabled.
    ///
    /// # Panics
    /// If it cannot be started, or if it is not installed and `CI=true`.
    #[must_use]
    pub fn start_with(what: &str, targets: &[Target], features: &[&str]) -> Option<Self> {
        let program = program("prometheus", what)?;
        let targets = targets.iter().map(|Target { pod, address }| {
            let labels = json!({ "namespace": "leasehold-system", "pod": pod });
            json!({ "targets": [address], "labels": labels })
        });
        let targets: Vec<Value> = targets.collect();
        let job = json!({ "job_name": "leasehold", "static_configs": targets });
        Some(Self::run(&program, &[job], features))
    }

    /// Starts one with these scrape configurations, which may find their targets by an API server:
    /// Debian's Prometheus cannot, so this is another. It scrapes every second, whatever interval
    /// they have, and evaluates the shipped alerts as [`Self::start`] says. `None`, and noted with
    /// `what`, if it is not built.
    ///
    /// # Panics
    /// If it cannot be started, or if it is not built and `CI=true`.
    #[must_use]
    pub fn start_with_discovery(what: &str, mut jobs: Vec<Value>) -> Option<Self> {
        let program = toolbox::root().join(".cache/prometheus/prometheus");
        if !program.is_file() {
            let why = "`make tools` builds a Prometheus that finds targets on Kubernetes";
            toolbox::leave_out(what, why, Missing::Installable);
            return None;
        }
        for job in &mut jobs {
            job["scrape_interval"] = "1s".into();
        }
        Some(Self::run(&program, &jobs, &[]))
    }

    /// Runs it with these scrape configurations and features.
    fn run(program: &Path, jobs: &[Value], features: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        write_rules(folder.path(), |rule| rule["for"] = "0s".into());
        let config = json!({
            "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
            "rule_files": [RULES],
            "scrape_configs": jobs,
        });
        let file = folder.path().join("prometheus.yaml");
        std::fs::write(file, config.to_string()).expect("a configuration");
        let address = free_address();
        let mut command = local(program);
        command.current_dir(folder.path());
        command.args(["--config.file=prometheus.yaml", "--storage.tsdb.path=data"]);
        command.arg(format!("--web.listen-address={address}"));
        if !features.is_empty() {
            command.arg(format!("--enable-feature={}", features.join(",")));
        }
        let process = Process::start(&mut command, &folder.path().join("prometheus.log"));
        let started = Self { address, _process: process, _folder: folder };
        eventually("Prometheus", || get(address, "/-/ready").filter(|(status, _)| *status == 200));
        started
    }

    /// Where it serves its API.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The targets, each with its health.
    #[must_use]
    pub fn targets(&self) -> Vec<Value> {
        self.list("/api/v1/targets?state=active", "activeTargets")
    }

    /// The rules of all groups.
    #[must_use]
    pub fn rules(&self) -> Vec<Value> {
        let groups = self.list("/api/v1/rules", "groups");
        let rules = |group: &Value| group["rules"].as_array().cloned().unwrap_or_default();
        groups.iter().flat_map(rules).collect()
    }

    /// The first alert of this name that fires.
    #[must_use]
    pub fn firing(&self, name: &str) -> Option<Value> {
        let alerts = self.list("/api/v1/alerts", "alerts");
        alerts
            .into_iter()
            .find(|alert| alert["labels"]["alertname"] == name && alert["state"] == "firing")
    }

    /// The series that an expression gives now.
    ///
    /// # Errors
    /// What Prometheus says of an expression that it refuses.
    pub fn query(&self, expression: &str) -> Result<Vec<Value>, String> {
        let answer = get(self.address, &format!("/api/v1/query?query={}", escaped(expression)));
        let (_, body) = answer.ok_or("no answer")?;
        let answer: Value = serde_json::from_str(&body).map_err(|error| error.to_string())?;
        match answer["error"].as_str() {
            Some(error) => Err(error.to_owned()),
            None => Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default()),
        }
    }

    /// The newest value of the only series with this name, as Prometheus writes it.
    #[must_use]
    pub fn value(&self, metric: &str) -> Option<String> {
        let found = self.list(&format!("/api/v1/query?query={metric}"), "result");
        let [series] = found.as_slice() else { return None };
        series["value"][1].as_str().map(str::to_owned)
    }

    /// The only number that an expression gives now.
    #[must_use]
    pub fn number(&self, expression: &str) -> Option<f64> {
        let found = self.query(expression).ok()?;
        let [series] = found.as_slice() else { return None };
        series["value"][1].as_str()?.parse().ok()
    }

    /// The labels of all exemplars that are stored with these series.
    #[must_use]
    pub fn exemplars(&self, series: &str) -> Vec<Value> {
        let answer = self.answer(&format!("/api/v1/query_exemplars?query={}", escaped(series)));
        let all = answer["data"].as_array().into_iter().flatten();
        let exemplars = all.flat_map(|one| one["exemplars"].as_array().into_iter().flatten());
        exemplars.map(|exemplar| exemplar["labels"].clone()).collect()
    }

    /// The list of this name in an answer of the HTTP API; empty without an answer.
    fn list(&self, path: &str, name: &str) -> Vec<Value> {
        self.answer(path)["data"][name].as_array().cloned().unwrap_or_default()
    }

    /// An answer of the HTTP API; null without one.
    fn answer(&self, path: &str) -> Value {
        let answer = get(self.address, path).and_then(|(_, body)| serde_json::from_str(&body).ok());
        answer.unwrap_or_default()
    }
}

/// An expression as a parameter of a path.
fn escaped(expression: &str) -> String {
    expression.bytes().fold(String::new(), |mut escaped, byte| {
        let _ = write!(escaped, "%{byte:02X}");
        escaped
    })
}

/// promtool, or `None` if it is not installed, which is then noted with `what` is left out.
///
/// # Panics
/// If it is not installed and `CI=true`.
#[must_use]
pub fn promtool(what: &str) -> Option<Command> {
    program("promtool", what).map(Command::new)
}

/// The rules of the shipped alerts.
///
/// # Panics
/// If their file cannot be read.
#[must_use]
pub fn rules() -> Vec<Value> {
    let mut rules = Vec::new();
    changed_rules(|rule| rules.push(rule.clone()));
    rules
}

/// The names of the shipped alerts.
///
/// # Panics
/// If their file cannot be read.
#[must_use]
pub fn alerts() -> Vec<String> {
    rules().iter().map(|rule| rule["alert"].as_str().expect("an alert").to_owned()).collect()
}

/// Writes the shipped alerts into `folder` as a file of rules, each changed by `change`.
///
/// # Panics
/// If a file cannot be read or written.
pub fn write_rules(folder: &Path, change: impl FnMut(&mut Value)) {
    let rules = changed_rules(change).to_string();
    std::fs::write(folder.join(RULES), rules).expect("the rules are written");
}

/// What `spec` of the PrometheusRule says, which is what a file of rules contains.
fn changed_rules(mut change: impl FnMut(&mut Value)) -> Value {
    let file = toolbox::root().join("deploy/components/prometheus/alerts.yaml");
    let text = std::fs::read_to_string(file).expect("the alerts");
    let mut object: Value = serde_yaml::from_str(&text).expect("YAML");
    let mut rules = object["spec"].take();
    for group in rules["groups"].as_array_mut().expect("groups") {
        group["rules"].as_array_mut().expect("rules").iter_mut().for_each(&mut change);
    }
    rules
}

fn program(name: &str, what: &str) -> Option<PathBuf> {
    let found = toolbox::on_path(name);
    if found.is_none() {
        let why = "Debian's package prometheus is missing: `make tools` installs it as root";
        toolbox::leave_out(what, why, Missing::Installable);
    }
    found
}
