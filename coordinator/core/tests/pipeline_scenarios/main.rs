//! Scenarios of pipelines, `testdata/pipelines/*.txt`: a core and agents that carry out its grants.
//! `tests/scenario` explains the files; to regenerate the outcomes: `LEASEHOLD_REGENERATE=1 cargo
//! test -p leasehold-coordinator-core --test pipeline_scenarios`.
//!
//! The legend of [`scenario`] explains the commands, and [`shown`] the lines of the outcomes.

mod agent;
mod foreseen;
mod random;
mod scenario;
mod shown;

use leasehold_coordinator_core::view::PipelinePhase;
use leasehold_scenario::{Language as _, with_fault};
use leasehold_types::limits::{MESSAGE_BYTES_MAX, SHARES_PER_NODE_MAX};
use leasehold_types::mutation::Mutation;
use scenario::PipelineScenario;

#[test]
fn scenarios() {
    leasehold_scenario::check_outcomes::<PipelineScenario>();
}

#[test]
fn the_legend_explains_what_scenarios_use() {
    leasehold_scenario::check_legend::<PipelineScenario>();
}

#[test]
fn a_share_above_the_capacity_is_noticed() {
    let run = || {
        let mut scenario = PipelineScenario::new();
        let mut out = scenario.run("class blue capacity=10\nelect 1\njoin blue-0");
        out += &scenario.run("pipeline a load=7 n:blue\nkeep blue-0\nnopipeline a");
        out + &scenario.run("pipeline b load=7 n:blue")
    };
    assert!(!run().contains("b/n/0:"), "b waits until a is given back");
    let fault = Mutation::LoadOverCapacity;
    if let Some(mutant) = with_fault(fault, || std::panic::catch_unwind(run)) {
        assert!(mutant.is_err(), "blue-0 has 14 of 10");
    }
}

#[test]
fn a_node_whose_load_counts_per_class_is_noticed() {
    let run = || {
        let mut scenario = PipelineScenario::new();
        scenario.run("class red capacity=5\nclass green capacity=10\nelect 1");
        scenario.run("join red-0 red-1 green-0\npipeline q load=10 n:red\nkeep red-1");
        scenario.run("pipeline q load=10 n:green")
    };
    assert!(!run().contains("green-0 <- q/n/0"), "red-1 still has half of the load");
    if let Some(mutant) = with_fault(Mutation::NodeLoadPerClass, run) {
        assert!(mutant.contains("green-0 <- q/n/0"), "green-0 has all of it: {mutant}");
    }
}

#[test]
fn a_place_that_is_taken_from_a_broken_pipeline_is_noticed() {
    let run = || {
        let mut scenario = PipelineScenario::new();
        scenario.run("class blue capacity=10\nelect 1\njoin blue-0 blue-1 blue-2");
        scenario.run("pipeline a load=6 in:blue\npipeline b load=4 x:blue y:blue");
        scenario.run("pipeline d load=1 n:blue");
        scenario.run("gone blue-0")
    };
    assert!(!run().contains("-b/y/0"), "b keeps what it has");
    if let Some(mutant) = with_fault(Mutation::HealWithoutOutstanding, run) {
        assert!(mutant.contains("-b/y/0"), "a takes its place: {mutant}");
    }
}

#[test]
fn all_that_a_worker_served_is_planned_before_any_of_it_is_acknowledged() {
    let mut scenario = PipelineScenario::new();
    scenario.run("class blue capacity=1000\nelect 1\njoin blue-0 blue-1");
    for at in 0..300 {
        scenario.run(&format!("pipeline p{at:03} load=1 n:blue"));
    }
    let effects = scenario.run("slow blue-1\ngone blue-0");
    assert_eq!(effects.matches(" Broken -> Plotted").count(), 300);
}

#[test]
fn an_unchanged_state_is_not_reported_again() {
    let mut scenario = PipelineScenario::new();
    scenario.run("class blue capacity=10\nclass green capacity=10\nelect 1\njoin blue-0 green-0");
    scenario.run("pipeline p load=7 n:blue\ndrain blue-0");
    scenario.renewed.clear();
    // The waiting pipelines are placed again; the share on blue-0 finds no room this time either.
    scenario.run("join green-1");
    assert!(scenario.renewed.is_empty(), "{:?}", scenario.renewed);
}

#[test]
fn other_nodes_of_a_waiting_pipeline_are_reported() {
    let mut scenario = PipelineScenario::new();
    scenario.run("class blue capacity=10\nelect 1\npipeline p load=7 n:blue:m m:blue");
    scenario.renewed.clear();
    scenario.run("pipeline p load=7 n:blue m:blue");
    assert_eq!(scenario.renewed, ["p/m", "p/n"]);
}

#[test]
fn routes_come_in_parts_where_a_message_is_too_small() {
    // Protocol 1 has the endpoints of each share, protocol 2 those of each node.
    for (protocol, shares_in_message) in [(1, 2), (2, 1)] {
        let mut scenario = PipelineScenario::new();
        scenario.run("class blue capacity=100000\nclass green capacity=100 spread=even\nelect 1");
        let worker = |at: usize| format!("green-{at:0240}");
        let workers: Vec<_> = (0..100).map(worker).collect();
        scenario.run(&format!("join blue-0 protocol={protocol}\njoin {}", workers.join(" ")));
        for at in 0..90 {
            scenario.run(&format!("pipeline p{at} load=101 a:blue:out b:blue:out out:green"));
        }
        let all = scenario.endpoints("blue-0");
        assert!(all > 4_000, "{all} endpoints");
        let bytes = all / 2 * shares_in_message * 2 * workers[0].len();
        let most = MESSAGE_BYTES_MAX / 4 + 100 * 2 * workers[0].len() * shares_in_message;
        assert!(bytes > most, "{bytes} fit in one message");
        // All routes are due at once when the agent dials again.
        scenario.bytes_max = 0;
        scenario.run("join blue-0");
        assert_eq!(scenario.endpoints("blue-0"), all);
        assert!((1..=most).contains(&scenario.bytes_max), "{}", scenario.bytes_max);
        // The same under a new leader, which has to learn the shares first.
        scenario.bytes_max = 0;
        scenario.run(&format!("elect 2\njoin {} blue-0", workers.join(" ")));
        assert_eq!(scenario.endpoints("blue-0"), all);
        assert!((1..=most).contains(&scenario.bytes_max), "{}", scenario.bytes_max);
    }
}

#[test]
fn tables_without_a_share_end() {
    let mut scenario = PipelineScenario::new();
    scenario.run("class blue capacity=10000\nclass green capacity=10000\nelect 1");
    scenario.run("join blue-0 green-0");
    let mut most = 0;
    for at in 0..200 {
        scenario.run(&format!("pipeline p{at} load=1 in:blue:out out:green"));
        // Three pipelines stay, among all those that come and go.
        if at >= 3 {
            scenario.run(&format!("nopipeline p{at}"));
        }
        most = most.max(scenario.tables("blue-0"));
    }
    assert!((4..60).contains(&most), "{most} tables for four nodes");
    assert_eq!(scenario.endpoints("blue-0"), 3);
    // A table that has ended is sent again where a share leads to its node again.
    scenario.run("pipeline p7 load=1 in:blue:out out:green");
    assert_eq!(scenario.endpoints("blue-0"), 4);
}

#[test]
fn a_node_spans_as_many_workers_as_one_may() {
    let mut scenario = PipelineScenario::new();
    let (most, more) = (SHARES_PER_NODE_MAX, SHARES_PER_NODE_MAX + 1);
    scenario.run(&format!("class blue capacity=1 max={more}\nelect 1"));
    let workers: Vec<_> = (0..more).map(|at| format!("blue-{at}")).collect();
    scenario.run(&format!("join {}", workers.join(" ")));
    scenario.run(&format!("pipeline p load={most} n:blue"));
    let served = |scenario: &PipelineScenario| {
        let views = scenario.views();
        (views[0].phase, views[0].bindings[0].shares.len())
    };
    assert_eq!(served(&scenario), (PipelinePhase::Ready, most));
    // A load that would need one worker more is not in force, although there is one.
    scenario.run(&format!("pipeline p load={more} n:blue"));
    assert_eq!(served(&scenario), (PipelinePhase::Ready, most));
}

#[test]
fn the_search_for_removable_workers_is_bounded() {
    let mut scenario = PipelineScenario::new();
    scenario.run("class blue capacity=6000\nelect 1\njoin blue-0 blue-1 blue-2");
    let nodes: Vec<_> = (0..100).map(|node| format!("n{node}:blue")).collect();
    for of in 0..180 {
        scenario.run(&format!("pipeline p{of} load=1 {}", nodes.join(" ")));
    }
    // One worker could take all shares; those of two workers are more than one query tries to
    // place.
    scenario.run("class blue capacity=18000");
    assert_eq!(scenario.run("removable blue\nheld"), "removable: blue-2\nheld: blue=2\n");
    scenario.run("gone blue-2");
    assert_eq!(scenario.run("removable blue"), "removable: blue-1\n");
}
