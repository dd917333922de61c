//! The coordinator of another cell that an agent has found. It informs people, beside what the
//! cores exchange.

use leasehold_types::is_host_and_port;
use leasehold_types::message::OtherCell;

use crate::coordinator::v1 as wire;
use crate::coordinator::v1::open_session_request::Message;

/// Adds it to a beat; no other message has it.
pub fn attach_other_cell(request: &mut wire::OpenSessionRequest, other: OtherCell) {
    if let Some(Message::Beat(beat)) = &mut request.message {
        let OtherCell { cell, coordinator } = other;
        beat.other_cell = Some(wire::OtherCell { cell: cell.to_string(), coordinator });
    }
}

/// Takes it out of a message; `None` if the message names none, or if it cannot be read: a later
/// release may write it in another way, which is no reason to refuse its agent.
pub fn take_other_cell(request: &mut wire::OpenSessionRequest) -> Option<OtherCell> {
    let Some(Message::Beat(beat)) = &mut request.message else { return None };
    let wire::OtherCell { cell, coordinator } = beat.other_cell.take()?;
    let cell = cell.parse().ok()?;
    is_host_and_port(&coordinator).then_some(OtherCell { cell, coordinator })
}

#[cfg(test)]
mod tests {
    use leasehold_types::CellId;

    use super::*;

    #[test]
    fn a_beat_carries_it_and_a_false_one_is_dropped() {
        let beat =
            || wire::OpenSessionRequest { message: Some(Message::Beat(wire::Beat::default())) };
        let other = OtherCell { cell: CellId(7), coordinator: "host:7400".into() };
        let mut request = beat();
        attach_other_cell(&mut request, other.clone());
        assert_eq!(take_other_cell(&mut request), Some(other.clone()));
        assert_eq!(take_other_cell(&mut request), None, "it was taken");
        attach_other_cell(&mut request, OtherCell { coordinator: "host".into(), ..other });
        assert_eq!(take_other_cell(&mut request), None, "no address");
    }
}
