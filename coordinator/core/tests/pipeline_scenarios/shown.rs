//! Effects and views as the lines of an outcome. A STREAM is that of a share,
//! `PIPELINE/NODE/INDEX`, and a TOKEN is `EPOCH.SEQ`.
//!
//! A grant that changes something is `WORKER <- …`, with `all:` for a snapshot, `drain` for an
//! order to drain or its end, and for each stream one of
//!
//! * `STREAM:TOKEN=LOAD`, and `(pinned)`: it is granted; `>NODE[ADDRESS=LOAD,…]` are its routes to
//!   the workers of a next node, `ADDRESS=LOAD drains` to one that drains. `>NODE` alone is a
//!   route whose workers are in the node's table
//! * `-STREAM:TOKEN`: it is revoked, with `(lapses)` it is no longer renewed either
//!
//! and for each table of a node
//!
//! * `@PIPELINE/NODE:VERSION[ADDRESS=LOAD,…]`: the whole table
//! * `@PIPELINE/NODE:FROM..VERSION[ADDRESS=LOAD,…][-WORKER,…]`: its changed endpoints, and the
//!   workers that it no longer has
//! * `@PIPELINE/NODE ended`
//!
//! `CONN refused: MESSAGE` is a refusal. Notices:
//!
//! * `pipeline PIPELINE PHASE -> PHASE: REASON`, and `binding PIPELINE/NODE PHASE -> PHASE`; `none`
//!   before it exists, and after
//! * `freed STREAM:TOKEN of WORKER HOW`: a lease ended, `Released` by its agent, `Expired`, or
//!   `Gone` with its worker
//! * sentences
//!
//! `look` shows `PIPELINE load=LOAD PHASE: REASON`, and `waits=CLASS:WORKERS` for the workers
//! that it lacks; below, for each node, `NODE CLASS PHASE` and its shares,
//! `INDEX:WORKER=LOAD@TOKEN`, with `applied` once the agent has acknowledged it, and `draining`
//! where the worker drains or is asked for it. `classes` shows `class CLASS` with loads, `capacity`
//! of one worker, `request` of all pipelines and what of it is `placed`, then the workers that can
//! take shares, that are `needed` and that are `wanted`, and the pipelines that are `waiting`.

use std::fmt::Write as _;

use leasehold_coordinator_core::effect::{Effect, Notice, Order};
use leasehold_coordinator_core::view::{ClassView, PipelineView};
use leasehold_types::Share;
use leasehold_types::message::{Grant, StreamState};
use leasehold_types::share::{Endpoint, TableChange, TableGrant};

/// A notice, if outcomes show it.
pub(crate) fn notice(effect: &Effect) -> Option<String> {
    let phase = |phase: Option<String>| phase.unwrap_or_else(|| "none".into());
    Some(match effect {
        Effect::Notice(Notice::Pipeline { pipeline, from, to, why }) => {
            let (from, to) =
                (from.map(|phase| phase.to_string()), to.map(|phase| phase.to_string()));
            let why = if why.is_empty() { String::new() } else { format!(": {why}") };
            format!("pipeline {pipeline} {} -> {}{why}", phase(from), phase(to))
        }
        Effect::Notice(Notice::Binding { pipeline, node, from, to }) => {
            let (from, to) =
                (from.map(|phase| phase.to_string()), to.map(|phase| phase.to_string()));
            format!("binding {pipeline}/{node} {} -> {}", phase(from), phase(to))
        }
        Effect::Notice(Notice::HoldEnded(class)) => format!("hold of {class} ended"),
        Effect::Notice(Notice::Lost(worker)) => format!("lost {}", worker.worker),
        Effect::Notice(Notice::GivenUp { worker, .. }) => format!("given up {}", worker.worker),
        Effect::Notice(Notice::Gone(worker)) => format!("gone {}", worker.worker),
        Effect::Notice(Notice::DrainStarted(worker)) => format!("{} drains", worker.worker),
        Effect::Notice(Notice::ProtocolViolation { worker, rule }) => {
            format!("violation of {}: {rule}", worker.worker)
        }
        Effect::Notice(Notice::StreamFreed { worker, stream, token, how }) => {
            format!("freed {}:{token} of {} {how:?}", stream.stream, worker.worker)
        }
        Effect::Order { order: Order::StepDown { above }, .. } => {
            format!("step down above={above:?}")
        }
        Effect::Order { order: Order::AskTerm { seen }, .. } => format!("ask term seen={seen}"),
        _ => return None,
    })
}

/// The names and addresses of workers in a grant.
pub(crate) fn bytes_of_routes(grant: &Grant) -> usize {
    let shares = grant.streams.iter().filter_map(|granted| granted.share.as_ref());
    let routes = shares.flat_map(|share| &share.next);
    let told = routes.filter_map(|route| route.endpoints.as_deref());
    let tables = grant.tables.iter().map(|table| match &table.change {
        TableChange::Whole { endpoints, .. } => &endpoints[..],
        TableChange::Part { changed, .. } => changed,
        TableChange::Ended => &[],
    });
    let endpoints = told.chain(tables).flatten();
    let bytes = |endpoint: &Endpoint| {
        let address = endpoint.address.as_ref().map_or(0, |address| address.as_str().len());
        endpoint.worker.as_str().len() + address
    };
    endpoints.map(bytes).sum()
}

/// What a grant changes, if anything.
pub(crate) fn grant(grant: &Grant) -> Option<String> {
    if grant.streams.is_empty() && grant.tables.is_empty() && grant.drain.is_none() {
        return None;
    }
    let mut line = String::from("<-");
    for (flag, name) in [(grant.snapshot, " all:"), (grant.drain.is_some(), " drain")] {
        if flag {
            line.push_str(name);
        }
    }
    for granted in &grant.streams {
        let (name, token) = (&granted.stream.stream, granted.token);
        let _ = match granted.state {
            StreamState::Held { pinned: false } => write!(line, " {name}:{token}"),
            StreamState::Held { pinned: true } => write!(line, " {name}:{token}(pinned)"),
            StreamState::Revoked { renewed: true, .. } => write!(line, " -{name}:{token}"),
            StreamState::Revoked { renewed: false, .. } => write!(line, " -{name}:{token}(lapses)"),
        };
        if let Some(share) = &granted.share {
            line.push_str(&shown_share(share));
        }
    }
    for table in &grant.tables {
        line.push_str(&shown_table(table));
    }
    Some(line)
}

fn shown_table(TableGrant { node, change }: &TableGrant) -> String {
    match change {
        TableChange::Whole { version, endpoints } => {
            format!(" @{node}:{version}[{}]", shown_endpoints(endpoints))
        }
        TableChange::Part { from, version, changed, removed } => {
            let removed: Vec<_> = removed.iter().map(|worker| format!("-{worker}")).collect();
            let changed = shown_endpoints(changed);
            format!(" @{node}:{from}..{version}[{changed}][{}]", removed.join(","))
        }
        TableChange::Ended => format!(" @{node} ended"),
    }
}

fn shown_share(share: &Share) -> String {
    let mut text = format!("={}", share.load);
    for route in &share.next {
        let _ = write!(text, ">{}", route.node);
        if let Some(endpoints) = &route.endpoints {
            let _ = write!(text, "[{}]", shown_endpoints(endpoints));
        }
    }
    text
}

fn shown_endpoints(endpoints: &[Endpoint]) -> String {
    let ends = endpoints.iter().map(|end| {
        let draining = if end.draining { " drains" } else { "" };
        let address = end.address.as_ref().map_or("?", |address| address.as_str());
        format!("{address}={}{draining}", end.load)
    });
    ends.collect::<Vec<_>>().join(",")
}

/// A pipeline as people see it.
pub(crate) fn pipeline(view: &PipelineView) -> String {
    let mut text = format!("{} load={} {}", view.name, view.load, view.phase);
    if !view.reason.is_empty() {
        let _ = write!(text, ": {}", view.reason);
    }
    for (class, workers) in &view.waits {
        let _ = write!(text, " waits={class}:{workers}");
    }
    for binding in &view.bindings {
        let _ = write!(text, "\n  {} {} {}", binding.node, binding.class, binding.phase);
        for share in &binding.shares {
            let token = share.token.map_or("none".into(), |token| token.to_string());
            let _ = write!(text, " {}:{}={}@{token}", share.index, share.worker, share.load);
            for (flag, name) in [(share.applied, "applied"), (share.draining, "draining")] {
                if flag {
                    let _ = write!(text, ",{name}");
                }
            }
        }
    }
    text
}

/// A class in figures.
pub(crate) fn class(view: &ClassView) -> String {
    format!(
        "class {} capacity={} request={} placed={} workers={} needed={} wanted={} waiting={}",
        view.name,
        view.capacity,
        view.request,
        view.placed,
        view.workers,
        view.workers_needed,
        view.workers_wanted,
        view.waiting
    )
}
