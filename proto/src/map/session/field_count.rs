//! Looks at a message before it is decoded: a list of empty entries takes two bytes of the message
//! for each and a hundred of memory once it is decoded.

use leasehold_types::limits::STREAMS_PER_WORKER_MAX;
use prost::bytes::Buf;
use prost::decode_length_delimiter;

use super::super::Invalid;

/// Fields of a report or a beat: its streams, and the others.
const FIELDS_MAX: usize = STREAMS_PER_WORKER_MAX + 100;

/// Refuses an `OpenSessionRequest` whose message has more fields than any valid one. What cannot be
/// read passes: the decoder says what is wrong with it.
///
/// # Errors
/// [`Invalid`] if it has more.
pub fn check_field_count(request: &[u8]) -> Result<(), Invalid> {
    let mut fields = 0;
    let mut rest = request;
    while let Some((content, after)) = next_field(rest) {
        fields += 1 + count(content);
        if fields > FIELDS_MAX {
            let why = format!("has more than {FIELDS_MAX} fields: report fewer streams");
            return Err(Invalid::new("message", why));
        }
        rest = after;
    }
    Ok(())
}

/// The fields of a message, and not those of its fields; at most one more than any valid one has.
fn count(mut message: &[u8]) -> usize {
    let mut fields = 0;
    while fields <= FIELDS_MAX
        && let Some((_, after)) = next_field(message)
    {
        fields += 1;
        message = after;
    }
    fields
}

/// The bytes of the first field, if it has a length, and what follows it. `None` at the end of the
/// message, and where it is not well formed.
fn next_field(mut message: &[u8]) -> Option<(&[u8], &[u8])> {
    // A key is written as a length is.
    let key = decode_length_delimiter(&mut message).ok()?;
    let length = match key & 7 {
        // A number of as many bytes as it needs.
        0 => {
            decode_length_delimiter(&mut message).ok()?;
            0
        }
        1 => 8,
        2 => decode_length_delimiter(&mut message).ok()?,
        5 => 4,
        _ => return None,
    };
    let content = message.get(..length)?;
    message.advance(length);
    Some((content, message))
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::coordinator::v1::open_session_request::Message;
    use crate::coordinator::v1::{Beat, HeldStream, OpenSessionRequest, Release, Report};

    fn encoded(message: Message) -> Vec<u8> {
        OpenSessionRequest { message: Some(message) }.encode_to_vec()
    }

    #[test]
    fn as_many_streams_as_a_worker_may_own_are_allowed_and_not_more() {
        let held = |count| vec![HeldStream::default(); count];
        let report = |count| {
            let streams = held(count);
            encoded(Message::Report(Report {
                epoch: 1,
                running: Some(3),
                streams,
                ..Report::default()
            }))
        };
        assert_eq!(check_field_count(&report(STREAMS_PER_WORKER_MAX)), Ok(()));
        let error = check_field_count(&report(FIELDS_MAX)).expect_err("too many");
        assert_eq!(error.to_string(), "message: has more than 20100 fields: report fewer streams");
        let released = vec![Release::default(); FIELDS_MAX];
        let beat = encoded(Message::Beat(Beat { released, ..Beat::default() }));
        assert!(check_field_count(&beat).is_err());
    }

    #[test]
    fn the_fields_of_a_message_that_is_repeated_count_together() {
        let part = encoded(Message::Report(Report {
            streams: vec![HeldStream::default(); FIELDS_MAX / 2],
            ..Report::default()
        }));
        assert_eq!(check_field_count(&part), Ok(()));
        assert!(check_field_count(&part.repeat(3)).is_err());
    }

    #[test]
    fn what_is_not_well_formed_is_left_to_the_decoder() {
        for bytes in [&[][..], &[0xff], &[0x12, 0x7f, 1], &[0x0b], &[0x80; 11]] {
            assert_eq!(check_field_count(bytes), Ok(()), "{bytes:?}");
        }
    }
}
