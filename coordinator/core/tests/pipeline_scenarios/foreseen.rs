//! What a plan says of a manifest, beside what happens when the manifest comes into force.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_coordinator_core::Core;
use leasehold_coordinator_core::core::PipelinesWhatIf;
use leasehold_coordinator_core::desired::Desired;
use leasehold_coordinator_core::view::{
    ClassView, PipelinePhase, PipelineView, PipelinesPlan, SharePlace,
};
use leasehold_types::{ClusterName, Moment, NodeName, PipelineName, WorkerKey};

/// The most passes of a plan of a few pipelines.
const PASSES_MAX: usize = 100;

/// What is shown of one pipeline.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    phase: PipelinePhase,
    reason: String,
    shares: BTreeMap<(NodeName, u32), SharePlace>,
}

pub(crate) struct Foreseen {
    pipelines: BTreeMap<PipelineName, Shown>,
    classes: BTreeMap<ClusterName, ClassView>,
    pub(crate) moves_shares: bool,
}

impl Foreseen {
    /// What a plan says; none where something else goes on that may change it.
    pub(crate) fn of(core: &Core, desired: &Desired, now: Moment) -> Option<Self> {
        let mut what_if = PipelinesWhatIf::begin(core, Arc::new(desired.clone()))?;
        let views: Vec<_> = core.pipelines(None).collect();
        let busy = |view: &PipelineView| {
            let settled = matches!(view.phase, PipelinePhase::Ready | PipelinePhase::Pending);
            let unknown = view.reason.contains("is not known yet");
            let mut shares = view.bindings.iter().flat_map(|binding| &binding.shares);
            let leaves = shares.any(|share| share.draining);
            !settled || unknown || leaves
        };
        if views.iter().any(busy) {
            return None;
        }
        while !what_if.gather(core, 1).expect("the same term") {}
        let made = (0..PASSES_MAX).any(|_| what_if.place(now));
        assert!(made, "the plan is not made after {PASSES_MAX} passes");
        let plan = what_if.into_view();
        let pipelines = views.into_iter().map(|view| (view.name.clone(), shown(view))).collect();
        let classes = core.classes(now).into_iter().map(|view| (view.name.clone(), view));
        let mut foreseen = Self { pipelines, classes: classes.collect(), moves_shares: false };
        foreseen.apply(plan);
        Some(foreseen)
    }

    fn apply(&mut self, plan: PipelinesPlan) {
        for planned in plan.pipelines {
            let before = self.pipelines.remove(&planned.name);
            assert_eq!(planned.before, before.as_ref().map(|shown| shown.phase), "{planned:?}");
            let mut shares = before.map(|before| before.shares).unwrap_or_default();
            for moved in planned.moves {
                let key = (moved.node, moved.index);
                assert_eq!(shares.remove(&key), moved.from, "{key:?}");
                assert_ne!(moved.from, moved.to, "{key:?}");
                self.moves_shares |= moved.to.is_some();
                shares.extend(moved.to.map(|to| (key, to)));
            }
            match planned.after {
                Some(phase) => {
                    let shown = Shown { phase, reason: planned.reason, shares };
                    self.pipelines.insert(planned.name, shown);
                }
                None => assert!(shares.is_empty(), "{}: {shares:?}", planned.name),
            }
        }
        for class in plan.classes {
            if let Some(before) = class.before {
                assert_eq!(self.classes.remove(&before.name), Some(before));
            }
            if let Some(after) = class.after {
                self.classes.insert(after.name.clone(), after);
            }
        }
    }

    /// Compares it with what has happened.
    pub(crate) fn check(&self, core: &Core, line: &str) {
        let happened: BTreeMap<_, _> =
            core.pipelines(None).map(|view| (view.name.clone(), shown(view))).collect();
        assert_eq!(happened, self.pipelines, "the plan of {line}");
        let classes = core.classes(Moment(0)).into_iter();
        let classes: BTreeMap<_, _> = classes.map(|view| (view.name.clone(), view)).collect();
        assert_eq!(classes, self.classes, "the plan of {line}");
    }
}

fn shown(view: PipelineView) -> Shown {
    let shares = view.bindings.into_iter().flat_map(|binding| {
        let (node, class) = (binding.node, binding.class);
        binding.shares.into_iter().map(move |share| {
            let worker = WorkerKey { cluster: class.clone(), worker: share.worker };
            ((node.clone(), share.index), SharePlace { worker, load: share.load })
        })
    });
    Shown { phase: view.phase, reason: view.reason, shares: shares.collect() }
}
