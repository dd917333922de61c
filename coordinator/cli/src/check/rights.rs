//! Rights: those that the manifests give the coordinator, and the user's rights for the admin API.
//! Access reviews decide, not roles and bindings: other authorizers may give rights too.

use std::collections::BTreeMap;

use futures_util::{StreamExt, stream};
use leasehold_types::counted;
use serde_json::{Value, json};

use super::api::{ApiClient, ApiError};
use super::expected::{self, Right, Scope};
use super::installation::Installation;
use super::report::{Finding, Problem, Report};

/// At most this many requests are in flight.
const REQUESTS_IN_FLIGHT_MAX: usize = 16;
/// At most this many missing rights of one role are listed.
const LISTED_MAX: usize = 5;
/// The role that only a coordinator of the whole cluster has.
const OF_THE_CLUSTER: &str = "ClusterRole leasehold-coordinator-nodes";
/// The component whose rights a coordinator needs unless its certificate is from elsewhere.
const OWN_AUTHORITY: &str = "own-authority";
/// The components that an installation may leave out, and what it does without then.
const OPTIONAL: [(&str, &str); 2] = [
    ("pipelines", "no Services are made for pipelines"),
    ("stream-lists", "streamsFrom of StreamSets is not read"),
];

/// Checks the coordinator's rights and the user's.
pub(super) async fn look(api: &ApiClient, installation: &Installation, report: &mut Report) {
    report.add(coordinators(api, installation).await);
    report.add(users(api).await);
}

async fn coordinators(api: &ApiClient, installation: &Installation) -> Finding {
    let check = "the coordinator has the rights that it needs";
    let mut finding = Finding::new("coordinator-rights", check);
    let questions = questions(installation);
    let count = questions.len();
    let components: Vec<&str> = questions.iter().map(|(right, _)| right.component).collect();
    let count_of = |component| components.iter().filter(|other| **other == component).count();
    let (namespace, account) = (&installation.namespace, &installation.account);
    match denied(api, "SubjectAccessReview", &subject(installation), questions).await {
        Ok(denied) if denied.is_empty() => {
            finding.note(format!("{} checked", counted(count, "right")));
        }
        Ok(mut denied) => {
            for (component, without) in OPTIONAL {
                let is_of = |(right, _): &Question| right.component == component;
                if denied.iter().filter(|question| is_of(question)).count() == count_of(component) {
                    finding.note(format!("without components/{component}: {without}"));
                    denied.retain(|question| !is_of(question));
                }
            }
            for (role, missing) in by_role(denied) {
                let account = format!("service account {namespace}/{account}");
                let wrong = format!("{account} lacks what {role} gives: {missing}");
                let fix = "apply the roles and their bindings again";
                finding.fail(Problem::new(wrong, fix).run(installation.apply()));
            }
        }
        Err(error) => finding.skip(error.text()),
    }
    finding
}

/// The coordinator's account, as a SubjectAccessReview names it.
fn subject(installation: &Installation) -> Value {
    let (namespace, account) = (&installation.namespace, &installation.account);
    json!({
        "user": format!("system:serviceaccount:{namespace}:{account}"),
        "groups": [
            "system:serviceaccounts",
            format!("system:serviceaccounts:{namespace}"),
            "system:authenticated",
        ],
    })
}

/// Whether the coordinator has the rights by which it sees nodes.
pub(super) async fn coordinator_sees_nodes(
    api: &ApiClient,
    installation: &Installation,
) -> Result<bool, ApiError> {
    let of_nodes = expected::rights().into_iter().filter(|right| right.role == OF_THE_CLUSTER);
    let questions = of_nodes.map(|right| (right, None)).collect();
    let denied = denied(api, "SubjectAccessReview", &subject(installation), questions).await?;
    Ok(denied.is_empty())
}

/// A right and the namespace in which it is needed; `None` means all namespaces, or none.
type Question = (Right, Option<String>);

fn questions(installation: &Installation) -> Vec<Question> {
    let mut questions = Vec::new();
    let is_needed =
        |right: &Right| right.component != OWN_AUTHORITY || installation.external_secret.is_none();
    for right in expected::rights().into_iter().filter(is_needed) {
        match right.scope {
            Scope::OwnNamespace => {
                let own = Some(installation.namespace.clone());
                questions.push((right, own));
            }
            Scope::Served if installation.served.is_empty() || is_cluster_scoped(&right) => {
                if installation.served.is_empty() || right.role != OF_THE_CLUSTER {
                    questions.push((right, None));
                }
            }
            Scope::Served => {
                let served = installation.served.iter();
                questions.extend(served.map(|name| (right.clone(), Some(name.clone()))));
            }
        }
    }
    questions
}

fn is_cluster_scoped(right: &Right) -> bool {
    let of_cluster = [
        "nodes",
        "tokenreviews",
        "subjectaccessreviews",
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
    ];
    of_cluster.contains(&right.resource.as_str())
}

/// The rights that are denied.
async fn denied(
    api: &ApiClient,
    kind: &str,
    who: &Value,
    questions: Vec<Question>,
) -> Result<Vec<Question>, ApiError> {
    let answers = stream::iter(questions)
        .map(|question| async move {
            let review = review(kind, who, &question);
            (api.is_allowed(&review).await, question)
        })
        .buffered(REQUESTS_IN_FLIGHT_MAX);
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

/// The missing rights of each role, in words.
fn by_role(denied: Vec<Question>) -> BTreeMap<String, String> {
    let mut roles: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (right, namespace) in denied {
        let place = namespace.map(|name| format!(" in {name}")).unwrap_or_default();
        roles.entry(right.role.clone()).or_default().push(format!("{}{place}", right.words()));
    }
    let say = |missing: Vec<String>| {
        let more = match missing.len().saturating_sub(LISTED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{}{more}", missing[..missing.len().min(LISTED_MAX)].join(", "))
    };
    roles.into_iter().map(|(role, missing)| (role, say(missing))).collect()
}

/// Whether the user has a right in a namespace; `None` means all.
pub(super) async fn user_can(
    api: &ApiClient,
    verb: &str,
    (group, resource, subresource): (&str, &str, &str),
    namespace: Option<&str>,
) -> Result<bool, ApiError> {
    let right = Right {
        role: String::new(),
        scope: Scope::Served,
        group: group.into(),
        resource: resource.into(),
        subresource: subresource.into(),
        verb: verb.into(),
        name: String::new(),
        component: "",
    };
    let question = (right, namespace.map(str::to_owned));
    api.is_allowed(&review("SelfSubjectAccessReview", &json!({}), &question)).await
}

/// The rights of the coordinator that the user lacks and so cannot grant.
pub(super) async fn rights_missing_for_user(
    api: &ApiClient,
    namespace: &str,
) -> Result<Vec<String>, ApiError> {
    let place = |right: Right| match right.scope {
        Scope::OwnNamespace => (right, Some(namespace.to_owned())),
        Scope::Served => (right, None),
    };
    let questions = expected::rights().into_iter().map(place).collect();
    let denied = denied(api, "SelfSubjectAccessReview", &json!({}), questions).await?;
    Ok(by_role(denied).into_iter().map(|(role, missing)| format!("{role}: {missing}")).collect())
}

/// The user's rights for the admin API, in all namespaces.
async fn users(api: &ApiClient) -> Finding {
    let check = "you may read and change state through the admin API, in all namespaces";
    let mut finding = Finding::new("admin-rights", check);
    for (verb, resource, subresource, calls, role) in [
        (
            "get",
            "workerclusters",
            "",
            "read state (GetStatus, ListWorkers and others)",
            "leasehold-viewer",
        ),
        ("get", "streamsets", "", "read streams (ExplainStream and others)", "leasehold-viewer"),
        (
            "create",
            "workerclusters",
            "drain",
            "change state (DrainWorker and others)",
            "leasehold-admin",
        ),
    ] {
        match user_can(api, verb, ("leasehold.dev", resource, subresource), None).await {
            Ok(true) => {}
            Ok(false) => finding.skip(format!(
                "you may not {calls} in all namespaces: the ClusterRole {role} gives this right"
            )),
            Err(error) => finding.skip(error.text()),
        }
    }
    finding
}
