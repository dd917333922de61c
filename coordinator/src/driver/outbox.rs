//! Commands that wait for the platform. The driver never waits for a disk: what piles up
//! meanwhile is joined into as few commands as say the same.

use std::collections::VecDeque;

use tokio::sync::mpsc;

use crate::platform::Command;

/// Commands in the order in which they are to be carried out.
#[derive(Debug, Default)]
pub(super) struct Outbox(VecDeque<Command>);

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a command, or joins it with the last one.
    pub(super) fn push(&mut self, command: Command) {
        match (self.0.back_mut(), command) {
            (Some(Command::Register(last)), Command::Register(more)) => last.extend(more),
            (Some(Command::Unregister(last)), Command::Unregister(more)) => last.extend(more),
            (Some(Command::Confirm), Command::Confirm) => {}
            (Some(Command::StepDown { above: last }), Command::StepDown { above }) => {
                *last = (*last).max(above);
            }
            (_, command) => self.0.push_back(command),
        }
    }

    /// Sends the oldest as soon as there is room; false where the platform has ended. Nothing is
    /// lost where the caller stops waiting.
    pub(super) async fn send_one(&mut self, commands: &mpsc::Sender<Command>) -> bool {
        let Ok(room) = commands.reserve().await else { return false };
        if let Some(command) = self.0.pop_front() {
            room.send(command);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use leasehold_types::Epoch;

    use super::*;

    #[tokio::test]
    async fn what_piles_up_is_joined_and_keeps_its_order() {
        let mut outbox = Outbox::default();
        outbox.push(Command::Confirm);
        outbox.push(Command::Confirm);
        outbox.push(Command::StepDown { above: Some(Epoch(9)) });
        outbox.push(Command::StepDown { above: None });
        outbox.push(Command::Register(Vec::new()));
        outbox.push(Command::Unregister(Vec::new()));
        outbox.push(Command::Register(Vec::new()));
        let (sender, mut receiver) = mpsc::channel(8);
        while !outbox.is_empty() {
            assert!(outbox.send_one(&sender).await);
        }
        drop(sender);
        let mut names = Vec::new();
        while let Some(command) = receiver.recv().await {
            names.push(format!("{command:?}"));
        }
        let wanted = [
            "Confirm",
            "StepDown { above: Some(Epoch(9)) }",
            "Register([])",
            "Unregister([])",
            "Register([])",
        ];
        assert_eq!(names, wanted);
    }

    #[tokio::test]
    async fn a_platform_that_has_ended_is_noticed() {
        let mut outbox = Outbox::default();
        outbox.push(Command::Confirm);
        let (sender, receiver) = mpsc::channel(1);
        drop(receiver);
        assert!(!outbox.send_one(&sender).await);
    }
}
