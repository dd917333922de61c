//! The taints by which autoscalers and handlers of interruptions announce that a node goes soon.
//! They do not cordon it.

/// The autoscaler whose nodes belong to NodePools.
pub const KARPENTER: &str = "karpenter";
/// The autoscaler of the Kubernetes project.
pub const CLUSTER_AUTOSCALER: &str = "cluster-autoscaler";
/// The handler of interruptions of EC2 instances.
pub const AWS_NODE_TERMINATION_HANDLER: &str = "aws-node-termination-handler";

/// A taint that announces the removal of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovalTaint {
    /// Its key. One that ends with a slash stands for all keys that begin with it.
    pub key: &'static str,
    /// The program that sets it.
    pub set_by: &'static str,
}

/// All of them. A taint that only proposes a removal is not among them.
pub const REMOVAL_TAINTS: [RemovalTaint; 6] = [
    RemovalTaint { key: "karpenter.sh/disrupted", set_by: KARPENTER },
    RemovalTaint { key: "karpenter.sh/disruption", set_by: KARPENTER },
    RemovalTaint { key: "ToBeDeletedByClusterAutoscaler", set_by: CLUSTER_AUTOSCALER },
    // What follows says why.
    RemovalTaint { key: "aws-node-termination-handler/", set_by: AWS_NODE_TERMINATION_HANDLER },
    RemovalTaint { key: "cloud.google.com/impending-node-termination", set_by: "GKE" },
    RemovalTaint {
        key: "node.cloudprovider.kubernetes.io/shutdown",
        set_by: "the cloud controller manager",
    },
];

/// The taint of this key, if it announces the removal of its node.
#[must_use]
pub fn removal_taint(key: &str) -> Option<&'static RemovalTaint> {
    REMOVAL_TAINTS.iter().find(|taint| {
        if taint.key.ends_with('/') { key.starts_with(taint.key) } else { key == taint.key }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taint_that_only_proposes_a_removal_announces_none() {
        let set_by = |key: &str| removal_taint(key).map(|taint| taint.set_by);
        assert_eq!(set_by("karpenter.sh/disrupted"), Some(KARPENTER));
        assert_eq!(set_by("ToBeDeletedByClusterAutoscaler"), Some(CLUSTER_AUTOSCALER));
        let of_spot = "aws-node-termination-handler/spot-itn";
        assert_eq!(set_by(of_spot), Some(AWS_NODE_TERMINATION_HANDLER));
        for key in [
            "DeletionCandidateOfClusterAutoscaler",
            "node.kubernetes.io/not-ready",
            "karpenter.sh/disrupted/more",
            "dedicated",
        ] {
            assert_eq!(set_by(key), None, "{key}");
        }
    }
}
