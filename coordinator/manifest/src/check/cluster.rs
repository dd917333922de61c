//! The rules on single values of a WorkerCluster, and those on workloads and leases that classes
//! share with it.

use std::time::Duration;

use leasehold_coordinator_core::desired::{Cluster, RolloutOrder};
use leasehold_types::{WorkerName, limits};

use super::super::manifest::{
    AgentSpec, DrainSpec, LostSpec, RolloutOrderSpec, WorkerClusterSpec, WorkloadKind, WorkloadRef,
    WorkloadSpec,
};
use super::super::tree::Node;
use super::super::values::CountOrPercent;
use super::{Checker, Origin, agent, is_given};

/// What makes the workers, as a WorkerCluster or a class says it.
pub(super) struct WorkloadFields<'a> {
    pub(super) has_template: bool,
    pub(super) workload: Option<&'a WorkloadSpec>,
    pub(super) workload_ref: Option<&'a WorkloadRef>,
    pub(super) agent: Option<&'a AgentSpec>,
}

impl Checker<'_> {
    pub(super) fn cluster(&mut self, root: &Node, spec: &WorkerClusterSpec) -> Cluster {
        let (max_jobs, per_worker) = spec.jobs();
        self.within(root, "spec.maxJobs", max_jobs, 0, limits::JOBS_MAX);
        let path = "spec.maxJobsPerWorker";
        self.within(root, path, per_worker, 1, limits::JOBS_PER_WORKER_MAX);
        self.both_or_neither(root, spec);
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
        let floor = spec.lease.floor;
        if floor > per_worker {
            let message = format!("is {floor}, above maxJobsPerWorker ({per_worker}): lower it");
            self.blame(root, "spec.lease.floor", message);
        }
        Cluster {
            jobs_max: max_jobs,
            jobs_per_worker_max: per_worker,
            drain_deadline: spec.drain.deadline.0,
            lost_after: spec.lost.after.map(|after| after.0),
            ttl,
            floor,
            rollout_order: match spec.rollout.order.unwrap_or_default() {
                RolloutOrderSpec::Newest => RolloutOrder::Newest,
                RolloutOrderSpec::Fair => RolloutOrder::Fair,
            },
            class: None,
        }
    }

    /// Checks that both numbers of jobs are given, or neither, where workers only own streams. The
    /// jobs of an object are 0 where they are not given: an autoscaler may set them.
    fn both_or_neither(&mut self, root: &Node, spec: &WorkerClusterSpec) {
        let is_object = self.home != Origin::File;
        let given = ["maxJobs", "maxJobsPerWorker"].map(|field| is_given(root, field));
        let (field, other) = match given {
            [false, true] if is_object => return,
            [false, true] => ("maxJobs", "maxJobsPerWorker"),
            [true, false] if is_object && spec.jobs().0 == 0 && !makes_or_scales(spec) => return,
            [true, false] => ("maxJobsPerWorker", "maxJobs"),
            [false, false] if makes_or_scales(spec) => {
                let message = "is missing, and says how many workers to make: add it and \
                               maxJobsPerWorker (5 and 1 make five workers)";
                return self.blame(root, "spec.maxJobs", message);
            }
            [true, true] | [false, false] => return,
        };
        let message = format!(
            "is missing beside {other}: add it, or remove {other} where workers only own streams"
        );
        self.blame(root, &format!("spec.{field}"), message);
    }

    /// How long leases last, drains may take, and lost workers keep what they have.
    pub(super) fn times(&mut self, root: &Node, ttl: Duration, drain: &DrainSpec, lost: &LostSpec) {
        if !(limits::TTL_MIN..=limits::TTL_MAX).contains(&ttl) {
            self.blame(root, "spec.lease.ttl", "must be from 200ms to 10m");
        }
        if drain.deadline.0 == Duration::ZERO {
            self.blame(root, "spec.drain.deadline", "is 0: give workers time to end their jobs");
        }
        if lost.after.is_some_and(|after| after.0 == Duration::ZERO) {
            let message = "is 0: give the longest time that a job may run unseen";
            self.blame(root, "spec.lost.after", message);
        }
    }

    pub(super) fn makers(&mut self, root: &Node, makers: &WorkloadFields<'_>) {
        for (place, message) in makers.agent.map(agent::problems).unwrap_or_default() {
            self.blame(root, &format!("spec.agent.{place}"), message);
        }
        if makers.has_template && makers.workload_ref.is_some() {
            let message = "gives both template and workloadRef: keep one";
            self.blame(root, "spec", message);
        }
        if let Some(named) = makers.workload_ref
            && WorkerName::present_name(&named.name).is_err()
        {
            let message = format!("is {:?}, which no workload can be called", named.name);
            self.blame(root, "spec.workloadRef.name", message);
        }
        if let Some(workload) = makers.workload {
            if !makers.has_template {
                let message = "says how to make a workload, but template is missing: add one";
                self.blame(root, "spec.workload", message);
            }
            self.workload(root, workload);
        }
    }

    fn workload(&mut self, root: &Node, workload: &WorkloadSpec) {
        let stateful = workload.kind == WorkloadKind::StatefulSet;
        let of_deployments = [
            ("maxSurge", workload.max_surge.is_some()),
            ("maxUnavailable", workload.max_unavailable.is_some()),
        ];
        let of_stateful_sets = [
            ("serviceName", workload.service_name.is_some()),
            ("podManagementPolicy", workload.pod_management_policy.is_some()),
        ];
        let (other, fields) = if stateful {
            ("Deployment", of_deployments)
        } else {
            ("StatefulSet", of_stateful_sets)
        };
        for (field, _) in fields.iter().filter(|(_, given)| *given) {
            let message = format!("is for kind {other} only: remove it, or change the kind");
            self.blame(root, &format!("spec.workload.{field}"), message);
        }
        let zero = |value: &Option<CountOrPercent>| value.is_some_and(|value| value.is_zero());
        if zero(&workload.max_surge) && zero(&workload.max_unavailable) {
            let message = "is 0 like maxSurge, so that no rollout could ever begin: raise one";
            self.blame(root, "spec.workload.maxUnavailable", message);
        }
    }
}

/// Whether the number of its workers follows its budget.
fn makes_or_scales(spec: &WorkerClusterSpec) -> bool {
    spec.template.is_some() || spec.workload_ref.as_ref().is_some_and(|named| named.scale)
}
