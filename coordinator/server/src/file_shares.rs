//! Divides the files that this process may open among the ports and the coordinator's own work.
//!
//! Invariant: however many connect, the ports leave files for leadership, the API server and the
//! other replicas, and those of one port leave files for the others.

use std::time::Duration;

use leasehold_driver::port::UNAUTHENTICATED_MAX;

use crate::connections::{ConnectionLimits, WAITING_MAX};
use crate::web;

/// Files for the coordinator's own work: the state folder or the watches of the API server, and
/// the other replicas.
const OWN_MAX: usize = 2_048;
/// The part of the files that this work gets where they are few.
const OWN_PART: usize = 4;
/// The part of the files that a port for HTTP gets where they are few.
const HTTP_PART: usize = 8;
/// The ports for HTTP: that of probes, and the webhook's.
const HTTP_PORTS: usize = 2;
/// Connections to the gRPC port with calls of people, replicas and autoscalers.
const CALLERS_MAX: usize = 1_024;
/// The part of the gRPC port's files for connections that wait for a place, for those that are not
/// proven, and for the rest that are not agents', where they are few.
const GRPC_PART: usize = 8;

/// The files that this process may open.
#[derive(Clone, Copy, Debug)]
pub struct FileShares {
    files: usize,
}

impl FileShares {
    /// Divides this many files.
    #[must_use]
    pub fn of(files: usize) -> Self {
        Self { files }
    }

    /// The most agents that may be connected: as many as wanted, if the files suffice.
    #[must_use]
    pub fn sessions(self, wanted: usize) -> usize {
        let grpc = self.grpc(0, Duration::ZERO);
        wanted.min(self.of_grpc().saturating_sub(grpc.waiting + grpc.total)).max(1)
    }

    /// The limits of the gRPC port with this many sessions.
    pub(crate) fn grpc(self, sessions: usize, unauthenticated_age: Duration) -> ConnectionLimits {
        let part = (self.of_grpc() / GRPC_PART).max(1);
        let (unauthenticated, callers) = (UNAUTHENTICATED_MAX.min(part), CALLERS_MAX.min(part));
        let waiting = WAITING_MAX.min(part);
        // The connections that have just lost their places count until they are closed.
        let others = 2 * unauthenticated + callers;
        let spare = self.of_grpc().saturating_sub(waiting + others + sessions);
        let total = sessions + sessions.min(spare) + others;
        ConnectionLimits { unauthenticated, waiting, total, callers, unauthenticated_age }
    }

    /// The most agents that may follow who leads at a replica: as many as sessions, if the files
    /// suffice for both. If not, half as many: a replica that comes to lead closes their
    /// connections while agents open their sessions.
    pub(crate) fn leader_watches(self, sessions: usize) -> usize {
        let [both, none] = [sessions, 0].map(|count| self.grpc(count, Duration::ZERO).total);
        (both - none - sessions).max(sessions / 2).max(1)
    }

    /// The limits of each port for HTTP.
    pub(crate) fn http(self) -> ConnectionLimits {
        let share = self.files / HTTP_PART;
        let unauthenticated = web::LIMITS.unauthenticated.min(share / 4).max(1);
        let waiting = web::LIMITS.waiting.min(share / 4).max(1);
        ConnectionLimits { unauthenticated, waiting, total: 2 * unauthenticated, ..web::LIMITS }
    }

    fn of_grpc(self) -> usize {
        let http = self.http();
        let others = OWN_MAX.min(self.files / OWN_PART) + HTTP_PORTS * (http.waiting + http.total);
        self.files.saturating_sub(others)
    }
}

#[cfg(test)]
mod tests {
    use leasehold_types::limits::{SESSIONS_MAX_DEFAULT, WORKERS_MAX};

    use super::*;

    #[test]
    fn the_ports_leave_files_for_the_coordinators_own_work() {
        for (files, sessions, own) in [
            (1_024, 288, 256),
            (4_096, 1_152, 1_024),
            (20_000, 11_671, 2_048),
            (32_768, WORKERS_MAX, 2_048),
            (65_536, WORKERS_MAX, 2_048),
            (usize::MAX, WORKERS_MAX, 2_048),
        ] {
            let shares = FileShares::of(files);
            assert_eq!(shares.sessions(WORKERS_MAX), sessions, "{files}");
            let (grpc, http) = (shares.grpc(sessions, Duration::ZERO), shares.http());
            let ports = grpc.waiting + grpc.total + 2 * (http.waiting + http.total);
            assert!(files - ports >= own, "{files}: the ports take {ports}");
        }
        assert_eq!(FileShares::of(1_024).sessions(10), 10, "no more than wanted");
        for (files, watches) in [(20_000, 5_835), (65_536, WORKERS_MAX)] {
            let shares = FileShares::of(files);
            assert_eq!(shares.leader_watches(shares.sessions(WORKERS_MAX)), watches, "{files}");
        }
        // What OPERATIONS says of the default and of the most agents.
        for (agents, to_connect, to_follow) in
            [(SESSIONS_MAX_DEFAULT as usize, 18_000, 31_000), (WORKERS_MAX, 32_768, 53_000)]
        {
            assert_eq!(FileShares::of(to_connect).sessions(agents), agents);
            assert!(FileShares::of(to_connect).leader_watches(agents) < agents);
            assert_eq!(FileShares::of(to_follow).leader_watches(agents), agents);
        }
        // Too few for anything: no limit is 0.
        let none = FileShares::of(0);
        let (grpc, http) = (none.grpc(none.sessions(1), Duration::ZERO), none.http());
        let limits =
            [grpc.unauthenticated, grpc.waiting, http.unauthenticated, http.waiting, http.total];
        assert_eq!(limits, [1, 1, 1, 1, 2]);
    }
}
