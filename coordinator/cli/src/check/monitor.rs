//! A monitor of the Prometheus operator: which pods or Services it selects, in which namespaces,
//! and at which of their ports.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::expected::{list, text};
use super::fleet::{place, selects};
use super::report::{Problem, patch};

/// What a monitor selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MonitorKind {
    Pods,
    Services,
}

impl MonitorKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Pods => "PodMonitor",
            Self::Services => "ServiceMonitor",
        }
    }

    /// The field of its spec that lists what is scraped.
    pub(super) fn endpoints(self) -> &'static str {
        match self {
            Self::Pods => "podMetricsEndpoints",
            Self::Services => "endpoints",
        }
    }
}

/// A monitor.
#[derive(Clone, Debug)]
pub(super) struct Monitor {
    pub(super) kind: MonitorKind,
    pub(super) object: Value,
}

/// How a monitor fits pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It has them scraped.
    Scraped,
    /// It would, in other namespaces.
    OtherNamespaces,
    /// It selects them and finds no port of theirs.
    OtherPorts,
    /// It is for other pods.
    OtherPods,
}

impl Monitor {
    /// For messages: `PodMonitor leasehold-system/leasehold-agent`.
    pub(super) fn words(&self) -> String {
        format!("{} {}", self.kind.name(), place(&self.object))
    }

    /// As kubectl takes it.
    pub(super) fn argument(&self) -> String {
        let metadata = &self.object["metadata"];
        let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
        format!("{}/{name} --namespace={namespace}", self.kind.name().to_lowercase())
    }

    pub(super) fn endpoints(&self) -> impl Iterator<Item = &Value> {
        list(&self.object["spec"][self.kind.endpoints()])
    }

    /// Whether it selects objects with these labels.
    pub(super) fn selects(&self, labels: &Value) -> bool {
        selects(&self.object["spec"]["selector"], labels)
    }

    /// Whether objects without labels are not selected. Otherwise it is for pods of all kinds, and
    /// may well find no port of Leasehold's.
    pub(super) fn is_specific(&self) -> bool {
        !self.selects(&json!({}))
    }

    /// The namespaces in which it selects; `None` stands for all.
    fn namespaces(&self) -> Option<Vec<&str>> {
        let selector = &self.object["spec"]["namespaceSelector"];
        if selector["any"] == true {
            return None;
        }
        let named: Vec<&str> = list(&selector["matchNames"]).map(text).collect();
        let own = text(&self.object["metadata"]["namespace"]);
        Some(if named.is_empty() { vec![own] } else { named })
    }

    fn covers(&self, namespace: &str) -> bool {
        self.namespaces().is_none_or(|namespaces| namespaces.contains(&namespace))
    }

    /// How it fits pods in a namespace, which it selects or not, with a port that it finds or not.
    pub(super) fn fit(&self, namespace: &str, selects: bool, finds: bool) -> Fit {
        match (selects, self.covers(namespace), finds) {
            (false, ..) => Fit::OtherPods,
            (true, _, false) => Fit::OtherPorts,
            (true, false, true) => Fit::OtherNamespaces,
            (true, true, true) => Fit::Scraped,
        }
    }

    /// The problem that it does not select in these namespaces, where `who` is.
    pub(super) fn other_namespaces(&self, who: &str, missed: &BTreeSet<&str>) -> Problem {
        let selected = self.namespaces().unwrap_or_default();
        let (words, names) = (self.words(), missed.iter().copied().collect::<Vec<_>>().join(", "));
        let wrong = format!(
            "{words} selects {who} in the namespaces {}, and not in {names}",
            selected.join(", ")
        );
        let all: BTreeSet<&str> = selected.into_iter().chain(missed.iter().copied()).collect();
        let body = json!({ "spec": { "namespaceSelector": { "matchNames": all } } });
        let command = patch(&self.argument(), "merge", &body);
        Problem::new(wrong, "add them to its namespaceSelector").run(command)
    }
}

/// Whether an endpoint of a PodMonitor names this port of a container, by its name or number.
pub(super) fn names_port(endpoint: &Value, port: &Value) -> bool {
    port_of(endpoint).is_some_and(|named| *named == port["name"] || *named == port["containerPort"])
}

/// The port that an endpoint of a PodMonitor names, by its name or number; none if it names none.
pub(super) fn port_of(endpoint: &Value) -> Option<&Value> {
    let fields = ["port", "portNumber", "targetPort"].into_iter().map(|field| &endpoint[field]);
    fields.into_iter().find(|port| !port.is_null() && **port != "")
}
