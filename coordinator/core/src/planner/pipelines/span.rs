//! Loads above one worker's capacity: how they are cut, and how many workers they lack.
//!
//! Invariant: with `Spread::Fewest` a node spans as few workers as the rooms allow, whatever it
//! keeps of what it had.
//!
//! `Fewest`: as many of the largest rooms as are needed, whole, and the rest to the least room
//! that is enough. `Even`: every worker with room, in equal parts as far as their room goes.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use leasehold_types::{Load, limits};

use super::{Part, Rooms};
use crate::desired::Spread;

/// The parts of what a node has that it could keep, the largest first: those that still fit and
/// come to no more than the load. With `Even` all of them or none.
pub(super) fn keepable(rooms: &Rooms, load: Load, prefers: &[Part]) -> Vec<Part> {
    let mut parts = prefers.to_vec();
    parts.sort_unstable_by_key(|part| (Reverse(part.load), part.worker));
    let (mut seen, mut kept) = (BTreeSet::new(), Load::ZERO);
    parts.retain(|part| {
        let keep = part.load > Load::ZERO
            && kept + part.load <= load
            && rooms.takes(part.worker, part.load)
            && seen.insert(part.worker);
        if keep {
            kept += part.load;
        }
        keep
    });
    if rooms.spread() == Spread::Even && kept < load {
        parts.clear();
    }
    parts
}

/// Cuts the load, with as much of the parts (which are `keepable`) as can stay; none where the
/// rooms are too small or too many would be needed.
pub(super) fn cut(rooms: &Rooms, load: Load, keepable: &[Part]) -> Option<Vec<Part>> {
    match rooms.spread() {
        Spread::Fewest => cut_fewest(rooms, load, keepable),
        Spread::Even if !keepable.is_empty() => Some(keepable.to_vec()),
        Spread::Even => cut_even(rooms, load),
    }
}

/// How many empty workers more would take a load that fits nowhere. Where no number would, since
/// the node may not span so many, the error is the number that its load comes to.
pub(super) fn missing(rooms: &Rooms, load: Load) -> Result<usize, u64> {
    let capacity = rooms.capacity();
    if load <= capacity {
        return Ok(1);
    }
    let most = limits::SHARES_PER_NODE_MAX;
    let whole = load.milli().div_ceil(capacity.milli());
    if whole > most as u64 {
        return Err(whole);
    }
    // Of `more` empty workers and the largest rooms beside them, as many as a node may span.
    let mut rest = load;
    let mut lacks = vec![rest];
    for (room, _) in rooms.largest().take(most) {
        rest = rest.saturating_sub(room);
        lacks.push(rest);
    }
    let enough = |more: &usize| {
        let lack = lacks[(most - more).min(lacks.len() - 1)];
        lack.milli().div_ceil(capacity.milli()) <= *more as u64
    };
    Ok((1..=most).find(enough).expect("as many empty workers as it comes to would do"))
}

fn cut_fewest(rooms: &Rooms, load: Load, keepable: &[Part]) -> Option<Vec<Part>> {
    let fewest = count(rooms, load, &BTreeSet::new())?;
    // Whoever keeps one part less may still give that worker the same load: where some of the
    // parts can be kept, so can fewer of them.
    let (mut low, mut high) = (0, keepable.len().min(fewest));
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if spans(rooms, load, &keepable[..middle]).is_some_and(|spans| spans <= fewest) {
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
    let wholes = count(rooms, rest, &keeps)?.saturating_sub(1);
    let others = rooms.largest().filter(|(_, worker)| !keeps.contains(worker));
    for (room, worker) in others.take(wholes) {
        parts.push(Part { worker, load: room });
        rest -= room;
    }
    let taken = workers(&parts);
    let last = rooms.with_room_for(rest).find(|worker| !taken.contains(worker))?;
    parts.push(Part { worker: last, load: rest });
    Some(parts)
}

/// The workers that a node spans that keeps these parts.
fn spans(rooms: &Rooms, load: Load, keeps: &[Part]) -> Option<usize> {
    let others = count(rooms, load - sum(keeps), &workers(keeps))?;
    Some(keeps.len() + others)
}

/// The fewest workers but these that can take the load; none where a node may not span so many.
fn count(rooms: &Rooms, load: Load, but: &BTreeSet<u32>) -> Option<usize> {
    let others = rooms.largest().filter(|(_, worker)| !but.contains(worker));
    let mut rest = load;
    let mut rooms = others.take(limits::SHARES_PER_NODE_MAX).map(|(room, _)| room);
    let mut count = 0;
    while rest > Load::ZERO {
        rest = rest.saturating_sub(rooms.next()?);
        count += 1;
    }
    Some(count)
}

fn cut_even(rooms: &Rooms, load: Load) -> Option<Vec<Part>> {
    let mut open: Vec<_> = rooms.largest().take(limits::SHARES_PER_NODE_MAX).collect();
    if open.iter().map(|(room, _)| *room).sum::<Load>() < load {
        return None;
    }
    let mut parts = Vec::with_capacity(open.len());
    let mut rest = load.milli();
    // From the smallest room on: who has no more than an equal part of what is left gives it all.
    while let Some((room, worker)) = open.last().copied() {
        if room.milli() > rest / open.len() as u64 {
            break;
        }
        parts.push(Part { worker, load: room });
        rest -= room.milli();
        open.pop();
    }
    // The others have more than an equal part; of what cannot be halved, the first take one more.
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
