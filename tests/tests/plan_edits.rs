//! Edits of the demo's manifests, one after the other: what `leasehold plan -f` says, and what then
//! happens, agree exactly.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use serde_json::Value;
use tests::command_line::CommandLine;
use tests::process::{Coordinator, eventually};
use tests::toolbox;

/// Files by name.
type Files = BTreeMap<String, String>;
/// The owner of each stream that has one, by set and stream.
type Owners = BTreeMap<(String, String), String>;
/// The pool of each worker, by cluster and worker.
type Pools = BTreeMap<(String, String), u64>;

const CLUSTER: &str = "cluster.yaml";
const SET: &str = "streams.yaml";
const LIST: &str = "swarm-streams.txt";
const MORE: &str = "more.yaml";
/// How often manifests change while plans are made.
const EDIT_EVERY: Duration = Duration::from_millis(300);
/// The plans that are made meanwhile; more, if they have not met both manifests.
const PLANS: u32 = 20;
const PLANS_MAX: u32 = 200;
const WORKERS: [&str; 4] = ["worker-0", "worker-1", "worker-2", "worker-3"];

const SECOND_SET: &str = "\
apiVersion: leasehold.dev/v1alpha1
kind: StreamSet
metadata: {name: more}
spec:
  cluster: demo
  moves: {cooldown: 0s, settle: 100ms}
  streams:
    - {name: heavy, weight: 5}
    - {name: light}
    - {name: lighter}
    - {name: lightest}
";

/// An edit, and its exit code in a plan.
struct Edit {
    what: &'static str,
    edit: fn(&mut Files),
    code: i32,
}

const fn fine(what: &'static str, edit: fn(&mut Files)) -> Edit {
    Edit { what, edit, code: 0 }
}

const EDITS: [Edit; 21] = [
    fine("a larger budget than all workers take", |files| {
        change(files, CLUSTER, "maxJobs: 12", "maxJobs: 18");
    }),
    fine("a small budget", |files| change(files, CLUSTER, "maxJobs: 18", "maxJobs: 6")),
    fine("a budget that does not divide", |files| {
        change(files, CLUSTER, "maxJobs: 6", "maxJobs: 7");
    }),
    fine("fewer jobs a worker", |files| {
        change(files, CLUSTER, "maxJobsPerWorker: 3", "maxJobsPerWorker: 1");
    }),
    fine("more of both", |files| {
        change(files, CLUSTER, "maxJobs: 7", "maxJobs: 20");
        change(files, CLUSTER, "maxJobsPerWorker: 1", "maxJobsPerWorker: 5");
    }),
    fine("more streams at the end", |files| {
        lines(files, |list| list.extend(["new:a", "new:b", "new:c"].map(str::to_owned)));
    }),
    fine("fewer streams at the start", |files| lines(files, |list| _ = list.drain(..5))),
    fine("one stream for another in the middle", |files| {
        lines(files, |list| list[7] = "other:one".to_owned());
    }),
    fine("another order, which moves nothing", |files| lines(files, |list| list.reverse())),
    fine("slices in the order of the workers", |files| {
        change(files, SET, "policy: Sticky", "policy: Contiguous");
    }),
    fine("another order, which moves slices", |files| lines(files, |list| list.rotate_left(4))),
    fine("the fewest moves again", |files| {
        change(files, SET, "policy: Contiguous", "policy: Sticky");
    }),
    fine("a second set, with weights", |files| {
        files.insert(MORE.to_owned(), SECOND_SET.to_owned());
    }),
    fine("other weights", |files| {
        change(files, MORE, "{name: light}", "{name: light, weight: 4}");
    }),
    fine("a stream with a worker of its own", |files| {
        change(files, MORE, "weight: 5", "weight: 5, dedicated: true");
    }),
    fine("and without", |files| change(files, MORE, ", dedicated: true", "")),
    fine("the second set goes", |files| _ = files.remove(MORE)),
    fine("another mode, and rules that move nothing", |files| {
        change(files, SET, "mode: Expiring", "mode: Pinned");
        change(files, SET, "deadline: 10s", "deadline: 20s");
        change(files, CLUSTER, "deadline: 2m", "deadline: 3m");
    }),
    Edit {
        what: "the set on a cluster without workers",
        edit: |files| {
            let other = files[CLUSTER].replace("name: demo", "name: other");
            files.insert("other.yaml".to_owned(), other);
            change(files, SET, "cluster: demo", "cluster: other");
        },
        code: 2,
    },
    fine("and back", |files| {
        change(files, SET, "cluster: other", "cluster: demo");
        files.remove("other.yaml");
    }),
    Edit {
        what: "an invalid budget beside a valid list",
        edit: |files| {
            change(files, CLUSTER, "maxJobs: 20", "maxJobs: many");
            lines(files, |list| _ = list.pop());
        },
        code: 2,
    },
];

fn change(files: &mut Files, file: &str, from: &str, to: &str) {
    let text = files.get_mut(file).expect(file);
    assert!(text.contains(from), "no {from:?} in {file}");
    *text = text.replace(from, to);
}

/// Edits the streams of the list.
fn lines(files: &mut Files, edit: impl FnOnce(&mut Vec<String>)) {
    let text = files.get_mut(LIST).expect(LIST);
    let streams = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut streams: Vec<_> = streams.map(str::to_owned).collect();
    edit(&mut streams);
    *text = streams.join("\n") + "\n";
}

fn write(folder: &Path, files: &Files) {
    fs::create_dir_all(folder).expect("a folder");
    for entry in fs::read_dir(folder).expect("a folder") {
        let entry = entry.expect("an entry");
        if !files.contains_key(entry.file_name().to_str().expect("UTF-8")) {
            fs::remove_file(entry.path()).expect("a file");
        }
    }
    for (name, text) in files {
        fs::write(folder.join(name), text).expect("a file");
    }
}

fn text(value: &Value) -> String {
    value.as_str().expect("a text").to_owned()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

/// The owners of all streams; none while a stream moves.
fn owners(leasehold: &CommandLine<'_>) -> Option<Owners> {
    let streams = leasehold.json("streams");
    let mut owners = Owners::new();
    for stream in array(&streams["streams"]) {
        let key = (text(&stream["set"]), text(&stream["name"]));
        match array(&stream["claims"]) {
            [] => {}
            [claim] if claim["phase"] == "CLAIM_PHASE_HELD" => {
                owners.insert(key, text(&claim["worker"]));
            }
            _ => return None,
        }
    }
    Some(owners)
}

fn pools(leasehold: &CommandLine<'_>) -> Pools {
    let workers = leasehold.json("workers");
    let pool = |worker: &Value| {
        let granted = worker["granted"].as_u64().expect("a number");
        ((text(&worker["cluster"]), text(&worker["name"])), granted)
    };
    array(&workers["workers"]).iter().map(pool).collect()
}

/// What is there once a plan has happened.
fn planned(plan: &Value, mut owners: Owners, mut pools: Pools) -> (Owners, Pools) {
    for cluster in array(&plan["clusters"]) {
        for pool in array(&cluster["plan"]["pools"]) {
            let size = pool["size"].as_u64().expect("a number");
            pools.insert((text(&cluster["cluster"]), text(&pool["worker"])), size);
        }
        for one in array(&cluster["plan"]["moves"]) {
            let key = (text(&one["set"]), text(&one["stream"]));
            let (from, to) = (text(&one["from"]), text(&one["to"]));
            let owner = owners.remove(&key);
            assert_eq!(owner.unwrap_or_default(), from, "{one}");
            if !to.is_empty() {
                owners.insert(key, to);
            }
        }
    }
    (owners, pools)
}

/// Asks for a plan by the files of a folder: the plan, and the exit code.
fn plan_of(leasehold: &CommandLine<'_>, folder: &Path) -> (Value, Option<i32>) {
    let line = format!("plan -o json -f {}", folder.display());
    let output = leasehold.run(&line);
    let plan = serde_json::from_slice(&output.stdout);
    (plan.unwrap_or_else(|error| panic!("{line}: {error}: {output:?}")), output.status.code())
}

#[test]
fn what_a_plan_by_edited_manifests_says_is_what_then_happens() {
    let demo = toolbox::root().join("deploy/standalone/manifests");
    let mut files: Files = [CLUSTER, SET, LIST]
        .map(|name| (name.to_owned(), fs::read_to_string(demo.join(name)).expect("the demo's")))
        .into();
    let manifests: Vec<_> = files.iter().map(|(name, text)| (&**name, &**text)).collect();
    let coordinator = Coordinator::start(&manifests);
    let leasehold = CommandLine(&coordinator);
    leasehold.until("status", &["leads term"]);
    let _agents = WORKERS.map(|worker| coordinator.agent("demo", worker, &[]));
    let all: Pools = WORKERS.map(|worker| (("demo".to_owned(), worker.to_owned()), 3)).into();
    eventually("all pools and streams", || {
        let owners = owners(&leasehold)?;
        (pools(&leasehold) == all && owners.len() == 27).then_some(())
    });
    let (in_force, edited) =
        (coordinator.folder().join("manifests"), coordinator.folder().join("edited"));
    let (mut moved, mut resized) = (0, 0);
    for Edit { what, edit, code } in &EDITS {
        edit(&mut files);
        write(&edited, &files);
        let before = (eventually("no moves", || owners(&leasehold)), pools(&leasehold));
        let (plan, exit) = plan_of(&leasehold, &edited);
        assert_eq!(exit, Some(*code), "{what}: {plan}");
        assert!(!array(&plan["changes"]).is_empty(), "{what}: {plan}");
        let wanted = planned(&plan, before.0.clone(), before.1.clone());
        moved += usize::from(wanted.0 != before.0);
        resized += usize::from(wanted.1 != before.1);

        write(&in_force, &files);
        eventually(&format!("{what}: in force"), || {
            array(&plan_of(&leasehold, &edited).0["changes"]).is_empty().then_some(())
        });
        let mut last = String::new();
        eventually(&format!("{what}: as planned: {plan}"), || {
            let now = (owners(&leasehold)?, pools(&leasehold));
            last = format!("{now:?}");
            (now == wanted).then_some(())
        });
        let after = leasehold.json("plan demo");
        assert!(array(&after["moves"]).is_empty(), "{what}: more would move");
        for pool in array(&after["pools"]) {
            let key = ("demo".to_owned(), text(&pool["worker"]));
            assert_eq!(pool["size"].as_u64(), wanted.1.get(&key).copied(), "{what}: {pool}");
        }
    }
    assert!(moved >= 8 && resized >= 4, "the edits do too little: {moved} move, {resized} resize");
}

#[test]
fn a_plan_by_one_file_leaves_the_others_and_names_what_is_wrong() {
    let demo = toolbox::root().join("deploy/standalone/manifests");
    let read = |name: &str| fs::read_to_string(demo.join(name)).expect("the demo's");
    let manifests = [CLUSTER, SET, LIST].map(|name| (name, read(name)));
    let manifests: Vec<_> = manifests.iter().map(|(name, text)| (*name, &**text)).collect();
    let coordinator = Coordinator::start(&manifests);
    let leasehold = CommandLine(&coordinator);
    leasehold.until("status", &["leads term"]);
    let _agent = coordinator.agent("demo", "worker-0", &[]);
    eventually("all streams", || (owners(&leasehold)?.len() == 27).then_some(()));
    let file = coordinator.folder().join("edited.yaml");
    let line = format!("plan -f {}", file.display());

    fs::write(&file, read(CLUSTER).replace("maxJobs: 12", "maxJobs: 2")).expect("a file");
    let plan = leasehold.line(&line);
    for words in ["WorkerCluster demo changes\n", "Cluster demo:\n", "No stream moves.\n"] {
        assert!(plan.contains(words), "no {words:?} in {plan}");
    }
    assert!(!plan.contains("StreamSet"), "{plan}");
    fs::write(&file, read(CLUSTER)).expect("a file");
    assert_eq!(leasehold.line(&line), "Nothing changes.\n");

    fs::write(&file, read(CLUSTER).replace("maxJobs: 12", "maxJobs: many")).expect("a file");
    let output = leasehold.run(&line);
    let plan = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(2), "{plan}");
    assert!(plan.contains("edited.yaml:7:12: spec.maxJobs:"), "{plan}");
    let refused = leasehold.refused(&format!("plan -f {}", demo.join(LIST).display()));
    assert!(refused.contains("name a .yaml or .yml file, or the folder"), "{refused}");
}

#[test]
fn a_plan_that_is_made_while_manifests_change_is_an_answer() {
    let demo = toolbox::root().join("deploy/standalone/manifests");
    let text = |name: &str| fs::read_to_string(demo.join(name)).expect("the demo's");
    let files: Files = [CLUSTER, SET, LIST].map(|name| (name.to_owned(), text(name))).into();
    let manifests: Vec<_> = files.iter().map(|(name, text)| (&**name, &**text)).collect();
    let coordinator = Coordinator::start(&manifests);
    let leasehold = CommandLine(&coordinator);
    leasehold.until("status", &["leads term"]);
    let edited = coordinator.folder().join("edited");
    write(&edited, &files);
    // Each plan removes this cluster wherever it is in force, which it may be no longer.
    let other = coordinator.folder().join("manifests/other.yaml");
    let definition = text(CLUSTER).replace("name: demo", "name: other");
    let (mut changing, mut without) = (0, 0);
    std::thread::scope(|threads| {
        let (_goes_on, end) = mpsc::channel::<()>();
        threads.spawn(|| {
            // Until the plans have ended.
            let pause = move || end.recv_timeout(EDIT_EVERY) == Err(RecvTimeoutError::Timeout);
            loop {
                fs::write(&other, &definition).expect("a file");
                if !pause() {
                    return;
                }
                fs::remove_file(&other).expect("the file");
                if !pause() {
                    return;
                }
            }
        });
        for plan in 1.. {
            match array(&plan_of(&leasehold, &edited).0["changes"]) {
                [] => without += 1,
                [_] => changing += 1,
                more => panic!("{more:?}"),
            }
            // A plan takes longer than an edit where the machine has much to do.
            if plan >= PLANS && changing > 0 && without > 0 {
                break;
            }
            assert!(plan < PLANS_MAX, "{changing} plans with the cluster, {without} without");
        }
    });
}
