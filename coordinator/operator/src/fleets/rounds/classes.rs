//! What a round asks of classes beside their workers: how many they want, and whom they can spare.
//! Both take the core a while, so that nobody asks more often than there is need.

use leasehold_driver::clock;
use leasehold_driver::port::Stopped;
use leasehold_manifest::manifest::WorkloadKind;
use leasehold_platform_kube::desired::Objects;
use leasehold_types::{ClusterName, WorkerKey};

use super::super::scale_in;
use super::{Case, LONG_LOOK_EVERY, Rounds};

/// Who is to be spared.
enum Spare {
    /// Whoever can be, of a class.
    Any(ClusterName),
    /// This worker, where there is one.
    One(Option<WorkerKey>),
}

impl Rounds {
    /// Looks what the core says of classes, at most every [`LONG_LOOK_EVERY`].
    pub(super) async fn look_at_classes(&mut self, objects: &Objects) -> Result<(), Stopped> {
        let now = clock::now();
        if objects.classes.is_empty() || now.since(self.classes_at) < LONG_LOOK_EVERY {
            return Ok(());
        }
        self.classes_at = now;
        let look = self.context.handle.ask(|core, now| {
            core.classes(now).into_iter().map(|view| (view.name.clone(), view)).collect()
        });
        self.classes = look.await?;
        Ok(())
    }

    /// Asks who can be spared of the classes that have too many workers.
    pub(super) async fn spare(&self, cases: &mut [Case]) -> Result<(), Stopped> {
        let is_too_large = |case: &Case| {
            let most = case.workload.as_ref().map_or(0, |facts| facts.replicas);
            case.scale.spare.is_some() && most > case.scale.replicas
        };
        let cases: Vec<&mut Case> = cases.iter_mut().filter(|case| is_too_large(case)).collect();
        if cases.is_empty() {
            return Ok(());
        }
        let of_case = |case: &&mut Case| match &case.workload {
            // It gives none before its top.
            Some(facts) if facts.kind == WorkloadKind::StatefulSet => {
                Spare::One(scale_in::top(&case.team).map(|it| it.key.clone()))
            }
            Some(_) | None => Spare::Any(case.name.clone()),
        };
        let asked: Vec<Spare> = cases.iter().map(of_case).collect();
        let asked = self.context.handle.ask(move |core, now| {
            let answer = |spare| match spare {
                Spare::Any(class) => core.removable(&class, now),
                Spare::One(worker) => {
                    let worker = worker.filter(|worker| core.is_removable(worker));
                    worker.into_iter().map(|key: WorkerKey| key.worker).collect()
                }
            };
            asked.into_iter().map(answer).collect::<Vec<_>>()
        });
        for (case, spare) in cases.into_iter().zip(asked.await?) {
            case.scale.spare = Some(spare);
        }
        Ok(())
    }
}
