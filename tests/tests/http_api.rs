//! The admin API as JSON over HTTP, against a real coordinator: by every path, with what is wrong
//! named, and as server-sent events that go on where a client had stopped.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use leasehold_types::limits::CALL_BYTES_MAX;
use serde_json::{Value, json};
use tests::command_line::Dashboard;
use tests::process::{Coordinator, HANG, eventually};

const MANIFESTS: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: WorkerCluster
metadata: {name: builds}
spec: {maxJobs: 6, maxJobsPerWorker: 3}
---
apiVersion: leasehold.dev/v1alpha1
kind: StreamSet
metadata: {name: cars}
spec: {cluster: builds, streams: [{name: 'cars:new'}]}
---
apiVersion: leasehold.dev/v1alpha1
kind: WorkerClass
metadata: {name: green}
spec: {capacity: 10, maxReplicas: 2}
---
apiVersion: leasehold.dev/v1alpha1
kind: Pipeline
metadata: {name: third}
spec: {documentsPerSecond: 5, workers: {only: {class: green}}}
";

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(HANG)).expect("a timeout");
    stream
}

/// One exchange of bytes: all of the answer.
fn whole_answer(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = connect(address);
    // A server may refuse before it has read everything.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// One exchange of bytes: the status, and all that comes after the head.
fn exchange(address: SocketAddr, request: &[u8]) -> (u16, String) {
    let answer = whole_answer(address, request);
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    (status, body.unwrap_or_default())
}

fn request(address: SocketAddr, verb: &str, path: &str, more: &str, body: &str) -> (u16, String) {
    let (host, length) = (address.to_string(), body.len());
    let host = if more.contains("Host:") { String::new() } else { format!("Host: {host}\r\n") };
    let text =
        format!("{verb} {path} HTTP/1.0\r\n{host}{more}Content-Length: {length}\r\n\r\n{body}");
    exchange(address, text.as_bytes())
}

fn get(address: SocketAddr, path: &str) -> (u16, Value) {
    let (status, body) = request(address, "GET", path, "", "");
    (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}")))
}

fn ok(address: SocketAddr, path: &str) -> Value {
    let (status, body) = get(address, path);
    assert_eq!(status, 200, "{path}: {body}");
    body
}

fn coordinator_that_leads() -> Coordinator {
    let coordinator = Coordinator::start(&[("all.yaml", MANIFESTS)]);
    eventually("a leader", || {
        TcpStream::connect(coordinator.http).ok()?;
        (get(coordinator.http, "/api/v1/status").1["leads"] == json!(true)).then_some(())
    });
    coordinator
}

#[test]
fn every_path_answers_with_the_admin_apis_messages() {
    let coordinator = coordinator_that_leads();
    let http = coordinator.http;
    let _agent = coordinator.agent("builds", "worker-0", &[]);
    eventually("the worker's leases", || {
        let answer = get(http, "/api/v1/workers?cluster=builds").1;
        (answer["workers"][0]["streams"] == json!(1)).then_some(())
    });
    let epoch = ok(http, "/api/v1/status")["epoch"].as_str().map(str::parse::<u64>);
    assert!(matches!(epoch, Some(Ok(1..))), "{epoch:?}");
    assert_eq!(ok(http, "/api/v1/problems"), json!({"problems": []}));
    let clusters = ok(http, "/api/v1/clusters");
    assert_eq!(clusters["clusters"][0]["maxJobs"], json!(6), "{clusters}");
    let worker = &ok(http, "/api/v1/workers?cluster=builds&pageSize=1")["workers"][0];
    assert_eq!(worker["presence"], json!("PRESENCE_CONNECTED"), "{worker}");
    assert_eq!(ok(http, "/api/v1/sets")["sets"][0]["streamsOwned"], json!(1));
    let stream = &ok(http, "/api/v1/streams?set=cars&worker=worker-0")["streams"][0];
    assert_eq!(stream["claims"][0]["worker"], json!("worker-0"), "{stream}");
    assert_eq!(ok(http, "/api/v1/pipelines")["pipelines"][0]["name"], json!("third"));
    assert_eq!(ok(http, "/api/v1/classes")["classes"][0]["capacity"], json!(10.0));
    for path in [
        "cluster?cluster=builds",
        "worker?cluster=builds&worker=worker-0",
        "stream?set=cars&stream=cars%3Anew",
        "pipeline?name=third",
    ] {
        let explanation = &ok(http, &format!("/api/v1/explain/{path}"))["explanation"];
        assert_ne!(explanation["summary"], json!(""), "{path}: {explanation}");
    }
    let plan = json!({"cluster": "builds", "maxJobs": 4, "addWorkers": ["worker-1"]}).to_string();
    let (status, plan) = request(http, "POST", "/api/v1/plan", "", &plan);
    let plan: Value = serde_json::from_str(&plan).expect("JSON");
    assert_eq!((status, &plan["pools"][1]["size"]), (200, &json!(2)), "{plan}");

    let description = ok(http, "/api/v1/openapi.json");
    for path in ["/api/v1/fleet", "/api/v1/changes", "/api/v1/workers"] {
        assert!(description["paths"][path].is_object(), "{path} is not described");
    }
    let page = whole_answer(http, format!("GET / HTTP/1.0\r\nHost: {http}\r\n\r\n").as_bytes());
    assert!(page.starts_with("HTTP/1.0 200"), "{page}");
    assert!(page.contains("content-security-policy: default-src 'none'"), "{page}");

    // A standby asks the leader.
    let standby = coordinator.standby();
    eventually("the standby's answer", || {
        TcpStream::connect(standby.http).ok()?;
        let (status, answer) = get(standby.http, "/api/v1/workers?cluster=builds");
        (status == 200 && answer["workers"][0]["name"] == json!("worker-0")).then_some(())
    });
}

#[test]
fn what_is_wrong_is_named() {
    let coordinator = coordinator_that_leads();
    let http = coordinator.http;
    for (path, status, words) in [
        ("/api/v1/workers?cluster=none", 404, "no manifest defines cluster none; `leasehold"),
        ("/api/v1/workers?cluster=buids", 404, "did you mean builds?"),
        ("/api/v1/workers?cluster=No+Name", 400, "No Name"),
        ("/api/v1/workers?name=builds", 400, "unknown parameter \"name\": use cluster, pageSize"),
        (
            "/api/v1/workers?cluster=builds&cluster=cars",
            400,
            "cluster is given twice: give it once",
        ),
        (
            "/api/v1/workers?cluster=builds&pageSize=many",
            400,
            "invalid pageSize \"many\": expected a number of entries: a whole number of 0 or more",
        ),
        ("/api/v1/clusters?all=1", 400, "this path takes none"),
        ("/api/v1/changes?replay=later", 400, "later"),
    ] {
        let (found, answer) = get(http, path);
        let message = answer["message"].as_str().unwrap_or_default();
        assert!(found == status && message.contains(words), "{path}: {found} {answer}");
    }
    let (status, answer) = request(http, "POST", "/api/v1/plan", "", "{\"maxJob\": 1}");
    assert!(status == 400 && answer.contains("maxJob"), "{status} {answer}");
    for path in ["/api/v1/plan", "/api/v1/plan/manifests"] {
        let (status, answer) = request(http, "POST", path, "", "");
        let says = answer.contains("the body is empty: expected JSON, for example {");
        assert!(status == 400 && says, "{status} {answer}");
    }
    for (bytes, status) in [(CALL_BYTES_MAX, 200), (CALL_BYTES_MAX + 1, 413)] {
        let plan = r#"{"cluster": "builds", "maxJobs": 4}"#;
        let body = plan.to_owned() + &" ".repeat(bytes - plan.len());
        let (found, answer) = request(http, "POST", "/api/v1/plan", "", &body);
        let says = answer.contains("a request takes at most 65536 bytes");
        assert!(found == status && says == (status == 413), "{bytes} bytes: {found} {answer}");
    }
    let header = "Last-Event-ID: yesterday\r\n";
    let (status, answer) = request(http, "GET", "/api/v1/changes", header, "");
    let message = "invalid last-event-id \\\"yesterday\\\": expected the id of an event";
    assert!(status == 400 && answer.contains(message), "{status} {answer}");
    for (method, path, allowed) in [
        ("POST", "clusters", "GET, HEAD"),
        ("DELETE", "changes", "GET, HEAD"),
        ("PUT", "openapi.json", "GET, HEAD"),
        ("GET", "plan", "POST"),
    ] {
        let request = format!("{method} /api/v1/{path} HTTP/1.0\r\nHost: {http}\r\n\r\n");
        let whole = whole_answer(http, request.as_bytes());
        let (head, body) = whole.split_once("\r\n\r\n").expect("a head");
        let message = format!("this path takes {allowed} only");
        let body: Value = serde_json::from_str(body).expect("JSON");
        assert_eq!(body, json!({"code": "UNIMPLEMENTED", "message": message}), "{method} {path}");
        assert!(head.contains(" 405 ") && head.contains(&format!("allow: {allowed}\r")), "{head}");
    }
    let (status, answer) = get(http, "/api/v1/cluster");
    assert_eq!((status, &answer["code"]), (404, &json!("NOT_FOUND")), "{answer}");
    assert_eq!(request(http, "GET", "/api/v2/clusters", "", "").0, 404);
    for header in ["Host: evil.example\r\n", "Origin: http://evil.example\r\n"] {
        let (status, answer) = request(http, "GET", "/api/v1/clusters", header, "");
        assert!(status == 403 && answer.contains("evil.example"), "{status} {answer}");
    }
}

/// Reads events until `count` of them have come: the number and the change of each. Calls
/// `on_first` after the first one.
fn events(
    http: SocketAddr,
    header: &str,
    count: usize,
    on_first: impl FnOnce(),
) -> Vec<(String, Value)> {
    let mut stream = connect(http);
    let request = format!("GET /api/v1/changes HTTP/1.1\r\nHost: {http}\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).expect("a request");
    let (mut found, mut id) = (Vec::new(), String::new());
    let mut on_first = Some(on_first);
    for line in BufReader::new(stream).lines() {
        let line = line.expect("an event");
        if let Some(text) = line.strip_prefix("id: ") {
            text.clone_into(&mut id);
        }
        if let Some(text) = line.strip_prefix("data: ") {
            found.push((id.clone(), serde_json::from_str(text).expect("JSON")));
        }
        if !found.is_empty() {
            on_first.take().into_iter().for_each(|call| call());
        }
        if found.len() == count {
            break;
        }
    }
    assert_eq!(found.len(), count, "{found:?}");
    found
}

#[test]
fn a_client_that_comes_back_gets_the_changes_that_it_has_missed() {
    let coordinator = coordinator_that_leads();
    let http = coordinator.http;
    // The first are told from before, those of the agent as they happen.
    let mut agent = None;
    let all = events(http, "", 9, || agent = Some(coordinator.agent("builds", "worker-0", &[])));
    let changes = all.iter().map(|(_, change)| change["kind"].as_str().unwrap_or_default());
    assert!(changes.clone().any(|kind| kind == "CHANGE_KIND_JOINED"), "{all:?}");
    let told = |(id, change): &(String, Value)| (id.clone(), change["kind"].clone());
    for seen in [3, 7] {
        let (last, _) = &all[seen - 1];
        let header = format!("Last-Event-ID: {last}\r\n");
        let again = events(http, &header, all.len() - seen, || {});
        let rest: Vec<_> = all[seen..].iter().map(told).collect();
        assert_eq!(again.iter().map(told).collect::<Vec<_>>(), rest, "after {last}");
    }
}

/// Reads messages of a watch of the fleet until `is_last` wants no more.
fn fleet(http: SocketAddr, query: &str, mut is_last: impl FnMut(&Value) -> bool) -> Vec<Value> {
    let mut stream = connect(http);
    let request = format!("GET /api/v1/fleet{query} HTTP/1.1\r\nHost: {http}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("a request");
    let mut found: Vec<Value> = Vec::new();
    for line in BufReader::new(stream).lines() {
        let line = line.expect("a message");
        let Some(text) = line.strip_prefix("data: ") else { continue };
        let message = serde_json::from_str(text).expect("JSON");
        let done = is_last(&message);
        found.push(message);
        if done {
            break;
        }
    }
    found
}

#[test]
fn a_watcher_of_the_fleet_gets_everything_and_then_what_changes() {
    let coordinator = coordinator_that_leads();
    let http = coordinator.http;
    let mut agent = None;
    let has_stream = |message: &Value| {
        let workers = message["workers"].as_array().expect("a list");
        workers.iter().any(|worker| worker["streams"] == json!(1))
    };
    let messages = fleet(http, "", |message| {
        agent.get_or_insert_with(|| coordinator.agent("builds", "worker-0", &[]));
        has_stream(message)
    });
    let first = &messages[0];
    assert_eq!(first["status"]["leads"], json!(true), "{first}");
    let names = |key: &str| -> Vec<_> {
        let list = first[key].as_array().expect("a list");
        list.iter().map(|one| one["name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names("clusters"), ["builds", "green"]);
    assert_eq!((names("sets"), names("classes")), (vec!["cars".into()], vec!["green".into()]));
    assert_eq!(names("pipelines"), ["third"]);
    // What has not changed is not told again.
    let last = messages.last().expect("messages");
    assert_eq!((&last["classes"], &last["pipelines"]), (&json!([]), &json!([])), "{last}");
    assert!(last["histories"] == json!([]) && messages.len() > 1, "{last}");

    eventually("a sample of the budget's use", || {
        let first = fleet(http, "", |_| true).remove(0);
        let history = &first["histories"][0];
        (history["cluster"] == "builds" && history["samples"][0]["maxJobs"] == json!(6))
            .then_some(())
    });

    // While nothing changes, the time goes on: of a busy leader not with each message.
    let (mut began, mut quiet) = (None, 0);
    let messages = fleet(http, "?cluster=builds", |message| {
        let lists = message.as_object().expect("an object").values().filter_map(Value::as_array);
        let time = message["time"].as_str().expect("a time").to_owned();
        quiet = if lists.flatten().next().is_none() { quiet + 1 } else { 0 };
        *began.get_or_insert_with(|| time.clone()) < time && quiet >= 2
    });
    let first = &messages[0];
    assert_eq!(first["clusters"].as_array().map(Vec::len), Some(1), "{first}");
    assert_eq!(first["sets"][0]["name"], json!("cars"), "{first}");
    assert!(first.get("status").is_none() && has_stream(first), "{first}");
    let times: Vec<_> = messages.iter().map(|one| one["time"].as_str().expect("a time")).collect();
    assert!(times.is_sorted() && times.first() < times.last(), "{times:?}");
}

/// A watcher beyond the limit is told so, and the leader goes on.
#[test]
fn watchers_beyond_the_limit_are_refused() {
    let coordinator = coordinator_that_leads();
    let http = coordinator.http;
    let begin = |path: &str| {
        let mut stream = connect(http);
        let request = format!("GET /api/v1/{path} HTTP/1.1\r\nHost: {http}\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("a request");
        let mut head = [0; 12];
        stream.read_exact(&mut head).expect("an answer");
        (stream, String::from_utf8_lossy(&head).into_owned())
    };
    for path in ["fleet", "changes"] {
        let watchers: Vec<_> = (0..64).map(|_| begin(path)).collect();
        assert!(watchers.iter().all(|(_, head)| head == "HTTP/1.1 200"), "{path}");
        assert_eq!(begin(path).1, "HTTP/1.1 503", "{path}");
        ok(http, "/api/v1/clusters");
        drop(watchers);
        eventually("a place", || (begin(path).1 == "HTTP/1.1 200").then_some(()));
    }
}

#[test]
fn the_page_of_another_replica_is_answered_and_no_other_page() {
    let coordinator = coordinator_that_leads();
    let standby = coordinator.standby();
    let (ours, other) = (coordinator.http, standby.http);
    let ask = |origin: &str| {
        let text =
            format!("GET /api/v1/status HTTP/1.0\r\nHost: {ours}\r\nOrigin: {origin}\r\n\r\n");
        whole_answer(ours, text.as_bytes())
    };
    let origin = format!("http://{other}");
    let allowed = format!("access-control-allow-origin: {origin}");
    let answer = eventually("the other replica is known", || {
        Some(ask(&origin)).filter(|answer| answer.contains(&allowed))
    });
    assert!(answer.starts_with("HTTP/1.0 200"), "{answer}");
    // Also once it has ended: its page is still open.
    drop(standby);
    assert!(ask(&origin).contains(&allowed));
    let stranger = format!("http://127.0.0.1:{}", other.port().wrapping_add(1));
    for origin in [stranger.as_str(), "http://localhost:1", "http://evil.example"] {
        let answer = ask(origin);
        assert!(answer.starts_with("HTTP/1.0 403"), "{origin}: {answer}");
        assert!(!answer.contains("access-control-allow-origin"), "{origin}: {answer}");
    }
}

/// The dashboard answers who has opened its address, and goes on when its coordinator has ended.
#[test]
fn the_dashboard_is_for_who_has_its_address_and_outlives_a_leader() {
    let mut coordinator = coordinator_that_leads();
    let standby = coordinator.standby();
    let addresses = format!("{},{}", coordinator.grpc, standby.grpc);
    let dashboard = Dashboard::start(|command| {
        command.args(["--coordinator", &addresses]);
    });
    let (listen, page) = (dashboard.listen, dashboard.page());
    let key = page.split_once("/?key=").expect("a key").1;
    let cookie = |key: &str| format!("Cookie: leasehold-{}={key}\r\n", listen.port());
    for header in [String::new(), cookie(&"0".repeat(key.len()))] {
        for path in ["/", "/api/v1/clusters", "/?key=0"] {
            let (status, why) = request(listen, "GET", path, &header, "");
            assert!(status == 403 && why.starts_with("open the address"), "{path}: {status} {why}");
        }
    }
    let open = format!("GET /?key={key} HTTP/1.0\r\nHost: {listen}\r\n\r\n");
    let opened = whole_answer(listen, open.as_bytes());
    assert!(opened.starts_with("HTTP/1.0 303") && opened.contains("; HttpOnly; SameSite=Strict"));
    let cookie = cookie(key);
    let (status, page) = request(listen, "GET", "/", &cookie, "");
    assert!(status == 200 && page.contains("<title>Leasehold</title>"), "{status} {page}");
    let other_site = format!("{cookie}Origin: http://127.0.0.1:1\r\n");
    assert_eq!(request(listen, "GET", "/api/v1/clusters", &other_site, "").0, 403);

    let leader = || {
        let (status, answer) = request(listen, "GET", "/api/v1/status", &cookie, "");
        let answer: Value = serde_json::from_str(&answer).ok()?;
        (status == 200 && answer["leads"] == json!(true)).then(|| answer["address"].clone())
    };
    // Any of the two may be asked first.
    eventually("clusters", || {
        (request(listen, "GET", "/api/v1/clusters", &cookie, "").0 == 200).then_some(())
    });
    coordinator.process.kill();
    let leader = eventually("an answer of the next leader", leader);
    assert_eq!(leader, json!(standby.grpc.to_string()));
}

/// Nothing that anybody sends makes the coordinator fail: each answer blames the request.
#[test]
fn strange_requests_get_no_answer_that_blames_the_coordinator() {
    let mut coordinator = coordinator_that_leads();
    let words = [
        "cluster",
        "builds",
        "worker",
        "%00",
        "%ff",
        "..",
        "//",
        "a".repeat(300).as_str(),
        "name",
        "pageSize",
        "pageToken",
        "-1",
        "99999999999999999999",
        "\u{1F600}",
        "&&",
        "==",
        "?",
        "{}",
        "[",
        "null",
        "\"",
        "replay",
        "1h",
        "explain",
        "set",
        "cars",
        "cars:new",
        "openapi.json",
    ]
    .map(str::to_owned);
    let paths = ["status", "workers", "streams", "sets", "explain/worker", "plan", "pipelines"];
    for seed in 0..2_000 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut word = || words[random.usize(..words.len())].clone();
        let query = format!("{}={}&{}={}", word(), word(), word(), word());
        let body = format!("{{\"{}\": {}}}{}", word(), word(), word());
        let verb = ["GET", "POST", "PUT", "HEAD"][random.usize(..4)];
        let path = format!("/api/v1/{}?{query}", paths[random.usize(..paths.len())]);
        let (status, answer) = request(coordinator.http, verb, &path, "", &body);
        assert!(
            (200..500).contains(&status),
            "seed {seed}: {verb} {path} {body}: {status} {answer}"
        );
    }
    assert_eq!(coordinator.process.ended(), None);
    assert!(!coordinator.process.log().contains("panicked"), "{}", coordinator.process.log());
}
