//! The messages between agents and coordinators, both ways.

mod agent_process;
mod field_count;
mod grant;
mod job_times;
mod other_cell;

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use leasehold_types::limits::{JOBS_PER_WORKER_MAX, STREAMS_PER_WORKER_MAX};
use leasehold_types::message::{
    AgentMessage, Beat, CoordinatorMessage, DrainPhase, HeldPool, HeldStream, Hello, Jobs, Refusal,
    RefusalReason, Release, Report, ReportedMemory, Terms, Welcome, WorkerFailure,
};
use leasehold_types::protocol::ProtocolRange;
use leasehold_types::{
    Epoch, GrantNumber, Incarnation, LinkNumber, Load, Nonce, StreamKey, TermId, Token,
};

pub use self::agent_process::{attach_agent_process, take_agent_process};
pub use self::field_count::check_field_count;
pub use self::job_times::{attach_job_times, take_job_times};
pub use self::other_cell::{attach_other_cell, take_other_cell};
use super::share::{address, load};
use super::{Invalid, at_most, cluster_name, millis, present_worker, span, stream_key};
use crate::coordinator::v1 as wire;

impl TryFrom<wire::OpenSessionRequest> for AgentMessage {
    type Error = Invalid;

    fn try_from(request: wire::OpenSessionRequest) -> Result<Self, Invalid> {
        use wire::open_session_request::Message;
        match request.message.ok_or(Invalid::missing("message"))? {
            Message::Hello(hello) => hello.try_into().map(Self::Hello),
            Message::Report(report) => report.try_into().map(Self::Report),
            Message::Beat(beat) => beat.try_into().map(Self::Beat),
        }
    }
}

impl From<AgentMessage> for wire::OpenSessionRequest {
    fn from(message: AgentMessage) -> Self {
        use wire::open_session_request::Message;
        let message = match message {
            AgentMessage::Hello(hello) => Message::Hello(hello.into()),
            AgentMessage::Report(report) => Message::Report(report.into()),
            AgentMessage::Beat(beat) => Message::Beat(beat.into()),
        };
        Self { message: Some(message) }
    }
}

impl TryFrom<wire::OpenSessionResponse> for CoordinatorMessage {
    type Error = Invalid;

    fn try_from(response: wire::OpenSessionResponse) -> Result<Self, Invalid> {
        use wire::open_session_response::Message;
        match response.message.ok_or(Invalid::missing("message"))? {
            Message::Welcome(welcome) => welcome.try_into().map(Self::Welcome),
            Message::Refusal(refusal) => refusal.try_into().map(Self::Refusal),
            Message::Grant(grant) => grant.try_into().map(Self::Grant),
            Message::Waiting(_) => {
                Err(Invalid::new("message", "has no part in the lease protocol"))
            }
        }
    }
}

/// The message that an agent must wait, with about `ahead` agents before it. It ends with the link:
/// no core sends or receives it.
#[must_use]
pub fn waiting(ahead: u64) -> wire::OpenSessionResponse {
    use wire::open_session_response::Message;
    wire::OpenSessionResponse { message: Some(Message::Waiting(wire::Waiting { ahead })) }
}

/// About how many agents are before this one, if the message is that it must wait.
#[must_use]
pub fn waits_behind(response: &wire::OpenSessionResponse) -> Option<u64> {
    use wire::open_session_response::Message;
    match &response.message {
        Some(Message::Waiting(waiting)) => Some(waiting.ahead),
        Some(Message::Welcome(_) | Message::Refusal(_) | Message::Grant(_)) | None => None,
    }
}

impl From<CoordinatorMessage> for wire::OpenSessionResponse {
    fn from(message: CoordinatorMessage) -> Self {
        use wire::open_session_response::Message;
        let message = match message {
            CoordinatorMessage::Welcome(welcome) => Message::Welcome(welcome.into()),
            CoordinatorMessage::Refusal(refusal) => Message::Refusal(refusal.into()),
            CoordinatorMessage::Grant(grant) => Message::Grant(grant.into()),
        };
        Self { message: Some(message) }
    }
}

impl TryFrom<wire::Hello> for Hello {
    type Error = Invalid;

    fn try_from(hello: wire::Hello) -> Result<Self, Invalid> {
        Ok(Self {
            protocol: protocol_range(hello.protocol, hello.protocol_max)?,
            cluster: cluster_name("hello.cluster", &hello.cluster)?,
            worker: present_worker("hello.worker", &hello.worker)?,
            incarnation: Incarnation(hello.incarnation),
            link: LinkNumber(hello.link),
            epoch_seen: (hello.epoch_seen > 0).then_some(Epoch(hello.epoch_seen)),
            term_seen: TermId(hello.term_seen),
            stops_worker: hello.stops_worker,
            generation: hello.generation,
            address: address("hello.worker_address", &hello.worker_address)?,
            identity: identity("hello.identity", &hello.identity)?,
            take_over: hello.take_over,
            knows_from: Incarnation(hello.knows_from),
            // A later release may write it in another way: that is no reason to refuse an agent.
            version: hello.version.parse().ok(),
            cell: identity("hello.cell", &hello.cell)?,
        })
    }
}

fn protocol_range(oldest: u32, newest: u32) -> Result<ProtocolRange, Invalid> {
    // An agent of an earlier release speaks one version, and does not name the newest.
    let newest = if newest == 0 { oldest } else { newest };
    let error = Invalid::new("hello.protocol_max", "is older than hello.protocol");
    ProtocolRange::new(oldest, newest).ok_or(error)
}

impl From<Hello> for wire::Hello {
    fn from(hello: Hello) -> Self {
        Self {
            protocol: hello.protocol.oldest(),
            protocol_max: hello.protocol.newest(),
            cluster: hello.cluster.to_string(),
            worker: hello.worker.to_string(),
            incarnation: hello.incarnation.0,
            link: hello.link.0,
            epoch_seen: hello.epoch_seen.map_or(0, |epoch| epoch.0),
            term_seen: hello.term_seen.0,
            stops_worker: hello.stops_worker,
            generation: hello.generation,
            worker_address: text(hello.address),
            identity: text(hello.identity),
            take_over: hello.take_over,
            knows_from: hello.knows_from.0,
            version: text(hello.version),
            cell: text(hello.cell),
            process: None,
        }
    }
}

impl TryFrom<wire::Terms> for Terms {
    type Error = Invalid;

    fn try_from(terms: wire::Terms) -> Result<Self, Invalid> {
        if terms.beat_ms == 0 || terms.ttl_ms <= terms.beat_ms || terms.reserve_ms < terms.ttl_ms {
            return Err(Invalid::new("terms", "wants 0 < beat_ms < ttl_ms <= reserve_ms"));
        }
        Ok(Self {
            ttl: span(terms.ttl_ms),
            beat: span(terms.beat_ms),
            reserve: span(terms.reserve_ms),
            drain_deadline: span(terms.drain_deadline_ms),
        })
    }
}

impl From<Terms> for wire::Terms {
    fn from(terms: Terms) -> Self {
        Self {
            ttl_ms: millis(terms.ttl),
            beat_ms: millis(terms.beat),
            reserve_ms: millis(terms.reserve),
            drain_deadline_ms: millis(terms.drain_deadline),
        }
    }
}

impl TryFrom<wire::Welcome> for Welcome {
    type Error = Invalid;

    fn try_from(welcome: wire::Welcome) -> Result<Self, Invalid> {
        Ok(Self {
            epoch: epoch("welcome.epoch", welcome.epoch)?,
            term: TermId(welcome.term),
            cell: identity("welcome.cell", &welcome.cell)?,
            answers_goodbye: welcome.answers_goodbye,
            protocol: match welcome.protocol {
                0 => ProtocolRange::OWN.oldest(),
                protocol => protocol,
            },
            terms: welcome.terms.ok_or(Invalid::missing("welcome.terms"))?.try_into()?,
        })
    }
}

impl From<Welcome> for wire::Welcome {
    fn from(welcome: Welcome) -> Self {
        let Welcome { epoch, term, cell, answers_goodbye, protocol, terms } = welcome;
        let terms = Some(terms.into());
        Self { epoch: epoch.0, term: term.0, cell: text(cell), answers_goodbye, protocol, terms }
    }
}

impl TryFrom<wire::Refusal> for Refusal {
    type Error = Invalid;

    fn try_from(refusal: wire::Refusal) -> Result<Self, Invalid> {
        use wire::RefusalReason as Wire;
        let leader = (!refusal.leader_address.is_empty()).then_some(refusal.leader_address);
        let newer = Incarnation(refusal.newer_incarnation);
        let reason = match Wire::try_from(refusal.reason) {
            Ok(Wire::NotLeader) => RefusalReason::NotLeader(leader),
            Ok(Wire::UnknownCluster) => RefusalReason::UnknownCluster,
            Ok(Wire::NewerIncarnation) => RefusalReason::NewerIncarnation(newer),
            Ok(Wire::NewerLink) => RefusalReason::NewerLink,
            Ok(Wire::Protocol) => RefusalReason::Protocol,
            Ok(Wire::Limit) => RefusalReason::Limit,
            Ok(Wire::Invalid) => RefusalReason::Invalid,
            Ok(Wire::Unauthorized) => RefusalReason::Unauthorized,
            Ok(Wire::GoAway) => RefusalReason::GoAway,
            Ok(Wire::EpochAhead) => RefusalReason::EpochAhead,
            Ok(Wire::NameTaken) => RefusalReason::NameTaken,
            Ok(Wire::OtherCell) => RefusalReason::OtherCell,
            Ok(Wire::Left) => RefusalReason::Left,
            Ok(Wire::Unspecified) | Err(_) => {
                return Err(Invalid::new("refusal.reason", "is unknown to this version"));
            }
        };
        Ok(Self { reason, message: refusal.message })
    }
}

impl From<Refusal> for wire::Refusal {
    fn from(refusal: Refusal) -> Self {
        use wire::RefusalReason as Wire;
        let mut leader_address = String::new();
        let mut newer_incarnation = 0;
        let reason = match refusal.reason {
            RefusalReason::NotLeader(leader) => {
                leader_address = leader.unwrap_or_default();
                Wire::NotLeader
            }
            RefusalReason::UnknownCluster => Wire::UnknownCluster,
            RefusalReason::NewerIncarnation(newer) => {
                newer_incarnation = newer.0;
                Wire::NewerIncarnation
            }
            RefusalReason::NewerLink => Wire::NewerLink,
            RefusalReason::Protocol => Wire::Protocol,
            RefusalReason::Limit => Wire::Limit,
            RefusalReason::Invalid => Wire::Invalid,
            RefusalReason::Unauthorized => Wire::Unauthorized,
            RefusalReason::GoAway => Wire::GoAway,
            RefusalReason::EpochAhead => Wire::EpochAhead,
            RefusalReason::NameTaken => Wire::NameTaken,
            RefusalReason::OtherCell => Wire::OtherCell,
            RefusalReason::Left => Wire::Left,
        };
        let message = refusal.message;
        Self { reason: reason.into(), message, leader_address, newer_incarnation }
    }
}

impl TryFrom<wire::Report> for Report {
    type Error = Invalid;

    fn try_from(report: wire::Report) -> Result<Self, Invalid> {
        at_most("report.streams", report.streams.len(), STREAMS_PER_WORKER_MAX)?;
        let streams = report.streams.into_iter().map(TryInto::try_into);
        Ok(Self {
            epoch: epoch("report.epoch", report.epoch)?,
            nonce: Nonce(report.nonce),
            memory: ReportedMemory {
                knows_from: Incarnation(report.knows_from),
                aged: report.aged,
                left: (report.left_incarnation > 0).then_some(Incarnation(report.left_incarnation)),
            },
            pool: report.pool.map(TryInto::try_into).transpose()?,
            streams: streams.collect::<Result<_, _>>()?,
            jobs: jobs("report.running", report.running)?,
            drain: drain("report.drain", report.drain)?,
            failure: WorkerFailure::new(&report.failure),
        })
    }
}

impl From<Report> for wire::Report {
    fn from(report: Report) -> Self {
        Self {
            epoch: report.epoch.0,
            nonce: report.nonce.0,
            knows_from: report.memory.knows_from.0,
            aged: report.memory.aged,
            left_incarnation: report.memory.left.unwrap_or_default().0,
            pool: report.pool.map(Into::into),
            streams: report.streams.into_iter().map(Into::into).collect(),
            running: running(report.jobs),
            drain: drain_to_wire(report.drain).into(),
            job_times: None,
            failure: text(report.failure),
        }
    }
}

impl TryFrom<wire::Beat> for Beat {
    type Error = Invalid;

    fn try_from(beat: wire::Beat) -> Result<Self, Invalid> {
        at_most("beat.released", beat.released.len(), STREAMS_PER_WORKER_MAX)?;
        let released = beat.released.into_iter().map(TryInto::try_into);
        Ok(Self {
            epoch: epoch("beat.epoch", beat.epoch)?,
            nonce: Nonce(beat.nonce),
            applied: GrantNumber(beat.applied),
            changed_ago: Duration::from_micros(beat.changed_ago_us.into()),
            pool: beat.pool.map(TryInto::try_into).transpose()?,
            jobs: jobs("beat.running", beat.running)?,
            drain: drain("beat.drain", beat.drain)?,
            failure: WorkerFailure::new(&beat.failure),
            released: released.collect::<Result<_, _>>()?,
            wants_snapshot: beat.wants_snapshot,
        })
    }
}

impl From<Beat> for wire::Beat {
    fn from(beat: Beat) -> Self {
        Self {
            epoch: beat.epoch.0,
            nonce: beat.nonce.0,
            applied: beat.applied.0,
            changed_ago_us: beat.changed_ago.as_micros().try_into().unwrap_or(u32::MAX),
            pool: beat.pool.map(Into::into),
            running: running(beat.jobs),
            drain: drain_to_wire(beat.drain).into(),
            released: beat.released.into_iter().map(Into::into).collect(),
            wants_snapshot: beat.wants_snapshot,
            job_times: None,
            other_cell: None,
            failure: text(beat.failure),
        }
    }
}

impl TryFrom<wire::HeldPool> for HeldPool {
    type Error = Invalid;

    fn try_from(pool: wire::HeldPool) -> Result<Self, Invalid> {
        Ok(Self {
            token: required("pool.token", pool.token)?,
            size: slots("pool.size", pool.size)?,
            granted: slots("pool.granted_size", pool.granted_size)?,
            floor: slots("pool.floor", pool.floor)?,
        })
    }
}

impl From<HeldPool> for wire::HeldPool {
    fn from(pool: HeldPool) -> Self {
        let HeldPool { token, size, granted, floor } = pool;
        Self { token: Some(token.into()), size, granted_size: granted, floor }
    }
}

impl TryFrom<wire::HeldStream> for HeldStream {
    type Error = Invalid;

    fn try_from(held: wire::HeldStream) -> Result<Self, Invalid> {
        Ok(Self {
            stream: stream(held.stream)?,
            token: required("stream.token", held.token)?,
            pinned: held.pinned,
            revoked: held.revoked,
            load: held.load_milli.map(|milli| load("stream.load_milli", milli)).transpose()?,
        })
    }
}

impl From<HeldStream> for wire::HeldStream {
    fn from(held: HeldStream) -> Self {
        Self {
            stream: Some(held.stream.into()),
            token: Some(held.token.into()),
            pinned: held.pinned,
            revoked: held.revoked,
            load_milli: held.load.map(Load::milli),
        }
    }
}

impl TryFrom<wire::Release> for Release {
    type Error = Invalid;

    fn try_from(release: wire::Release) -> Result<Self, Invalid> {
        let token = required("release.token", release.token)?;
        Ok(Self { stream: stream(release.stream)?, token })
    }
}

impl From<Release> for wire::Release {
    fn from(release: Release) -> Self {
        Self { stream: Some(release.stream.into()), token: Some(release.token.into()) }
    }
}

impl From<StreamKey> for wire::StreamRef {
    fn from(key: StreamKey) -> Self {
        Self { set: key.set.to_string(), stream: key.stream.to_string() }
    }
}

impl From<Token> for wire::Token {
    fn from(token: Token) -> Self {
        Self { epoch: token.epoch.0, seq: token.seq }
    }
}

/// An identity; `None` if the text is empty.
fn identity<T: FromStr<Err: Display>>(
    field: &'static str,
    text: &str,
) -> Result<Option<T>, Invalid> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error| Invalid::new(field, error))
}

/// The text of an identity; empty for none.
fn text(identity: Option<impl Display>) -> String {
    identity.map_or_else(String::new, |identity| identity.to_string())
}

fn required(field: &'static str, token: Option<wire::Token>) -> Result<Token, Invalid> {
    let token = token.ok_or(Invalid::missing(field))?;
    Ok(Token { epoch: epoch(field, token.epoch)?, seq: token.seq })
}

fn stream(stream: Option<wire::StreamRef>) -> Result<StreamKey, Invalid> {
    let stream = stream.ok_or(Invalid::missing("stream"))?;
    stream_key(&stream.set, &stream.stream)
}

fn epoch(field: &'static str, epoch: u64) -> Result<Epoch, Invalid> {
    match epoch {
        0 => Err(Invalid::new(field, "is 0, but epochs start at 1")),
        epoch => Ok(Epoch(epoch)),
    }
}

fn jobs(field: &'static str, running: Option<u32>) -> Result<Jobs, Invalid> {
    running.map_or(Ok(Jobs::Unknown), |running| slots(field, running).map(Jobs::Running))
}

fn running(jobs: Jobs) -> Option<u32> {
    match jobs {
        Jobs::Unknown => None,
        Jobs::Running(running) => Some(running),
    }
}

fn slots(field: &'static str, slots: u32) -> Result<u32, Invalid> {
    if slots <= JOBS_PER_WORKER_MAX {
        Ok(slots)
    } else {
        Err(Invalid::new(field, format!("{slots} is above {JOBS_PER_WORKER_MAX}")))
    }
}

fn drain(field: &'static str, phase: i32) -> Result<DrainPhase, Invalid> {
    match wire::DrainPhase::try_from(phase) {
        Ok(wire::DrainPhase::Working) => Ok(DrainPhase::Working),
        Ok(wire::DrainPhase::Draining) => Ok(DrainPhase::Draining),
        Ok(wire::DrainPhase::Leaving) => Ok(DrainPhase::Leaving),
        Ok(wire::DrainPhase::Unspecified) | Err(_) => {
            Err(Invalid::new(field, "is a phase that is unknown to this version"))
        }
    }
}

fn drain_to_wire(phase: DrainPhase) -> wire::DrainPhase {
    match phase {
        DrainPhase::Working => wire::DrainPhase::Working,
        DrainPhase::Draining => wire::DrainPhase::Draining,
        DrainPhase::Leaving => wire::DrainPhase::Leaving,
    }
}
