//! Shows leases to the worker and records it. A lease that the worker has never seen can be
//! released without it.
//!
//! Invariant: before a worker sees a stream, the journal records that it may have seen streams. The
//! same applies to bindings, and to a pool size larger than the reported one.

use leasehold_types::mutation::{self, Mutation};
use leasehold_types::share::NodeKey;
use leasehold_types::{Load, Moment, NodeName, ShareKey};

use super::{Binding, Count, Holder};
use crate::journal::{Journal, Record};
use crate::lease::{Lease, LeaseKinds, NextNode, PoolView, ShareLease, StreamLease};

impl<J: Journal> Holder<J> {
    /// The lease of the worker. Call it only to send the result to the worker: it marks the streams
    /// as shown, and a stream that was never shown is released without the worker.
    pub fn lease(&mut self, now: Moment) -> Lease {
        self.lease_of(LeaseKinds::ALL, now)
    }

    /// The same for a worker that uses only these kinds of leases. Other kinds are omitted and do
    /// not count as shown.
    pub fn lease_of(&mut self, kinds: LeaseKinds, now: Moment) -> Lease {
        self.expire(now);
        let size = self.size_to_show(now);
        let shown = self.write_shown(kinds);
        for held in self.streams.values_mut() {
            held.shown |= held.is_for_worker(&self.config) && held.is_of(shown);
        }
        let mut lease = self.peek(now);
        lease.pool.size = size;
        // Bindings that the worker does not use are listed for people only.
        let bindings = if self.config.exposes_bindings { shown.bindings } else { kinds.bindings };
        lease.keep(LeaseKinds { streams: shown.streams, bindings });
        lease
    }

    /// The lease without showing it to the worker. Changes nothing.
    #[must_use]
    pub fn peek(&self, now: Moment) -> Lease {
        let (mut streams, mut bindings) = (Vec::new(), Vec::new());
        for (stream, held) in &self.streams {
            let (token, revoked) = (held.token, held.revoked);
            let until = held.until(self.renewed_until);
            match &held.binding {
                None => {
                    let stream = stream.clone();
                    streams.push(StreamLease { stream, token, until, revoked });
                }
                Some(Binding { key, share }) => {
                    let (load, next) = match share {
                        Some(share) => (share.load, &share.next[..]),
                        None => (Load::ZERO, &[][..]),
                    };
                    let next = next.iter().map(|node| self.next_node(key, node)).collect();
                    let key = key.clone();
                    bindings.push(ShareLease { key, token, until, revoked, load, next });
                }
            }
        }
        Lease {
            version: self.version,
            pool: PoolView {
                size: self.size(now),
                token: self.pool.map(|pool| pool.token),
                running: self.running(),
                until: self.pool.filter(|pool| pool.size > pool.floor).map(|_| self.renewed_until),
            },
            streams,
            bindings,
            draining: self.draining(),
            connected: self.link.is_live(),
        }
    }

    /// A node that a share leads to.
    fn next_node(&self, share: &ShareKey, node: &NodeName) -> NextNode {
        let key = NodeKey { pipeline: share.pipeline.clone(), node: node.clone() };
        NextNode { node: key.node.clone(), endpoints: self.tables.endpoints(&key) }
    }

    /// The pool size only, to send it to a worker that reports counts. A size larger than the
    /// reported one is recorded and in effect before the worker gets it.
    pub fn size_for_worker(&mut self, now: Moment) -> u32 {
        self.expire(now);
        self.size_to_show(now)
    }

    /// Records that a worker that has just been started has seen no lease.
    pub(super) fn write_none_shown(&mut self) {
        if self.write(&Record::Shown { kinds: LeaseKinds::NONE }).is_ok() {
            self.shown = LeaseKinds::NONE;
        }
    }

    /// Records that the worker sees leases of these kinds, if it holds any. Returns the kinds that
    /// may be shown.
    fn write_shown(&mut self, kinds: LeaseKinds) -> LeaseKinds {
        let held = |kind: LeaseKinds| {
            let mut held = self.streams.values();
            held.any(|held| held.is_for_worker(&self.config) && held.is_of(kind))
        };
        let LeaseKinds { streams, bindings } = self.shown;
        let shown = LeaseKinds {
            streams: streams || (kinds.streams && held(LeaseKinds::STREAMS)),
            bindings: bindings || (kinds.bindings && held(LeaseKinds::BINDINGS)),
        };
        if shown != self.shown {
            let skip = mutation::on(Mutation::ShownUnwritten);
            if skip || self.write(&Record::Shown { kinds: shown }).is_ok() {
                self.shown = shown;
            }
        }
        kinds.and(self.shown)
    }

    /// The size to show to the worker. A worker that reports counts may use a larger size as soon
    /// as it sees it, so the size is recorded and in effect before.
    fn size_to_show(&mut self, now: Moment) -> u32 {
        let size = self.size(now);
        let Some(Count { running, in_effect }) = self.count.filter(|count| count.in_effect < size)
        else {
            return size;
        };
        let unwritten = mutation::on(Mutation::SizeShownUnwritten);
        if !unwritten && self.write(&Record::Count { running, in_effect: size }).is_err() {
            return in_effect;
        }
        self.count = Some(Count { running, in_effect: size });
        size
    }
}
