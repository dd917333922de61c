//! Describes steps and what they change.

use leasehold_types::message::{
    AgentMessage, CoordinatorMessage, Grant, HeldPool, Jobs, RefusalReason, StreamState,
};

use crate::action::{Action, Part};
use crate::clock::Rate;
use crate::scope::NODES;
use crate::state::{Item, Link, Request, RequestKind, State};
use crate::world::World;

/// How the clocks run.
pub(crate) fn clocks(state: &State) -> String {
    let named = |name: char, rates: [Rate; NODES]| {
        let each = rates.iter().enumerate();
        let each =
            each.map(|(at, rate)| format!("{name}{at} {}", format!("{rate:?}").to_lowercase()));
        each.collect::<Vec<_>>().join(", ")
    };
    format!("clocks: {}, {}", named('c', state.rates[0]), named('a', state.rates[1]))
}

/// One step.
pub(crate) fn describe(world: &World, state: &State, action: Action) -> String {
    let at = usize::from;
    let time = format!("{:>6.2} s  ", state.t as f64 / 1_000.0);
    let text = match action {
        Action::BootReplica(replica) => format!("c{replica} starts"),
        Action::BootPod(pod) => format!("a{pod} starts"),
        Action::Read(replica) => format!("c{replica} reads the edited manifests"),
        Action::Elect(replica) => format!("c{replica} takes the leadership, which is vacant"),
        Action::Dial(pod, replica) => format!("a{pod} opens a link to c{replica}"),
        Action::ToPod(link) => {
            let link = &state.links[at(link)];
            let old = if link.agent_open { "" } else { " (on a link that it has left)" };
            format!("a{} <- c{}{old}: {}", link.pod, link.replica, down(world, link, 0))
        }
        Action::ToReplica(link) => {
            let link = &state.links[at(link)];
            format!("c{} <- a{}: {}", link.replica, link.pod, up(world, link, 0))
        }
        Action::Arrive(link) => {
            let link = &state.links[at(link)];
            let waiting = link.up.iter().filter(|upward| upward.arrived.is_some()).count();
            format!("c{} <- a{}, and waits: {}", link.replica, link.pod, up(world, link, waiting))
        }
        Action::FlowUp(link) => {
            let link = &state.links[at(link)];
            format!("what a{} sent to c{} continues", link.pod, link.replica)
        }
        Action::FlowDown(link) => {
            let link = &state.links[at(link)];
            format!("what c{} sent to a{} continues", link.replica, link.pod)
        }
        Action::EndTurn(replica) => format!("c{replica}'s long turn ends"),
        Action::Terms(replica, part) => {
            format!("c{replica} {}", request(state.replicas[at(replica)].terms.first(), part))
        }
        Action::Register(replica, part) => {
            format!("c{replica} {}", request(state.replicas[at(replica)].register.first(), part))
        }
        Action::Renew(replica) => format!("c{replica} asks for its term's renewal"),
        Action::Gone(replica, pod) => format!("c{replica} learns that w{pod} is gone"),
        Action::WakeReplica(replica) => format!("c{replica} wakes"),
        Action::WakePod(pod) => format!("a{pod} wakes"),
        Action::Introduce(pod) => format!("w{pod} reports to a{pod} which jobs run"),
        Action::BeginJob(pod) => format!("w{pod} asks a{pod} for a job"),
        Action::StopUse(pod) => format!("w{pod} releases what it was asked for"),
        Action::Advance => {
            let to = world.next_moment(state).unwrap_or(state.t);
            format!("time advances to {:.2} s", to as f64 / 1_000.0)
        }
        Action::ResumePod(pod) => format!("a{pod} continues"),
        Action::ResumeReplica(replica) => format!("c{replica} continues"),
        Action::EndJob(pod) => format!("a job of w{pod} ends"),
        Action::Edit => "the manifests are edited".into(),
        _ => format!("FAULT: {}", fault(world, state, action)),
    };
    format!("{time}{text}")
}

fn fault(world: &World, state: &State, action: Action) -> String {
    let link = |at: u8| &state.links[usize::from(at)];
    let upward = |at: u8| format!("a{} to c{}", link(at).pod, link(at).replica);
    let downward = |at: u8| format!("c{} to a{}", link(at).replica, link(at).pod);
    match action {
        Action::SlowUp(at) => format!("what goes from {} stays on its way", upward(at)),
        Action::SlowDown(at) => {
            format!("what goes from {} stays on its way", downward(at))
        }
        Action::SlowStore(at) => format!("the store takes its time with c{at} from now on"),
        Action::SlowWorker(at) => format!("w{at} takes its time from now on"),
        Action::PausePod(at) => format!("a{at} is stopped"),
        Action::PauseReplica(at) => format!("c{at} is stopped"),
        Action::LongTurn(at) => format!("c{at} begins a long turn"),
        Action::LoseUp(at) => format!("from {} is lost: {}", upward(at), up(world, link(at), 0)),
        Action::LoseDown(at) => {
            format!("from {} is lost: {}", downward(at), down(world, link(at), 0))
        }
        Action::DoubleUp(at) => {
            format!("from {} comes twice: {}", upward(at), up(world, link(at), 0))
        }
        Action::DoubleDown(at) => {
            format!("from {} comes twice: {}", downward(at), down(world, link(at), 0))
        }
        Action::SwapUp(at) => {
            format!("from {} overtakes: {}", upward(at), up(world, link(at), 1))
        }
        Action::SwapDown(at) => {
            format!("from {} overtakes: {}", downward(at), down(world, link(at), 1))
        }
        Action::Break(at) => format!("the link from {} breaks", upward(at)),
        Action::CrashPod(at) => format!("a{at} dies, its journal is kept"),
        Action::LosePod(at) => format!("a{at} dies, and its journal is lost"),
        Action::CrashReplica(at) => format!("c{at} dies"),
        Action::TakeOver(at) => format!("c{at} takes the leadership from one that lives"),
        Action::Drain(at) => format!("w{at} is asked to drain"),
        Action::Kill(at) => format!("the whole pod of w{at} dies"),
        Action::FullDisk(at) => format!("the disk of a{at} is full"),
        _ => format!("{action:?}"),
    }
}

/// What a step changed that no message shows.
pub(crate) fn changes(world: &World, before: &State, after: &State) -> Vec<String> {
    let mut all = Vec::new();
    for replica in 0..NODES {
        let leads = |state| world.core(state, replica).and_then(|core| core.facts.leads);
        if leads(before) != leads(after) {
            all.push(match leads(after) {
                Some(epoch) => format!("           c{replica} leads epoch {epoch}"),
                None => format!("           c{replica} no longer leads"),
            });
        }
    }
    for pod in 0..NODES {
        let shown = |state: &State| {
            let pod = &world.pod(state, pod).pod;
            let streams: Vec<_> = pod
                .streams
                .iter()
                .map(|(stream, used)| format!("{} {}", stream.stream, used.token))
                .collect();
            let pool = pod.memory.pool.map(|(token, size, _)| format!("pool {size} ({token})"));
            (streams.join(", "), pool.unwrap_or_default(), pod.jobs.len())
        };
        let now = shown(after);
        if shown(before) != now {
            let (streams, pool, jobs) = now;
            let mut parts = Vec::new();
            parts.extend((!pool.is_empty()).then_some(pool));
            parts.extend((jobs > 0).then(|| format!("runs {jobs}")));
            parts.extend((!streams.is_empty()).then(|| format!("uses {streams}")));
            let text = if parts.is_empty() { "nothing".into() } else { parts.join("; ") };
            all.push(format!("           w{pod}: {text}"));
        }
    }
    all
}

fn request(request: Option<&Request>, part: Part) -> String {
    let Some(request) = request else { return "waits for nothing".into() };
    let what = match &request.what {
        RequestKind::List(_) => "the list of who may hold what",
        RequestKind::Renew(_) => "the renewal of its term",
        RequestKind::Release => "the end of its term",
        RequestKind::Write(_) => "the registration of what workers may hold",
        RequestKind::Unregister(_) => "the end of a registration",
    };
    match part {
        Part::Whole => format!("asks the store for {what}, and is answered"),
        Part::Carry => format!("reaches the store with {what}"),
        Part::Answer => format!("is answered: {what}"),
    }
}

fn up(world: &World, link: &Link, at: usize) -> String {
    match link.up.get(at).map(|upward| &upward.item) {
        Some(Item::Message(number)) => said(&world.ups.get(*number).message),
        Some(Item::Close) => "the link has ended".into(),
        None => String::new(),
    }
}

fn down(world: &World, link: &Link, at: usize) -> String {
    match link.down.get(at) {
        Some(Item::Message(number)) => told(world.downs.get(*number)),
        Some(Item::Close) => "the link has ended".into(),
        None => String::new(),
    }
}

fn said(message: &AgentMessage) -> String {
    let size = |pool: &Option<HeldPool>| {
        pool.map(|pool| format!(", pool {} ({})", pool.size, pool.token)).unwrap_or_default()
    };
    let running = |jobs: &Jobs| match jobs {
        Jobs::Running(0) => String::new(),
        Jobs::Running(running) => format!(", runs {running}"),
        Jobs::Unknown => ", does not know its jobs".into(),
    };
    match message {
        AgentMessage::Hello(hello) => {
            let epoch = match hello.epoch_seen {
                Some(epoch) => format!("remembers epoch {epoch}"),
                None => "remembers no epoch".into(),
            };
            format!("hello {} of incarnation {}, {epoch}", hello.link, hello.incarnation)
        }
        AgentMessage::Report(report) => {
            let streams: Vec<_> = report
                .streams
                .iter()
                .map(|held| format!(", holds {} {}", held.stream.stream, held.token))
                .collect();
            let memory = match (report.memory.knows_from.0, report.memory.aged) {
                (0, _) => "with a whole memory",
                (_, true) => "with an old memory",
                (_, false) => "without a memory",
            };
            format!(
                "report {} {memory}{}{}{}, {}",
                report.nonce,
                size(&report.pool),
                running(&report.jobs),
                streams.concat(),
                report.drain
            )
        }
        AgentMessage::Beat(beat) => {
            let released: Vec<_> = beat
                .released
                .iter()
                .map(|release| format!(", gives {} {} back", release.stream.stream, release.token))
                .collect();
            format!(
                "beat {}, applied {}{}{}{}, {}",
                beat.nonce,
                beat.applied,
                size(&beat.pool),
                running(&beat.jobs),
                released.concat(),
                beat.drain
            )
        }
    }
}

fn told(message: &CoordinatorMessage) -> String {
    match message {
        CoordinatorMessage::Welcome(welcome) => format!("welcome to epoch {}", welcome.epoch),
        CoordinatorMessage::Refusal(refusal) => {
            let why = match refusal.reason {
                RefusalReason::NewerIncarnation(_) => "newer incarnation".into(),
                ref reason => format!("{reason:?}"),
            };
            format!("refusal ({why})")
        }
        CoordinatorMessage::Grant(grant) => granted(grant),
    }
}

fn granted(grant: &Grant) -> String {
    let kind = if grant.snapshot { "snapshot" } else { "grant" };
    let pool = grant.pool.map(|pool| format!(", pool {} ({})", pool.size, pool.token));
    let streams: Vec<_> = grant
        .streams
        .iter()
        .map(|lease| {
            let (name, token) = (&lease.stream.stream, lease.token);
            match lease.state {
                StreamState::Held { .. } => format!(", {name} {token} is its own"),
                StreamState::Revoked { renewed: true, .. } => {
                    format!(", {name} {token} is revoked")
                }
                StreamState::Revoked { renewed: false, .. } => {
                    format!(", {name} {token} is no longer renewed")
                }
            }
        })
        .collect();
    let drain = if grant.drain.is_some() { ", it is to drain" } else { "" };
    format!(
        "{kind} {}.{} answers {}{}{}{drain}",
        grant.epoch,
        grant.number,
        grant.nonce,
        pool.unwrap_or_default(),
        streams.concat()
    )
}
