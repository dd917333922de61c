//! The chart on a real node: from its installation to the first lease, and upgrades and rollbacks
//! while jobs run, also from the chart and the programs of the last release.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

use leasehold_demo::checker::moves;
use leasehold_demo::clock::now_ns;
use leasehold_release::Program;
use serde_json::{Value, json};
use tests::kube::{Access, RealCluster, RealInstallation, TestNamespace, list, names};
use tests::process::eventually;
use tests::toolbox;

use super::{AGENT, cluster, deployment, nothing_broke, pods};
use crate::check::until_all_is_well;
use crate::installed::{chart, coordinator_pods, helm};

/// The tag of the last release's images here: its version may be today's.
const LAST: &str = "last-release";
/// The tag of today's images.
const TODAY: &str = env!("CARGO_PKG_VERSION");

#[test]
fn the_chart_gives_leases_and_is_upgraded_and_rolled_back_under_load() {
    let chart = &*chart();
    let values = "--set=replicas=2";
    let Some((installation, begun)) = install(chart, &[values], |_| ()) else { return };
    let namespace = start_workers(&installation, begun);
    let settled_ns = until_settled(&namespace);
    for step in [
        &["upgrade", "leasehold", chart, values, "--set=logLevel=debug"][..],
        &["rollback", "leasehold"],
    ] {
        replace_coordinators(&installation, &namespace, step);
    }
    no_stream_has_moved(&namespace, settled_ns);
    end(&namespace);
}

/// As `docs/UPGRADING.md` says, with the values in a file. The workers get today's agents before
/// the rollback, so that both releases' agents work with both releases' coordinators.
#[test]
fn the_chart_of_the_last_release_is_upgraded_to_todays_and_rolled_back_under_load() {
    let what = "an upgrade of the last release's chart";
    let Some(release) = toolbox::last_release(what) else { return };
    let chart = &*chart();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("values.yaml");
    let values = ["--values", file.to_str().expect("UTF-8")];
    write_values(&file, LAST);
    let last_chart = release.join("deploy/helm/leasehold");
    let last_chart = last_chart.to_str().expect("UTF-8");
    let installed = install(last_chart, &values, |cluster| {
        for program in Program::WITH_IMAGE {
            let reference = program.reference_with_tag(LAST);
            cluster.load(&program.image_named(&reference, &release.join(program.binary())));
        }
    });
    let Some((installation, begun)) = installed else { return };
    let namespace = start_workers(&installation, begun);
    let settled_ns = until_settled(&namespace);
    assert_tags(&namespace, LAST, LAST);

    write_values(&file, TODAY);
    let upgrade = [&["upgrade", "leasehold", chart][..], &values].concat();
    replace_coordinators(&installation, &namespace, &upgrade);
    assert_tags(&namespace, TODAY, LAST);
    namespace.until("wc/builds", ".status.agents.outdated", "2");
    until_all_is_well(&namespace.access);
    no_stream_has_moved(&namespace, settled_ns);

    namespace.kubectl(&["rollout", "restart", "deployment/builds"]);
    namespace.kubectl(&["rollout", "status", "deployment/builds", "--timeout=170s"]);
    let settled_ns = until_settled(&namespace);
    assert_tags(&namespace, TODAY, TODAY);
    namespace.until("wc/builds", ".status.agents.outdated", "0");

    replace_coordinators(&installation, &namespace, &["rollback", "leasehold"]);
    assert_tags(&namespace, LAST, TODAY);
    no_stream_has_moved(&namespace, settled_ns);
    end(&namespace);
}

/// Writes the values of a user who names the tag of both images.
fn write_values(file: &Path, tag: &str) {
    let agent = Program::Agent.reference_with_tag(tag);
    let values = json!({ "replicas": 2, "image": { "tag": tag }, "agent": { "image": agent } });
    std::fs::write(file, values.to_string()).expect("a file of values");
}

/// Installs a chart with these values on a node, after something else was done to the cluster.
/// Returns when Helm began, too; none where the machine lacks something, which is noted.
fn install(
    chart: &str,
    values: &[&str],
    before: impl FnOnce(&RealCluster),
) -> Option<(RealInstallation, Instant)> {
    let arguments = [&["install", "leasehold", chart, "--create-namespace"][..], values].concat();
    let mut begun = None;
    let installed = RealInstallation::start_by(1, |cluster| {
        before(cluster);
        begun = Some(Instant::now());
        helm(cluster.access(), &arguments).map(|_| ())
    });
    let (installation, begun) = (installed?, begun?);
    println!("helm install: ready after {:.1?}", begun.elapsed());
    Some((installation, begun))
}

/// Starts two workers, and waits for their first job.
fn start_workers(installation: &RealInstallation, begun: Instant) -> TestNamespace<'_> {
    let namespace = installation.namespace("chart");
    namespace.apply(&list(cluster(4)));
    let short = ["--streams", "--job-ms-min=1000", "--job-ms-max=3000"];
    namespace.apply(&deployment(&namespace, 2, &short));
    eventually("the first job", || (!namespace.evidence().runs.is_empty()).then_some(()));
    println!("helm install: the first job after {:.1?}", begun.elapsed());
    namespace
}

/// Waits until four jobs run and the two workers own all streams, three each. Returns the time.
fn until_settled(namespace: &TestNamespace<'_>) -> u64 {
    namespace.until("wc/builds", ".status.jobs.running", "4");
    namespace.until_holds("three streams at each of two workers", || {
        let mut owned: BTreeMap<_, _> = pods(namespace).into_iter().map(|pod| (pod, 0)).collect();
        for own in namespace.evidence().owns.into_iter().filter(|own| own.to_ns == u64::MAX) {
            *owned.entry(own.worker).or_insert(0) += 1;
        }
        let is_even = owned.len() == 2 && owned.values().all(|streams| *streams == 3);
        if is_even { Ok(()) } else { Err(format!("{owned:?}")) }
    });
    now_ns()
}

/// Runs Helm, and waits until every coordinator is replaced and more jobs have begun.
fn replace_coordinators(
    installation: &RealInstallation,
    namespace: &TestNamespace<'_>,
    arguments: &[&str],
) {
    let access = installation.cluster().access();
    let replaced = coordinators(access);
    let begun = Instant::now();
    helm(access, arguments).expect("Helm has installed it");
    installation.wait_for_rollout();
    eventually("other coordinators", || coordinators(access).is_disjoint(&replaced).then_some(()));
    println!("helm {}: every coordinator replaced after {:.1?}", arguments[0], begun.elapsed());
    let before = namespace.evidence().runs.len();
    eventually("more jobs", || (namespace.evidence().runs.len() > before + 4).then_some(()));
}

/// The names of the coordinators' pods.
fn coordinators(access: &Access) -> BTreeSet<String> {
    names(&coordinator_pods(access)).into_iter().collect()
}

fn no_stream_has_moved(namespace: &TestNamespace<'_>, since_ns: u64) {
    let owned = namespace.evidence().owns;
    assert_eq!(moves(&owned, since_ns, now_ns()), 0, "{owned:#?}");
}

/// All coordinators are of the image with one tag, and the agents of all workers of that with the
/// other.
fn assert_tags(namespace: &TestNamespace<'_>, coordinators: &str, agents: &str) {
    let own = images(&coordinator_pods(&namespace.access), "coordinator");
    assert_eq!(own, BTreeSet::from([Program::Coordinator.reference_with_tag(coordinators)]));
    let of_agents = images(&namespace.pods(), AGENT);
    assert_eq!(of_agents, BTreeSet::from([Program::Agent.reference_with_tag(agents)]));
}

/// The images of the containers of this name.
fn images(pods: &[Value], name: &str) -> BTreeSet<String> {
    let of_kind = |kind: &'static str| {
        pods.iter().filter_map(move |pod| pod["spec"][kind].as_array()).flatten()
    };
    let containers = of_kind("initContainers").chain(of_kind("containers"));
    let named = containers.filter(|container| container["name"] == name);
    named.map(|container| container["image"].as_str().expect("an image").to_owned()).collect()
}

/// Ends the workers: nothing broke until then.
fn end(namespace: &TestNamespace<'_>) {
    namespace.kubectl(&["delete", "wc/builds", "deployment/builds"]);
    namespace.until_no_pod("");
    nothing_broke(&namespace.evidence(), 4);
}
