//! The places of one limit: a number in all, and a share of it for each namespace, so that the
//! objects of one namespace do not keep out those of the others.

use std::collections::BTreeMap;

use leasehold_types::limits::NamespaceShare;

/// The places of one limit, and how many are taken.
#[derive(Debug)]
pub(crate) struct Places {
    /// What takes the places, in the plural.
    what: &'static str,
    max: usize,
    share: NamespaceShare,
    taken: usize,
    taken_by: BTreeMap<String, usize>,
}

/// No place is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoPlace {
    what: &'static str,
    max: usize,
    /// The namespace, if only its own places are taken.
    namespace: Option<String>,
}

impl Places {
    pub(crate) fn new(what: &'static str, max: usize, share: NamespaceShare) -> Self {
        Self { what, max, share, taken: 0, taken_by: BTreeMap::new() }
    }

    /// The part of the places that one namespace may take.
    pub(crate) fn share(&self) -> NamespaceShare {
        self.share
    }

    /// Takes `count` places for a namespace. An object of a file has no namespace.
    pub(crate) fn take(&mut self, namespace: Option<&str>, count: usize) -> Result<(), NoPlace> {
        let no_place = |max, namespace: Option<&str>| {
            Err(NoPlace { what: self.what, max, namespace: namespace.map(str::to_owned) })
        };
        if let Some(namespace) = namespace {
            let max = self.share.of(self.max);
            let taken = self.taken_by.get(namespace).copied().unwrap_or_default();
            if taken + count > max && max < self.max {
                return no_place(max, Some(namespace));
            }
        }
        if self.taken + count > self.max {
            return no_place(self.max, None);
        }
        self.reserve(namespace, count);
        Ok(())
    }

    /// Takes places, whether they are left or not.
    pub(crate) fn reserve(&mut self, namespace: Option<&str>, count: usize) {
        self.taken += count;
        if let Some(namespace) = namespace {
            match self.taken_by.get_mut(namespace) {
                Some(taken) => *taken += count,
                None => _ = self.taken_by.insert(namespace.to_owned(), count),
            }
        }
    }

    /// Gives back places that were taken.
    pub(crate) fn give_back(&mut self, namespace: Option<&str>, count: usize) {
        self.taken -= count;
        if let Some(taken) = namespace.and_then(|namespace| self.taken_by.get_mut(namespace)) {
            *taken -= count;
        }
    }
}

impl NoPlace {
    /// The problem of an object that has no place.
    pub(crate) fn of_one(&self) -> String {
        let Self { what, max, namespace } = self;
        match namespace {
            None => format!(
                "is one more than {max} {what}, the most that one coordinator takes: delete those \
                 that are not needed, or split them over several coordinators"
            ),
            Some(namespace) => format!(
                "is one more than {max} {what}, the most that namespace {namespace} may have: \
                 delete those that are not needed, or ask for a higher --namespace-share of the \
                 coordinators"
            ),
        }
    }

    /// The problem of an object that needs more places than are left.
    pub(crate) fn of_many(&self) -> String {
        let Self { what, max, namespace } = self;
        match namespace {
            None => format!(
                "brings all sets together to more than {max} {what}: split them over several \
                 coordinators"
            ),
            Some(namespace) => format!(
                "brings the sets of namespace {namespace} together to more than {max} {what}: \
                 delete those that are not needed, or ask for a higher --namespace-share of the \
                 coordinators"
            ),
        }
    }
}
