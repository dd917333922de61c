//! A list that remembers which of its items may have changed, so that only those are checked.
//!
//! Invariant: an item is marked before it can change.

use std::ops::{Index, IndexMut};

/// Items by index; handing one out to be changed marks it.
#[derive(Debug)]
pub(crate) struct Tracked<T> {
    items: Vec<T>,
    marked: Vec<bool>,
    touched: Vec<usize>,
}

impl<T> Default for Tracked<T> {
    fn default() -> Self {
        Self { items: Vec::new(), marked: Vec::new(), touched: Vec::new() }
    }
}

impl<T> FromIterator<T> for Tracked<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut tracked = Self::default();
        items.into_iter().for_each(|item| tracked.push(item));
        tracked
    }
}

impl<T> Tracked<T> {
    /// Adds one, marked.
    pub(crate) fn push(&mut self, item: T) {
        self.items.push(item);
        self.marked.push(false);
        self.mark(self.items.len() - 1);
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// All of them, to be read.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.items.iter()
    }

    /// Which ones were marked since the last call, in the order in which they were.
    pub(crate) fn take_touched(&mut self) -> Vec<usize> {
        let touched = std::mem::take(&mut self.touched);
        touched.iter().for_each(|index| self.marked[*index] = false);
        touched
    }

    fn mark(&mut self, index: usize) {
        if !std::mem::replace(&mut self.marked[index], true) {
            self.touched.push(index);
        }
    }
}

impl<T> Index<usize> for Tracked<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        &self.items[index]
    }
}

impl<T> IndexMut<usize> for Tracked<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        self.mark(index);
        &mut self.items[index]
    }
}
