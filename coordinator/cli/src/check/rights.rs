//! Rights: the coordinator's, each that its manifests give it, asked of the API server; and the
//! user's own for what the admin API is asked. Nothing is read of roles and bindings: what counts
//! is what the API server answers.

use std::collections::BTreeMap;

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use super::cluster::{Cluster, Trouble};
use super::installation::Installation;
use super::manifests::{self, Right, Within};
use super::report::{Finding, Problem, Report};

/// Questions that are asked at once.
const AT_ONCE: usize = 16;
/// Rights of one role that are named where they are missing.
const NAMED_MAX: usize = 5;
/// The role for what only a coordinator of the whole cluster may.
const OF_THE_CLUSTER: &str = "ClusterRole leasehold-coordinator-nodes";

/// Looks at the coordinator's rights and the user's.
pub(super) async fn look(cluster: &Cluster, installation: &Installation, report: &mut Report) {
    report.tell(coordinators(cluster, installation).await);
    report.tell(users(cluster).await);
}

async fn coordinators(cluster: &Cluster, installation: &Installation) -> Finding {
    let check = "the coordinator may do what it needs";
    let mut finding = Finding::new("coordinator-rights", check);
    let questions = questions(installation);
    let count = questions.len();
    let (namespace, account) = (&installation.namespace, &installation.account);
    let who = json!({
        "user": format!("system:serviceaccount:{namespace}:{account}"),
        "groups": [
            "system:serviceaccounts",
            format!("system:serviceaccounts:{namespace}"),
            "system:authenticated",
        ],
    });
    match denied(cluster, "SubjectAccessReview", &who, questions).await {
        Ok(denied) if denied.is_empty() => finding.note(format!("{count} rights were asked for")),
        Ok(denied) => {
            for (role, missing) in by_role(denied) {
                let account = format!("service account {namespace}/{account}");
                let wrong = format!("{account} lacks what {role} gives: {missing}");
                let mend = "apply the roles and their bindings again";
                finding.fail(Problem::new(wrong, mend).run(installation.apply()));
            }
        }
        Err(trouble) => finding.skip(trouble.text()),
    }
    finding
}

/// A right, and the namespace in which it is needed; none for all, or for what belongs to none.
type Question = (Right, Option<String>);

fn questions(installation: &Installation) -> Vec<Question> {
    let mut questions = Vec::new();
    for right in manifests::rights() {
        match right.within {
            Within::Own => {
                let own = Some(installation.namespace.clone());
                questions.push((right, own));
            }
            Within::Served if installation.served.is_empty() || belongs_to_none(&right) => {
                if installation.served.is_empty() || right.role != OF_THE_CLUSTER {
                    questions.push((right, None));
                }
            }
            Within::Served => {
                let served = installation.served.iter();
                questions.extend(served.map(|name| (right.clone(), Some(name.clone()))));
            }
        }
    }
    questions
}

fn belongs_to_none(right: &Right) -> bool {
    let of_cluster =
        ["nodes", "tokenreviews", "subjectaccessreviews", "mutatingwebhookconfigurations"];
    of_cluster.contains(&right.resource.as_str())
}

/// Those of the questions that are answered with no.
async fn denied(
    cluster: &Cluster,
    kind: &str,
    who: &Value,
    questions: Vec<Question>,
) -> Result<Vec<Question>, Trouble> {
    let answers = stream::iter(questions)
        .map(|question| async move {
            let review = review(kind, who, &question);
            (cluster.is_allowed(&review).await, question)
        })
        .buffered(AT_ONCE);
    let mut denied = Vec::new();
    let mut answers = std::pin::pin!(answers);
    while let Some((answer, question)) = answers.next().await {
        if !answer? {
            denied.push(question);
        }
    }
    Ok(denied)
}

fn review(kind: &str, who: &Value, (right, namespace): &Question) -> Value {
    let mut spec = who.clone();
    spec["resourceAttributes"] = json!({
        "namespace": namespace,
        "group": right.group,
        "resource": right.resource,
        "subresource": right.subresource,
        "verb": right.verb,
        "name": right.name,
    });
    json!({ "apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec })
}

/// What is missing, said once for each role.
fn by_role(denied: Vec<Question>) -> BTreeMap<String, String> {
    let mut roles: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (right, namespace) in denied {
        let place = namespace.map(|name| format!(" in {name}")).unwrap_or_default();
        roles.entry(right.role.clone()).or_default().push(format!("{}{place}", right.words()));
    }
    let say = |missing: Vec<String>| {
        let more = match missing.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{}{more}", missing[..missing.len().min(NAMED_MAX)].join(", "))
    };
    roles.into_iter().map(|(role, missing)| (role, say(missing))).collect()
}

/// Whether the user may do something; `namespace` is none for all of them.
pub(super) async fn user_may(
    cluster: &Cluster,
    verb: &str,
    (group, resource, subresource): (&str, &str, &str),
    namespace: Option<&str>,
) -> Result<bool, Trouble> {
    let right = Right {
        role: String::new(),
        within: Within::Served,
        group: group.into(),
        resource: resource.into(),
        subresource: subresource.into(),
        verb: verb.into(),
        name: String::new(),
    };
    let question = (right, namespace.map(str::to_owned));
    cluster.is_allowed(&review("SelfSubjectAccessReview", &json!({}), &question)).await
}

/// Those of the coordinator's rights that the user has not, and so cannot give.
pub(super) async fn not_the_users(
    cluster: &Cluster,
    namespace: &str,
) -> Result<Vec<String>, Trouble> {
    let place = |right: Right| match right.within {
        Within::Own => (right, Some(namespace.to_owned())),
        Within::Served => (right, None),
    };
    let questions = manifests::rights().into_iter().map(place).collect();
    let denied = denied(cluster, "SelfSubjectAccessReview", &json!({}), questions).await?;
    Ok(by_role(denied).into_iter().map(|(role, missing)| format!("{role}: {missing}")).collect())
}

/// What the user may ask of the admin API, in all namespaces.
async fn users(cluster: &Cluster) -> Finding {
    let check = "you may ask and steer by the admin API, in all namespaces";
    let mut finding = Finding::new("admin-rights", check);
    for (verb, resource, subresource, calls, role) in [
        (
            "get",
            "workerclusters",
            "",
            "look (GetStatus, ListWorkers and others)",
            "leasehold-viewer",
        ),
        ("get", "streamsets", "", "look at streams (ExplainStream and others)", "leasehold-viewer"),
        ("create", "workerclusters", "drain", "steer (DrainWorker and others)", "leasehold-admin"),
    ] {
        match user_may(cluster, verb, ("leasehold.dev", resource, subresource), None).await {
            Ok(true) => {}
            Ok(false) => finding.skip(format!(
                "you may not {calls}: the ClusterRole {role}, bound in a namespace, gives it there"
            )),
            Err(trouble) => finding.skip(trouble.text()),
        }
    }
    finding
}
