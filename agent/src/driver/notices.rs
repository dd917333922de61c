//! Logs the holder's notices.

use leasehold_agent_core::{DrainCancelled, Notice};
use leasehold_types::Moment;
use leasehold_types::message::RefusalReason;

use crate::log_limiter::{Admitted, LogLimiter};

/// A coordinator belongs to another cell.
const OTHER_CELL: &str = "a coordinator belongs to another cell than this agent, which obeys \
    nothing of it: give all replicas of a fleet one store (--state-dir, or the Lease of one \
    namespace), or remove its address from --coordinator";

/// Writes notices to the log.
#[derive(Debug)]
pub(super) struct NoticeLogger {
    log_limiter: LogLimiter,
    draining: bool,
    /// Workers before its own in a pipeline cannot reach it, and the log does not say so yet.
    lacks_address: bool,
}

impl NoticeLogger {
    /// `has_address`: the coordinator is told where the worker is reached.
    pub(super) fn new(has_address: bool) -> Self {
        let log_limiter = LogLimiter::default();
        Self { log_limiter, draining: false, lacks_address: !has_address }
    }

    /// Whether a drain has begun and not ended.
    pub(super) fn draining(&self) -> bool {
        self.draining
    }

    /// A link has ended, or was never opened.
    pub(super) fn link_closed(&mut self, address: &str, why: &str, now: Moment) {
        if let Some(Admitted { suppressed }) = self.log_limiter.admit(address, why, now) {
            tracing::warn!(
                coordinator = address,
                why,
                suppressed,
                "no session with the coordinator: the agent goes on trying"
            );
        }
    }

    /// The coordinator cannot serve this agent yet.
    pub(super) fn waiting(&mut self, address: &str, ahead: u64, now: Moment) {
        if self.log_limiter.admit(address, "waiting", now).is_some() {
            tracing::info!(
                coordinator = address,
                ahead,
                "waiting for the coordinator, which serves other agents first"
            );
        }
    }

    /// The coordinator ignores tokens.
    pub(super) fn token_ignored(&mut self, address: &str, now: Moment) {
        if self.log_limiter.admit(address, "token", now).is_some() {
            tracing::warn!(
                coordinator = address,
                "--token-file has no effect: this coordinator runs without Kubernetes and ignores \
                 tokens; with its --tls-client-ca certificates say who agents are"
            );
        }
    }

    /// Logs one notice; `address` is the link's, if there is one.
    pub(super) fn log(&mut self, notice: Notice, address: &str, now: Moment) {
        match notice {
            Notice::Welcomed(epoch) => {
                tracing::info!(coordinator = address, epoch = epoch.0, "welcomed");
            }
            Notice::Refused(reason, message) => self.refused(&reason, &message, address, now),
            Notice::Unlinked(why) => {
                tracing::debug!(coordinator = address, why, "the link has ended");
            }
            Notice::PoolGranted(token, size) => tracing::info!(size, %token, "pool granted"),
            Notice::PoolRenewed(token, size) => {
                tracing::info!(size, %token, "the pool lease is in force again");
            }
            Notice::PoolExpired(left) => tracing::warn!(left, "the pool lease expired"),
            Notice::NewerGeneration { own, newer } => tracing::warn!(
                own,
                newer,
                "workers of newer generations get slots before this one: for an equal share start \
                 its agent with --generation as high, or drain them"
            ),
            Notice::StreamGranted(key, token) => {
                if key.set.is_shares() && std::mem::take(&mut self.lacks_address) {
                    tracing::warn!(
                        "this worker serves a pipeline, and nobody is told where it is reached: \
                         set --worker-address, unless it serves first nodes only"
                    );
                }
                tracing::debug!(set = %key.set, stream = %key.stream, %token, "stream granted");
            }
            Notice::StreamRevoked(key, token) => {
                tracing::debug!(set = %key.set, stream = %key.stream, %token, "stream revoked");
            }
            Notice::StreamKept(key, token) => {
                let (set, stream) = (&key.set, &key.stream);
                tracing::debug!(%set, %stream, %token, "stream revocation cancelled");
            }
            Notice::StreamReleased(key, token) => {
                tracing::debug!(set = %key.set, stream = %key.stream, %token, "stream released");
            }
            Notice::StreamExpired(key, token) => {
                tracing::warn!(set = %key.set, stream = %key.stream, %token,
                    "the stream lease expired");
            }
            Notice::JobBegan(job) => tracing::debug!(%job, "job began"),
            Notice::JobEnded(job) => tracing::debug!(%job, "job ended"),
            Notice::DrainStarted => {
                self.draining = true;
                tracing::info!("the drain has begun: no new job starts, and streams are released");
            }
            Notice::DrainOver(why) => {
                self.draining = false;
                let why = match why {
                    DrainCancelled::Undrain => "the coordinator took the drain back",
                    DrainCancelled::Restart => "the worker restarted after a drain",
                };
                tracing::info!("{why}: the worker may take jobs and streams again");
            }
            Notice::Failing(failure) => {
                tracing::warn!(
                    why = %failure,
                    "the worker fails: it gets no job, and other workers get its streams"
                );
            }
            Notice::Recovered => {
                tracing::info!("the worker works again: it may take jobs and streams");
            }
            Notice::JournalFailed(why) => {
                let admitted = self.log_limiter.admit("journal", &why, now);
                if let Some(Admitted { suppressed }) = admitted {
                    tracing::error!(why, suppressed, "cannot write the journal");
                }
            }
            Notice::ProtocolViolation(what) => {
                tracing::error!(
                    coordinator = address,
                    what,
                    "the coordinator violated the protocol"
                );
            }
            Notice::OtherCell { own, other } => {
                let why = other.to_string();
                if let Some(Admitted { suppressed }) = self.log_limiter.admit(address, &why, now) {
                    tracing::error!(coordinator = address, %own, %other, suppressed, OTHER_CELL);
                }
            }
            Notice::IncarnationRaised(to) => {
                tracing::warn!(
                    to = to.0,
                    "another agent had this incarnation number or a higher one"
                );
            }
        }
    }

    fn refused(&mut self, reason: &RefusalReason, message: &str, address: &str, now: Moment) {
        if let RefusalReason::NotLeader(leader) = reason {
            tracing::debug!(coordinator = address, leader, "the coordinator is not the leader");
            return;
        }
        let cause = match reason {
            // The message contains a duration, which differs each time.
            RefusalReason::NameTaken => "NameTaken".into(),
            _ => format!("{reason:?}: {message}"),
        };
        if let Some(Admitted { suppressed }) = self.log_limiter.admit(address, &cause, now) {
            tracing::warn!(coordinator = address, ?reason, message, suppressed, "refused");
        }
    }
}
