//! The coordinator of another cell that an agent has found. It informs people, beside what the
//! cores exchange.

use leasehold_types::message::OtherCell;
use leasehold_types::{CellId, is_host_and_port};

use crate::coordinator::v1 as wire;
use crate::coordinator::v1::open_session_request::Message;
use crate::map::Invalid;

/// Adds it to a beat; no other message has it.
pub fn attach_other_cell(request: &mut wire::OpenSessionRequest, other: OtherCell) {
    if let Some(Message::Beat(beat)) = &mut request.message {
        let OtherCell { cell, coordinator } = other;
        beat.other_cell = Some(wire::OtherCell { cell: cell.to_string(), coordinator });
    }
}

/// Takes it out of a message; `None` if it names none.
///
/// # Errors
/// If it is not one.
pub fn take_other_cell(
    request: &mut wire::OpenSessionRequest,
) -> Result<Option<OtherCell>, Invalid> {
    let Some(Message::Beat(beat)) = &mut request.message else { return Ok(None) };
    let Some(wire::OtherCell { cell, coordinator }) = beat.other_cell.take() else {
        return Ok(None);
    };
    let cell: CellId = cell.parse().map_err(|error| Invalid::new("other_cell.cell", error))?;
    if !is_host_and_port(&coordinator) {
        return Err(Invalid::new("other_cell.coordinator", "is not HOST:PORT"));
    }
    Ok(Some(OtherCell { cell, coordinator }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_carries_it_and_a_false_one_is_refused() {
        let beat =
            || wire::OpenSessionRequest { message: Some(Message::Beat(wire::Beat::default())) };
        let other = OtherCell { cell: CellId(7), coordinator: "host:7400".into() };
        let mut request = beat();
        attach_other_cell(&mut request, other.clone());
        assert_eq!(take_other_cell(&mut request), Ok(Some(other.clone())));
        assert_eq!(take_other_cell(&mut request), Ok(None), "it was taken");
        attach_other_cell(&mut request, OtherCell { coordinator: "host".into(), ..other });
        take_other_cell(&mut request).unwrap_err();
    }
}
