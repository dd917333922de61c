//! The chart on a real node: from its installation to the first lease, and an upgrade and a
//! rollback while jobs run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use leasehold_demo::checker::moves;
use leasehold_demo::clock::now_ns;
use tests::kube::{Access, RealInstallation, list, names};
use tests::process::eventually;

use super::{cluster, deployment, nothing_broke};
use crate::installed::{chart, coordinator_pods, helm};

#[test]
fn the_chart_gives_leases_and_is_upgraded_and_rolled_back_under_load() {
    let chart = &*chart();
    let mut begun = None;
    let installed = RealInstallation::start_by(1, |access| {
        begun = Some(Instant::now());
        until_ready(
            access,
            &["install", "leasehold", chart, "--create-namespace", "--set=replicas=2"],
        )
    });
    let (Some(installation), Some(begun)) = (installed, begun) else { return };
    let ready = begun.elapsed();
    let namespace = installation.namespace("chart");
    namespace.apply(&list(cluster(4)));
    let short = ["--streams", "--job-ms-min=1000", "--job-ms-max=3000"];
    namespace.apply(&deployment(&namespace, 2, &short));
    eventually("the first job", || (!namespace.evidence().runs.is_empty()).then_some(()));
    println!("helm install: ready after {ready:.1?}, the first job after {:.1?}", begun.elapsed());
    namespace.until("wc/builds", ".status.jobs.running", "4");
    namespace.until_holds("three streams at each of two workers", || {
        let mut owned = BTreeMap::new();
        for own in namespace.evidence().owns.iter().filter(|own| own.to_ns == u64::MAX) {
            *owned.entry(own.worker.clone()).or_insert(0) += 1;
        }
        let is_even = owned.len() == 2 && owned.values().all(|streams| *streams == 3);
        if is_even { Ok(()) } else { Err(format!("{owned:?}")) }
    });
    let settled_ns = now_ns();

    let access = installation.cluster().access();
    for step in [
        &["upgrade", "leasehold", chart, "--set=replicas=2", "--set=logLevel=debug"][..],
        &["rollback", "leasehold", "1"],
    ] {
        let replaced = coordinators(access);
        let begun = Instant::now();
        until_ready(access, step).expect("Helm has installed it");
        eventually("other coordinators", || {
            coordinators(access).is_disjoint(&replaced).then_some(())
        });
        println!("helm {}: every coordinator replaced after {:.1?}", step[0], begun.elapsed());
        let before = namespace.evidence().runs.len();
        eventually("more jobs", || (namespace.evidence().runs.len() > before + 4).then_some(()));
    }
    let owned = namespace.evidence().owns;
    assert_eq!(moves(&owned, settled_ns, now_ns()), 0, "{owned:#?}");

    namespace.kubectl(&["delete", "wc/builds", "deployment/builds"]);
    namespace.until_no_pod("");
    nothing_broke(&namespace.evidence(), 4);
}

/// Runs Helm on the release until all is ready; none where Helm is not built.
fn until_ready(access: &Access, arguments: &[&str]) -> Option<()> {
    helm(access, &[arguments, &["--wait", "--timeout=170s"]].concat()).map(|_| ())
}

/// The names of the coordinators' pods.
fn coordinators(access: &Access) -> BTreeSet<String> {
    names(&coordinator_pods(access)).into_iter().collect()
}
