//! The rules on the weights of streams.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leasehold_coordinator_core::desired::Desired;
use leasehold_types::limits::WEIGHT_MAX;
use leasehold_types::{SetName, StreamKey, StreamName, did_you_mean};

use super::super::RateChange;
use super::super::day_steps::DaySteps;
use super::super::day_time::DayTime;
use super::super::full_names::{self, Unfound};
use super::super::spec::StreamWeightSpec;
use super::Checker;

impl Checker<'_> {
    /// Gives the streams of these manifests the weights of the start, and adds when others follow.
    pub(super) fn weights(
        &mut self,
        desired: &mut Desired,
        changes: &mut BTreeMap<Duration, RateChange>,
    ) {
        let mut first = RateChange::default();
        for (index, spec) in self.file.value.streams.iter().enumerate() {
            let at = format!("streams[{index}]");
            let streams = self.streams(&at, spec, desired);
            let Some(weights) = self.weight_steps(&format!("{at}.weights"), spec) else { continue };
            for stream in streams {
                if first.weights.insert(stream.clone(), weights.at(Duration::ZERO).0).is_some() {
                    let message = format!("has {} again: give its weights once", stream.stream);
                    self.blame(&format!("{at}.names"), message);
                }
                for (time, weight) in weights.changes(self.file.value.length.0) {
                    let change = changes.entry(time).or_default();
                    change.at = time;
                    change.weights.insert(stream.clone(), weight);
                }
            }
        }
        first.put_into(desired);
    }

    /// The streams of these names, all of one set.
    fn streams(&mut self, at: &str, spec: &StreamWeightSpec, desired: &Desired) -> Vec<StreamKey> {
        let Some(set) = self.set_name(at, &spec.set, desired) else { return Vec::new() };
        if spec.names.is_empty() {
            self.blame(&format!("{at}.names"), "is empty: name the streams");
        }
        let known: BTreeSet<&StreamName> =
            desired.sets[&set].streams.iter().map(|stream| &stream.name).collect();
        let mut streams = Vec::new();
        for (index, name) in spec.names.iter().enumerate() {
            match StreamName::new(name).ok().filter(|name| known.contains(name)) {
                Some(stream) => streams.push(StreamKey { set: set.clone(), stream }),
                None => {
                    let near = did_you_mean(name, known.iter().map(|known| known.as_str()));
                    let message = format!(
                        "is {name}, which {set} does not have: name one of its streams{near}"
                    );
                    self.blame(&format!("{at}.names[{index}]"), message);
                }
            }
        }
        streams
    }

    /// The set of this name; where only one namespace has it, without that.
    fn set_name(&mut self, at: &str, name: &str, desired: &Desired) -> Option<SetName> {
        let all: Vec<&SetName> = desired.sets.keys().collect();
        let names: Vec<&str> = all.iter().map(|name| name.as_str()).collect();
        let message = match full_names::find(name, &names) {
            Ok(place) => return Some(all[place].clone()),
            Err(Unfound::Ambiguous(message)) => message,
            Err(Unfound::Unknown) if names.is_empty() => format!(
                "is {name}, but the manifests define no StreamSet of the clusters: add it to them"
            ),
            Err(Unfound::Unknown) => {
                let meant = full_names::known_names(name, &names, ": use");
                format!("is {name}, which no StreamSet of the clusters is called{meant}")
            }
        };
        self.blame(&format!("{at}.set"), message);
        None
    }

    fn weight_steps(&mut self, at: &str, spec: &StreamWeightSpec) -> Option<DaySteps<u32>> {
        let times: Vec<DayTime> = spec.weights.iter().map(|step| step.at).collect();
        let mut is_good = self.are_in_order(at, &times);
        for (index, step) in spec.weights.iter().enumerate() {
            if !(1..=WEIGHT_MAX).contains(&step.weight) {
                let message = format!("is {}, but must be from 1 to {WEIGHT_MAX}", step.weight);
                self.blame(&format!("{at}[{index}].weight"), message);
                is_good = false;
            }
        }
        let steps = spec.weights.iter().map(|step| (step.at.0, step.weight)).collect();
        is_good.then(|| DaySteps::new(steps, self.file.value.start.0))
    }
}
