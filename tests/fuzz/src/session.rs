//! The messages between agents and coordinators, as both sides read them: the count of fields, the
//! decoder, and the conversion into domain types. The first byte of an input says which side reads
//! the rest, and how often the rest is repeated: a decoder merges what is repeated.

use leasehold_proto::coordinator::v1::{OpenSessionRequest, OpenSessionResponse};
use leasehold_proto::map::{self, Invalid};
use leasehold_types::limits::{
    ENDED_JOB_TIMES_MAX, MESSAGE_BYTES_MAX, RUNNING_JOB_TIMES_MAX, STREAMS_PER_WORKER_MAX,
};
use leasehold_types::message::{AgentMessage, CoordinatorMessage};
use prost::Message as _;

/// The most bytes that an input is repeated to.
const REPEATED_BYTES_MAX: usize = 128 * 1024;
/// The fields of a message beside its streams, at most.
const OTHER_FIELDS_MAX: usize = 100;

/// Reads an input as a message.
pub fn run(input: &[u8]) {
    let Some((first, message)) = input.split_first() else { return };
    let times = (1_usize << (first >> 4)).min(REPEATED_BYTES_MAX / message.len().max(1));
    let message = message.repeat(times.max(1));
    debug_assert!(message.len() <= MESSAGE_BYTES_MAX);
    if first & 1 == 0 { from_agent(&message) } else { from_coordinator(&message) }
}

/// As a coordinator reads it.
fn from_agent(bytes: &[u8]) {
    if let Err(why) = map::check_field_count(bytes) {
        return says_why(&why);
    }
    let Ok(mut request) = OpenSessionRequest::decode(bytes) else { return };
    let entries = entries(&request);
    assert!(entries <= STREAMS_PER_WORKER_MAX + OTHER_FIELDS_MAX, "{entries} entries were decoded");
    let times = match map::take_job_times(&mut request) {
        Ok(times) => times,
        Err(why) => return says_why(&why),
    };
    let other_cell = map::take_other_cell(&mut request);
    let process = map::take_agent_process(&mut request);
    let message = match AgentMessage::try_from(request) {
        Ok(message) => message,
        Err(why) => return says_why(&why),
    };

    let mut again = OpenSessionRequest::from(message.clone());
    if let Some(times) = &times {
        assert!(times.ended_seconds.len() <= ENDED_JOB_TIMES_MAX);
        assert!(times.running_seconds.len() <= RUNNING_JOB_TIMES_MAX);
        map::attach_job_times(&mut again, times.clone());
    }
    if let Some(other) = &other_cell {
        map::attach_other_cell(&mut again, other.clone());
    }
    if let Some(process) = &process {
        map::attach_agent_process(&mut again, process);
    }
    let bytes = again.encode_to_vec();
    map::check_field_count(&bytes).expect("a valid message has no more fields than any valid one");
    let mut again = OpenSessionRequest::decode(bytes.as_slice()).expect("it was just encoded");
    assert_eq!(map::take_job_times(&mut again), Ok(times));
    assert_eq!(map::take_other_cell(&mut again), other_cell);
    assert_eq!(map::take_agent_process(&mut again), process);
    assert_eq!(AgentMessage::try_from(again), Ok(message));
}

/// As an agent reads it.
fn from_coordinator(bytes: &[u8]) {
    let Ok(response) = OpenSessionResponse::decode(bytes) else { return };
    if let Some(ahead) = map::waits_behind(&response) {
        assert_eq!(map::waits_behind(&map::waiting(ahead)), Some(ahead));
    }
    let message = match CoordinatorMessage::try_from(response) {
        Ok(message) => message,
        Err(why) => return says_why(&why),
    };
    let bytes = OpenSessionResponse::from(message.clone()).encode_to_vec();
    let again = OpenSessionResponse::decode(bytes.as_slice()).expect("it was just encoded");
    assert_eq!(CoordinatorMessage::try_from(again), Ok(message));
}

/// The entries of the lists that a stranger can make long.
fn entries(request: &OpenSessionRequest) -> usize {
    use leasehold_proto::coordinator::v1::open_session_request::Message;
    match &request.message {
        Some(Message::Report(report)) => report.streams.len(),
        Some(Message::Beat(beat)) => beat.released.len(),
        Some(Message::Hello(_)) | None => 0,
    }
}

fn says_why(why: &Invalid) {
    let text = why.to_string();
    let (field, what) = text.split_once(": ").expect("a field, and what is wrong with it");
    assert!(!field.is_empty() && !what.is_empty(), "{text:?}");
}
