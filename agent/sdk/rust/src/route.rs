//! Where documents go from a binding, and which worker is next: smooth weighted round robin, as in
//! nginx. While the workers stay the same, no count differs from its share by a whole turn.

use std::collections::BTreeMap;

use leasehold_proto::worker::v1 as wire;

/// A node that documents go to.
#[derive(Clone, Debug, PartialEq)]
pub struct Next {
    /// Its name.
    pub node: String,
    /// The workers that serve it; empty while no worker does.
    pub endpoints: Vec<Endpoint>,
}

/// A worker that serves a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    /// Its name.
    pub worker: String,
    /// Its address, `HOST` or `HOST:PORT`; none if unknown.
    pub address: Option<String>,
    /// Its share of the load.
    pub documents_per_second: f64,
    /// It drains: it takes documents only if all other workers drain as well.
    pub draining: bool,
}

impl From<&wire::Next> for Next {
    fn from(next: &wire::Next) -> Self {
        let endpoints = next.endpoints.iter().map(Into::into).collect();
        Self { node: next.node.clone(), endpoints }
    }
}

impl From<&wire::Endpoint> for Endpoint {
    fn from(endpoint: &wire::Endpoint) -> Self {
        Self {
            worker: endpoint.worker.clone(),
            address: Some(endpoint.address.clone()).filter(|address| !address.is_empty()),
            documents_per_second: endpoint.documents_per_second,
            draining: endpoint.draining,
        }
    }
}

/// The turns of the workers of each node.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    nodes: BTreeMap<String, BTreeMap<String, i128>>,
}

impl Turns {
    /// Picks the next worker.
    pub(crate) fn pick<'a>(&mut self, next: &'a Next) -> Option<&'a Endpoint> {
        let stay = next.endpoints.iter().any(|endpoint| !endpoint.draining);
        let open = || next.endpoints.iter().filter(|endpoint| !(stay && endpoint.draining));
        // If all loads are zero, all workers take the same.
        let even = open().all(|endpoint| load_milli(endpoint) == 0);
        let weight = |endpoint: &Endpoint| if even { 1 } else { load_milli(endpoint) };
        let total: i128 = open().map(weight).sum();
        let credits = self.nodes.entry(next.node.clone()).or_default();
        credits.retain(|worker, _| open().any(|endpoint| endpoint.worker == *worker));
        let mut best = None;
        for endpoint in open() {
            let credit = credits.entry(endpoint.worker.clone()).or_default();
            // Credit from other workers or loads counts for at most one round.
            *credit = (*credit).clamp(-total, total) + weight(endpoint);
            if weight(endpoint) > 0 && best.is_none_or(|(most, _)| *credit > most) {
                best = Some((*credit, endpoint));
            }
        }
        let (_, endpoint) = best?;
        *credits.get_mut(&endpoint.worker).expect("it has just got its credit") -= total;
        Some(endpoint)
    }
}

/// The load in thousandths: sums of these are exact.
#[expect(clippy::cast_possible_truncation, reason = "a load is a number below 10^12")]
fn load_milli(endpoint: &Endpoint) -> i128 {
    (endpoint.documents_per_second * 1_000.0).round().max(0.0) as i128
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `WORKER LOAD`, with a `~` before one that drains.
    fn next(endpoints: &[(&str, f64)]) -> Next {
        let endpoint = |(worker, load): &(&str, f64)| Endpoint {
            worker: worker.trim_start_matches('~').into(),
            address: None,
            documents_per_second: *load,
            draining: worker.starts_with('~'),
        };
        Next { node: "out".into(), endpoints: endpoints.iter().map(endpoint).collect() }
    }

    fn picks(turns: &mut Turns, next: &Next, count: usize) -> String {
        let picked =
            (0..count).map(|_| turns.pick(next).map_or("-", |endpoint| endpoint.worker.as_str()));
        picked.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn workers_take_turns_in_proportion_to_their_loads_and_smoothly() {
        let mut turns = Turns::default();
        let three = next(&[("a", 5.0), ("b", 1.0), ("c", 1.0)]);
        assert_eq!(picks(&mut turns, &three, 14), "a a b a c a a a a b a c a a");
        let parts = next(&[("a", 2.5), ("b", 7.5)]);
        assert_eq!(picks(&mut Turns::default(), &parts, 8), "b a b b b a b b");
    }

    #[test]
    fn a_draining_worker_takes_documents_only_if_all_workers_drain() {
        let mut turns = Turns::default();
        assert_eq!(picks(&mut turns, &next(&[("~a", 5.0), ("b", 1.0)]), 3), "b b b");
        assert_eq!(picks(&mut turns, &next(&[("~a", 1.0), ("~b", 1.0)]), 4), "a b a b");
        assert_eq!(picks(&mut turns, &next(&[]), 1), "-");
    }

    #[test]
    fn a_change_of_the_workers_keeps_the_turns_of_those_that_stay() {
        let mut turns = Turns::default();
        assert_eq!(picks(&mut turns, &next(&[("a", 1.0), ("b", 1.0), ("c", 1.0)]), 1), "a");
        assert_eq!(picks(&mut turns, &next(&[("a", 1.0), ("b", 1.0)]), 5), "b b a b a");
        assert_eq!(picks(&mut turns, &next(&[("a", 0.0), ("b", 1.0)]), 2), "b b");
        assert_eq!(picks(&mut turns, &next(&[("a", 0.0), ("b", 0.0)]), 4), "b a b a");
    }

    #[test]
    fn credit_from_larger_loads_is_limited_under_smaller_loads() {
        let mut turns = Turns::default();
        assert_eq!(picks(&mut turns, &next(&[("a", 900.0), ("b", 800.0)]), 1), "a");
        assert_eq!(picks(&mut turns, &next(&[("a", 1.0), ("b", 1.0)]), 6), "b b a b a b");
    }
}
