//! What one attack has tried, and what was answered. The client's process prints it as JSON.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// Kinds of answers that one attack remembers; more are counted together.
const KINDS_MAX: usize = 24;
const OTHER_KINDS: &str = "other answers";

/// The counts of one attack so far.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AttackReport {
    /// What it does.
    pub(crate) name: String,
    /// The limit that holds against it.
    pub(crate) limit: String,
    /// Connections, calls or messages, as the name says.
    pub(crate) attempts: u64,
    /// The most connections that were open at once.
    pub(crate) open_max: u64,
    /// How often each was answered.
    pub(crate) answers: BTreeMap<String, u64>,
}

/// The counts of one attack, which its tasks share.
#[derive(Debug)]
pub(crate) struct Counts {
    name: &'static str,
    limit: &'static str,
    attempts: AtomicU64,
    open: AtomicU64,
    open_max: AtomicU64,
    answers: Mutex<BTreeMap<String, u64>>,
}

impl Counts {
    pub(crate) fn new(name: &'static str, limit: &'static str) -> Arc<Self> {
        Arc::new(Self {
            name,
            limit,
            attempts: AtomicU64::new(0),
            open: AtomicU64::new(0),
            open_max: AtomicU64::new(0),
            answers: Mutex::default(),
        })
    }

    pub(crate) fn attempt(&self) {
        self.attempts.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn answered(&self, kind: &str) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let kind = if answers.len() < KINDS_MAX || answers.contains_key(kind) {
            kind
        } else {
            OTHER_KINDS
        };
        *answers.entry(kind.to_owned()).or_default() += 1;
    }

    pub(crate) fn failed(&self, error: &io::Error) {
        self.answered(match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => "closed",
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionAborted => "closed",
            io::ErrorKind::ConnectionRefused => "connection refused",
            io::ErrorKind::TimedOut => "no connection in time",
            io::ErrorKind::AddrNotAvailable => "the client has no port left",
            _ => "another error",
        });
    }

    /// Counts a connection for as long as the returned value is there.
    pub(crate) fn opened(self: &Arc<Self>) -> OpenConnection {
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.open_max.fetch_max(open, Ordering::Relaxed);
        OpenConnection(Arc::clone(self))
    }

    /// How many connections are open.
    pub(crate) fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    pub(crate) fn report(&self) -> AttackReport {
        AttackReport {
            name: self.name.to_owned(),
            limit: self.limit.to_owned(),
            attempts: self.attempts.load(Ordering::Relaxed),
            open_max: self.open_max.load(Ordering::Relaxed),
            answers: self.answers.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

/// A connection that counts as open.
#[derive(Debug)]
pub(crate) struct OpenConnection(Arc<Counts>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
