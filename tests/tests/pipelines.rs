//! Pipelines with the real binaries: who serves what, in which order states are reported, and what
//! one worker's loss, a failover and edits do to those that they concern, and to no other.

#[path = "pipelines/scene.rs"]
mod scene;

use std::process::Command;

use scene::{Scene, class, pipeline};
use serde_json::json;
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
    let mut scene = Scene::start(&[("colours.yaml", &colours()), ("large.yaml", &large)]);
    scene.agent("yellow", "yellow-0");
    scene.is_ready("large");
    for (class, worker) in
        [("yellow", "yellow-1"), ("blue", "blue-0"), ("green", "green-0"), ("green", "green-1")]
    {
        scene.agent(class, worker);
        scene.knows(class, worker);
    }
    let three = ["first", "second", "third"].map(|name| pipeline(name, 10, CHAIN)).concat();
    scene.write("three.yaml", &three);
    scene.is_ready("first");
    scene.is_ready("second");
    // No two of them fit on one green worker.
    eventually("the third to wait for one green worker", || {
        let third = scene.pipeline("third")?;
        let waits = third.reason.contains("1 worker more of class green");
        (waits && third.bindings.iter().all(|it| it.shares.is_empty())).then_some(())
    });
    scene.agent("green", "green-2");
    scene.is_ready("third");
    for (name, out) in [("first", "yellow-0"), ("second", "yellow-0"), ("third", "yellow-1")] {
        scene.await_states(0, name, &["Pending", "Plotted", "Ready"]);
        assert_eq!(scene.worker_of(name, "in"), "blue-0");
        assert_eq!(scene.worker_of(name, "out"), out, "{name}");
        scene.await_states(0, &format!("{name}/mid"), &["Unset", "Pending", "Ready"]);
        scene.knows_the_way(name);
    }
    assert_eq!(scene.workers_of("mid"), ["green-0", "green-1", "green-2"]);

    scene.remove("large.yaml");
    eventually("the end of the large one", || scene.pipeline("large").is_none().then_some(()));
    let mark = scene.told().len();
    let before = scene.lease("green-2");
    let kept = ["first", "second"].map(|name| scene.token(name, "in"));
    scene.kill("yellow-0");
    for name in ["first", "second"] {
        eventually("its place on the other yellow worker", || {
            (scene.is_ready_now(name) && scene.worker_of(name, "out") == "yellow-1").then_some(())
        });
        scene.await_states(mark, name, &["Broken", "Plotted", "Ready"]);
        scene.await_states(mark, &format!("{name}/out"), &["DeadEnd", "Unset", "Pending", "Ready"]);
        scene.await_states(mark, &format!("{name}/in"), &["Unset", "Pending", "Ready"]);
        scene.knows_the_way(name);
    }
    // Healthy pipelines keep their workers, and the third gets no event.
    assert_eq!(["first", "second"].map(|name| scene.token(name, "in")), kept);
    for concerned in ["third", "third/in", "third/mid", "third/out"] {
        assert!(scene.phases_since(mark, concerned).is_empty(), "{concerned}");
    }
    let after = scene.lease("green-2");
    assert_eq!(
        (&after["version"], &after["bindings"][0]["token"]),
        (&before["version"], &before["bindings"][0]["token"])
    );
}

#[test]
fn loads_above_one_worker_spread_over_all_or_the_fewest_workers() {
    for (spread, workers) in [("spread: Even", 5), ("spread: Fewest", 2)] {
        let mut scene = Scene::start(&[("grey.yaml", &class("grey", 5, spread))]);
        for worker in ["grey-0", "grey-1", "grey-2", "grey-3", "grey-4"] {
            scene.agent("grey", worker);
            scene.knows("grey", worker);
        }
        let two = ["one", "two"].map(|name| pipeline(name, 10, "{all: {class: grey}}")).concat();
        scene.write("two.yaml", &two);
        for name in ["one", "two"] {
            scene.is_ready(name);
            let shares = scene.pipeline(name).expect("it is Ready").bindings.remove(0).shares;
            assert_eq!(shares.len(), workers, "{spread}: {shares:?}");
            let each = 10.0 / workers as f64;
            assert!(shares.iter().all(|share| share.documents_per_second == each), "{shares:?}");
        }
        let sums = scene.loads("grey");
        let all = if workers == 5 { vec![4.0; 5] } else { vec![0.0, 5.0, 5.0, 5.0, 5.0] };
        assert_eq!(sums, all, "{spread}");
    }
}

#[test]
fn a_failover_moves_no_share_and_changes_no_token() {
    let chain = pipeline("first", 10, CHAIN);
    let wide = pipeline("wide", 25, "{mid: {class: green, next: [out]}, out: {class: yellow}}");
    let mut scene = Scene::start(&[("colours.yaml", &colours())]);
    scene.standby();
    for (class, worker) in [
        ("yellow", "yellow-0"),
        ("blue", "blue-0"),
        ("green", "green-0"),
        ("green", "green-1"),
        ("green", "green-2"),
    ] {
        scene.agent(class, worker);
        scene.knows(class, worker);
    }
    scene.write("two.yaml", &[chain, wide].concat());
    scene.is_ready("first");
    scene.is_ready("wide");
    let before = (scene.shares(), scene.held());
    assert_eq!(before.0.len(), 6);

    scene.fail_over();
    scene.is_ready("first");
    scene.is_ready("wide");
    assert_eq!((scene.shares(), scene.held()), before);
    scene.knows_the_way("first");
    scene.knows_the_way("wide");
}

#[test]
fn an_edit_changes_only_its_pipeline_and_an_invalid_edit_changes_nothing() {
    let mut scene = Scene::start(&[
        ("colours.yaml", &colours()),
        ("first.yaml", &pipeline("first", 10, CHAIN)),
        ("other.yaml", &pipeline("other", 1, CHAIN)),
    ]);
    for (class, worker) in [("yellow", "yellow-0"), ("blue", "blue-0"), ("green", "green-0")] {
        scene.agent(class, worker);
    }
    scene.is_ready("first");
    scene.is_ready("other");
    let other = scene.token("other", "mid");

    scene.write("first.yaml", &pipeline("first", 12, CHAIN));
    eventually("twelve at each node", || {
        let held = scene.held();
        let first = held.iter().filter(|(key, _)| key.starts_with("first/"));
        let twelve = first.filter(|(_, held)| held["documents_per_second"] == json!(12));
        (twelve.count() == 3).then_some(())
    });
    scene.is_ready("first");
    scene.knows_the_way("first");

    let (into, out) = (scene.token("first", "in"), scene.token("first", "out"));
    let shorter = "{in: {class: blue, next: [out]}, out: {class: yellow}}";
    scene.write("first.yaml", &pipeline("first", 12, shorter));
    eventually("a pipeline of two", || {
        let two = scene.pipeline("first")?.bindings.len() == 2 && scene.is_ready_now("first");
        let gone = !scene.held().contains_key("first/mid/0");
        let way = scene.held()["first/in/0"]["next"][0]["node"] == json!("out");
        (two && gone && way).then_some(())
    });
    // What is as it was keeps its lease.
    assert_eq!((scene.token("first", "in"), scene.token("first", "out")), (into, out));
    scene.knows_the_way("first");

    let before = scene.held();
    let cycle = "{in: {class: blue, next: [out]}, out: {class: yellow, next: [in]}}";
    scene.write("first.yaml", &pipeline("first", 12, cycle));
    eventually("a word on the cycle", || {
        scene.problems().iter().any(|problem| problem.contains("in -> out -> in")).then_some(())
    });
    assert_eq!(scene.held(), before);
    assert!(scene.is_ready_now("first"));
    assert_eq!(scene.token("other", "mid"), other);
}

#[test]
fn an_unservable_pipeline_is_refused_with_its_loads_and_affects_no_other() {
    let mut scene = Scene::start(&[("colours.yaml", &colours())]);
    for (class, worker) in [("yellow", "yellow-0"), ("blue", "blue-0"), ("green", "green-0")] {
        scene.agent(class, worker);
    }
    let impossible = pipeline("huge", 100, CHAIN);
    let possible = pipeline("first", 10, CHAIN);
    scene.write("both.yaml", &[impossible, possible].concat());
    scene.is_ready("first");
    let arithmetic = "1 node of 100 documents per second needs 7 workers of capacity 15, and \
                      maxReplicas is 5";
    eventually("the arithmetic among the problems", || {
        scene.problems().iter().any(|problem| problem.contains(arithmetic)).then_some(())
    });
    assert!(scene.pipeline("huge").is_none());
    assert!(scene.log().contains(arithmetic), "{}", scene.log());

    let check = Command::new(toolbox::binary("leasehold-coordinator"))
        .args(["check", "--manifests"])
        .arg(scene.manifests())
        .output()
        .expect("the coordinator starts");
    let said = String::from_utf8_lossy(&check.stdout) + String::from_utf8_lossy(&check.stderr);
    assert_eq!(check.status.code(), Some(1), "{said}");
    assert!(said.contains(arithmetic), "{said}");
}
