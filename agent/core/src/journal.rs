//! The journal: an agent records what it holds, so that its successor can claim it. A record is
//! written before it takes effect or is sent.

mod memory;

use std::time::Duration;

use leasehold_types::{
    CellId, Epoch, Incarnation, JobId, Load, Moment, NodeName, StartId, StreamKey, TermId, Token,
};
use serde::{Deserialize, Serialize};

pub(crate) use self::memory::end_of_lease;
pub use self::memory::{HoldsOfOtherCell, Memory, RememberedStream};
use crate::lease::LeaseKinds;

/// A store of records. A written record outlives the process.
pub trait Journal {
    /// Appends one record.
    ///
    /// # Errors
    /// If it could not be written: then it must not take effect.
    fn append(&mut self, record: &Record) -> Result<(), JournalError>;
}

/// A record could not be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalError(pub String);

/// A journal that is written nowhere and never fails: for an agent that is simulated or measured,
/// and has no successor.
#[derive(Clone, Copy, Debug)]
pub struct UnwrittenJournal;

impl Journal for UnwrittenJournal {
    fn append(&mut self, _: &Record) -> Result<(), JournalError> {
        Ok(())
    }
}

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "record")]
pub enum Record {
    /// An agent begins to write.
    Begun {
        /// Its incarnation.
        incarnation: Incarnation,
        /// When the journal was begun from nothing.
        begun: Moment,
        /// The first incarnation that wrote it.
        first: Incarnation,
    },
    /// Nothing was held before this journal: it is complete.
    Fresh,
    /// The highest epoch that was accepted.
    Epoch {
        /// The epoch; 0 if only the cell is recorded.
        epoch: Epoch,
        /// The identity of its term; agents of earlier releases wrote none.
        #[serde(default)]
        term: TermId,
        /// The cell whose term it is; agents of earlier releases wrote none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cell: Option<CellId>,
    },
    /// The pool lease that is held from now on.
    Pool {
        /// Its token.
        token: Token,
        /// Its size.
        size: u32,
        /// The size after it has expired.
        floor: u32,
    },
    /// A stream lease that is held from now on, or a change of one with the same token.
    Stream {
        /// The stream.
        stream: StreamKey,
        /// The token.
        token: Token,
        /// It does not end by time.
        pinned: bool,
        /// Its load, if it is a share of a pipeline.
        #[serde(default, skip_serializing_if = "Option::is_none", with = "milli")]
        load: Option<Load>,
        /// The next nodes, if it is a share of a pipeline.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        next: Vec<NodeName>,
    },
    /// A stream lease that is no longer held.
    StreamEnded {
        /// The stream.
        stream: StreamKey,
        /// The token.
        token: Token,
    },
    /// All renewed leases are held until then.
    Renewed {
        /// The end, by the clock that outlives the process.
        until: Moment,
    },
    /// This stream is no longer renewed, and is held until then.
    Lapsing {
        /// The stream.
        stream: StreamKey,
        /// The end.
        until: Moment,
    },
    /// This stream is renewed again, with all others.
    LapseOver {
        /// The stream.
        stream: StreamKey,
    },
    /// The kinds of leases that the worker may have seen since its start.
    Shown {
        /// The kinds.
        kinds: LeaseKinds,
    },
    /// A job began.
    JobBegan {
        /// Its id.
        job: JobId,
        /// The token under which it began; none in a record of an earlier version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<Token>,
    },
    /// A job ended.
    JobEnded {
        /// Its id.
        job: JobId,
    },
    /// The worker reported how many jobs run besides those with an id, and the pool size that it
    /// uses.
    Count {
        /// The jobs.
        running: u32,
        /// The pool size.
        #[serde(rename = "obeyed")]
        in_effect: u32,
    },
    /// The worker's process restarted: the jobs of the previous one have ended.
    WorkerStarted {
        /// The start's id.
        start: StartId,
        /// Jobs that already run in it, without an id here.
        running: u32,
    },
    /// Jobs that run in the worker's process without an id here: they began under an agent whose
    /// journal was lost.
    Unnamed {
        /// The jobs.
        running: u32,
    },
    /// The drain began.
    Draining,
    /// The coordinator ordered the drain.
    DrainOrdered,
    /// The drain has ended, and the agent exits.
    DrainEnded,
    /// The drain no longer applies, because the worker or agent restarted. The pool lease is
    /// dropped.
    DrainOver,
    /// The worker fails its check: its pool lease is not in effect.
    Failing,
    /// The worker passes its check again. The pool lease is dropped.
    Recovered,
    /// The worker promises to call within this time after each call; none if it promises nothing.
    Promised {
        /// The time.
        within: Option<Duration>,
    },
    /// The agent is about to report that it leaves. From then on the coordinator may admit another
    /// agent under its name.
    Left,
}

impl Record {
    /// Whether it changes the leases or the epoch of its agent.
    #[must_use]
    pub fn is_of_lease(&self) -> bool {
        matches!(
            self,
            Self::Epoch { .. }
                | Self::Pool { .. }
                | Self::Stream { .. }
                | Self::StreamEnded { .. }
                | Self::Lapsing { .. }
                | Self::LapseOver { .. }
        )
    }
}

/// A load in the journal: in thousandths of a document per second.
mod milli {
    use leasehold_types::Load;
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    #[expect(clippy::ref_option, reason = "the signature is required by serde")]
    pub(super) fn serialize<S: Serializer>(load: &Option<Load>, to: S) -> Result<S::Ok, S::Error> {
        load.map(Load::milli).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Load>, D::Error> {
        let milli = Option::<u64>::deserialize(from)?;
        milli.map(Load::from_milli).transpose().map_err(de::Error::custom)
    }
}
