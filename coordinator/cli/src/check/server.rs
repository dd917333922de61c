//! The API server: it answers, and it is new enough.

use super::cluster::{ApiError, Cluster, Version};
use super::report::{Finding, Problem, Report};

/// The oldest Kubernetes with native sidecars on by default.
const VERSION_MIN: (u32, u32) = (1, 29);

/// The cluster, if it answers; otherwise nothing else can be checked.
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
                "pass a kubeconfig (--kubeconfig or KUBECONFIG) and one of its contexts (--context)",
            ));
            report.add(finding);
            return None;
        }
    };
    match cluster.version().await {
        Ok(version) => {
            finding.note(format!("{} is Kubernetes {}", cluster.url, version.text));
            report.add(finding);
            report.add(new_enough(&version));
            Some(cluster)
        }
        Err(error) => {
            let fix = match error {
                ApiError::Forbidden(_) => {
                    "log in again: the API server does not accept the kubeconfig's user"
                }
                ApiError::Refused(..) | ApiError::Unreachable(_) => {
                    "see whether the cluster runs, and whether the kubeconfig's context names it"
                }
            };
            let wrong = format!("{}: {}", cluster.url, error.text());
            let problem = Problem::new(wrong, fix);
            finding.fail(problem.run("kubectl config view --minify").run("kubectl version"));
            report.add(finding);
            None
        }
    }
}

fn new_enough(version: &Version) -> Finding {
    let (major, minor) = VERSION_MIN;
    let what = format!("Kubernetes is {major}.{minor} or newer");
    let mut finding = Finding::new("api-version", what);
    if (version.major, version.minor) < VERSION_MIN {
        finding.fail(Problem::new(
            format!("it is {}, which has no native sidecars", version.text),
            "upgrade the cluster",
        ));
    }
    finding
}
