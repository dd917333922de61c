//! The API server: whether it is reached at all, and whether it is new enough.

use super::cluster::{Cluster, Trouble, Version};
use super::report::{Finding, Problem, Report};

/// The oldest Kubernetes that runs native sidecars unasked.
const OLDEST: (u32, u32) = (1, 29);

/// The cluster, where it answers; otherwise nothing else can be looked at.
pub(super) async fn reached(
    cluster: Result<Cluster, String>,
    report: &mut Report,
) -> Option<Cluster> {
    let mut finding = Finding::new("api-reached", "the API server answers");
    let cluster = match cluster {
        Ok(cluster) => cluster,
        Err(why) => {
            finding.fail(Problem::new(
                format!("no cluster is configured: {why}"),
                "name a kubeconfig (--kubeconfig, KUBECONFIG) and one of its contexts (--context)",
            ));
            report.tell(finding);
            return None;
        }
    };
    match cluster.version().await {
        Ok(version) => {
            finding.note(format!("{} is Kubernetes {}", cluster.url, version.text));
            report.tell(finding);
            report.tell(new_enough(&version));
            Some(cluster)
        }
        Err(trouble) => {
            let mend = match trouble {
                Trouble::Forbidden(_) => "log in again: the kubeconfig's user is not accepted",
                Trouble::Refused(..) | Trouble::Unreachable(_) => {
                    "see whether the cluster runs, and whether the kubeconfig's context names it"
                }
            };
            let wrong = format!("{}: {}", cluster.url, trouble.text());
            let problem = Problem::new(wrong, mend);
            finding.fail(problem.run("kubectl config view --minify").run("kubectl version"));
            report.tell(finding);
            None
        }
    }
}

fn new_enough(version: &Version) -> Finding {
    let (major, minor) = OLDEST;
    let what = format!("Kubernetes is {major}.{minor} or newer");
    let mut finding = Finding::new("api-version", what);
    if (version.major, version.minor) < OLDEST {
        finding.fail(Problem::new(
            format!("it is {}: there are no native sidecars in it", version.text),
            "upgrade the cluster",
        ));
    }
    finding
}
