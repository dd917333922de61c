//! Breadth first through all states of a scope: the first path that breaks a property is a
//! shortest one.
//!
//! Invariant: a state is expanded once. States are distinguished by 64 bits of their hash.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use leasehold_types::mutation::{self, Mutation};

use crate::action::Action;
use crate::description;
use crate::scope::Scope;
use crate::state::State;
use crate::step::{apply, initial};
use crate::violation::Violation;
use crate::world::World;

/// Where an exploration ends, if it has not ended before.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most states.
    pub states: usize,
}

/// What an exploration found.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// States with more than one next step.
    pub states: usize,
    /// Steps between them.
    pub steps: u64,
    /// Steps of the longest of the shortest paths to a state.
    pub depth: usize,
    /// No state was left out.
    pub complete: bool,
    /// How often a core was run: other steps met a core that had been run so before.
    pub calls: usize,
    /// The first property that did not hold, and the path to it as text.
    pub found: Option<Found>,
}

/// A shortest path to a state that breaks a property.
#[derive(Clone, Debug)]
pub struct Found {
    /// The property.
    pub violation: Violation,
    /// How many of the steps are faults.
    pub faults: u8,
    /// How many steps there are.
    pub steps: usize,
    /// The steps as text.
    pub trace: Vec<String>,
}

/// How far an exploration is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Steps from the beginning.
    pub depth: usize,
    /// States so far.
    pub states: usize,
    /// States of the present depth.
    pub width: usize,
}

/// A state's predecessor, and the step from there; of an initial state, itself.
#[derive(Clone, Copy, Debug)]
struct Node {
    parent: u32,
    action: Option<Action>,
}

/// Explores a scope, with one rule of the cores switched off or none.
pub fn explore(
    scope: &Scope,
    mutation: Option<Mutation>,
    limits: Limits,
    progress: &mut dyn FnMut(Progress),
) -> Outcome {
    mutation::set(mutation);
    let outcome = Exploration::new(scope.clone()).run(limits, progress);
    mutation::set(None);
    outcome
}

/// Looks for the path with the fewest faults, and of those for a shortest one, on which a rule that
/// is switched off breaks a property: scope after scope, with ever more faults.
pub fn find_violation(
    mutation: Mutation,
    faults_max: u8,
    limits: Limits,
    progress: &mut dyn FnMut(Progress),
) -> Option<(&'static str, Found)> {
    (0..=faults_max).find_map(|faults| {
        Scope::all().into_iter().find_map(|scope| {
            let scope = scope.with_faults(faults);
            let outcome = explore(&scope, Some(mutation), limits, progress);
            Some((scope.name, outcome.found?))
        })
    })
}

struct Exploration {
    world: World,
    initial: Vec<State>,
    known: HashSet<u64>,
    nodes: Vec<Node>,
    steps: u64,
}

impl Exploration {
    fn new(scope: Scope) -> Self {
        let mut world = World::new(scope);
        let initial = initial(&mut world);
        Self { world, initial, known: HashSet::new(), nodes: Vec::new(), steps: 0 }
    }

    fn run(mut self, limits: Limits, progress: &mut dyn FnMut(Progress)) -> Outcome {
        // States to expand, by how many steps they are from the beginning.
        let mut levels = BTreeMap::<usize, Vec<(State, u32)>>::new();
        for (at, state) in (0..).zip(self.initial.clone()) {
            self.known.insert(hash(&state));
            self.nodes.push(Node { parent: at, action: None });
            levels.entry(0).or_default().push((state, at));
        }
        let mut best: Option<(usize, u32, Action, Violation)> = None;
        let mut deepest = 0;
        while let Some((depth, level)) = levels.pop_first() {
            if best.as_ref().is_some_and(|(found, ..)| *found <= depth) {
                break;
            }
            deepest = depth;
            progress(Progress { depth, states: self.nodes.len(), width: level.len() });
            for (state, node) in level {
                for action in self.world.choices(&state) {
                    let mut steps = 0;
                    let (after, broken) =
                        walk(&mut self.world, state.clone(), action, &mut |_, _, _, _| steps += 1);
                    self.steps += steps as u64;
                    let reached = depth + steps;
                    if let Some(violation) = broken {
                        if best.as_ref().is_none_or(|(found, ..)| reached < *found) {
                            best = Some((reached, node, action, violation));
                        }
                        continue;
                    }
                    if after == state || !self.known.insert(hash(&after)) {
                        continue;
                    }
                    let number = u32::try_from(self.nodes.len()).expect("a limit below that");
                    self.nodes.push(Node { parent: node, action: Some(action) });
                    levels.entry(reached).or_default().push((after, number));
                }
                if self.nodes.len() >= limits.states && best.is_none() {
                    return self.outcome(depth, false, None);
                }
            }
        }
        let found = best.map(|(_, node, action, violation)| self.found(node, action, violation));
        self.outcome(deepest, true, found)
    }

    fn outcome(&self, depth: usize, complete: bool, found: Option<Found>) -> Outcome {
        let (states, steps, calls) = (self.nodes.len(), self.steps, self.world.calls());
        Outcome { states, steps, depth, complete: complete && found.is_none(), calls, found }
    }

    /// The path as text.
    fn found(&mut self, node: u32, last: Action, violation: Violation) -> Found {
        let mut path = vec![last];
        let mut at = node;
        while let Some(action) = self.nodes[at as usize].action {
            path.push(action);
            at = self.nodes[at as usize].parent;
        }
        path.reverse();
        let mut state = self.initial[at as usize].clone();
        let before = state.budget.total;
        let mut trace = vec![description::clocks(&state)];
        let mut steps = 0;
        for action in path {
            let mut line = |world: &World, before: &State, action: Action, after: &State| {
                steps += 1;
                trace.push(description::describe(world, before, action));
                trace.extend(description::changes(world, before, after));
            };
            (state, _) = walk(&mut self.world, state, action, &mut line);
        }
        Found { violation, faults: before - state.budget.total, steps, trace }
    }
}

/// Takes a step, and then every usual one for as long as there is no other choice.
fn walk(
    world: &mut World,
    mut state: State,
    mut action: Action,
    each: &mut dyn FnMut(&World, &State, Action, &State),
) -> (State, Option<Violation>) {
    loop {
        let (after, broken) = apply(world, &state, action);
        each(world, &state, action, &after);
        let broken = broken.or_else(|| world.check(&after));
        if broken.is_some() || after == state {
            return (after, broken);
        }
        state = after;
        match world.choices(&state)[..] {
            [only] => action = only,
            _ => return (state, None),
        }
    }
}

fn hash(state: &State) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}
