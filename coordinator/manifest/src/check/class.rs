//! The rules on single values of a WorkerClass.

use std::sync::Arc;

use leasehold_coordinator_core::desired::{Class, Cluster, Rebalance, RolloutOrder, Spread};
use leasehold_types::{Load, limits};

use super::super::manifest::{RebalanceSpec, SpreadSpec, WorkerClassSpec};
use super::super::tree::Node;
use super::cluster::WorkloadFields;
use super::{Checker, ClassDraft};

impl Checker<'_> {
    pub(super) fn class(&mut self, root: &Node, spec: &WorkerClassSpec) -> ClassDraft {
        if spec.capacity.0 == Load::ZERO {
            self.blame(
                root,
                "spec.capacity",
                "is 0, so that no worker could take any load: raise it",
            );
        }
        self.replicas(root, spec);
        let utilization = spec.scaling.target_utilization;
        self.within(root, "spec.scaling.targetUtilization", utilization, 1, 100);
        if let Some(port) = spec.port {
            self.within(root, "spec.port", port.into(), 1, u16::MAX.into());
        }
        self.makers(
            root,
            &WorkloadFields {
                has_template: spec.template.is_some(),
                workload: spec.workload.as_ref(),
                workload_ref: spec.workload_ref.as_ref(),
                agent: spec.agent.as_ref(),
            },
        );
        let ttl = spec.lease.ttl.0;
        self.times(root, ttl, &spec.drain, &spec.lost);
        let class = Class {
            capacity: spec.capacity.0,
            workers_min: spec.min_replicas,
            workers_max: spec.max_replicas,
            // One that does not fit was reported.
            utilization: u8::try_from(utilization).unwrap_or(u8::MAX),
            spread: match spec.spread {
                SpreadSpec::Fewest => Spread::Fewest,
                SpreadSpec::Even => Spread::Even,
            },
            rebalance: match spec.rebalance {
                RebalanceSpec::Never => Rebalance::Never,
                RebalanceSpec::WhenBlocked => Rebalance::WhenBlocked,
            },
            handover_deadline: spec.handover.deadline.0,
        };
        let class = Cluster {
            jobs_max: 0,
            jobs_per_worker_max: 1,
            drain_deadline: spec.drain.deadline.0,
            lost_after: spec.lost.after.map(|after| after.0),
            ttl,
            floor: 0,
            rollout_order: RolloutOrder::Newest,
            class: Some(class),
        };
        let at = |field: &str| {
            let found = root.get("spec").and_then(|spec| spec.get(field));
            found.map_or(root.at, |field| field.at)
        };
        let (capacity_at, most_at) = (at("capacity"), at("maxReplicas"));
        ClassDraft { class: Arc::new(class), capacity_at, most_at }
    }

    fn replicas(&mut self, root: &Node, spec: &WorkerClassSpec) {
        let (least, most) = (spec.min_replicas, spec.max_replicas);
        if !(1..=limits::REPLICAS_MAX).contains(&most) {
            return self.within(root, "spec.maxReplicas", most, 1, limits::REPLICAS_MAX);
        }
        if least > most {
            let message = format!("is {least}, above maxReplicas ({most}): lower it");
            return self.blame(root, "spec.minReplicas", message);
        }
        if let Some(replicas) = spec.replicas
            && !(least..=most).contains(&replicas)
        {
            let message = format!(
                "is {replicas}, but must be from minReplicas ({least}) to maxReplicas ({most})"
            );
            self.blame(root, "spec.replicas", message);
        }
    }
}
