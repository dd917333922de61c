//! The process that an agent is. It informs people, beside what the cores exchange.

use leasehold_types::message::AgentProcess;

use crate::coordinator::v1 as wire;
use crate::coordinator::v1::open_session_request::Message;

/// Bytes of a host's name: as many as DNS allows.
const HOST_BYTES_MAX: usize = 253;
/// Bytes of a folder's path that is shown.
const STATE_DIR_BYTES_MAX: usize = 1_024;

/// Adds it to a hello; no other message has it.
pub fn attach_agent_process(request: &mut wire::OpenSessionRequest, process: &AgentProcess) {
    if let Some(Message::Hello(hello)) = &mut request.message {
        let AgentProcess { host, id, state_dir } = process.clone();
        let state_dir = state_dir.unwrap_or_default();
        hello.process = Some(wire::AgentProcess { host, id, state_dir });
    }
}

/// Takes it out of a message; `None` if the message has none, or one that should not be shown to
/// people: nothing depends on it, so that is no reason to refuse the agent.
pub fn take_agent_process(request: &mut wire::OpenSessionRequest) -> Option<AgentProcess> {
    let Some(Message::Hello(hello)) = &mut request.message else { return None };
    let wire::AgentProcess { host, id, state_dir } = hello.process.take()?;
    let fits = |text: &str, max: usize| text.len() <= max && !text.contains(char::is_control);
    let is_good =
        !host.is_empty() && fits(&host, HOST_BYTES_MAX) && fits(&state_dir, STATE_DIR_BYTES_MAX);
    let state_dir = Some(state_dir).filter(|folder| !folder.is_empty());
    is_good.then_some(AgentProcess { host, id, state_dir })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(process: AgentProcess) -> Option<AgentProcess> {
        let hello = wire::Hello::default();
        let mut request = wire::OpenSessionRequest { message: Some(Message::Hello(hello)) };
        attach_agent_process(&mut request, &process);
        let taken = take_agent_process(&mut request);
        assert_eq!(take_agent_process(&mut request), None, "it was taken");
        taken
    }

    #[test]
    fn a_hello_carries_it_and_what_cannot_be_shown_is_dropped() {
        let host = "vm-3".to_owned();
        let good = AgentProcess { host, id: 4711, state_dir: Some("/var/lib/w".into()) };
        assert_eq!(taken(good.clone()), Some(good.clone()));
        let without = AgentProcess { state_dir: None, ..good.clone() };
        assert_eq!(taken(without.clone()), Some(without));
        for host in ["", "vm\u{1b}[2J", &"v".repeat(254)] {
            assert_eq!(taken(AgentProcess { host: host.into(), ..good.clone() }), None, "{host:?}");
        }
        let long = Some("/".repeat(1_025));
        assert_eq!(taken(AgentProcess { state_dir: long, ..good }), None);
    }
}
