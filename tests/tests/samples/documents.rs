//! The sample of three services: every document arrives, while a worker drains and another one is
//! lost.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tests::http;
use tests::process::{free_address, until_ok};
use tokio::runtime::Runtime;

use crate::fleet::Fleet;
use crate::{names, typescript_sdk};

/// Posts documents to the first node, each until it is stored.
fn post(receive: SocketAddr, ids: std::ops::Range<u32>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime: Runtime = runtime.expect("a runtime");
    for id in ids {
        let document = json!({"id": id.to_string(), "text": format!(" The number {id}")});
        until_ok(&format!("document {id} to be stored"), || {
            let body = document.to_string();
            let answer = runtime.block_on(http::call(receive, "POST", "/news/receive", &body));
            match answer {
                Ok((204, _)) => Ok(()),
                Ok((status, why)) => Err(format!("{status}: {why}")),
                Err(error) => Err(error.to_string()),
            }
        });
    }
}

/// The worker of these that serves a share.
fn serving<'a>(fleet: &Fleet, workers: [&'a str; 2]) -> &'a str {
    let serves = |worker: &&str| {
        let lease = fleet.lease(worker).expect("its agent answers");
        lease["bindings"].as_array().is_some_and(|bindings| !bindings.is_empty())
    };
    workers.into_iter().find(serves).expect("one of them serves")
}

/// A document as it is stored.
fn stored(folder: &Path, file: &str) -> Value {
    let text = std::fs::read_to_string(folder.join(file)).expect("a document");
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn all_documents_arrive_although_workers_drain_and_are_lost() {
    let Some(sdk) = typescript_sdk::folder() else { return };
    let mut fleet = Fleet::start("documents");
    let folder = fleet.folder().join("documents");
    let receive = free_address();
    for (class, name, address) in [
        ("receive", "receive-0", receive),
        ("parse", "parse-0", free_address()),
        ("parse", "parse-1", free_address()),
        ("index", "index-0", free_address()),
        ("index", "index-1", free_address()),
    ] {
        let mut worker = Command::new("node");
        worker.arg(sdk.join("dist/deploy/samples/documents/worker.js"));
        worker.arg(address.port().to_string()).arg(&folder);
        fleet.add(class, name, &["--worker-address", &address.to_string()], &mut worker);
    }
    for name in ["parse-0", "parse-1", "index-0", "index-1"] {
        fleet.eventually_connected(name);
    }
    post(receive, 0..10);

    let draining = serving(&fleet, ["parse-0", "parse-1"]);
    fleet.begin_drain(draining);
    post(receive, 10..20);
    fleet.eventually_ended(draining);
    post(receive, 20..30);

    let lost = serving(&fleet, ["index-0", "index-1"]);
    fleet.kill(lost);
    post(receive, 30..40);

    let files = names(&folder);
    for id in 0..40 {
        let file = format!("{id}.json");
        assert!(files.contains(&file), "{file} is not among {files:?}");
        let words = json!(["the", "number", id.to_string()]);
        assert_eq!(stored(&folder, &file)["words"], words, "it went through all three");
    }
}
