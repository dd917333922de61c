//! The rules on rates: of jobs that arrive at clusters, and of documents that come to pipelines.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold_coordinator_core::desired::{Desired, Pipeline};
use leasehold_coordinator_core::planner::pipelines::fits;
use leasehold_types::{ClusterName, Load as DocumentLoad, PipelineName};

use super::super::day_steps::DaySteps;
use super::super::day_time::DayTime;
use super::super::full_names::{self, Unfound};
use super::super::spec::{ArrivalsSpec, PipelineRateSpec, RateSpec, RateStepSpec, StepSpec};
use super::super::{Arrivals, RateChange};
use super::Checker;

/// The rates of arrivals, in jobs an hour, other than 0.
const PER_HOUR_MIN: f64 = 0.001;
const PER_HOUR_MAX: f64 = 10_000_000.0;

impl Checker<'_> {
    pub(super) fn arrivals(&mut self, at: &str, spec: &ArrivalsSpec) -> Option<Arrivals> {
        let start = self.file.value.start.0;
        let steps = match (spec.per_hour, &spec.steps) {
            (Some(per_hour), None) => {
                let rate = self.rate(&format!("{at}.perHour"), per_hour)?;
                vec![(Duration::ZERO, rate)]
            }
            (None, Some(steps)) => self.steps(at, steps)?,
            (Some(_), Some(_)) => {
                self.blame(at, "gives both perHour and steps: keep one");
                return None;
            }
            (None, None) => {
                let message = "gives no rate: add perHour, or steps as in [{at: \"08:00\", \
                               perHour: 300}, {at: \"18:00\", perHour: 40}]";
                self.blame(at, message);
                return None;
            }
        };
        Some(Arrivals::new(DaySteps::new(steps, start)))
    }

    fn steps(&mut self, at: &str, steps: &[StepSpec]) -> Option<Vec<(Duration, f64)>> {
        let times: Vec<DayTime> = steps.iter().map(|step| step.at).collect();
        let mut is_good = self.are_in_order(&format!("{at}.steps"), &times);
        let mut rates = Vec::new();
        for (index, step) in steps.iter().enumerate() {
            match self.rate(&format!("{at}.steps[{index}].perHour"), step.per_hour) {
                Some(rate) => rates.push((step.at.0, rate)),
                None => is_good = false,
            }
        }
        is_good.then_some(rates)
    }

    /// Whether the times of steps are in order, and there is one at least.
    pub(super) fn are_in_order(&mut self, at: &str, times: &[DayTime]) -> bool {
        if times.is_empty() {
            self.blame(at, "is empty: give at least one");
            return false;
        }
        let mut is_good = true;
        for (index, pair) in times.windows(2).enumerate() {
            if pair[0] >= pair[1] {
                let field = format!("{at}[{}].at", index + 1);
                self.blame(&field, "is not after the step before: sort the steps");
                is_good = false;
            }
        }
        is_good
    }

    /// Jobs per second.
    fn rate(&mut self, field: &str, per_hour: f64) -> Option<f64> {
        if per_hour == 0.0 || (PER_HOUR_MIN..=PER_HOUR_MAX).contains(&per_hour) {
            return Some(per_hour / 3600.0);
        }
        let message = format!(
            "is {per_hour}, but must be a number of jobs: 0, or from {PER_HOUR_MIN} to \
             {PER_HOUR_MAX}"
        );
        self.blame(field, message);
        None
    }

    /// Gives the pipelines of these manifests the rates of the start, and adds when others follow.
    pub(super) fn pipelines(
        &mut self,
        desired: &mut Desired,
        changes: &mut BTreeMap<Duration, RateChange>,
    ) {
        self.leave_out_pipelines(desired);
        let mut seen: Vec<PipelineName> = Vec::new();
        for (index, spec) in self.file.value.pipelines.iter().enumerate() {
            let at = format!("pipelines[{index}]");
            let Some(name) = self.pipeline_name(&at, spec, desired) else { continue };
            if seen.contains(&name) {
                let message = format!("is {name} again: give its rate once");
                self.blame(&format!("{at}.name"), message);
            }
            seen.push(name.clone());
            let Some(rates) = self.document_rates(&format!("{at}.rate"), &spec.rate) else {
                continue;
            };
            self.rates_fit(&format!("{at}.rate"), &name, &spec.rate, desired);
            if let Some(pipeline) = desired.pipelines.get_mut(&name) {
                Arc::make_mut(pipeline).load = rates.at(Duration::ZERO).0;
            }
            for (at, rate) in rates.changes(self.file.value.length.0) {
                let change = changes.entry(at).or_default();
                change.at = at;
                change.rates.insert(name.clone(), rate);
            }
        }
    }

    /// Leaves out the pipelines of which no class has a load. A pipeline of which only some have is
    /// wrong: its other nodes would never be served.
    fn leave_out_pipelines(&mut self, desired: &mut Desired) {
        let (all, known) = (&self.desired.clusters, &desired.clusters);
        let mut wrong = Vec::new();
        let is_kept = |name: &PipelineName, pipeline: &mut Arc<Pipeline>| {
            let classes = || pipeline.nodes.values().map(|node| &node.class);
            let is_named = classes().any(|class| known.contains_key(class));
            let lacks =
                |class: &&ClusterName| all.contains_key(*class) && !known.contains_key(*class);
            if let Some(class) = classes().find(lacks).filter(|_| is_named) {
                wrong.push(format!(
                    "lacks class {class}, which pipeline {name} needs beside others that are here: \
                     add it"
                ));
            }
            is_named
        };
        desired.pipelines.retain(is_kept);
        for message in wrong {
            self.blame("clusters", message);
        }
    }

    /// The pipeline of this name; where only one namespace has it, without that.
    fn pipeline_name(
        &mut self,
        at: &str,
        spec: &PipelineRateSpec,
        desired: &Desired,
    ) -> Option<PipelineName> {
        let name = &spec.name;
        let all: Vec<&PipelineName> = desired.pipelines.keys().collect();
        let names: Vec<&str> = all.iter().map(|name| name.as_str()).collect();
        let message = match full_names::find(name, &names) {
            Ok(place) => return Some(all[place].clone()),
            Err(Unfound::Ambiguous(message)) => message,
            Err(Unfound::Unknown) if names.is_empty() => format!(
                "is {name}, but the manifests define no Pipeline of the classes among clusters: \
                 add it to them, or its classes to clusters"
            ),
            Err(Unfound::Unknown) => {
                let meant = full_names::known_names(name, &names, ": use");
                format!(
                    "is {name}, which no Pipeline of the classes among clusters is called{meant}"
                )
            }
        };
        self.blame(&format!("{at}.name"), message);
        None
    }

    fn document_rates(&mut self, at: &str, spec: &RateSpec) -> Option<DaySteps<DocumentLoad>> {
        let steps = match (spec.per_second, &spec.steps) {
            (Some(rate), None) => vec![(Duration::ZERO, rate.0)],
            (None, Some(steps)) => {
                let times: Vec<DayTime> = steps.iter().map(|step| step.at).collect();
                let of_step = |step: &RateStepSpec| (step.at.0, step.per_second.0);
                let rates = steps.iter().map(of_step).collect();
                self.are_in_order(&format!("{at}.steps"), &times).then_some(rates)?
            }
            (Some(_), Some(_)) => {
                self.blame(at, "gives both perSecond and steps: keep one");
                return None;
            }
            (None, None) => {
                let message = "gives no rate: add perSecond, or steps as in [{at: \"08:00\", \
                               perSecond: 30}, {at: \"18:00\", perSecond: 4}]";
                self.blame(at, message);
                return None;
            }
        };
        Some(DaySteps::new(steps, self.file.value.start.0))
    }

    /// A rate that would never fit is wrong, as it is in a manifest.
    fn rates_fit(&mut self, at: &str, name: &PipelineName, spec: &RateSpec, desired: &Desired) {
        let Some(pipeline) = desired.pipelines.get(name) else { return };
        let class_of = |class: &ClusterName| desired.clusters.get(class)?.class.as_ref();
        let constant = spec.per_second.map(|rate| (format!("{at}.perSecond"), rate));
        let steps = spec.steps.iter().flatten().enumerate();
        let steps =
            steps.map(|(index, step)| (format!("{at}.steps[{index}].perSecond"), step.per_second));
        for (field, rate) in constant.into_iter().chain(steps) {
            let other = Pipeline { load: rate.0, ..(**pipeline).clone() };
            for unplaceable in fits(&other, class_of).err().into_iter().flatten() {
                let message = format!(
                    "is a rate that can never fit: {unplaceable}; lower it, or raise the class's \
                     capacity or maxReplicas"
                );
                self.blame(&field, message);
            }
        }
    }
}
