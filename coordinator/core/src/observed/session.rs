//! A worker's connection: what was last received on it, and what was last sent.

use leasehold_types::limits::PROTOCOL_OF_NODE_TABLES;
use leasehold_types::message::{Beat, DrainOrder, Hello};
use leasehold_types::protocol::ProtocolRange;
use leasehold_types::{LinkNumber, Nonce};

use crate::event::ConnId;
use crate::sent_tables::SentTables;

/// An agent's connection, from its hello to its end.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    conn: ConnId,
    link: LinkNumber,
    /// The version of the protocol that both sides speak.
    protocol: u32,
    reported: bool,
    /// The newest report or beat.
    nonce: Nonce,
    /// The newest that a grant has echoed.
    echoed: Nonce,
    /// The connection takes a message now.
    writable: bool,
    /// The next grant is a snapshot.
    snapshot_due: bool,
    /// The order about its drain that was sent.
    drain_sent: Option<DrainOrder>,
    tables: SentTables,
}

impl Session {
    pub(super) fn new(conn: ConnId, hello: &Hello) -> Self {
        let own = ProtocolRange::OWN;
        Self {
            conn,
            link: hello.link,
            // A hello without a common version is refused before.
            protocol: own.newest_common(hello.protocol).unwrap_or(own.newest()),
            reported: false,
            nonce: Nonce(0),
            echoed: Nonce(0),
            writable: true,
            snapshot_due: true,
            drain_sent: None,
            tables: SentTables::default(),
        }
    }

    pub(crate) fn conn(&self) -> ConnId {
        self.conn
    }

    pub(crate) fn link(&self) -> LinkNumber {
        self.link
    }

    /// The version of the protocol that both sides speak.
    pub(crate) fn protocol(&self) -> u32 {
        self.protocol
    }

    /// Whether the endpoints of nodes are sent as tables; otherwise with each share.
    pub(crate) fn takes_tables(&self) -> bool {
        self.protocol >= PROTOCOL_OF_NODE_TABLES
    }

    /// The tables that were sent.
    pub(crate) fn tables_mut(&mut self) -> &mut SentTables {
        &mut self.tables
    }

    /// Whether its report is adopted.
    pub(crate) fn has_reported(&self) -> bool {
        self.reported
    }

    /// The nonce that the next grant echoes: that of the newest report or beat.
    pub(crate) fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// Whether the newest report or beat waits for the grant that echoes it.
    pub(crate) fn is_renewal_due(&self) -> bool {
        self.nonce > self.echoed
    }

    /// Whether the next grant is a snapshot.
    pub(crate) fn is_snapshot_due(&self) -> bool {
        self.snapshot_due
    }

    /// Whether the connection takes a message now.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether this order about the drain was the last one sent.
    pub(crate) fn has_sent(&self, order: DrainOrder) -> bool {
        self.drain_sent == Some(order)
    }

    /// A welcome is on its way: the connection takes nothing else until it is written.
    pub(crate) fn welcome_sent(&mut self) {
        self.writable = false;
    }

    /// A grant is on its way, with the order about the drain that stands.
    pub(crate) fn grant_sent(&mut self, drain_order: Option<DrainOrder>) {
        self.echoed = self.nonce;
        self.writable = false;
        self.snapshot_due = false;
        self.drain_sent = drain_order;
    }

    /// What was sent last is written.
    pub(crate) fn written(&mut self) {
        self.writable = true;
    }

    pub(super) fn report_adopted(&mut self, nonce: Nonce) {
        self.reported = true;
        self.nonce = nonce;
    }

    pub(super) fn record_beat(&mut self, beat: &Beat) {
        self.nonce = beat.nonce;
        self.snapshot_due |= beat.wants_snapshot;
    }
}
