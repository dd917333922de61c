//! A lease is renewed by the answer to any beat of the last time to live, however many beats the
//! agent has sent since.

use std::time::Duration;

use leasehold_agent_core::{Config, Effect, Holder, Journal, JournalError, Memory, Record};
use leasehold_types::message::{
    AgentMessage, CoordinatorMessage, Grant, PoolGrant, StreamGrant, StreamState, Terms, Welcome,
};
use leasehold_types::{
    ClusterName, Epoch, GrantNumber, Incarnation, LinkNumber, Moment, Nonce, SetName, StreamKey,
    StreamName, Token, WorkerName,
};

const LINK: LinkNumber = LinkNumber(1);
const EPOCH: Epoch = Epoch(1);
const STREAMS: u64 = 3_000;
const TTL: Duration = Duration::from_secs(10);

struct Kept;

impl Journal for Kept {
    fn append(&mut self, _: &Record) -> Result<(), JournalError> {
        Ok(())
    }
}

#[test]
fn a_lease_is_renewed_while_many_streams_are_given_back() {
    let mut now = Moment(1_000_000_000_000);
    let mut holder = connected(now);
    let nonce = sent(&mut holder).expect("a report");
    holder.handle_message(LINK, granted(1, nonce, true, held), now);
    let nonce = sent(&mut holder).expect("a beat that says what was taken");
    assert_eq!(holder.lease(now).streams.len() as u64, STREAMS, "the worker sees them");
    holder.handle_message(LINK, granted(2, nonce, false, revoked), now);
    sent(&mut holder);

    // They are given back one in a millisecond. The answer to the beat of the 1,000th comes at the end.
    let mut answered = None;
    for number in 0..STREAMS {
        now = now + Duration::from_millis(1);
        holder.handle_wake(now);
        holder.release_stream(&key(number), token(number), now).expect("it is held");
        let beat = sent(&mut holder).expect("a beat for each");
        answered = answered.or((number == 1_000).then_some((beat, now)));
    }
    let (nonce, at) = answered.expect("the 1,000th");
    holder.handle_message(LINK, granted(3, nonce, false, |_| None), now);

    let until = holder.lease(now).pool.until.expect("an end");
    assert!(until <= at + TTL, "no longer than counted from when the beat was sent");
    assert!(until + TTL / 100 >= at + TTL, "ends {:?} too early", (at + TTL).since(until));
}

#[test]
fn an_answer_to_a_beat_that_was_never_sent_renews_nothing() {
    let now = Moment(1_000_000_000_000);
    let mut holder = connected(now);
    let nonce = sent(&mut holder).expect("a report");
    holder.handle_message(LINK, granted(1, nonce, true, |_| None), now);
    let before = holder.lease(now).pool.until;
    assert_eq!(before, Some(now + TTL));
    let later = now + Duration::from_secs(1);
    holder.handle_wake(later);
    holder.handle_message(LINK, granted(2, Nonce(nonce.0 + 1_000), false, |_| None), later);
    assert_eq!(holder.lease(later).pool.until, before);
}

/// A holder that has reported.
fn connected(now: Moment) -> Holder<Kept> {
    let config = Config {
        cluster: ClusterName::new("c").expect("a cluster"),
        worker: WorkerName::new("w").expect("a worker"),
        incarnation: Incarnation(1),
        generation: 0,
        stops_worker: true,
        address: None,
        shows_bindings: true,
        drain_deadline: None,
        stays: false,
        raise: 1,
    };
    let mut holder = Holder::new(config, Memory::default(), Kept, now);
    holder.handle_open(LINK, now);
    let welcome = Welcome { epoch: EPOCH, terms: terms() };
    holder.handle_message(LINK, CoordinatorMessage::Welcome(welcome), now);
    holder
}

/// The nonce of the newest report or beat that the holder wants sent.
fn sent(holder: &mut Holder<Kept>) -> Option<Nonce> {
    let mut newest = None;
    while let Some(effect) = holder.poll_effect() {
        match effect {
            Effect::Send(LINK, AgentMessage::Report(report)) => newest = Some(report.nonce),
            Effect::Send(LINK, AgentMessage::Beat(beat)) => newest = Some(beat.nonce),
            _ => {}
        }
    }
    newest
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
        epoch: EPOCH,
        number: GrantNumber(number),
        nonce,
        terms: terms(),
        snapshot,
        pool: snapshot.then_some(PoolGrant { token: token(STREAMS), size: 1, floor: 0 }),
        streams: (0..STREAMS).filter_map(stream).collect(),
        drain: false,
        fresh: false,
    })
}

fn held(_: u64) -> Option<StreamState> {
    Some(StreamState::Held { pinned: false })
}

fn revoked(_: u64) -> Option<StreamState> {
    Some(StreamState::Revoked { deadline: Duration::from_secs(60), renewed: true })
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
        reserve: Duration::from_millis(10_600),
        drain_deadline: Duration::from_secs(3_600),
    }
}
