//! Pipelines with the real binaries: who serves what, in which order states are reported, and what
//! one worker's loss, a failover and edits do to those that they concern, and to no other.

#[path = "pipelines/fixture.rs"]
mod fixture;

use std::collections::BTreeMap;
use std::process::Command;

use fixture::{PipelineFixture, class, pipeline};
use rustix::process::Signal;
use serde_json::{Value, json};
use tests::process::eventually;
use tests::toolbox;

/// `in` goes to `mid`, and `mid` to `out`.
const CHAIN: &str = "{in: {class: blue, next: [mid]}, mid: {class: green, next: [out]}, \
                     out: {class: yellow}}";

fn colours() -> String {
    [class("blue", 30, ""), class("green", 15, ""), class("yellow", 200, "")].concat()
}

#[test]
fn only_the_pipelines_of_a_lost_worker_break_and_heal() {
    let large = pipeline("large", 175, "{out: {class: yellow}}");
    let mut fixture =
        PipelineFixture::start(&[("colours.yaml", &colours()), ("large.yaml", &large)]);
    fixture.agent("yellow", "yellow-0");
    fixture.is_ready("large");
    for (class, worker) in
        [("yellow", "yellow-1"), ("blue", "blue-0"), ("green", "green-0"), ("green", "green-1")]
    {
        fixture.agent(class, worker);
        fixture.knows(class, worker);
    }
    let three = ["first", "second", "third"].map(|name| pipeline(name, 10, CHAIN)).concat();
    fixture.write("three.yaml", &three);
    fixture.is_ready("first");
    fixture.is_ready("second");
    // No two of them fit on one green worker.
    eventually("the third to wait for one green worker", || {
        let third = fixture.pipeline("third")?;
        let waits = third.reason.contains("1 worker more of class green");
        (waits && third.bindings.iter().all(|binding| binding.shares.is_empty())).then_some(())
    });
    fixture.agent("green", "green-2");
    fixture.is_ready("third");
    for (name, out) in [("first", "yellow-0"), ("second", "yellow-0"), ("third", "yellow-1")] {
        fixture.await_states(0, name, &["Pending", "Plotted", "Ready"]);
        assert_eq!(fixture.worker_of(name, "in"), "blue-0");
        assert_eq!(fixture.worker_of(name, "out"), out, "{name}");
        fixture.await_states(0, &format!("{name}/mid"), &["Unset", "Pending", "Ready"]);
        fixture.knows_the_way(name);
    }
    assert_eq!(fixture.workers_of("mid"), ["green-0", "green-1", "green-2"]);

    fixture.remove("large.yaml");
    eventually("the end of the large one", || fixture.pipeline("large").is_none().then_some(()));
    let mark = fixture.reported().len();
    let before = fixture.lease("green-2");
    let kept = ["first", "second"].map(|name| fixture.token(name, "in"));
    fixture.kill("yellow-0");
    for name in ["first", "second"] {
        eventually("its place on the other yellow worker", || {
            (fixture.is_ready_now(name) && fixture.worker_of(name, "out") == "yellow-1")
                .then_some(())
        });
        fixture.await_states(mark, name, &["Broken", "Plotted", "Ready"]);
        fixture.await_states(
            mark,
            &format!("{name}/out"),
            &["DeadEnd", "Unset", "Pending", "Ready"],
        );
        fixture.await_states(mark, &format!("{name}/in"), &["Unset", "Pending", "Ready"]);
        fixture.knows_the_way(name);
    }
    // Healthy pipelines keep their workers, and the third gets no event.
    assert_eq!(["first", "second"].map(|name| fixture.token(name, "in")), kept);
    for concerned in ["third", "third/in", "third/mid", "third/out"] {
        assert!(fixture.phases_since(mark, concerned).is_empty(), "{concerned}");
    }
    let after = fixture.lease("green-2");
    assert_eq!(
        (&after["version"], &after["bindings"][0]["token"]),
        (&before["version"], &before["bindings"][0]["token"])
    );
}

#[test]
fn loads_above_one_worker_spread_over_all_or_the_fewest_workers() {
    for (spread, workers) in [("spread: Even", 5), ("spread: Fewest", 2)] {
        let mut fixture = PipelineFixture::start(&[("grey.yaml", &class("grey", 5, spread))]);
        for worker in ["grey-0", "grey-1", "grey-2", "grey-3", "grey-4"] {
            fixture.agent("grey", worker);
            fixture.knows("grey", worker);
        }
        let two = ["one", "two"].map(|name| pipeline(name, 10, "{all: {class: grey}}")).concat();
        fixture.write("two.yaml", &two);
        for name in ["one", "two"] {
            fixture.is_ready(name);
            let shares = fixture.pipeline(name).expect("it is Ready").bindings.remove(0).shares;
            assert_eq!(shares.len(), workers, "{spread}: {shares:?}");
            let each = 10.0 / workers as f64;
            assert!(shares.iter().all(|share| share.documents_per_second == each), "{shares:?}");
        }
        let sums = fixture.loads("grey");
        let all = if workers == 5 { vec![4.0; 5] } else { vec![0.0, 5.0, 5.0, 5.0, 5.0] };
        assert_eq!(sums, all, "{spread}");
    }
}

#[test]
fn a_failover_moves_no_share_and_changes_no_token() {
    let chain = pipeline("first", 10, CHAIN);
    let wide = pipeline("wide", 25, "{mid: {class: green, next: [out]}, out: {class: yellow}}");
    let mut fixture = PipelineFixture::start(&[("colours.yaml", &colours())]);
    fixture.standby();
    for (class, worker) in [
        ("yellow", "yellow-0"),
        ("blue", "blue-0"),
        ("green", "green-0"),
        ("green", "green-1"),
        ("green", "green-2"),
    ] {
        fixture.agent(class, worker);
        fixture.knows(class, worker);
    }
    fixture.write("two.yaml", &[chain, wide].concat());
    fixture.is_ready("first");
    fixture.is_ready("wide");
    let before = (fixture.shares(), fixture.held());
    assert_eq!(before.0.len(), 6);

    fixture.fail_over();
    fixture.is_ready("first");
    fixture.is_ready("wide");
    assert_eq!((fixture.shares(), fixture.held()), before);
    fixture.knows_the_way("first");
    fixture.knows_the_way("wide");
}

#[test]
fn an_edit_changes_only_its_pipeline_and_an_invalid_edit_changes_nothing() {
    let mut fixture = PipelineFixture::start(&[
        ("colours.yaml", &colours()),
        ("first.yaml", &pipeline("first", 10, CHAIN)),
        ("other.yaml", &pipeline("other", 1, CHAIN)),
    ]);
    for (class, worker) in [("yellow", "yellow-0"), ("blue", "blue-0"), ("green", "green-0")] {
        fixture.agent(class, worker);
    }
    fixture.is_ready("first");
    fixture.is_ready("other");
    let other = fixture.token("other", "mid");

    fixture.write("first.yaml", &pipeline("first", 12, CHAIN));
    eventually("twelve at each node", || {
        let held = fixture.held();
        let first = held.iter().filter(|(key, _)| key.starts_with("first/"));
        let twelve = first.filter(|(_, held)| held["documents_per_second"] == json!(12));
        (twelve.count() == 3).then_some(())
    });
    fixture.is_ready("first");
    fixture.knows_the_way("first");

    let (into, out) = (fixture.token("first", "in"), fixture.token("first", "out"));
    let shorter = "{in: {class: blue, next: [out]}, out: {class: yellow}}";
    fixture.write("first.yaml", &pipeline("first", 12, shorter));
    eventually("a pipeline of two", || {
        let two = fixture.pipeline("first")?.bindings.len() == 2 && fixture.is_ready_now("first");
        let gone = !fixture.held().contains_key("first/mid/0");
        let way = fixture.held()["first/in/0"]["next"][0]["node"] == json!("out");
        (two && gone && way).then_some(())
    });
    // What is as it was keeps its lease.
    assert_eq!((fixture.token("first", "in"), fixture.token("first", "out")), (into, out));
    fixture.knows_the_way("first");

    let before = fixture.held();
    let cycle = "{in: {class: blue, next: [out]}, out: {class: yellow, next: [in]}}";
    fixture.write("first.yaml", &pipeline("first", 12, cycle));
    eventually("a word on the cycle", || {
        fixture.problems().iter().any(|problem| problem.contains("in -> out -> in")).then_some(())
    });
    assert_eq!(fixture.held(), before);
    assert!(fixture.is_ready_now("first"));
    assert_eq!(fixture.token("other", "mid"), other);
}

#[test]
fn an_unservable_pipeline_is_refused_with_its_loads_and_affects_no_other() {
    let mut fixture = PipelineFixture::start(&[("colours.yaml", &colours())]);
    for (class, worker) in [("yellow", "yellow-0"), ("blue", "blue-0"), ("green", "green-0")] {
        fixture.agent(class, worker);
    }
    let impossible = pipeline("huge", 100, CHAIN);
    let possible = pipeline("first", 10, CHAIN);
    fixture.write("both.yaml", &[impossible, possible].concat());
    fixture.is_ready("first");
    let arithmetic = "1 node of 100 documents per second needs 7 workers of capacity 15, and \
                      maxReplicas is 5";
    eventually("the arithmetic among the problems", || {
        fixture.problems().iter().any(|problem| problem.contains(arithmetic)).then_some(())
    });
    assert!(fixture.pipeline("huge").is_none());
    assert!(fixture.log().contains(arithmetic), "{}", fixture.log());

    let check = Command::new(toolbox::binary("leasehold-coordinator"))
        .args(["check", "--manifests"])
        .arg(fixture.manifests())
        .output()
        .expect("the coordinator starts");
    let said = String::from_utf8_lossy(&check.stdout) + String::from_utf8_lossy(&check.stderr);
    assert_eq!(check.status.code(), Some(1), "{said}");
    assert!(said.contains(arithmetic), "{said}");
}

/// The worker and the load of each share, by `PIPELINE/NODE/INDEX`.
type Placed = BTreeMap<String, (String, String)>;

fn placed(fixture: &PipelineFixture) -> Placed {
    let shares = fixture.shares().into_iter();
    shares.map(|(key, (worker, _, load))| (key, (worker, load))).collect()
}

/// Where the shares are once a plan has happened, and the state of each pipeline that it names.
type Plan = (Placed, BTreeMap<String, Value>);

fn planned(plan: &Value, mut shares: Placed) -> Plan {
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let place = |share: &Value| {
        let load = share["documentsPerSecond"].as_f64().expect("a number").to_string();
        (share["worker"].as_str().expect("a name").to_owned(), load)
    };
    let mut states = BTreeMap::new();
    for pipeline in list(&plan["pipelines"]) {
        let name = pipeline["name"].as_str().expect("a name").to_owned();
        for one in list(&pipeline["moves"]) {
            let node = one["node"].as_str().expect("a node");
            let key = format!("{name}/{node}/{}", one["index"]);
            let from = one.get("from").filter(|from| !from.is_null());
            assert_eq!(shares.remove(&key), from.map(place), "{one}");
            let to = one.get("to").filter(|to| !to.is_null());
            shares.extend(to.map(|to| (key, place(to))));
        }
        states.insert(name, pipeline.get("after").cloned().unwrap_or_default());
    }
    (shares, states)
}

fn json_plan(fixture: &PipelineFixture, manifests: &str) -> Value {
    serde_json::from_str(&fixture.plan(manifests, "json").0).expect("JSON")
}

#[test]
fn what_a_plan_says_of_edited_pipelines_is_what_then_happens() {
    const SHORT: &str = "{in: {class: blue, next: [out]}, out: {class: yellow}}";
    let start = colours() + &pipeline("first", 10, CHAIN);
    let mut fixture = PipelineFixture::start(&[("all.yaml", &start)]);
    for (class, worker) in
        [("yellow", "yellow-0"), ("blue", "blue-0"), ("green", "green-0"), ("green", "green-1")]
    {
        fixture.agent(class, worker);
        fixture.knows(class, worker);
    }
    fixture.is_ready("first");
    let three = ["first", "second", "third"].map(|name| pipeline(name, 10, CHAIN)).concat();
    let smaller = colours().replace("capacity: 30", "capacity: 12");
    let other = |name: &str| pipeline(name, 12, SHORT);
    // An edit, the words that say what it does, and the exit code.
    let edits: [(String, &[&str], i32); 7] = [
        (colours() + &pipeline("first", 12, CHAIN), &["3 shares would change"], 0),
        (
            colours() + &three,
            &["third - pending it waits for 1 worker more of class green", "12 → 30"],
            0,
        ),
        (colours() + &three.replace("Second: 10", "Second: 5"), &["third pending ready -"], 0),
        (
            colours() + &other("first") + &other("second"),
            &["Pipeline third goes", "third ready - -"],
            0,
        ),
        (
            smaller.clone() + &other("first") + &other("second"),
            &["second ready pending it waits for 1 worker more of class blue", "30 → 12"],
            2,
        ),
        (smaller + &other("first"), &["second pending - -"], 0),
        (colours() + &other("first") + &class("grey", 5, ""), &["grey - → 5"], 0),
    ];
    for (manifests, words, code) in &edits {
        let before = placed(&fixture);
        let (text, exit) = fixture.plan(manifests, "table");
        assert_eq!(exit, Some(*code), "{text}");
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for words in *words {
            assert!(line.contains(words), "no {words:?} in\n{text}");
        }
        let (shares, states) = planned(&json_plan(&fixture, manifests), before);
        fixture.write("all.yaml", manifests);
        eventually("nothing that would change any more", || {
            let again = json_plan(&fixture, manifests);
            let empty = |list: &str| again[list] == json!([]);
            (empty("changes") && empty("pipelines")).then_some(())
        });
        happens(&fixture, &text, &(shares, states));
    }
}

/// Waits until all is as a plan says, which is shown as this text.
fn happens(fixture: &PipelineFixture, text: &str, (shares, states): &Plan) {
    eventually(&format!("what was planned:\n{text}"), || {
        let phase = |name: &String| {
            let pipeline = fixture.pipeline(name);
            pipeline.map_or(Value::Null, |found| json!(found.phase().as_str_name()))
        };
        let now: BTreeMap<_, _> = states.keys().map(|name| (name.clone(), phase(name))).collect();
        (placed(fixture) == *shares && now == *states).then_some(())
    });
}

#[test]
fn what_a_plan_says_of_other_workers_of_a_class_is_what_then_happens() {
    let two = colours() + &pipeline("first", 10, CHAIN) + &pipeline("second", 10, CHAIN);
    let mut fixture = PipelineFixture::start(&[("all.yaml", &two)]);
    for (class, worker) in
        [("yellow", "yellow-0"), ("blue", "blue-0"), ("blue", "blue-1"), ("green", "green-0")]
    {
        fixture.agent(class, worker);
        fixture.knows(class, worker);
    }
    fixture.is_ready("first");
    let (same, code) = fixture.line("plan green");
    assert!(same.starts_with("No pipeline or class changes.") && code == Some(0), "{same}");
    let (refused, code) = fixture.line("plan green --max-jobs 3");
    assert!(refused.contains("green is a worker class, which has no budget"), "{refused}");
    assert_eq!(code, Some(1));

    let by_plan = |fixture: &PipelineFixture, line: &str, words: &str, code: i32| {
        let (text, exit) = fixture.line(line);
        let shown = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(shown.contains(words) && exit == Some(code), "{exit:?}, no {words:?} in\n{text}");
        let plan = fixture.line(&format!("{line} -o json")).0;
        (text, planned(&serde_json::from_str(&plan).expect("JSON"), placed(fixture)))
    };
    // The one that waits gets the worker that joins.
    let line = "plan green --add-worker green-1";
    let (text, plan) = by_plan(&fixture, line, "second pending ready -", 0);
    fixture.agent("green", "green-1");
    happens(&fixture, &text, &plan);

    // The shares of one that drains go to another with room, and nothing else moves.
    let leaves = fixture.worker_of("first", "in");
    let line = format!("plan blue --remove-worker {leaves}");
    let (text, plan) = by_plan(&fixture, &line, "2 shares would change", 0);
    let drained = fixture.line(&format!("drain {leaves} --wait"));
    assert_eq!(drained.1, Some(0), "{}", drained.0);
    happens(&fixture, &text, &plan);

    // Without room elsewhere, the pipeline waits once its worker is gone.
    let leaves = fixture.worker_of("second", "mid");
    let line = format!("plan green --remove-worker {leaves}");
    let (text, plan) =
        by_plan(&fixture, &line, "second ready pending it waits for 1 worker more", 2);
    let (refused, code) = fixture.line(&format!("drain {leaves}"));
    let why = format!(
        "green/{leaves} is not drained: no other worker has room for 1 pipeline, for example second"
    );
    assert!(refused.contains(&why) && code == Some(1), "{refused}");
    fixture.kill(&leaves);
    happens(&fixture, &text, &plan);
}

/// A pipeline needs all of its shares: a worker that goes gives each back once another one has room
/// for it, whether it sees its shares or not, and the rest at the drain's deadline.
#[test]
fn a_worker_that_drains_serves_its_pipelines_until_others_have_room() {
    let one = class("green", 15, "") + &pipeline("first", 10, "{only: {class: green}}");
    let mut fixture = PipelineFixture::start(&[("all.yaml", &one)]);
    fixture.agent("green", "green-0");
    fixture.is_ready("first");
    let token = fixture.token("first", "only");
    fixture.signal("green-0", Signal::TERM);
    eventually("a drain", || {
        let (workers, _) = fixture.line("workers --draining -o name");
        (workers == "green/green-0\n").then_some(())
    });
    let (why, code) = fixture.line("explain pipeline first");
    let stays = "green/green-0 drains, and no other worker of class green has room for 10";
    assert!(why.contains(stays) && code == Some(0), "{why}");
    assert!(fixture.is_ready_now("first") && fixture.token("first", "only") == token);
    let (lease, held) = (fixture.lease("green-0"), json!("held"));
    assert!(lease["draining"] == json!(true) && lease["bindings"][0]["state"] == held, "{lease}");

    let mark = fixture.reported().len();
    fixture.agent("green", "green-1");
    // It has looked at its lease: it gives back what it has seen, when it is asked.
    eventually("the share to be asked for", || {
        (fixture.lease("green-0")["bindings"][0]["state"] == json!("revoked")).then_some(())
    });
    assert_eq!(fixture.worker_of("first", "only"), "green-0");
    fixture.give_back("green-0", "first/only/0", &token);
    assert!(fixture.ended("green-0").success(), "its drain has ended");
    eventually("its place on the other one", || {
        let served = fixture.is_ready_now("first");
        (served && fixture.worker_of("first", "only") == "green-1").then_some(())
    });
    assert!(!fixture.phases_since(mark, "first").contains(&"Broken".to_owned()));

    // This one has seen nothing, and its share goes without it.
    fixture.signal("green-1", Signal::TERM);
    fixture.agent("green", "green-2");
    assert!(fixture.ended("green-1").success(), "its drain has ended");
    eventually("its place on the last one", || {
        let served = fixture.is_ready_now("first");
        (served && fixture.worker_of("first", "only") == "green-2").then_some(())
    });
}
