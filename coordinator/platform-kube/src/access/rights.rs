//! The rights of RBAC that people need for what they ask; pure.

use k8s_openapi::api::authorization::v1::ResourceAttributes;
use leasehold_driver::access::{Denied, Subject};
use leasehold_kube_api::names::GROUP;

pub(super) const CLASSES: &str = "workerclasses";
const CLUSTERS: &str = "workerclusters";
const SETS: &str = "streamsets";
const PIPELINES: &str = "pipelines";

/// The operation that a person asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Read,
    Change,
}

impl Verb {
    /// The permissions that a person needs for this operation on `subject`; all of them. The
    /// workers of a cluster may be those of a WorkerClass.
    pub(super) fn on(
        self,
        subject: &Subject,
        is_class: bool,
    ) -> Result<Vec<ResourceAttributes>, Denied> {
        let (resource, (namespace, name)) = match subject {
            Subject::All => {
                let everywhere = [CLUSTERS, CLASSES, SETS, PIPELINES];
                return Ok(everywhere.map(|resource| self.attributes(resource, None)).into());
            }
            Subject::Cluster(class) if is_class => (CLASSES, class.parts()),
            Subject::Cluster(cluster) => (CLUSTERS, cluster.parts()),
            // The set of a namespace's shares belongs to all pipelines of the namespace.
            Subject::Set(set) if set.is_shares() => (PIPELINES, (set.namespace(), "")),
            Subject::Set(set) => (SETS, set.parts()),
            Subject::Pipeline(pipeline) => (PIPELINES, pipeline.parts()),
        };
        let Some(namespace) = namespace else {
            return Err(Denied::Forbidden(format!(
                "{name:?} has no namespace: on Kubernetes a name is NAMESPACE/NAME"
            )));
        };
        Ok(vec![self.attributes(resource, Some((namespace, name)))])
    }

    /// This operation on all objects of `resource`, on those of a namespace, or on one object.
    pub(super) fn attributes(
        self,
        resource: &str,
        object: Option<(&str, &str)>,
    ) -> ResourceAttributes {
        let (verb, subresource) = match self {
            Self::Read => ("get", None),
            Self::Change => ("create", Some("drain".to_owned())),
        };
        ResourceAttributes {
            group: Some(GROUP.into()),
            resource: Some(resource.into()),
            subresource,
            verb: Some(verb.into()),
            namespace: object.map(|(namespace, _)| namespace.to_owned()),
            name: object.map(|(_, name)| name.to_owned()).filter(|name| !name.is_empty()),
            ..ResourceAttributes::default()
        }
    }
}

/// The permission in the words of a role.
pub(super) fn describe_permission(attributes: &ResourceAttributes) -> String {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let mut resource = text(&attributes.resource);
    if let Some(subresource) = &attributes.subresource {
        resource = format!("{resource}/{subresource}");
    }
    let what = format!("{} {resource}.{}", text(&attributes.verb), text(&attributes.group));
    match (&attributes.namespace, &attributes.name) {
        (Some(namespace), Some(name)) => format!("{what} {name:?} in namespace {namespace:?}"),
        _ => format!("{what} in all namespaces"),
    }
}

#[cfg(test)]
mod tests {
    use leasehold_types::ClusterName;

    use super::*;

    #[test]
    fn the_workers_of_a_class_need_the_right_on_the_class() {
        let needed = |verb: Verb, subject: &Subject, is_class: bool| {
            let attributes = verb.on(subject, is_class).expect("a namespace");
            attributes.iter().map(describe_permission).collect::<Vec<_>>()
        };
        let workers = Subject::Cluster(ClusterName::new("ci/green").expect("a name"));
        let of = |verb: &str, resource: &str| {
            [format!("{verb} {resource}.leasehold.dev \"green\" in namespace \"ci\"")]
        };
        assert_eq!(needed(Verb::Read, &workers, false), of("get", "workerclusters"));
        assert_eq!(needed(Verb::Read, &workers, true), of("get", "workerclasses"));
        assert_eq!(needed(Verb::Change, &workers, true), of("create", "workerclasses/drain"));
        let all = needed(Verb::Read, &Subject::All, false);
        assert!(
            all.iter().any(|right| right.contains("get workerclasses.leasehold.dev")),
            "{all:?}"
        );
    }
}
