//! The effects of a holder, and its lease, as the lines of an outcome. A TOKEN is `EPOCH.SEQ`.
//!
//! * `dial LINK TARGET attempt=N`: it dials the next coordinator or the one at this address, and
//!   `hang up LINK` ends the link
//! * `hello inc=INCARNATION link=LINK seen=EPOCH`, with `term=` and `cell=` if they are stored, and
//!   `at=` the worker's address
//! * `report NONCE knows=INCARNATION aged left=INCARNATION …`: from which incarnation on the
//!   journal is complete (0: all), whether it is old enough to count, and under which one the
//!   agent has said goodbye before
//! * `beat NONCE applied=NUMBER … PHASE`: the newest grant that it has applied, and how far a drain
//!   has come; `gap` at the end asks for a snapshot
//! * in both, what it holds: `run=JOBS`, `?` if unknown; `pool=TOKEN:SIZE`; in a report
//!   `STREAM:TOKEN`, with `*LOAD` for a share, and in a beat `-STREAM:TOKEN` for one that it gives
//!   back; `failing: TEXT` while the worker fails its check
//! * `lease RUNNING of SIZE run, TIME; …`: what `lease` shows to the worker, each lease with the
//!   time that it has left; `+` is held, `-` is revoked, and a share is
//!   `PIPELINE/NODE/INDEX:TOKEN*LOAD>NODE:WORKER,~WORKER`, with `~` for a worker that drains
//! * `refused REASON`: the command was refused
//! * sentences

use std::fmt::Write as _;

use leasehold_agent_core::{Effect, Lease, NextNode, Notice, Target};
use leasehold_types::message::{AgentMessage, Beat, Hello, Jobs, Report, WorkerFailure};
use leasehold_types::share::Endpoint;
use leasehold_types::{Moment, TermId};

/// An effect as a line; none for those that no scenario shows.
pub(crate) fn effect(effect: Effect) -> Option<String> {
    Some(match effect {
        Effect::Dial { link, target, attempt } => {
            let target = match target {
                Target::Next => "next".into(),
                Target::Leader(leader) => leader,
            };
            format!("dial {link} {target} attempt={attempt}")
        }
        Effect::Hangup(link) => format!("hang up {link}"),
        Effect::Send(_, AgentMessage::Hello(message)) => hello(message),
        Effect::Send(_, AgentMessage::Report(message)) => report(&message),
        Effect::Send(_, AgentMessage::Beat(message)) => beat(&message),
        Effect::DrainEnded { jobs_left, .. } => format!("drain ended, {jobs_left} jobs left"),
        Effect::DrainOverdue { jobs_left } => format!("drain overdue, {jobs_left} jobs left"),
        Effect::Resumed => "resumed".into(),
        Effect::Superseded => "superseded".into(),
        Effect::Notice(Notice::NewerGeneration { own, newer }) => {
            format!("of generation {own}, after {newer}")
        }
        Effect::Notice(Notice::ProtocolViolation(what)) => format!("violation: {what}"),
        Effect::Notice(Notice::OtherCell { own, other }) => {
            format!("of cell {}, the coordinator of {}", own.0, other.0)
        }
        Effect::LeaseChanged | Effect::LeaseRenewed | Effect::Notice(_) => return None,
    })
}

/// A lease as its worker sees it.
pub(crate) fn lease(lease: Lease, now: Moment) -> String {
    let left = |until: Option<Moment>| match until {
        None => "for ever".into(),
        Some(until) => format!("{} ms", until.since(now).as_millis()),
    };
    let pool = lease.pool;
    let mut line = format!("lease {} of {} run, {}", pool.running, pool.size, left(pool.until));
    let sign = |is_revoked: bool| if is_revoked { '-' } else { '+' };
    for held in lease.streams {
        let (sign, name) = (sign(held.revoked.is_some()), held.stream.stream);
        let _ = write!(line, "; {sign}{name}:{} {}", held.token, left(held.until));
    }
    for held in lease.bindings {
        let (sign, next) = (sign(held.revoked.is_some()), routes(&held.next));
        let (key, token, load) = (held.key, held.token, held.load);
        let _ = write!(line, "; {sign}{key}:{token}*{load}{next} {}", left(held.until));
    }
    line + if lease.draining { "; draining" } else { "" }
}

fn hello(hello: Hello) -> String {
    let seen = hello.epoch_seen.map_or(0, |epoch| epoch.0);
    let mut line = format!("hello inc={} link={} seen={seen}", hello.incarnation, hello.link);
    if hello.term_seen != TermId(0) {
        let _ = write!(line, " term={}", hello.term_seen.0);
    }
    if let Some(cell) = hello.cell {
        let _ = write!(line, " cell={}", cell.0);
    }
    if let Some(address) = hello.address {
        let _ = write!(line, " at={address}");
    }
    line
}

fn report(report: &Report) -> String {
    let mut line = format!("report {} knows={}", report.nonce, report.memory.knows_from);
    line += if report.memory.aged { " aged" } else { "" };
    if let Some(left) = report.memory.left {
        let _ = write!(line, " left={left}");
    }
    let _ = write!(line, " {}", jobs(report.jobs));
    if let Some(pool) = report.pool {
        let _ = write!(line, " pool={}:{}", pool.token, pool.size);
    }
    for held in &report.streams {
        let _ = write!(line, " {}:{}", held.stream.stream, held.token);
        line += &held.load.map(|load| format!("*{load}")).unwrap_or_default();
    }
    line += &failure(report.failure.as_ref());
    line
}

/// In the format that a `grant` has them.
fn routes(next: &[NextNode]) -> String {
    let endpoint = |endpoint: &Endpoint| {
        format!("{}{}", if endpoint.draining { "~" } else { "" }, endpoint.worker)
    };
    let next_node = |next: &NextNode| {
        let endpoints: Vec<_> = next.endpoints.iter().map(endpoint).collect();
        format!(">{}:{}", next.node, endpoints.join(","))
    };
    next.iter().map(next_node).collect()
}

fn beat(beat: &Beat) -> String {
    let mut line = format!("beat {} applied={}", beat.nonce, beat.applied);
    let _ = write!(line, " {}", jobs(beat.jobs));
    if let Some(pool) = beat.pool {
        let _ = write!(line, " pool={}:{}", pool.token, pool.size);
    }
    for release in &beat.released {
        let _ = write!(line, " -{}:{}", release.stream.stream, release.token);
    }
    let _ = write!(line, " {}", beat.drain);
    line += &failure(beat.failure.as_ref());
    if beat.wants_snapshot {
        line += " gap";
    }
    line
}

fn failure(failure: Option<&WorkerFailure>) -> String {
    failure.map(|failure| format!(" failing: {failure}")).unwrap_or_default()
}

fn jobs(jobs: Jobs) -> String {
    match jobs {
        Jobs::Unknown => "run=?".into(),
        Jobs::Running(running) => format!("run={running}"),
    }
}
