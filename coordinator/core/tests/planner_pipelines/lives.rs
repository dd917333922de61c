//! Ten thousand random lives of a few classes: pipelines come and go, workers join, drain and are
//! lost. `World::place` checks each plan; the checks here are of changes from one plan to the next.

use std::collections::BTreeMap;

use leasehold_coordinator_core::desired::Spread;
use leasehold_coordinator_core::planner::pipelines::{NodeRequest, place};

use crate::milli;
use crate::world::{Class, Pipeline, Shares, World, fewest, random_load};

const LIVES: u64 = 10_000;

#[test]
fn ten_thousand_lives_keep_every_rule() {
    for seed in 0..LIVES {
        let live = std::panic::catch_unwind(|| live(seed));
        assert!(live.is_ok(), "seed {seed}");
    }
}

fn live(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut world = World::default();
    for _ in 0..random.usize(1..=3) {
        let capacity = random.u64(1..=30) * 1_000 + u64::from(random.bool()) * random.u64(0..1_000);
        let spread = if random.u8(0..4) == 0 { Spread::Even } else { Spread::Fewest };
        let workers = (0..random.u32(0..=6)).map(|number| 2 * number).collect();
        world.classes.push(Class { capacity, spread, workers });
    }
    for step in 0..random.u32(5..=15) {
        match random.u8(0..10) {
            0..5 => arrive(&mut world, step, &mut random),
            5 => depart(&mut world, &mut random),
            6 => join(&mut world, &mut random),
            7 => lose(&mut world, &mut random),
            8 => drain(&mut world, &mut random),
            _ => lower(&mut world, &mut random),
        }
        place_waiting(&mut world, &mut random);
        again(&world);
    }
}

/// Up to three pipelines at once.
fn arrive(world: &mut World, step: u32, random: &mut fastrand::Rng) {
    for number in 0..random.u32(1..=3) {
        let classes: Vec<usize> =
            (0..random.u8(1..=4)).map(|_| random.usize(..world.classes.len())).collect();
        let largest = world.classes[classes[0]].capacity.div_ceil(1_000);
        let most = if random.bool() { largest } else { 3 * largest };
        let load = random_load(random, most);
        world.pipelines.insert(10 * step + number, Pipeline { load, classes, shares: None });
    }
}

fn depart(world: &mut World, random: &mut fastrand::Rng) {
    let names: Vec<u32> = world.pipelines.keys().copied().collect();
    if let Some(name) = random.choice(names) {
        world.pipelines.remove(&name);
    }
}

/// A worker joins, anywhere in the order of names.
fn join(world: &mut World, random: &mut fastrand::Rng) {
    let class = random.usize(..world.classes.len());
    let workers = &mut world.classes[class].workers;
    let number = random.u32(0..14);
    if let Err(at) = workers.binary_search(&number) {
        workers.insert(at, number);
    }
}

/// A worker is lost: the pipelines that it served are placed again, one after the other; all others
/// stay.
fn lose(world: &mut World, random: &mut fastrand::Rng) {
    let class = random.usize(..world.classes.len());
    let Some(lost) = random.choice(world.classes[class].workers.clone()) else { return };
    let broken = served(world, class, lost);
    let mut had: Vec<(u32, Vec<Shares>)> = Vec::new();
    for name in broken {
        let pipeline = world.pipelines.get_mut(&name).expect("it is there");
        let mut shares = pipeline.shares.take().expect("it is served");
        for (of, shares) in pipeline.classes.iter().zip(&mut shares) {
            shares.retain(|share| *of != class || share.0 != lost);
        }
        had.push((name, shares));
    }
    world.classes[class].workers.retain(|worker| *worker != lost);
    for (name, had) in had {
        let before = world.clone();
        if world.place(name, &had) {
            check_kept(&before, &world.pipelines[&name], &had);
        }
    }
}

/// The pipelines that a worker serves, by name.
fn served(world: &World, class: usize, worker: u32) -> Vec<u32> {
    let is_served = |pipeline: &Pipeline| {
        let mut nodes = pipeline.classes.iter().zip(pipeline.shares.iter().flatten());
        nodes.any(|(of, shares)| *of == class && shares.iter().any(|share| share.0 == worker))
    };
    let served = world.pipelines.iter().filter(|(_, pipeline)| is_served(pipeline));
    served.map(|(name, _)| *name).collect()
}

/// If a worker still has room for all shares of a pipeline, its shares that are not cut stay there.
fn check_kept(before: &World, pipeline: &Pipeline, had: &[Shares]) {
    let placed = pipeline.shares.as_ref().expect("it is placed");
    let mut wanted: BTreeMap<(usize, u32), u64> = BTreeMap::new();
    let nodes = || pipeline.classes.iter().zip(placed.iter().zip(had));
    for (class, (_, had)) in nodes() {
        for (worker, load) in had {
            *wanted.entry((*class, *worker)).or_default() += load;
        }
    }
    for (class, (shares, had)) in nodes() {
        let capacity = before.classes[*class].capacity;
        let used = before.used(*class);
        let fits = |share: &(u32, u64)| used[&share.0] + wanted[&(*class, share.0)] <= capacity;
        if pipeline.load <= capacity && !had.is_empty() && had.iter().all(fits) {
            assert_eq!(shares, had, "what is healthy stays");
        }
    }
}

/// A worker drains: each of its shares goes elsewhere alone, and not to where the node is served
/// already. Pipelines that keep some there lose it when it leaves.
fn drain(world: &mut World, random: &mut fastrand::Rng) {
    let class = random.usize(..world.classes.len());
    let Some(drains) = random.choice(world.classes[class].workers.clone()) else { return };
    for name in served(world, class, drains) {
        for node in 0..world.pipelines[&name].classes.len() {
            if world.pipelines[&name].classes[node] == class {
                move_share(world, name, node, drains);
            }
        }
    }
    for name in served(world, class, drains) {
        world.pipelines.get_mut(&name).expect("it is there").shares = None;
    }
    world.classes[class].workers.retain(|worker| *worker != drains);
}

fn move_share(world: &mut World, name: u32, node: usize, drains: u32) {
    let class = world.pipelines[&name].classes[node];
    let shares = world.pipelines[&name].shares.as_ref().expect("it is served")[node].clone();
    let Some(at) = shares.iter().position(|share| share.0 == drains) else { return };
    let workers = world.classes[class].workers.clone();
    let mut free = world.free();
    let served = shares.iter().map(|share| share.0).chain([drains]);
    for worker in served {
        let index = workers.binary_search(&worker).expect("it is there") as u32;
        let room = free[class].room(index) + milli(1);
        free[class].take(index, room);
    }
    let request = NodeRequest { class, load: milli(shares[at].1), prefers: &[] };
    if let Ok(placed) = place(&mut free, &[request]) {
        assert_eq!(placed[0].len(), 1, "a share is within the capacity");
        let part = placed[0][0];
        let pipeline = world.pipelines.get_mut(&name).expect("it is there");
        let shares = &mut pipeline.shares.as_mut().expect("it is served")[node];
        shares[at] = (workers[part.worker as usize], part.load.milli());
        shares.sort_unstable();
        let most = world.used(class).into_values().max().unwrap_or(0);
        assert!(most <= world.classes[class].capacity, "{most} is above the capacity");
    }
}

/// A class's capacity is lowered: of the pipelines on workers above it, the last by name give up.
fn lower(world: &mut World, random: &mut fastrand::Rng) {
    let class = random.usize(..world.classes.len());
    let before = world.classes[class].capacity;
    let capacity = random.u64(before.div_ceil(4)..=before);
    world.classes[class].capacity = capacity;
    loop {
        let used = world.used(class);
        let Some((worker, _)) = used.iter().find(|(_, used)| **used > capacity) else { return };
        let name = *served(world, class, *worker).last().expect("a pipeline uses it");
        world.pipelines.get_mut(&name).expect("it is there").shares = None;
    }
}

/// Places all waiting pipelines, in the order of a batch, whatever the order of the input.
fn place_waiting(world: &mut World, random: &mut fastrand::Rng) {
    let mut listed = world.clone();
    for name in world.waiting() {
        world.place(name, &[]);
    }
    let mut names = listed.waiting();
    random.shuffle(&mut names);
    names.sort_by_key(|name| (std::cmp::Reverse(listed.pipelines[name].load), *name));
    for name in names {
        listed.place(name, &[]);
    }
    for (name, pipeline) in &world.pipelines {
        assert_eq!(pipeline.shares, listed.pipelines[name].shares, "another order, another plan");
    }
}

/// A pipeline that is placed again with its shares keeps them, unless fewer workers are enough now.
fn again(world: &World) {
    for (name, pipeline) in &world.pipelines {
        let Some(had) = &pipeline.shares else { continue };
        let nodes = pipeline.classes.iter().zip(had);
        let is_least = |(class, shares): (&usize, &Shares)| {
            let of = &world.classes[*class];
            let mut free = world.used(*class);
            free.values_mut().for_each(|used| *used = of.capacity - *used);
            shares
                .iter()
                .for_each(|(worker, load)| *free.get_mut(worker).expect("it is there") += load);
            let free = free.into_values().collect();
            shares.len() == 1
                || of.spread == Spread::Even
                || shares.len() == fewest(free, pipeline.load)
        };
        if nodes.into_iter().all(is_least) {
            let mut world = world.clone();
            world.pipelines.get_mut(name).expect("it is there").shares = None;
            assert!(world.place(*name, had), "it fits where it was");
            assert_eq!(world.pipelines[name].shares.as_ref(), Some(had), "nothing moves");
        }
    }
}
