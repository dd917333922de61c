//! The rules of the coordinator's roles: each stands in the table of docs/SECURITY-MODEL.md, and
//! for each there is a request that needs it.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;
use tests::kube::Access;
use tests::toolbox;

use super::rights::COORDINATOR;

/// Verbs that this test's story does not provoke, and when the coordinator uses them.
const RARE: [(&str, &str, &str); 8] = [
    ("secrets", "get", "two replicas create the Secret at once"),
    ("secrets", "update", "the authority is renewed, once a year"),
    ("events.events.k8s.io", "patch", "an event is repeated"),
    ("poddisruptionbudgets.policy", "delete", "an earlier version made a budget"),
    ("pods", "delete", "workers restart, for a new list of streams (refresh: Restart)"),
    ("pods", "get", "a pod vanished while the watch was away"),
    ("endpointslices.discovery.k8s.io", "get", "another EndpointSlice has the name"),
    ("pipelinebindings.leasehold.dev", "get", "another PipelineBinding has the name"),
];

/// A role that is bound to the coordinator.
pub(super) struct Role {
    kind: String,
    pub(super) name: String,
    rules: Vec<Rule>,
}

struct Rule {
    /// `RESOURCE.GROUP/SUBRESOURCE`, as kubectl writes it.
    resources: Vec<String>,
    names: Vec<String>,
    verbs: Vec<String>,
}

impl Role {
    /// All of them.
    fn all(access: &Access) -> Vec<Self> {
        let mut roles = Self::bound(access, "clusterrolebindings");
        roles.extend(Self::bound(access, "rolebindings"));
        roles
    }

    /// Those that are bound in all namespaces.
    pub(super) fn bound_in_all_namespaces(access: &Access) -> Vec<Self> {
        Self::bound(access, "clusterrolebindings")
    }

    fn bound(access: &Access, bindings: &str) -> Vec<Self> {
        let bindings = access.kubectl(&["get", bindings, "--all-namespaces", "--output=json"]);
        let bindings: Value = serde_json::from_str(&bindings).expect("JSON");
        let account = |subject: &Value| {
            let [namespace, name] = ["namespace", "name"].map(|field| text(&subject[field]));
            format!("system:serviceaccount:{namespace}:{name}") == COORDINATOR
        };
        let is_coordinators = |binding: &&Value| items(&binding["subjects"]).any(account);
        let role = |binding: &Value| {
            let (kind, name) =
                (text(&binding["roleRef"]["kind"]), text(&binding["roleRef"]["name"]));
            let namespace = text(&binding["metadata"]["namespace"]);
            let role = access.kubectl(&[
                "get",
                &kind,
                &name,
                &format!("--namespace={namespace}"),
                "--output=json",
            ]);
            let role: Value = serde_json::from_str(&role).expect("JSON");
            Self { kind, name, rules: items(&role["rules"]).map(Rule::new).collect() }
        };
        items(&bindings["items"]).filter(is_coordinators).map(role).collect()
    }
}

impl Role {
    fn rows(&self) -> impl Iterator<Item = String> {
        self.rules.iter().map(|rule| rule.row(self))
    }
}

impl Rule {
    fn new(rule: &Value) -> Self {
        let groups: Vec<String> = items(&rule["apiGroups"]).map(text).collect();
        let called = |resource: String| {
            let (resource, subresource) = resource.split_once('/').unwrap_or((&resource, ""));
            groups.iter().map(|group| called(resource, group, subresource)).collect::<Vec<_>>()
        };
        Self {
            resources: items(&rule["resources"]).map(text).flat_map(called).collect(),
            names: items(&rule["resourceNames"]).map(text).collect(),
            verbs: items(&rule["verbs"]).map(text).collect(),
        }
    }

    /// How a row of the table begins.
    fn row(&self, role: &Role) -> String {
        let quoted = |words: &[String]| format!("`{}`", words.join("`, `"));
        let names = if self.names.is_empty() {
            String::new()
        } else {
            format!(" (only {})", quoted(&self.names))
        };
        let (kind, name, resources) = (&role.kind, &role.name, quoted(&self.resources));
        format!("| {kind} `{name}` | {resources}{names} | {} |", self.verbs.join(", "))
    }
}

/// Every rule has a row in the table, and every row is a rule.
pub(super) fn assert_documented(access: &Access) {
    let document = std::fs::read_to_string(toolbox::root().join("docs/SECURITY-MODEL.md"));
    let document = document.expect("a document");
    let is_row = |line: &&str| line.starts_with("| ClusterRole `") || line.starts_with("| Role `");
    let documented: BTreeSet<String> = document
        .lines()
        .filter(is_row)
        .map(|line| line.splitn(5, '|').take(4).collect::<Vec<_>>().join("|") + "|")
        .collect();
    let roles = Role::all(access);
    let there: BTreeSet<String> = roles.iter().flat_map(Role::rows).collect();
    let missing: Vec<_> = there.difference(&documented).collect();
    assert!(missing.is_empty(), "docs/SECURITY-MODEL.md has no row {missing:#?}");
    let gone: Vec<_> = documented.difference(&there).collect();
    assert!(gone.is_empty(), "docs/SECURITY-MODEL.md has rows without a rule: {gone:#?}");
}

/// The coordinator's requests, as the API server logged them.
pub(super) struct Requests {
    log: PathBuf,
    /// Lines of the log that are of earlier tests.
    before: usize,
}

impl Requests {
    /// Those from now on.
    pub(super) fn since_now(log: PathBuf) -> Self {
        let before = std::fs::read_to_string(&log).unwrap_or_default().lines().count();
        Self { log, before }
    }

    /// The API server forbade none of them, and for each verb of each rule there is one.
    pub(super) fn assert_none_forbidden_and_each_rule_used(&self, access: &Access) {
        let log = std::fs::read_to_string(&self.log).expect("the log of requests");
        let requests: Vec<Value> = log
            .lines()
            .skip(self.before)
            .filter_map(|line| serde_json::from_str(line).ok())
            .filter(|request: &Value| request["user"]["username"] == COORDINATOR)
            .collect();
        let is_forbidden =
            |request: &&Value| request["annotations"]["authorization.k8s.io/decision"] == "forbid";
        let forbidden: Vec<_> = requests.iter().filter(is_forbidden).collect();
        assert!(forbidden.is_empty(), "{forbidden:#?}");
        let mut unused = BTreeSet::new();
        for role in Role::all(access) {
            for rule in &role.rules {
                for (resource, verb) in rule.rights() {
                    let is_rare = RARE.iter().any(|rare| (rare.0, rare.1) == (resource, verb));
                    let is_used =
                        requests.iter().any(|request| rule.is_used_by(request, resource, verb));
                    if !is_rare && !is_used {
                        unused.insert(format!("{} {}: {verb} {resource}", role.kind, role.name));
                    }
                }
            }
        }
        assert!(unused.is_empty(), "rights that no request needed: {unused:#?}");
    }
}

impl Rule {
    fn rights(&self) -> impl Iterator<Item = (&str, &str)> {
        self.resources.iter().flat_map(|resource| {
            self.verbs.iter().map(move |verb| (resource.as_str(), verb.as_str()))
        })
    }

    fn is_used_by(&self, request: &Value, resource: &str, verb: &str) -> bool {
        let object = &request["objectRef"];
        let [kind, group, subresource, name] =
            ["resource", "apiGroup", "subresource", "name"].map(|field| text(&object[field]));
        // A server-side apply of an object that is not there is a patch that also needs `create`.
        let creates = verb == "create"
            && request["verb"] == "patch"
            && request["responseStatus"]["code"] == 201;
        called(&kind, &group, &subresource) == resource
            && (request["verb"] == verb || creates)
            && (self.names.is_empty() || self.names.contains(&name))
    }
}

/// A resource as kubectl writes it.
fn called(resource: &str, group: &str, subresource: &str) -> String {
    let group = if group.is_empty() { String::new() } else { format!(".{group}") };
    match subresource {
        "" => format!("{resource}{group}"),
        subresource => format!("{resource}{group}/{subresource}"),
    }
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
