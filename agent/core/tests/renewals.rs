//! Beats and renewals: an answer to any beat of the last lease time renews the leases, the release
//! of many streams costs few beats, and leases that are only added are acknowledged later.

use std::time::Duration;

use leasehold_agent_core::{Config, Effect, Holder, Journal, JournalError, Memory, Record};
use leasehold_types::message::{
    AgentMessage, Beat, CoordinatorMessage, Grant, PoolGrant, StreamGrant, StreamState, Terms,
    Welcome,
};
use leasehold_types::{
    ClusterName, Epoch, GrantNumber, LinkNumber, Moment, Nonce, SetName, StreamKey, StreamName,
    TermId, Token, WorkerKey, WorkerName,
};

const LINK: LinkNumber = LinkNumber(1);
const EPOCH: Epoch = Epoch(1);
const STREAMS: u64 = 400;
const TTL: Duration = Duration::from_secs(60);

struct Kept;

impl Journal for Kept {
    fn append(&mut self, _: &Record) -> Result<(), JournalError> {
        Ok(())
    }
}

#[test]
fn an_answer_to_an_old_beat_renews_the_lease_from_when_it_was_sent() {
    let mut now = Moment(1_000_000_000_000);
    let mut holder = with_revoked_streams(now);
    let mut answered = None;
    for number in 0..STREAMS {
        now = now + Duration::from_millis(100);
        release(&mut holder, number, now);
        let SentMessages { nonce, .. } = sent_messages(&mut holder).expect("a beat for each");
        answered = answered.or((number == 20).then_some((nonce, now)));
    }
    let (nonce, at) = answered.expect("the beat that is answered late");
    holder.handle_message(LINK, granted(3, nonce, false, |_| None), now);

    let until = holder.lease(now).pool.until.expect("an end");
    assert!(until <= at + TTL, "the lease counts from when the beat was sent");
    assert!(until + TTL / 100 >= at + TTL, "ends {:?} too early", (at + TTL).since(until));
}

#[test]
fn releasing_many_streams_one_by_one_costs_few_beats() {
    let mut now = Moment(1_000_000_000_000);
    let mut holder = with_revoked_streams(now);
    let (mut beats, mut released) = (0, 0);
    for number in 0..STREAMS {
        now = now + Duration::from_millis(1);
        release(&mut holder, number, now);
        if let Some(sent) = sent_messages(&mut holder) {
            (beats, released) = (beats + 1, released + sent.released);
        }
    }
    assert!(beats <= STREAMS / 100 + 1, "{beats} beats");
    // The rest waits for the next beat.
    now = now + Duration::from_millis(100);
    holder.handle_wake(now);
    released += sent_messages(&mut holder).map_or(0, |sent| sent.released);
    assert_eq!(released, STREAMS);
}

#[test]
fn an_answer_to_a_beat_that_was_not_sent_renews_nothing() {
    let now = Moment(1_000_000_000_000);
    let mut holder = connected(now);
    let SentMessages { nonce, .. } = sent_messages(&mut holder).expect("a report");
    holder.handle_message(LINK, granted(1, nonce, true, |_| None), now);
    let before = holder.lease(now).pool.until;
    assert_eq!(before, Some(now + TTL));
    let later = now + Duration::from_secs(1);
    holder.handle_wake(later);
    holder.handle_message(LINK, granted(2, Nonce(nonce.0 + 1_000), false, |_| None), later);
    assert_eq!(holder.lease(later).pool.until, before);
}

#[test]
fn added_leases_are_acknowledged_within_a_quarter_of_a_second() {
    let now = Moment(1_000_000_000_000);
    let mut holder = connected(now);
    let SentMessages { nonce, .. } = sent_messages(&mut holder).expect("a report");
    holder.handle_message(LINK, granted(1, nonce, true, held), now);
    assert!(sent_messages(&mut holder).is_none(), "no other worker waits for it");
    holder.handle_wake(now + Duration::from_millis(249));
    assert!(sent_messages(&mut holder).is_none(), "nobody waits for it");
    let waited = Duration::from_millis(250);
    holder.handle_wake(now + waited);
    let beat = sent_messages(&mut holder).and_then(|sent| sent.beat).expect("a beat");
    assert_eq!((beat.applied, beat.changed_ago), (GrantNumber(1), waited));
}

#[test]
fn a_smaller_pool_is_acknowledged_at_once() {
    let now = Moment(1_000_000_000_000);
    let mut holder = connected(now);
    let SentMessages { nonce, .. } = sent_messages(&mut holder).expect("a report");
    for (number, size, at_once) in [(1, 2, false), (2, 3, false), (3, 2, true)] {
        let pool = PoolGrant { token: token(number), size, floor: 0 };
        let grant = Grant {
            snapshot: number == 1,
            pool: Some(pool),
            ..Grant::renewal(EPOCH, GrantNumber(number), nonce, terms())
        };
        holder.handle_message(LINK, CoordinatorMessage::Grant(grant), now);
        let applied = sent_messages(&mut holder).and_then(|sent| sent.beat);
        let applied = applied.map(|beat| beat.applied);
        assert_eq!(applied, at_once.then_some(GrantNumber(number)), "a pool of {size}");
    }
}

/// A holder that has reported.
fn connected(now: Moment) -> Holder<Kept> {
    let worker = WorkerKey {
        cluster: ClusterName::new("c").expect("a cluster"),
        worker: WorkerName::new("w").expect("a worker"),
    };
    let config = Config { exposes_bindings: true, ..Config::example(worker) };
    let mut holder = Holder::new(config, Memory::default(), Kept, now);
    holder.handle_open(LINK, now);
    let welcome = Welcome {
        epoch: EPOCH,
        term: TermId(0),
        cell: None,
        answers_goodbye: false,
        protocol: 1,
        terms: terms(),
    };
    holder.handle_message(LINK, CoordinatorMessage::Welcome(welcome), now);
    holder
}

/// A holder whose streams are all revoked.
fn with_revoked_streams(now: Moment) -> Holder<Kept> {
    let mut holder = connected(now);
    let SentMessages { nonce, .. } = sent_messages(&mut holder).expect("a report");
    holder.handle_message(LINK, granted(1, nonce, true, held), now);
    assert_eq!(holder.lease(now).streams.len() as u64, STREAMS, "the worker sees them");
    holder.handle_message(LINK, granted(2, nonce, false, revoked), now);
    sent_messages(&mut holder).expect("a beat after the revocation");
    holder
}

/// The worker releases a stream; due timers are processed.
fn release(holder: &mut Holder<Kept>, number: u64, now: Moment) {
    holder.release_stream(&key(number), token(number), now).expect("it is held");
    holder.handle_wake(now);
}

/// The messages that the holder sent.
struct SentMessages {
    /// The newest report or beat.
    nonce: Nonce,
    /// The newest beat.
    beat: Option<Beat>,
    /// The streams that were released.
    released: u64,
}

fn sent_messages(holder: &mut Holder<Kept>) -> Option<SentMessages> {
    let (mut newest, mut last, mut released) = (None, None, 0);
    while let Some(effect) = holder.poll_effect() {
        match effect {
            Effect::Send(LINK, AgentMessage::Report(report)) => newest = Some(report.nonce),
            Effect::Send(LINK, AgentMessage::Beat(beat)) => {
                newest = Some(beat.nonce);
                released += beat.released.len() as u64;
                last = Some(beat);
            }
            _ => {}
        }
    }
    newest.map(|nonce| SentMessages { nonce, beat: last, released })
}

fn granted(
    number: u64,
    nonce: Nonce,
    snapshot: bool,
    state: impl Fn(u64) -> Option<StreamState>,
) -> CoordinatorMessage {
    let stream = |number| {
        let state = state(number)?;
        Some(StreamGrant { stream: key(number), token: token(number), state, share: None })
    };
    CoordinatorMessage::Grant(Grant {
        snapshot,
        pool: snapshot.then_some(PoolGrant { token: token(STREAMS), size: 1, floor: 0 }),
        streams: (0..STREAMS).filter_map(stream).collect(),
        ..Grant::renewal(EPOCH, GrantNumber(number), nonce, terms())
    })
}

fn held(_: u64) -> Option<StreamState> {
    Some(StreamState::Held { pinned: false })
}

fn revoked(_: u64) -> Option<StreamState> {
    Some(StreamState::Revoked { deadline: TTL, renewed: true })
}

fn key(number: u64) -> StreamKey {
    StreamKey {
        set: SetName::new("s").expect("a set"),
        stream: StreamName::new(&format!("x{number}")).expect("a stream"),
    }
}

fn token(number: u64) -> Token {
    Token { epoch: EPOCH, seq: number + 1 }
}

fn terms() -> Terms {
    Terms {
        ttl: TTL,
        beat: Duration::from_secs(2),
        reserve: TTL * 106 / 100,
        drain_deadline: Duration::from_secs(3_600),
    }
}
