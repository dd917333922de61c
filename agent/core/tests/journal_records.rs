//! The journal is rewritten with the fewest records: an agent that starts from these claims and
//! reports what it would from all of them.

use leasehold_agent_core::{LeaseKinds, Memory, Record};
use leasehold_types::{
    CellId, Epoch, Incarnation, JobId, Moment, NodeName, SetName, StartId, StreamKey, StreamName,
    TermId, Token,
};

fn memory(records: &[Record]) -> Memory {
    let mut memory = Memory::default();
    records.iter().for_each(|record| memory.apply(record));
    memory
}

fn stream(name: &str) -> StreamKey {
    let set = SetName::new("s").expect("a set");
    StreamKey { set, stream: StreamName::new(name).expect("a stream") }
}

fn token(text: &str) -> Token {
    text.parse().expect("a token")
}

fn held(name: &str, at: &str, pinned: bool) -> Record {
    let next: Vec<NodeName> = Vec::new();
    Record::Stream { stream: stream(name), token: token(at), pinned, load: None, next }
}

/// What an agent may have written, the newest last.
fn all() -> Vec<Record> {
    let job = |name: &str| JobId::new(name).expect("a job");
    vec![
        Record::Begun { incarnation: Incarnation(1), begun: Moment(5), first: Incarnation(1) },
        Record::Fresh,
        Record::Epoch { epoch: Epoch(3), term: TermId(7), cell: Some(CellId(9)) },
        Record::WorkerStarted { start: StartId::new("s1").expect("a start"), running: 2 },
        Record::Shown { kinds: LeaseKinds::ALL },
        Record::Pool { token: token("3.1"), size: 4, floor: 1 },
        held("a", "3.2", false),
        held("b", "3.3", true),
        // The end of an earlier lease says nothing of the present one.
        Record::StreamEnded { stream: stream("a"), token: token("3.1") },
        Record::Renewed { until: Moment(90) },
        Record::Lapsing { stream: stream("a"), until: Moment(70) },
        Record::JobBegan { job: job("j1"), token: None },
        Record::JobBegan { job: job("j2"), token: Some(Token { epoch: Epoch(1), seq: 2 }) },
        Record::JobEnded { job: job("j1") },
        Record::Unnamed { running: 1 },
        Record::Draining,
        Record::DrainOrdered,
        Record::Left,
        Record::DrainEnded,
    ]
}

#[test]
fn the_fewest_records_say_the_same_at_every_moment() {
    let records = all();
    for written in 0..=records.len() {
        let memory = memory(&records[..written]);
        assert_eq!(self::memory(&memory.records()), memory, "after {written} records");
    }
}

/// A person assigns the agent to a cell: it stays there after a restart, welcomed or not. It leaves
/// a cell only if its worker holds nothing of it.
#[test]
fn an_assigned_agent_remembers_its_cell_and_moves_only_when_it_holds_nothing() {
    let (cell, other, now) = (CellId(9), CellId(8), Moment(50));
    let fresh = memory(&all()[..2]).assign(other, now).expect("it belongs to none");
    assert_eq!(memory(&fresh.records()), fresh);
    assert_eq!((fresh.cell, fresh.epoch), (Some(other), None));

    let holds = memory(&all());
    assert_eq!(holds.clone().assign(cell, now), Ok(holds.clone()), "it is there already");
    let why = holds.assign(other, now).expect_err("it holds leases of its cell");
    assert_eq!((why.other, why.streams, why.jobs), (cell, 2, Some(2)));
    let mut idle = memory(&all()[..3]);
    idle.renewed_until = Moment(40);
    let moved = idle.assign(other, now).expect("it holds nothing");
    assert_eq!((moved.cell, moved.epoch, moved.renewed_until), (Some(other), None, Moment(0)));
    assert_eq!(memory(&moved.records()), moved);
}

#[test]
fn a_journal_that_was_begun_again_stays_incomplete() {
    let mut records = all();
    let begun = |incarnation: u64| Record::Begun {
        incarnation: Incarnation(incarnation),
        begun: Moment(50),
        first: Incarnation(incarnation),
    };
    records.push(begun(9));
    let memory = memory(&records);
    assert!(!memory.complete);
    assert!(!self::memory(&memory.records()).complete);
}

#[test]
fn the_end_of_a_lease_ends_no_later_one_and_a_count_names_no_job() {
    let mut records = all();
    records.push(Record::StreamEnded { stream: stream("b"), token: token("3.3") });
    records.push(Record::Count { running: 2, in_effect: 4 });
    let memory = memory(&records);
    assert_eq!(memory.streams.keys().collect::<Vec<_>>(), [&stream("a")]);
    assert_eq!((memory.count, memory.unnamed), (Some((2, 4)), 0));
    assert_eq!(self::memory(&memory.records()), memory);
}

#[test]
fn the_end_of_a_lapsing_lease_holds_for_its_token_alone() {
    let mut records = all();
    let lapses = |records: &[Record]| memory(records).streams[&stream("a")].lapses;
    records.push(held("a", "3.2", false));
    assert_eq!(lapses(&records), Some(Moment(70)), "a change of the same lease");
    records.push(held("a", "3.9", false));
    assert_eq!(lapses(&records), None, "a new lease");
}

#[test]
fn a_reboot_ends_what_ran_and_makes_no_journal_complete() {
    let mut records = all();
    let booted = memory(&records).after_boot();
    assert!(booted.complete && booted.jobs_known);
    assert!(booted.streams.is_empty() && booted.pool.is_none() && booted.jobs.is_empty());
    let begun =
        Record::Begun { incarnation: Incarnation(9), begun: Moment(50), first: Incarnation(9) };
    records.push(begun);
    assert!(!memory(&records).after_boot().complete);
}
