//! The manifests of `deploy/`, built into this program: the objects of an installation of this
//! version, and the rights that the coordinator needs.

use std::sync::OnceLock;

use serde_json::Value;

/// The files of `deploy/base`, and those of overlays and components that add objects.
const FILES: &[(&str, &str)] = &[
    ("namespace.yaml", include_str!("../../../../deploy/base/namespace.yaml")),
    ("service-account.yaml", include_str!("../../../../deploy/base/service-account.yaml")),
    ("own-namespace.yaml", include_str!("../../../../deploy/base/own-namespace.yaml")),
    ("cluster-role.yaml", include_str!("../../../../deploy/base/cluster-role.yaml")),
    ("service.yaml", include_str!("../../../../deploy/base/service.yaml")),
    ("deployment.yaml", include_str!("../../../../deploy/base/deployment.yaml")),
    ("disruption-budget.yaml", include_str!("../../../../deploy/base/disruption-budget.yaml")),
    ("network-policy.yaml", include_str!("../../../../deploy/base/network-policy.yaml")),
    ("webhook.yaml", include_str!("../../../../deploy/base/webhook.yaml")),
    (
        "../overlays/ha/priority-class.yaml",
        include_str!("../../../../deploy/overlays/ha/priority-class.yaml"),
    ),
    (
        "../components/all-namespaces/served.yaml",
        include_str!("../../../../deploy/components/all-namespaces/served.yaml"),
    ),
    (
        "../components/all-namespaces/nodes.yaml",
        include_str!("../../../../deploy/components/all-namespaces/nodes.yaml"),
    ),
    (
        "../components/own-authority/secret.yaml",
        include_str!("../../../../deploy/components/own-authority/secret.yaml"),
    ),
    (
        "../components/own-authority/published-bundle.yaml",
        include_str!("../../../../deploy/components/own-authority/published-bundle.yaml"),
    ),
    (
        "../components/own-authority/webhook-bundle.yaml",
        include_str!("../../../../deploy/components/own-authority/webhook-bundle.yaml"),
    ),
];

/// The files of components that add rules to [`SERVED_ROLE`], as JSON patches.
const RULES: &[(&str, &str)] = &[
    (
        "../components/pipelines/rules.yaml",
        include_str!("../../../../deploy/components/pipelines/rules.yaml"),
    ),
    (
        "../components/stream-lists/rules.yaml",
        include_str!("../../../../deploy/components/stream-lists/rules.yaml"),
    ),
];

/// The role that is bound in the namespaces that are served.
const SERVED_ROLE: &str = "ClusterRole leasehold-coordinator";

/// A role of Kubernetes itself, and its rights: to review tokens and access.
const AUTH_DELEGATOR: &str = "system:auth-delegator";
const AUTH_DELEGATOR_MAY: [(&str, &str); 2] =
    [("authentication.k8s.io", "tokenreviews"), ("authorization.k8s.io", "subjectaccessreviews")];

/// All objects of an installation except CustomResourceDefinitions.
pub(super) fn objects() -> &'static [Value] {
    static OBJECTS: OnceLock<Vec<Value>> = OnceLock::new();
    OBJECTS.get_or_init(|| FILES.iter().flat_map(|(_, text)| documents(text)).collect())
}

/// The documents of a YAML text.
fn documents(text: &str) -> Vec<Value> {
    serde_yaml::from_multiple(text).expect("the manifests of deploy/ are YAML, as a test says")
}

/// The CustomResourceDefinitions of this version.
///
/// # Errors
/// If they cannot be generated, which is a bug.
pub(super) fn definitions() -> anyhow::Result<Vec<Value>> {
    Ok(documents(&leasehold_kube_api::crd::yaml()?))
}

/// Where a right is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    /// In the coordinator's own namespace.
    OwnNamespace,
    /// In all served namespaces, and for objects without a namespace.
    Served,
}

/// A right that the coordinator needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Right {
    /// The role that gives it.
    pub(super) role: String,
    pub(super) scope: Scope,
    pub(super) group: String,
    pub(super) resource: String,
    pub(super) subresource: String,
    pub(super) verb: String,
    /// The name of the only object that it is for; all objects if it is empty.
    pub(super) name: String,
    /// The component of `deploy/components` that gives it; empty for the base.
    pub(super) component: &'static str,
}

impl Right {
    /// For messages: `patch configmaps leasehold-ca`.
    pub(super) fn words(&self) -> String {
        let mut words = format!("{} {}", self.verb, self.resource);
        if !self.group.is_empty() {
            words.push_str(&format!(".{}", self.group));
        }
        if !self.subresource.is_empty() {
            words.push_str(&format!("/{}", self.subresource));
        }
        if !self.name.is_empty() {
            words.push_str(&format!(" {}", self.name));
        }
        words
    }
}

/// Every right that the coordinator needs, from the roles and how they are bound.
pub(super) fn rights() -> Vec<Right> {
    let mut rights = Vec::new();
    let bindings = FILES.iter().flat_map(|(file, text)| {
        documents(text).into_iter().map(|object| (component(file), object))
    });
    for (component, binding) in bindings {
        let scope = match binding["kind"].as_str() {
            Some("ClusterRoleBinding") => Scope::Served,
            Some("RoleBinding") => Scope::OwnNamespace,
            _ => continue,
        };
        let (kind, name) = (&binding["roleRef"]["kind"], &binding["roleRef"]["name"]);
        if name == AUTH_DELEGATOR {
            rights.extend(AUTH_DELEGATOR_MAY.map(|(group, resource)| Right {
                role: AUTH_DELEGATOR.into(),
                scope: Scope::Served,
                group: group.into(),
                resource: resource.into(),
                subresource: String::new(),
                verb: "create".into(),
                name: String::new(),
                component,
            }));
            continue;
        }
        let role = objects()
            .iter()
            .find(|object| object["kind"] == *kind && object["metadata"]["name"] == *name);
        let rules = role.into_iter().flat_map(|role| list(&role["rules"]));
        let shown = format!("{} {}", text(kind), text(name));
        // The rules of the served role are those of its own file, wherever it is bound.
        let component = if shown == SERVED_ROLE { "" } else { component };
        rights.extend(rules.flat_map(|rule| of_rule(&shown, scope, component, rule)));
    }
    for (file, text) in RULES {
        for operations in documents(text) {
            let rules = list(&operations).map(|operation| &operation["value"]);
            let of_rule = |rule| of_rule(SERVED_ROLE, Scope::Served, component(file), rule);
            rights.extend(rules.flat_map(of_rule));
        }
    }
    rights.sort();
    rights.dedup();
    rights
}

/// The component that a file is of.
fn component(file: &'static str) -> &'static str {
    let within = file.strip_prefix("../components/");
    within.and_then(|path| path.split('/').next()).unwrap_or_default()
}

fn of_rule(role: &str, scope: Scope, component: &'static str, rule: &Value) -> Vec<Right> {
    let mut rights = Vec::new();
    let names: Vec<&str> = match rule.get("resourceNames") {
        Some(names) => list(names).filter_map(Value::as_str).collect(),
        None => vec![""],
    };
    for group in list(&rule["apiGroups"]) {
        for resource in list(&rule["resources"]).filter_map(Value::as_str) {
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            for verb in list(&rule["verbs"]) {
                rights.extend(names.iter().map(|name| Right {
                    role: role.into(),
                    scope,
                    group: text(group).into(),
                    resource: resource.into(),
                    subresource: subresource.into(),
                    verb: text(verb).into(),
                    name: (*name).into(),
                    component,
                }));
            }
        }
    }
    rights
}

/// The kinds of the installation's objects as `(group, resource, is namespaced)`.
pub(super) fn kinds() -> Vec<(String, String, bool)> {
    let crds = ("apiextensions.k8s.io".into(), "customresourcedefinitions".into(), false);
    let mut kinds = vec![crds];
    for object in objects() {
        let group = text(&object["apiVersion"]).rsplit_once('/').map_or("", |(group, _)| group);
        let resource = plural(text(&object["kind"]));
        let is_namespaced = !matches!(
            resource.as_str(),
            "namespaces"
                | "clusterroles"
                | "clusterrolebindings"
                | "priorityclasses"
                | "mutatingwebhookconfigurations"
                | "validatingwebhookconfigurations"
        );
        let kind = (group.to_owned(), resource, is_namespaced);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

/// A kind's name in API paths, for the kinds of [`FILES`].
fn plural(kind: &str) -> String {
    let lower = kind.to_lowercase();
    match lower.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if lower.ends_with('s') => format!("{lower}es"),
        None => format!("{lower}s"),
    }
}

/// The items of a list; none if it is not a list.
pub(super) fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A text; empty if it is not a text.
pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn knows_every_yaml_file_of_the_base_and_of_components_with_rights() {
        for folder in [
            "",
            "../components/all-namespaces/",
            "../components/own-authority/",
            "../components/pipelines/",
            "../components/stream-lists/",
        ] {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/base");
            let names = std::fs::read_dir(root.join(folder)).unwrap();
            let names: BTreeSet<String> =
                names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            let known = FILES.iter().chain(RULES).filter_map(|(name, _)| name.strip_prefix(folder));
            let mut known: BTreeSet<String> =
                known.filter(|name| !name.contains('/')).map(str::to_owned).collect();
            known.insert("kustomization.yaml".into());
            assert_eq!(known, names, "{folder}");
        }
        assert!(objects().len() >= FILES.len());
        assert_eq!(definitions().unwrap().len(), 5);
    }

    #[test]
    fn expected_rights_come_from_the_roles() {
        let rights = rights();
        let has = |scope, words: &str| {
            rights.iter().any(|right| right.scope == scope && right.words() == words)
        };
        assert!(has(Scope::Served, "patch workerclusters.leasehold.dev/status"));
        assert!(has(Scope::Served, "delete pods"));
        assert!(has(Scope::Served, "watch nodes"));
        assert!(has(Scope::Served, "create tokenreviews.authentication.k8s.io"));
        assert!(has(
            Scope::OwnNamespace,
            "update leases.coordination.k8s.io leasehold-coordinator"
        ));
        assert!(!has(Scope::Served, "update leases.coordination.k8s.io leasehold-coordinator"));
        assert!(!has(Scope::OwnNamespace, "get secrets"));
        assert!(has(Scope::Served, "create endpointslices.discovery.k8s.io"));
        let of = |component| rights.iter().filter(move |right| right.component == component);
        assert!(of("").any(|right| right.words() == "delete pods"));
        assert!(of("pipelines").any(|right| right.words() == "delete services"));
        assert!(of("own-authority").any(|right| right.words() == "update secrets leasehold-ca"));
        assert_eq!(of("stream-lists").count(), 2);
    }

    #[test]
    fn kinds_map_to_their_resource_names() {
        let kinds = kinds();
        for (group, resource, is_namespaced) in [
            ("", "namespaces", false),
            ("apps", "deployments", true),
            ("policy", "poddisruptionbudgets", true),
            ("networking.k8s.io", "networkpolicies", true),
            ("scheduling.k8s.io", "priorityclasses", false),
            ("rbac.authorization.k8s.io", "clusterroles", false),
        ] {
            let kind = (group.to_owned(), resource.to_owned(), is_namespaced);
            assert!(kinds.contains(&kind), "{kind:?} in {kinds:?}");
        }
    }
}
