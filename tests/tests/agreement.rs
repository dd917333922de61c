//! `leasehold simulate` beside the real thing: the short demo is played by real processes, and its
//! plan is simulated as a load on the same manifests. No other test compares times: these two
//! follow from the length of the demo's jobs and from the end of a lease.

use std::process::{Command, Output};
use std::time::Duration;

use leasehold_demo::clock::POLL;
use leasehold_demo::scenario::WORKERS;
use leasehold_demo::short::{self, StepKind};
use leasehold_types::duration;
use serde_json::Value;
use tests::toolbox;

/// The short demo as a load.
const LOAD: &str = "deploy/simulations/demo.yaml";
/// The demo's manifests.
const MANIFESTS: &str = "deploy/standalone/manifests";
/// The time between two beats, which renew a lease: a fifth of its 3 s. At which moment between two
/// beats a machine is lost is chance.
const BEAT: Duration = Duration::from_millis(600);
/// A worker looks at its streams this often: `LOOK_S` in `stream_worker.py`.
const LOOK: Duration = Duration::from_millis(50);

#[test]
fn the_simulation_of_the_demo_agrees_with_what_the_demo_measures() {
    let side = simulated();
    let measured = played();
    assert_eq!(measured["double_owned_ms"], 0, "{measured}");
    // What moves before the first event is not compared: in the demo the streams come when all
    // workers are there, and in the simulation with the first worker.
    let events = side["phases"].as_array().expect("phases").get(1..).expect("events");
    let phases = measured["phases"].as_array().expect("phases");
    assert_eq!(phases.len(), events.len(), "{measured}\n{side}");
    for (real, simulated) in phases.iter().zip(events) {
        let found = [&real["event"], &real["peak_jobs"], &real["moves"]];
        let expected = [&simulated["event"], &simulated["runningMax"], &simulated["moves"]];
        assert_eq!(found, expected, "event, peak and moves: {measured}\n{side}");
    }
    for (real, simulated) in
        [("peak_jobs", "runningMax"), ("jobs_done", "ended"), ("jobs_retried", "killed")]
    {
        assert_eq!(measured[real], side["jobs"][simulated], "{real}: {measured}\n{side}");
    }
    let rollout = Times {
        what: "the rollout's end",
        real_ms: number(&phases[0]["last_worker_ms"]),
        simulated_ms: number(&events[0]["lastWorkerSeconds"]) * 1e3,
    };
    rollout.assert_near(POLL);
    let unowned = Times {
        what: "the longest time without an owner",
        real_ms: number(&measured["unowned_max_ms"]),
        simulated_ms: number(&side["streams"]["unownedMaxSeconds"]) * 1e3,
    };
    unowned.assert_near(BEAT + LOOK + POLL);
}

#[test]
fn the_load_of_the_demo_has_the_plan_that_the_demo_plays() {
    let text = std::fs::read_to_string(toolbox::root().join(LOAD)).expect("the load");
    let load: Value = serde_yaml::from_str(&text).expect("YAML");
    assert_eq!(time(&load["for"]), short::LENGTH);
    let cluster = &load["clusters"][0];
    assert_eq!(number(&cluster["workers"]), WORKERS as f64);
    assert_eq!(time(&cluster["durations"]["constant"]), short::JOB_TIME);
    let startup = time(&cluster["startup"]["constant"]);
    assert_eq!(startup + time(&cluster["minReady"]), short::REPLACED_EVERY);
    let events = load["events"].as_array().expect("events");
    assert_eq!(events.len(), short::STEPS.len());
    for (event, step) in events.iter().zip(short::STEPS) {
        let of_kind = &event[step.kind.name()];
        assert_eq!(time(&event["at"]), step.at, "{event}");
        match step.kind {
            StepKind::Rollout => {
                let limits = [&of_kind["maxSurge"], &of_kind["maxUnavailable"]].map(number);
                assert_eq!(limits, [1.0, 0.0], "one after another: {event}");
            }
            StepKind::Scale { workers } => {
                assert_eq!(number(&of_kind["workers"]), workers as f64, "{event}");
            }
            StepKind::Lose => {
                assert_eq!(number(&of_kind["workers"]), 1.0, "{event}");
                assert_eq!(time(&of_kind["replacedAfter"]), short::REPLACED_AFTER, "{event}");
            }
            StepKind::Failover => assert!(of_kind.is_object(), "{event}"),
        }
    }
}

#[test]
fn a_time_that_is_off_by_more_than_a_tenth_is_found() {
    let times = |real_ms: f64| Times { what: "a time", real_ms, simulated_ms: 10_000.0 };
    for real_ms in [8_981.0, 10_000.0, 11_019.0] {
        assert!(times(real_ms).is_near(POLL), "{real_ms}");
    }
    for real_ms in [8_979.0, 11_021.0] {
        assert!(!times(real_ms).is_near(POLL), "{real_ms}");
    }
}

/// A time that was measured, and the one of the simulation.
#[derive(Debug)]
struct Times {
    what: &'static str,
    real_ms: f64,
    simulated_ms: f64,
}

impl Times {
    /// Whether they differ by a tenth of the simulated one at most, and this granularity.
    fn is_near(&self, granularity: Duration) -> bool {
        let most = self.simulated_ms / 10.0 + granularity.as_secs_f64() * 1e3;
        (self.real_ms - self.simulated_ms).abs() <= most
    }

    #[track_caller]
    fn assert_near(&self, granularity: Duration) {
        assert!(self.is_near(granularity), "{}: {self:?}, give or take {granularity:?}", self.what);
    }
}

/// What the short demo measures.
fn played() -> Value {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let json = folder.path().join("measured.json");
    let mut demo = Command::new(toolbox::binary("demo"));
    demo.env_remove("KEEP").arg("--short").arg("--json").arg(&json);
    demo.arg("--deploy").arg(toolbox::root().join("deploy/standalone"));
    let output = demo.arg("--work").arg(folder.path()).output().expect("the demo starts");
    succeeded(&output);
    let text = std::fs::read_to_string(&json).expect("what was measured");
    serde_json::from_str(&text).expect("JSON")
}

/// What Leasehold makes of the same in the simulation.
fn simulated() -> Value {
    let [manifests, load] = [MANIFESTS, LOAD].map(|path| toolbox::root().join(path));
    let mut leasehold = Command::new(toolbox::binary("leasehold"));
    leasehold.arg("simulate").arg("-f").arg(manifests).arg("--load").arg(load);
    let output = leasehold.args(["-o", "json"]).output().expect("leasehold starts");
    let outcome: Value = serde_json::from_str(&succeeded(&output)).expect("JSON");
    let side = outcome["clusters"][0]["sides"][0].clone();
    assert_eq!(side["side"], "leasehold", "{side}");
    side
}

fn succeeded(output: &Output) -> String {
    let [said, complained] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(output.status.success(), "{}: {said}\n{complained}", output.status);
    said
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn time(value: &Value) -> Duration {
    duration::parse(value.as_str().expect("a time")).expect("a duration")
}
