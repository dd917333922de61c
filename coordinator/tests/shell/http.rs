//! The HTTP port: probes and metrics as curl and Prometheus see them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use leasehold_coordinator_core::event::Event;
use leasehold_driver::freshness::Freshness;
use leasehold_types::Moment;
use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::MetricFamily;
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::agent::Agent;
use crate::replica::{LONG, PATIENCE, Replica, desired, options, until};

/// The status and the body of a GET.
pub(crate) async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let (head, body) = fetch(address, path, "*/*").await;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("a status"), String::from_utf8(body).expect("UTF-8"))
}

/// The head and the body of a GET that accepts these media types.
async fn fetch(address: SocketAddr, path: &str, accept: &str) -> (String, Vec<u8>) {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: test\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.expect("a request");
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    timeout(PATIENCE, read).await.expect("an answer in time").expect("an answer");
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("head and body");
    let body = answer.split_off(end + 4);
    (String::from_utf8(answer).expect("UTF-8"), body)
}

/// Waits until a series is there, and at least this.
pub(crate) async fn reaches(http: SocketAddr, name: &str, least: f64) {
    until(async || {
        let all = series(http).await;
        all.iter().any(|(series, value)| series == name && *value >= least).then_some(())
    })
    .await;
}

/// The value of a series.
pub(crate) async fn count(http: SocketAddr, name: &str) -> f64 {
    value(&series(http).await, name)
}

/// All series, as a scrape gets them.
async fn series(http: SocketAddr) -> Vec<(String, f64)> {
    parse(&get(http, "/metrics").await.1)
}

/// Waits until this is answered.
async fn answers(address: SocketAddr, path: &str, wanted: (u16, &str)) {
    until(async || {
        let (status, body) = get(address, path).await;
        (status == wanted.0 && body.contains(wanted.1)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn readiness_needs_manifests_and_a_role_and_liveness_does_not() {
    let replica = Replica::start(options()).await;
    assert_eq!(get(replica.http, "/livez").await, (200, "ok\n".into()));
    assert_eq!(get(replica.http, "/healthz").await, (200, "ok\n".into()));
    let (status, why) = get(replica.http, "/readyz").await;
    assert_eq!(status, 503);
    assert!(why.contains("manifests"), "{why}");
    replica.send(Event::Desired(Arc::new(desired()))).await;
    answers(replica.http, "/readyz", (503, "leader is not known")).await;
    replica.depose("leader.example:7400").await;
    answers(replica.http, "/readyz", (200, "ok")).await;
    replica.elect(1, LONG).await;
    answers(replica.http, "/readyz", (200, "ok")).await;
}

#[tokio::test]
async fn a_desired_state_that_is_not_confirmed_is_shown_and_keeps_the_replica_ready() {
    let replica = Replica::leading().await;
    answers(replica.http, "/readyz", (200, "ok\n")).await;
    assert_eq!(count(replica.http, "leasehold_desired_state_age_seconds").await, 0.0);
    replica.freshness.send_replace(Freshness::confirmed(Moment(0)).troubled("no answer".into()));
    answers(replica.http, "/readyz", (200, "ok, but the desired state has not been confirmed"))
        .await;
    let (_, body) = get(replica.http, "/readyz").await;
    assert!(body.ends_with("no answer\n"), "{body}");
    reaches(replica.http, "leasehold_desired_state_age_seconds", 15.0).await;
}

#[tokio::test]
async fn an_unknown_path_gets_the_list_of_paths() {
    let replica = Replica::start(options()).await;
    let (status, body) = get(replica.http, "/nothing").await;
    assert_eq!(status, 404);
    assert!(body.contains("/metrics"), "{body}");
}

/// Series by name, each with its value; checks the format on the way.
fn parse(text: &str) -> Vec<(String, f64)> {
    let mut described: BTreeSet<(&str, &str)> = BTreeSet::new();
    let mut series = Vec::new();
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let (kind, name) = (words.next(), words.next());
            assert!(words.next().is_some_and(|rest| !rest.is_empty()), "{line}");
            described.insert((kind.expect("HELP or TYPE"), name.expect("a name")));
            continue;
        }
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        let metric = name.split('{').next().expect("a name");
        let metric = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|suffix| metric.strip_suffix(suffix).filter(|m| m.ends_with("_seconds")))
            .unwrap_or(metric);
        assert!(metric.starts_with("leasehold_"), "{line}");
        assert!(described.contains(&("HELP", metric)), "no HELP for {line}");
        assert!(described.contains(&("TYPE", metric)), "no TYPE for {line}");
        series.push((name.to_owned(), value.parse().expect("a number")));
    }
    series
}

fn value(series: &[(String, f64)], name: &str) -> f64 {
    let found = series.iter().find(|(series, _)| series == name);
    found.unwrap_or_else(|| panic!("{name} in {series:#?}")).1
}

#[tokio::test]
async fn metrics_count_events_and_have_no_label_per_worker() {
    let replica = Replica::leading().await;
    let mut agent = Agent::join(replica.grpc, "w-unmistakable").await;
    agent.grant().await;
    let (status, text) = get(replica.http, "/metrics").await;
    assert_eq!(status, 200);
    assert!(!text.contains("w-unmistakable"), "a label for a worker");
    let series = parse(&text);
    let is = |name: &str, wanted: f64| {
        let got = value(&series, name);
        assert!((got - wanted).abs() < f64::EPSILON, "{name}: {got}, not {wanted}");
    };
    is("leasehold_leader", 1.0);
    is("leasehold_epoch", 1.0);
    is("leasehold_sessions", 1.0);
    is("leasehold_elections_total", 1.0);
    is("leasehold_jobs_max{cluster=\"crawl\"}", 8.0);
    is("leasehold_streams{cluster=\"crawl\"}", 4.0);
    is("leasehold_workers{cluster=\"crawl\",presence=\"connected\"}", 1.0);
    is("leasehold_messages_received_total{kind=\"hello\"}", 1.0);
    is("leasehold_messages_received_total{kind=\"report\"}", 1.0);
    is("leasehold_messages_sent_total{kind=\"welcome\"}", 1.0);
    is("leasehold_grants_total{kind=\"pool\"}", 1.0);
    assert!(value(&series, "leasehold_messages_sent_total{kind=\"grant\"}") >= 1.0);
    assert!(value(&series, "leasehold_settle_duration_seconds_count") >= 1.0);
}

#[tokio::test]
async fn a_scrape_gets_the_format_that_it_accepts() {
    let replica = Replica::leading().await;
    let scrape = async |accept: &str, content_type: &str| {
        let (head, body) = fetch(replica.http, "/metrics", accept).await;
        let line = format!("content-type: {content_type}\r\n");
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains(&line), "{accept}: {head}");
        body
    };
    let text = scrape("*/*", "text/plain; version=0.0.4; charset=utf-8").await;
    let text = String::from_utf8(text).expect("UTF-8");
    assert!(text.contains("# TYPE leasehold_elections_total counter\n"), "{text}");

    let open_metrics = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    let text = scrape(open_metrics, content_type).await;
    let text = String::from_utf8(text).expect("UTF-8");
    assert!(text.contains("# TYPE leasehold_elections counter\n"), "{text}");
    assert!(text.ends_with("\n# EOF\n"), "{text}");

    let protobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
                    encoding=delimited";
    let accept = format!("{protobuf},{open_metrics}");
    let body = scrape(&accept, &protobuf.replace(';', "; ")).await;
    let mut rest = body.as_slice();
    let mut families = Vec::new();
    while !rest.is_empty() {
        families.push(MetricFamily::decode_length_delimited(&mut rest).expect("a family"));
    }
    let family = |name: &str| families.iter().find(|family| family.name == name).expect("a family");
    let counter = family("leasehold_elections_total").metric[0].counter.as_ref();
    assert!(counter.expect("a counter").value >= 1.0);
    let settle = family("leasehold_settle_duration_seconds").metric[0].histogram.as_ref();
    let settle = settle.expect("a histogram");
    assert!(!settle.bucket.is_empty() && !settle.positive_span.is_empty(), "{settle:?}");
}

#[tokio::test]
async fn problems_of_manifests_are_a_metric() {
    let replica = Replica::leading().await;
    let problem = leasehold_manifest::Problem {
        file: "a.yaml".into(),
        line: 3,
        column: 7,
        field: "spec.maxJobs".into(),
        message: "must not be negative".into(),
        due: None,
    };
    replica.problems.send_replace(Arc::new(vec![problem]));
    answers(replica.http, "/metrics", (200, "leasehold_manifest_problems 1\n")).await;
    replica.problems.send_replace(Arc::default());
    answers(replica.http, "/metrics", (200, "leasehold_manifest_problems 0\n")).await;
}
