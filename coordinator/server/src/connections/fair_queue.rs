//! Accepted connections that wait for a place. Addresses take turns, so that one that opens many
//! connections delays its own.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;

/// A bounded queue for each address. Thousands wait where a whole fleet dials at once, so no step
/// looks at all addresses.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    /// Those with entries.
    of_address: HashMap<IpAddr, AddressQueue<T>>,
    /// The addresses in the order of their turns.
    turns: BTreeMap<u64, IpAddr>,
    next_turn: u64,
    /// The addresses by the number of their entries.
    by_length: BTreeSet<(usize, IpAddr)>,
    len: usize,
    total: usize,
}

/// The entries of one address.
#[derive(Debug)]
struct AddressQueue<T> {
    turn: u64,
    entries: VecDeque<T>,
}

impl<T> FairQueue<T> {
    /// A queue for at most `total` entries of all addresses.
    pub(crate) fn new(total: usize) -> Self {
        Self {
            of_address: HashMap::new(),
            turns: BTreeMap::new(),
            next_turn: 0,
            by_length: BTreeSet::new(),
            len: 0,
            total,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether another entry fits, or would replace one of an address with several.
    pub(crate) fn takes_more(&self) -> bool {
        self.len < self.total || self.by_length.last().is_some_and(|(most, _)| *most > 1)
    }

    /// Adds an entry. If the queue is full, the newest entry of the address with the most goes,
    /// and is returned with its address.
    pub(crate) fn push(&mut self, address: IpAddr, entry: T) -> Option<(IpAddr, T)> {
        if !self.of_address.contains_key(&address) {
            let turn = self.take_turn(address);
            self.of_address.insert(address, AddressQueue { turn, entries: VecDeque::new() });
        }
        self.change(address, |entries| entries.push_back(entry));
        if self.len <= self.total {
            return None;
        }
        let (most, last) = *self.by_length.last()?;
        // Of several with as many, the address that has just come gives up its entry.
        let has_most = self.by_length.contains(&(most, address));
        let longest = if has_most { address } else { last };
        let dropped = self.change(longest, VecDeque::pop_back)??;
        Some((longest, dropped))
    }

    /// The oldest entry of the address whose turn it is.
    pub(crate) fn front(&self) -> Option<(IpAddr, &T)> {
        let (_, address) = self.turns.first_key_value()?;
        Some((*address, self.of_address.get(address)?.entries.front()?))
    }

    /// The addresses with entries, in the order of their turns.
    pub(crate) fn turns(&self) -> impl Iterator<Item = IpAddr> + Clone {
        self.turns.values().copied()
    }

    /// Takes the oldest entry of this address, whose next turn comes after all others.
    pub(crate) fn pop(&mut self, address: IpAddr) -> Option<T> {
        let turn = self.of_address.get(&address)?.turn;
        self.turns.remove(&turn);
        let turn = self.take_turn(address);
        self.of_address.get_mut(&address)?.turn = turn;
        self.change(address, VecDeque::pop_front)?
    }

    /// The last turn.
    fn take_turn(&mut self, address: IpAddr) -> u64 {
        let turn = self.next_turn;
        self.next_turn += 1;
        self.turns.insert(turn, address);
        turn
    }

    /// Changes the entries of an address. One without entries is forgotten.
    fn change<R>(
        &mut self,
        address: IpAddr,
        change: impl FnOnce(&mut VecDeque<T>) -> R,
    ) -> Option<R> {
        let queue = self.of_address.get_mut(&address)?;
        let before = queue.entries.len();
        let changed = change(&mut queue.entries);
        let after = queue.entries.len();
        self.len = self.len - before + after;
        self.by_length.remove(&(before, address));
        if after > 0 {
            self.by_length.insert((after, address));
        } else {
            self.turns.remove(&queue.turn);
            self.of_address.remove(&address);
        }
        Some(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn in_turn<T>(queue: &mut FairQueue<T>) -> Vec<T> {
        let next = |queue: &mut FairQueue<T>| {
            let address = queue.turns().next()?;
            queue.pop(address)
        };
        std::iter::from_fn(|| next(queue)).collect()
    }

    #[test]
    fn addresses_take_turns() {
        let mut queue = FairQueue::new(10);
        for (of, entry) in [(1, "a"), (1, "b"), (1, "c"), (2, "d"), (2, "e"), (3, "f")] {
            assert_eq!(queue.push(address(of), entry), None);
        }
        assert_eq!(in_turn(&mut queue), ["a", "d", "f", "b", "e", "c"]);
        assert!(queue.is_empty() && queue.turns.is_empty() && queue.of_address.is_empty());
    }

    #[test]
    fn a_full_queue_drops_from_the_address_with_the_most() {
        let mut queue = FairQueue::new(3);
        for entry in ["a", "b", "c"] {
            assert_eq!(queue.push(address(1), entry), None);
        }
        assert_eq!(queue.push(address(2), "d"), Some((address(1), "c")));
        assert_eq!(queue.push(address(1), "e"), Some((address(1), "e")));
        assert_eq!(in_turn(&mut queue), ["a", "d", "b"]);
    }

    #[test]
    fn a_full_queue_takes_more_while_an_address_has_several_entries() {
        let mut queue = FairQueue::new(2);
        for entry in ["a", "b"] {
            assert!(queue.takes_more());
            assert_eq!(queue.push(address(1), entry), None);
        }
        assert!(queue.takes_more(), "one of the address's can go");
        assert_eq!(queue.push(address(2), "c"), Some((address(1), "b")));
        assert!(!queue.takes_more(), "each has one");
        assert_eq!(queue.pop(address(1)), Some("a"));
        assert!(queue.takes_more());
    }
}
