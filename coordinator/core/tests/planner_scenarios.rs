//! Scenario files: workers, sets and where each stream is, then where the plan puts it.
//!
//! A file has cases. A line is one of
//!
//!     case TITLE
//!     workers NAME...                what streams name as `@NAME` and is not listed is gone
//!     max N                          the most streams per worker
//!     set NAME Sticky|Contiguous [moves=N]
//!     STREAM [weight=N] [dedicated] [frozen] [@WORKER] [-> WORKER|REASON]
//!     loads N...                     expected: the set's load on each worker, as listed
//!     moves N                        expected: the set's streams that change living workers
//!
//! `s0..s4` stands for five streams. `#` begins a comment.

#![allow(clippy::unwrap_used)]

use std::fmt::Write;
use std::path::Path;

use leasehold_coordinator_core::desired::Policy;
use leasehold_coordinator_core::planner::streams::{
    Placement, SetInput, StreamInput, StreamSpec, plan,
};

#[test]
fn swarm() {
    check("swarm.txt");
}

#[test]
fn sticky() {
    check("sticky.txt");
}

#[test]
fn dedicated() {
    check("dedicated.txt");
}

#[test]
fn limits() {
    check("limits.txt");
}

/// Plans every case of the file and compares.
#[track_caller]
fn check(file: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/planner").join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    let mut wrong = String::new();
    let cases: Vec<Case> = parse(&text);
    assert!(!cases.is_empty(), "{file} has no case");
    for case in &cases {
        case.compare(&mut wrong);
    }
    assert!(wrong.is_empty(), "{file}:\n{wrong}");
}

#[derive(Default)]
struct Case {
    title: String,
    workers: Vec<String>,
    per_worker_max: Option<usize>,
    sets: Vec<Set>,
}

struct Set {
    name: String,
    policy: Policy,
    moves_max: Option<usize>,
    names: Vec<String>,
    streams: Vec<StreamSpec>,
    /// Where each stream is expected, with the number of its line.
    expected: Vec<Option<(usize, String)>>,
    loads: Option<(usize, String)>,
    moves: Option<(usize, String)>,
}

fn parse(text: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap().trim();
        if line.is_empty() {
            continue;
        }
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if word == "case" {
            cases.push(Case { title: rest.trim().into(), ..Case::default() });
            continue;
        }
        let case = cases.last_mut().expect("a case comes first");
        match word {
            "workers" => case.workers = rest.split_whitespace().map(String::from).collect(),
            "max" => case.per_worker_max = Some(rest.trim().parse().unwrap()),
            "set" => case.sets.push(Set::parse(rest)),
            _ => {
                let set = case.sets.last_mut().expect("a set comes first");
                let words = rest.split_whitespace().collect::<Vec<_>>().join(" ");
                match word {
                    "loads" => set.loads = Some((number, words)),
                    "moves" => set.moves = Some((number, words)),
                    _ => set.parse_streams(number, word, rest, &case.workers),
                }
            }
        }
    }
    cases
}

impl Set {
    fn parse(text: &str) -> Self {
        let mut words = text.split_whitespace();
        let name = words.next().unwrap().into();
        let policy = match words.next() {
            Some("Sticky") => Policy::Sticky,
            Some("Contiguous") => Policy::Contiguous,
            other => panic!("no policy: {other:?}"),
        };
        let moves_max =
            words.next().map(|word| word.strip_prefix("moves=").unwrap().parse().unwrap());
        let (names, streams, expected) = (Vec::new(), Vec::new(), Vec::new());
        Self { name, policy, moves_max, names, streams, expected, loads: None, moves: None }
    }

    fn parse_streams(&mut self, number: usize, names: &str, rest: &str, workers: &[String]) {
        let (facts, expected) = match rest.split_once("->") {
            Some((facts, expected)) => (facts, Some((number, expected.trim().to_owned()))),
            None => (rest, None),
        };
        let mut stream = StreamSpec { weight: 1, dedicated: false, present: None, frozen: false };
        for fact in facts.split_whitespace() {
            match fact {
                "dedicated" => stream.dedicated = true,
                "frozen" => stream.frozen = true,
                _ if fact.starts_with('@') => {
                    let at = workers.iter().position(|worker| *worker == fact[1..]);
                    stream.present = at.map(|at| at as u32);
                }
                _ => {
                    let weight = fact.strip_prefix("weight=");
                    stream.weight = weight.expect("a known fact").parse().unwrap();
                }
            }
        }
        for name in expand(names) {
            self.names.push(name);
            self.streams.push(stream);
            self.expected.push(expected.clone());
        }
    }
}

fn expand(names: &str) -> Vec<String> {
    let Some((first, last)) = names.split_once("..") else { return vec![names.into()] };
    let start = first.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = |name: &str| -> usize { name[start.len()..].parse().unwrap() };
    (number(first)..=number(last)).map(|number| format!("{start}{number}")).collect()
}

impl Case {
    fn compare(&self, wrong: &mut String) {
        let mut workers: Vec<&str> = self.workers.iter().map(String::as_str).collect();
        workers.sort_unstable();
        // The planner counts workers as sorted, the case as listed.
        let sorted = |at: u32| {
            let name = self.workers[at as usize].as_str();
            workers.binary_search(&name).unwrap() as u32
        };
        let mut streams: Vec<Vec<StreamSpec>> =
            self.sets.iter().map(|set| set.streams.clone()).collect();
        for stream in streams.iter_mut().flatten() {
            stream.present = stream.present.map(sorted);
        }
        let placed = self.plan(&workers, &streams);
        for (at, set) in self.sets.iter().enumerate() {
            set.compare(&self.title, &self.workers, &workers, &placed[at], wrong);
        }
        if self.sets.iter().all(|set| set.moves_max.is_none()) {
            for (stream, placement) in streams.iter_mut().flatten().zip(placed.iter().flatten()) {
                stream.present = match placement {
                    Placement::On(worker) => Some(*worker),
                    Placement::Unplaced(_) => None,
                };
            }
            if self.plan(&workers, &streams) != placed {
                writeln!(wrong, "{}: planning again changes the plan", self.title).unwrap();
            }
        }
    }

    fn plan<'a>(&self, workers: &[&str], streams: &'a [Vec<StreamSpec>]) -> Vec<Vec<Placement>> {
        let input = |(set, streams): (&Set, &'a Vec<StreamSpec>)| SetInput {
            policy: set.policy,
            streams,
            moves_max: set.moves_max.unwrap_or(usize::MAX),
        };
        let sets: Vec<_> = self.sets.iter().zip(streams).map(input).collect();
        let per_worker_max = self.per_worker_max.unwrap_or(usize::MAX);
        plan(&StreamInput { workers, avoided: &[], sets: &sets, per_worker_max })
    }
}

impl Set {
    fn compare(
        &self,
        title: &str,
        listed: &[String],
        workers: &[&str],
        placed: &[Placement],
        wrong: &mut String,
    ) {
        assert_eq!(placed.len(), self.streams.len(), "{title}: one placement for each stream");
        let mut complain = |line: usize, what: &str, has: &str, wants: &str| {
            let set = &self.name;
            writeln!(wrong, "line {line} ({title}): {set} {what}: {has}, not {wants}").unwrap();
        };
        let (mut loads, mut moves) = (vec![0; listed.len()], 0);
        for (at, placement) in placed.iter().enumerate() {
            let has = match placement {
                Placement::On(worker) => workers[*worker as usize].to_owned(),
                Placement::Unplaced(why) => format!("{why:?}"),
            };
            if let Some((line, wants)) = &self.expected[at]
                && *wants != has
            {
                complain(*line, &self.names[at], &has, wants);
            }
            if let Some(worker) = listed.iter().position(|name| *name == has) {
                let stream = &self.streams[at];
                loads[worker] += stream.weight;
                moves += usize::from(stream.present.is_some_and(|at| at as usize != worker));
            }
        }
        let loads = loads.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        for (what, has, wants) in
            [("loads", loads, &self.loads), ("moves", moves.to_string(), &self.moves)]
        {
            if let Some((line, wants)) = wants
                && *wants != has
            {
                complain(*line, what, &has, wants);
            }
        }
    }
}
