//! Messages as they go over the wire: real protos in bytes, mapped by the one module that may.

use leasehold_proto::coordinator::v1::{OpenSessionRequest, OpenSessionResponse};
use leasehold_types::message::{AgentMessage, CoordinatorMessage};
use prost::Message;

/// An agent's message in bytes.
pub(crate) fn encode_up(message: &AgentMessage) -> Vec<u8> {
    OpenSessionRequest::from(message.clone()).encode_to_vec()
}

/// A coordinator's message in bytes.
pub(crate) fn encode_down(message: &CoordinatorMessage) -> Vec<u8> {
    OpenSessionResponse::from(message.clone()).encode_to_vec()
}

/// # Panics
/// If a core wrote a message that the mapping refuses, which is a bug of the core.
pub(crate) fn decode_up(bytes: &[u8]) -> AgentMessage {
    let wire = OpenSessionRequest::decode(bytes).expect("bytes that prost has written");
    wire.try_into().unwrap_or_else(|error| panic!("an agent sent an invalid message: {error}"))
}

/// # Panics
/// See [`decode_up`].
pub(crate) fn decode_down(bytes: &[u8]) -> CoordinatorMessage {
    let wire = OpenSessionResponse::decode(bytes).expect("bytes that prost has written");
    wire.try_into().unwrap_or_else(|error| panic!("a coordinator sent an invalid message: {error}"))
}
