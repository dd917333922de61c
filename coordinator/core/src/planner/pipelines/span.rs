//! Loads above one worker's capacity: how they are cut, and how many more workers they need.
//!
//! Invariant: with `Spread::Fewest` a node spans as few workers as the free capacity allows, even
//! if it keeps parts that it has.
//!
//! `Fewest`: fills the workers with the most room, and gives the rest to the least room that is
//! enough. `Even`: uses every worker with room, in equal parts as far as their room allows.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use leasehold_types::{Load, limits};

use super::{FreeCapacity, Part};
use crate::desired::Spread;

/// The parts of a node that it could keep, the largest first: those that still fit and whose sum is
/// within the load. With `Even` all of them or none.
pub(super) fn keepable(free: &FreeCapacity, load: Load, prefers: &[Part]) -> Vec<Part> {
    let mut parts = prefers.to_vec();
    parts.sort_unstable_by_key(|part| (Reverse(part.load), part.worker));
    let (mut seen, mut kept) = (BTreeSet::new(), Load::ZERO);
    parts.retain(|part| {
        let keep = part.load > Load::ZERO
            && kept + part.load <= load
            && free.takes(part.worker, part.load)
            && seen.insert(part.worker);
        if keep {
            kept += part.load;
        }
        keep
    });
    if free.spread() == Spread::Even && kept < load {
        parts.clear();
    }
    parts
}

/// Cuts the load and keeps as many of the `keepable` parts as possible; none if the free capacity
/// is too small, or too many workers would be needed.
pub(super) fn cut(free: &FreeCapacity, load: Load, keepable: &[Part]) -> Option<Vec<Part>> {
    match free.spread() {
        Spread::Fewest => cut_fewest(free, load, keepable),
        Spread::Even if !keepable.is_empty() => Some(keepable.to_vec()),
        Spread::Even => cut_even(free, load),
    }
}

/// How many more empty workers are enough for a load that fits nowhere. A node that may not span
/// that many never fits; then the error is its load divided by the capacity.
pub(super) fn missing(free: &FreeCapacity, load: Load) -> Result<usize, u64> {
    let capacity = free.capacity();
    if load <= capacity {
        return Ok(1);
    }
    let most = limits::SHARES_PER_NODE_MAX;
    let whole = load.milli().div_ceil(capacity.milli());
    if whole > most as u64 {
        return Err(whole);
    }
    // A node may use `more` empty workers and the present ones with the most room, up to the most
    // workers that it may span.
    let mut rest = load;
    let mut lacks = vec![rest];
    for (room, _) in free.largest().take(most) {
        rest = rest.saturating_sub(room);
        lacks.push(rest);
    }
    let enough = |more: &usize| {
        let lack = lacks[(most - more).min(lacks.len() - 1)];
        lack.milli().div_ceil(capacity.milli()) <= *more as u64
    };
    Ok((1..=most).find(enough).expect("as many empty workers as it comes to would do"))
}

fn cut_fewest(free: &FreeCapacity, load: Load, keepable: &[Part]) -> Option<Vec<Part>> {
    let fewest = count(free, load, &BTreeSet::new())?;
    // Without its last kept part a node can still give that worker the same load. So if some parts
    // can be kept, so can fewer of them, and a binary search is valid.
    let (mut low, mut high) = (0, keepable.len().min(fewest));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if spans(free, load, &keepable[..middle]).is_some_and(|spans| spans <= fewest) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    let mut parts = keepable[..low].to_vec();
    let keeps = workers(&parts);
    let mut rest = load - sum(&parts);
    if rest == Load::ZERO {
        return Some(parts);
    }
    let wholes = count(free, rest, &keeps)?.saturating_sub(1);
    let others = free.largest().filter(|(_, worker)| !keeps.contains(worker));
    for (room, worker) in others.take(wholes) {
        parts.push(Part { worker, load: room });
        rest -= room;
    }
    let taken = workers(&parts);
    let last = free.with_room_for(rest).find(|worker| !taken.contains(worker))?;
    parts.push(Part { worker: last, load: rest });
    Some(parts)
}

/// How many workers a node spans if it keeps these parts.
fn spans(free: &FreeCapacity, load: Load, keeps: &[Part]) -> Option<usize> {
    let others = count(free, load - sum(keeps), &workers(keeps))?;
    Some(keeps.len() + others)
}

/// The fewest workers outside of `but` that can take the load; none if a node may not span that
/// many.
fn count(free: &FreeCapacity, load: Load, but: &BTreeSet<u32>) -> Option<usize> {
    let others = free.largest().filter(|(_, worker)| !but.contains(worker));
    let mut rest = load;
    let mut free = others.take(limits::SHARES_PER_NODE_MAX).map(|(room, _)| room);
    let mut count = 0;
    while rest > Load::ZERO {
        rest = rest.saturating_sub(free.next()?);
        count += 1;
    }
    Some(count)
}

fn cut_even(free: &FreeCapacity, load: Load) -> Option<Vec<Part>> {
    let mut open: Vec<_> = free.largest().take(limits::SHARES_PER_NODE_MAX).collect();
    if open.iter().map(|(room, _)| *room).sum::<Load>() < load {
        return None;
    }
    let mut parts = Vec::with_capacity(open.len());
    let mut rest = load.milli();
    // From the smallest room on: a room of at most an equal part of the rest is used whole.
    while let Some((room, worker)) = open.last().copied() {
        if room.milli() > rest / open.len() as u64 {
            break;
        }
        parts.push(Part { worker, load: room });
        rest -= room.milli();
        open.pop();
    }
    // The others have more room than an equal part; the first of them take the remainder of the
    // division.
    open.sort_unstable_by_key(|(_, worker)| *worker);
    let equal = rest.checked_div(open.len() as u64).unwrap_or(0);
    let odd = rest.checked_rem(open.len() as u64).unwrap_or(0);
    for (at, (_, worker)) in (0..).zip(open) {
        let load = Load::from_milli(equal + u64::from(at < odd)).expect("a part is a load");
        parts.push(Part { worker, load });
    }
    parts.retain(|part| part.load > Load::ZERO);
    Some(parts)
}

fn sum(parts: &[Part]) -> Load {
    parts.iter().map(|part| part.load).sum()
}

fn workers(parts: &[Part]) -> BTreeSet<u32> {
    parts.iter().map(|part| part.worker).collect()
}
