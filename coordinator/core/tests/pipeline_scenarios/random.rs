//! Random scenarios: no worker ever has more than its capacity, no share has two holders, and in
//! the end each pipeline is Ready or names the workers that it waits for.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use leasehold_coordinator_core::view::{PipelinePhase, PipelineView};
use leasehold_scenario::Language as _;
use leasehold_types::{Load, NodeName, ShareKey};

use crate::scenario::PipelineScenario;

const CLASSES: [&str; 3] = ["blue", "green", "grey"];

#[test]
fn in_the_end_every_pipeline_is_ready_or_waits() {
    for seed in 0..seeds() {
        let runner = scenario(seed, false);
        if seed % 10 == 0 {
            let again = scenario(seed, false);
            let same = (again.text, again.out) == (runner.text, runner.out);
            assert!(same, "seed {seed}: one scenario is one outcome");
        }
    }
}

#[test]
fn what_a_plan_says_of_a_manifest_is_what_then_happens() {
    let (mut checked, mut moving) = (0, 0);
    for seed in 0..seeds() {
        let plans = scenario(seed, true).scenario.plans_checked;
        (checked, moving) = (checked + plans.0, moving + plans.1);
    }
    let enough = checked > 4 * seeds() && moving > seeds();
    assert!(enough, "of {checked} plans {moving} moved a share");
}

fn seeds() -> u64 {
    std::env::var("SEEDS").map_or(150, |seeds| seeds.parse().expect("a count"))
}

/// Runs one scenario. In a calm one all workers carry out every grant at once.
fn scenario(seed: u64, calm: bool) -> Runner {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut runner =
        Runner { scenario: PipelineScenario::new(), text: String::new(), out: String::new() };
    // A share that a worker gives back late moves something else than what was planned.
    runner.scenario.foresees = calm;
    for class in CLASSES {
        runner.run(&class_line(&mut random, class));
    }
    runner.run("elect 1");
    let mut epoch = 1;
    for _ in 0..40 {
        let workers = runner.scenario.workers();
        let line = if calm {
            next_calm(&mut random, &workers)
        } else {
            next(&mut random, &workers, &mut epoch)
        };
        line.lines().for_each(|line| runner.run(line));
    }
    runner.end(seed);
    runner
}

struct Runner {
    scenario: PipelineScenario,
    text: String,
    out: String,
}

impl Runner {
    fn run(&mut self, line: &str) {
        let _ = writeln!(self.text, "{line}");
        let run = std::panic::AssertUnwindSafe(|| self.scenario.run(line));
        match std::panic::catch_unwind(run) {
            Ok(out) => self.out.push_str(&out),
            Err(_) => panic!("after\n{}", self.text),
        }
        let mut holders = BTreeMap::new();
        for (share, agent) in self.scenario.held() {
            // The leases of an agent that is cut off end by time, which these agents do not count.
            if agent.silent.is_none()
                && let Some(other) = holders.insert(share.clone(), agent.key.clone())
            {
                panic!("{other} and {} have {share:?} after\n{}", agent.key, self.text);
            }
        }
    }

    /// Lets every agent dial again, waits, and checks the final state.
    fn end(&mut self, seed: u64) {
        for worker in self.scenario.workers() {
            self.run(&format!("wake {worker}"));
            self.run(&format!("stop-use {worker}"));
        }
        for worker in self.scenario.silent() {
            self.run(&format!("join {worker}"));
        }
        self.run("after 60s");
        let held: Vec<_> = self.scenario.held().iter().map(|(share, _)| (*share).clone()).collect();
        let mut placed = Load::ZERO;
        for view in self.scenario.views() {
            let context = || format!("seed {seed}: {view:?} after\n{}", self.text);
            let shares: Vec<_> = view.bindings.iter().flat_map(|binding| &binding.shares).collect();
            match view.phase {
                PipelinePhase::Ready => {
                    assert!(shares.iter().all(|share| share.applied), "{}", context());
                    let whole = view.bindings.iter().all(|binding| {
                        binding.shares.iter().map(|share| share.load).sum::<Load>() == view.load
                    });
                    assert!(whole || !view.waits.is_empty(), "{}", context());
                    placed += shares.iter().map(|share| share.load).sum();
                    self.check_routes(&view);
                }
                PipelinePhase::Pending => {
                    assert!(!view.waits.is_empty(), "{}", context());
                    let prefix = format!("{}/", view.name);
                    let has = held.iter().any(|stream| stream.stream.as_str().starts_with(&prefix));
                    assert!(!has, "{}", context());
                }
                PipelinePhase::Plotted | PipelinePhase::Broken => panic!("{}", context()),
            }
        }
        assert_eq!(placed, self.scenario.placed(), "seed {seed}: what counts in the plan");
    }

    /// The workers of a node know the endpoints of the next nodes.
    fn check_routes(&self, view: &PipelineView) {
        let node = |name: &NodeName| view.bindings.iter().find(|binding| binding.node == *name);
        for (stream, agent) in self.scenario.held() {
            let Some(share) = ShareKey::of(stream).filter(|share| share.pipeline == view.name)
            else {
                continue;
            };
            let next = node(&share.node).map_or(&[][..], |binding| &binding.next);
            let expected = next.iter().map(|name| {
                let mut loads = BTreeMap::<_, Load>::new();
                for share in node(name).iter().flat_map(|binding| &binding.shares) {
                    *loads.entry(share.worker.clone()).or_default() += share.load;
                }
                (name.clone(), loads)
            });
            let routes = agent.next(stream).into_iter().map(|(node, endpoints)| {
                let ends = endpoints.into_iter().map(|end| (end.worker, end.load));
                (node, ends.collect())
            });
            let (expected, routes): (Vec<_>, Vec<_>) = (expected.collect(), routes.collect());
            assert_eq!(routes, expected, "{stream:?} on {} after\n{}", agent.key, self.text);
        }
    }
}

fn class_line(random: &mut fastrand::Rng, class: &str) -> String {
    let spread = if class == "grey" { " spread=even" } else { "" };
    let rebalance = if random.bool() { " rebalance=blocked" } else { "" };
    format!("class {class} capacity={}{spread}{rebalance}", random.u32(5..20))
}

/// The next random command.
fn next(random: &mut fastrand::Rng, workers: &[String], epoch: &mut u64) -> String {
    let class = CLASSES[random.usize(..CLASSES.len())];
    let pipeline = ["a", "b", "c", "d", "e"][random.usize(..5)];
    let some = workers.get(random.usize(..workers.len().max(1)));
    let Some(worker) = some else { return format!("join {class}-{}", random.u32(..5)) };
    let wakes: String = workers.iter().map(|worker| format!("wake {worker}\n")).collect();
    match random.u32(..30) {
        0..7 => format!("join {class}-{} protocol={}", random.u32(..5), random.u32(1..=2)),
        7..13 => pipeline_line(random, pipeline),
        13 => format!("nopipeline {pipeline}"),
        14 | 15 => format!("gone {worker}"),
        16 => format!("silent {worker}"),
        17 => format!("drain {worker}"),
        18 => format!("leave {worker}"),
        19 => format!("order-drain {worker}"),
        20 => format!("restart {worker}"),
        21 => format!("restart {worker} memory=no"),
        22 => format!("slow {worker}"),
        23 => format!("wake {worker}"),
        24 => format!("keep {worker}"),
        // Grants on their way were made under the former capacity.
        25 => format!("{wakes}{}", class_line(random, class)),
        26 => format!("{wakes}noclass {class}\nafter 300ms\n{}", class_line(random, class)),
        27 => {
            *epoch += 1;
            let joins = workers.iter().filter(|_| random.u32(..8) > 0);
            let joins: Vec<_> = joins.map(|worker| format!("join {worker}")).collect();
            format!("elect {epoch} exposed={}\n{}", workers.join(","), joins.join("\n"))
        }
        28 => format!("after {}ms", random.u32(50..1_000)),
        _ => {
            // An agent that takes no grant for this long would have lost its leases.
            format!("{wakes}after {}ms", [1_000, 12_000, 45_000][random.usize(..3)])
        }
    }
}

/// The next random command of a calm scenario.
fn next_calm(random: &mut fastrand::Rng, workers: &[String]) -> String {
    let class = CLASSES[random.usize(..CLASSES.len())];
    let pipeline = ["a", "b", "c", "d", "e"][random.usize(..5)];
    let some = workers.get(random.usize(..workers.len().max(1)));
    match (random.u32(..20), some) {
        (0..6, _) | (_, None) => format!("join {class}-{}", random.u32(..5)),
        (6 | 7, Some(worker)) => format!("gone {worker}"),
        (8, Some(_)) => format!("nopipeline {pipeline}"),
        (9, Some(_)) => class_line(random, class),
        (10, Some(_)) => format!("noclass {class}\n{}", class_line(random, class)),
        (_, Some(_)) => pipeline_line(random, pipeline),
    }
}

fn pipeline_line(random: &mut fastrand::Rng, name: &str) -> String {
    let mut class = || CLASSES[random.usize(..CLASSES.len())];
    let (first, second, third) = (class(), class(), class());
    let load = random.u32(..16);
    match random.u32(..3) {
        0 => format!("pipeline {name} load={load} in:{first}"),
        1 => format!("pipeline {name} load={load} in:{first}:out out:{second}"),
        _ => format!("pipeline {name} load={load} in:{first}:l,r l:{second} r:{third}"),
    }
}
