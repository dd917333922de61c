//! The claims of a term by stream: looked up by hash, scanned in slices in the order of their
//! slots.

use std::collections::{BTreeMap, BTreeSet};
use std::{mem, slice};

use leasehold_types::{SetName, StreamKey, StreamName};

use super::Claim;
use super::claim_index::ClaimIndex;

/// All claims.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClaimTable {
    index: ClaimIndex,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Streams that are shares of pipelines, in order: the shares of one node are read together.
    shares: BTreeSet<StreamKey>,
    /// How many streams of each set have a claim.
    per_set: BTreeMap<SetName, usize>,
}

/// A stream and its claims; none where the slot is free.
#[derive(Clone, Debug)]
struct Slot {
    stream: StreamKey,
    claims: StreamClaims,
}

/// The claims on one stream, in the order in which they began. Nearly all streams have one, which
/// needs no memory beside the slot.
#[derive(Clone, Debug, Default)]
enum StreamClaims {
    #[default]
    None,
    One(Claim),
    Several(Vec<Claim>),
}

impl ClaimTable {
    pub(super) fn get(&self, stream: &StreamKey) -> &[Claim] {
        self.slot(stream).map_or(&[], |slot| self.slots[slot as usize].claims.as_slice())
    }

    pub(super) fn get_mut(&mut self, stream: &StreamKey) -> &mut [Claim] {
        match self.slot(stream) {
            Some(slot) => self.slots[slot as usize].claims.as_mut_slice(),
            None => &mut [],
        }
    }

    fn slot(&self, stream: &StreamKey) -> Option<u32> {
        self.slot_by(self.index.hash(stream), stream)
    }

    fn slot_by(&self, hash: u32, stream: &StreamKey) -> Option<u32> {
        self.index.get(hash, |slot| self.slots[slot as usize].stream == *stream)
    }

    /// The stream in a slot. A slot that becomes free keeps its stream until another one gets it.
    pub(super) fn stream(&self, slot: u32) -> &StreamKey {
        &self.slots[slot as usize].stream
    }

    /// The stream in a slot, and the claims on it.
    pub(super) fn slot_mut(&mut self, slot: u32) -> (&StreamKey, &mut [Claim]) {
        let Slot { stream, claims } = &mut self.slots[slot as usize];
        (stream, claims.as_mut_slice())
    }

    /// Adds a claim on a stream; returns the stream's slot.
    pub(super) fn add(&mut self, stream: &StreamKey, claim: Claim) -> u32 {
        self.change_or_add(stream, |_| Some(claim)).expect("an added claim has a slot")
    }

    /// Calls `change` with the claims on a stream, and adds the claim that it returns, if any. Then
    /// it returns the stream's slot.
    pub(super) fn change_or_add(
        &mut self,
        stream: &StreamKey,
        change: impl FnOnce(&mut [Claim]) -> Option<Claim>,
    ) -> Option<u32> {
        let hash = self.index.hash(stream);
        if let Some(slot) = self.slot_by(hash, stream) {
            let claims = &mut self.slots[slot as usize].claims;
            let added = change(claims.as_mut_slice())?;
            claims.push(added);
            return Some(slot);
        }
        let claim = change(&mut [])?;
        let slot = Slot { stream: stream.clone(), claims: StreamClaims::One(claim) };
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = slot;
                at
            }
            None => {
                self.slots.push(slot);
                u32::try_from(self.slots.len() - 1).expect("claims are counted in u32")
            }
        };
        self.index.insert(hash, at);
        match self.per_set.get_mut(&stream.set) {
            Some(count) => *count += 1,
            None => _ = self.per_set.insert(stream.set.clone(), 1),
        }
        if stream.set.is_shares() {
            self.shares.insert(stream.clone());
        }
        Some(at)
    }

    /// Removes the claims on a stream for which `which` holds.
    pub(super) fn remove(
        &mut self,
        stream: &StreamKey,
        which: impl FnMut(&Claim) -> bool,
    ) -> Vec<Claim> {
        let hash = self.index.hash(stream);
        let Some(at) = self.slot_by(hash, stream) else { return Vec::new() };
        let claims = &mut self.slots[at as usize].claims;
        let removed = claims.remove(which);
        if claims.as_slice().is_empty() {
            self.index.remove(hash, at);
            self.free.push(at);
            self.shares.remove(stream);
            if let Some(count) = self.per_set.get_mut(&stream.set) {
                *count -= 1;
            }
        }
        removed
    }

    /// How many streams of a set have a claim.
    pub(crate) fn count(&self, set: &SetName) -> usize {
        self.per_set.get(set).copied().unwrap_or(0)
    }

    /// The claims on all shares of a set whose names begin with the prefix.
    pub(crate) fn shares_of(
        &self,
        set: SetName,
        prefix: StreamName,
    ) -> impl Iterator<Item = (&StreamKey, &Claim)> {
        let first = StreamKey { set, stream: prefix };
        let all = self.shares.range(first.clone()..).take_while(move |key| {
            key.set == first.set && key.stream.as_str().starts_with(first.stream.as_str())
        });
        all.flat_map(|key| self.get(key).iter().map(move |claim| (key, claim)))
    }

    /// The streams with claims in some of the slots, for scans in slices.
    pub(crate) fn slots(
        &self,
        slots: std::ops::Range<usize>,
    ) -> impl Iterator<Item = (&StreamKey, &[Claim])> {
        let end = slots.end.min(self.slots.len());
        let slots = self.slots[slots.start.min(end)..end].iter();
        let claimed = slots.map(|slot| (&slot.stream, slot.claims.as_slice()));
        claimed.filter(|(_, claims)| !claims.is_empty())
    }

    /// How many slots there are.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Drops some of the claims of a term that has ended; whether any are left.
    pub(super) fn shrink(&mut self, by: usize) -> bool {
        for _ in 0..by {
            let Some(slot) = self.slots.pop() else { return false };
            let at = u32::try_from(self.slots.len()).expect("claims are counted in u32");
            self.index.remove(self.index.hash(&slot.stream), at);
        }
        !self.slots.is_empty()
    }
}

impl StreamClaims {
    fn as_slice(&self) -> &[Claim] {
        match self {
            Self::None => &[],
            Self::One(claim) => slice::from_ref(claim),
            Self::Several(claims) => claims,
        }
    }

    fn as_mut_slice(&mut self) -> &mut [Claim] {
        match self {
            Self::None => &mut [],
            Self::One(claim) => slice::from_mut(claim),
            Self::Several(claims) => claims,
        }
    }

    fn push(&mut self, claim: Claim) {
        *self = match mem::take(self) {
            Self::None => Self::One(claim),
            Self::One(first) => Self::Several(vec![first, claim]),
            Self::Several(mut claims) => {
                claims.push(claim);
                Self::Several(claims)
            }
        };
    }

    /// Removes the claims for which `which` holds.
    fn remove(&mut self, mut which: impl FnMut(&Claim) -> bool) -> Vec<Claim> {
        match mem::take(self) {
            Self::None => Vec::new(),
            Self::One(claim) => {
                if which(&claim) {
                    return vec![claim];
                }
                *self = Self::One(claim);
                Vec::new()
            }
            Self::Several(mut claims) => {
                let removed = claims.extract_if(.., |claim| which(claim)).collect();
                if claims.len() > 1 {
                    *self = Self::Several(claims);
                } else if let Some(last) = claims.pop() {
                    *self = Self::One(last);
                }
                removed
            }
        }
    }
}
