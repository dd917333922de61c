//! Scenarios of the planner of streams, `testdata/planner/*.txt`: workers, sets and where each
//! stream is, then where the plan puts it. `tests/scenario` explains the files; to regenerate the
//! outcomes: `LEASEHOLD_REGENERATE=1 cargo test -p leasehold-coordinator-core --test
//! planner_scenarios`.
//!
//! [`LEGEND`] explains the commands. The outcome of a plan has for each set
//!
//! * for each of its commands `streams` the line `STREAMS -> WORKER`, or
//!   `STREAMS -> WORKER*COUNT …` if its streams go to several workers; in place of the worker
//!   stands why a stream has none
//! * `SET moves=N WORKER=LOAD …`: how many of its streams move between the workers of the case, and
//!   its load on each worker

use std::collections::BTreeMap;
use std::fmt::Write as _;

use leasehold_coordinator_core::desired::Policy;
use leasehold_coordinator_core::planner::streams::{
    Placement, SetInput, StreamInput, StreamSpec, plan,
};
use leasehold_scenario::{Language, Words};

#[test]
fn scenarios() {
    leasehold_scenario::check_outcomes::<PlannerScenario>();
}

#[test]
fn the_legend_explains_what_scenarios_use() {
    leasehold_scenario::check_legend::<PlannerScenario>();
}

const LEGEND: &str = "
case TITLE…
    begins a case without workers and sets: `case fresh`
workers [WORKER…]
    the workers; what streams name as `@WORKER` and is not listed is gone: `workers a b c`
max STREAMS
    the most streams of one worker: `max 2`
set SET Sticky|Contiguous [moves=N]
    adds a set with its policy, and how many of its streams may move: `set jobs Sticky moves=1`
streams STREAMS [weight=N] [dedicated] [frozen] [@WORKER]
    adds streams of a weight (1) to the last set, and the worker that they are on; `s0..s4` are
    five of them: `streams h0..h1 weight=10`
plan
    plans the case: `plan`
";

#[derive(Default)]
struct PlannerScenario {
    /// As listed. The planner counts them as sorted.
    workers: Vec<String>,
    per_worker_max: Option<usize>,
    sets: Vec<Set>,
}

struct Set {
    name: String,
    policy: Policy,
    moves_max: Option<usize>,
    /// The streams of each command, and how many they are.
    listed: Vec<(String, usize)>,
    streams: Vec<StreamSpec>,
}

impl Language for PlannerScenario {
    const FOLDER: &'static str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/planner");

    const LEGEND: &'static str = LEGEND;

    fn new() -> Self {
        Self::default()
    }

    fn command(&mut self, verb: &str, words: &mut Words, outcome: &mut String) {
        match verb {
            "case" => {
                words.rest("TITLE…");
                *self = Self::default();
            }
            "workers" => {
                self.workers = words.rest("WORKER…").into_iter().map(str::to_owned).collect();
            }
            "max" => self.per_worker_max = Some(words.parse("STREAMS")),
            "set" => self.sets.push(Set::read(words)),
            "streams" => self.add_streams(words),
            "plan" => self.show_plan(outcome),
            _ => words.fail("the verb is not carried out"),
        }
    }
}

impl Set {
    fn read(words: &mut Words) -> Self {
        let name = words.next("SET").to_owned();
        let policy = match words.next("Sticky|Contiguous") {
            "Sticky" => Policy::Sticky,
            "Contiguous" => Policy::Contiguous,
            other => words.fail(format_args!("no policy {other:?}")),
        };
        let moves_max = words.parse_value("moves");
        Self { name, policy, moves_max, listed: Vec::new(), streams: Vec::new() }
    }

    /// The lines of this set: `places` has the worker of each stream, or why it has none.
    fn show(&self, workers: &[String], places: &[String]) -> String {
        let (mut shown, mut rest) = (String::new(), places);
        for (names, count) in &self.listed {
            let (of_command, others) = rest.split_at(*count);
            rest = others;
            let _ = writeln!(shown, "{names} -> {}", counted_places(of_command));
        }
        let moves = self.streams.iter().zip(places).filter(|(stream, place)| {
            let leaves = stream.present.is_some_and(|before| workers[before as usize] != **place);
            leaves && workers.contains(place)
        });
        let _ = write!(shown, "{} moves={}", self.name, moves.count());
        for worker in workers {
            let here = self.streams.iter().zip(places).filter(|(_, place)| *place == worker);
            let load: u32 = here.map(|(stream, _)| stream.weight).sum();
            let _ = write!(shown, " {worker}={load}");
        }
        shown + "\n"
    }
}

/// `PLACE` for the same place of all, or how many streams have each place.
fn counted_places(places: &[String]) -> String {
    let mut counts = BTreeMap::<&str, usize>::new();
    for place in places {
        *counts.entry(place).or_default() += 1;
    }
    if let [(place, _)] = Vec::from_iter(&counts)[..] {
        return (*place).to_owned();
    }
    let counts: Vec<_> = counts.iter().map(|(place, count)| format!("{place}*{count}")).collect();
    counts.join(" ")
}

impl PlannerScenario {
    fn add_streams(&mut self, words: &mut Words) {
        let names = words.next("STREAMS").to_owned();
        let count = count(&names);
        let (dedicated, frozen) = (words.flag("dedicated"), words.flag("frozen"));
        let worker = words.next_if_any("@WORKER");
        let worker = worker.map(|at| at.strip_prefix('@').expect("@WORKER"));
        let present = self.workers.iter().position(|listed| Some(listed.as_str()) == worker);
        let present = present.map(|at| at as u32);
        let weight = words.parse_value("weight").unwrap_or(1);
        let set = self.sets.last_mut().expect("a set comes first");
        set.listed.push((names, count));
        let stream = StreamSpec { weight, dedicated, present, frozen };
        set.streams.extend(std::iter::repeat_n(stream, count));
    }

    fn show_plan(&self, outcome: &mut String) {
        let mut sorted: Vec<&str> = self.workers.iter().map(String::as_str).collect();
        sorted.sort_unstable();
        let mut streams: Vec<Vec<StreamSpec>> =
            self.sets.iter().map(|set| set.streams.clone()).collect();
        for stream in streams.iter_mut().flatten() {
            stream.present = stream.present.map(|at| {
                let name = self.workers[at as usize].as_str();
                sorted.binary_search(&name).expect("it is listed") as u32
            });
        }
        let placed = self.plan(&sorted, &streams);
        for (set, placed) in self.sets.iter().zip(&placed) {
            assert_eq!(placed.len(), set.streams.len(), "one placement for each stream");
            let place = |placement: &Placement| match placement {
                Placement::On(worker) => sorted[*worker as usize].to_owned(),
                Placement::Unplaced(reason) => format!("{reason:?}"),
            };
            let places: Vec<String> = placed.iter().map(place).collect();
            *outcome += &set.show(&self.workers, &places);
        }
        if self.sets.iter().all(|set| set.moves_max.is_none()) {
            for (stream, placement) in streams.iter_mut().flatten().zip(placed.iter().flatten()) {
                stream.present = match placement {
                    Placement::On(worker) => Some(*worker),
                    Placement::Unplaced(_) => None,
                };
            }
            assert_eq!(self.plan(&sorted, &streams), placed, "planning again changes the plan");
        }
    }

    fn plan(&self, workers: &[&str], streams: &[Vec<StreamSpec>]) -> Vec<Vec<Placement>> {
        let sets = self.sets.iter().zip(streams).map(|(set, streams)| SetInput {
            policy: set.policy,
            streams,
            moves_max: set.moves_max.unwrap_or(usize::MAX),
        });
        let sets: Vec<_> = sets.collect();
        let per_worker_max = self.per_worker_max.unwrap_or(usize::MAX);
        plan(&StreamInput { workers, avoided: &[], sets: &sets, per_worker_max })
    }
}

/// How many streams `s0..s4` stands for.
fn count(names: &str) -> usize {
    let Some((first, last)) = names.split_once("..") else { return 1 };
    let start = first.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = |name: &str| -> usize { name[start.len()..].parse().expect("a number") };
    number(last) - number(first) + 1
}
