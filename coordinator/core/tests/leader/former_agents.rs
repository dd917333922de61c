//! An agent whose name another one takes has an entry of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold_coordinator_core::effect::{Effect, Order};
use leasehold_coordinator_core::event::{ConnId, Event};
use leasehold_coordinator_core::exposure::Exposure;
use leasehold_coordinator_core::{Config, Core};
use leasehold_types::message::{Hello, Jobs, Report};
use leasehold_types::{AgentId, Incarnation, Moment, WorkerKey};

use super::fixture::{desired, elected, hello, worker};

const NOW: Moment = Moment(1_000_000_000);

/// Handles an event; returns what the platform is to store. The platform does not answer.
fn stored_after(core: &mut Core, event: Event) -> BTreeMap<WorkerKey, Exposure> {
    core.handle(event, NOW);
    while {
        core.settle(NOW, NOW);
        core.has_more()
    } {}
    let effects = std::iter::from_fn(|| core.poll_effect());
    effects
        .filter_map(|effect| match effect {
            Effect::Order { order: Order::Register(entries), .. } => Some(entries),
            _ => None,
        })
        .flatten()
        .map(|(key, _, exposure)| (key, exposure))
        .collect()
}

/// The agents 1, 2 and 3 take a name one after the other. Each runs a job when it connects, as its
/// worker began it under an agent before it.
#[test]
fn the_entry_of_a_former_agent_names_it_and_covers_its_jobs() {
    let mut core = Core::new(Config::default());
    core.handle(Event::Desired(Arc::new(desired(1))), NOW);
    core.handle(elected(NOW), NOW);
    let dials = |agent: u64| {
        let hello = hello(worker(0), Incarnation(agent));
        let identity = Some(AgentId(agent.into()));
        Event::Hello(ConnId(agent), Hello { identity, take_over: true, ..hello }, None)
    };
    let reports = |agent: u64| {
        Event::Report(ConnId(agent), Report { jobs: Jobs::Running(1), ..Report::example() })
    };
    let _ = stored_after(&mut core, dials(1));
    for agent in [1, 2] {
        let _ = stored_after(&mut core, reports(agent));
        let stored = stored_after(&mut core, dials(agent + 1));
        let identity = AgentId(agent.into());
        let entry = stored.get(&worker(0).former(identity));
        let entry = entry.unwrap_or_else(|| panic!("agent {agent} has no entry: {stored:?}"));
        assert_eq!((entry.identity, entry.jobs_max), (Some(identity), 1), "agent {agent}");
    }
}
