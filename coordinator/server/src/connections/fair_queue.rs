//! Accepted connections that wait for a place. Addresses take turns, so that one that opens many
//! connections delays its own.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

/// A bounded queue for each address.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    of_address: HashMap<IpAddr, VecDeque<T>>,
    /// The addresses with entries, in the order of their turns.
    turns: VecDeque<IpAddr>,
    len: usize,
    total: usize,
}

impl<T> FairQueue<T> {
    /// A queue for at most `total` entries of all addresses.
    pub(crate) fn new(total: usize) -> Self {
        Self { of_address: HashMap::new(), turns: VecDeque::new(), len: 0, total }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an entry. If the queue is full, the newest entry of the address with the most goes,
    /// and is returned with its address.
    pub(crate) fn push(&mut self, address: IpAddr, entry: T) -> Option<(IpAddr, T)> {
        if !self.of_address.contains_key(&address) {
            self.turns.push_back(address);
        }
        self.of_address.entry(address).or_default().push_back(entry);
        self.len += 1;
        if self.len <= self.total {
            return None;
        }
        let longest =
            self.of_address.iter().max_by_key(|(of, queue)| (queue.len(), **of == address));
        let longest = *longest.expect("an entry was added").0;
        let dropped = self.of_address.get_mut(&longest).and_then(VecDeque::pop_back);
        self.len -= 1;
        self.forget_if_empty(longest);
        dropped.map(|entry| (longest, entry))
    }

    /// The addresses with entries, in the order of their turns.
    pub(crate) fn turns(&self) -> impl Iterator<Item = IpAddr> + Clone {
        self.turns.iter().copied()
    }

    /// Takes the oldest entry of this address, whose next turn comes after all others.
    pub(crate) fn pop(&mut self, address: IpAddr) -> Option<T> {
        let entry = self.of_address.get_mut(&address).and_then(VecDeque::pop_front)?;
        self.turns.retain(|turn| *turn != address);
        self.turns.push_back(address);
        self.len -= 1;
        self.forget_if_empty(address);
        Some(entry)
    }

    fn forget_if_empty(&mut self, address: IpAddr) {
        if self.of_address.get(&address).is_some_and(VecDeque::is_empty) {
            self.of_address.remove(&address);
            self.turns.retain(|turn| *turn != address);
        }
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
}
