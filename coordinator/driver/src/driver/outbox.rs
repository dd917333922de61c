//! Commands that wait for the platform. The driver never waits for a disk: commands that queue up
//! meanwhile are merged where they mean the same.

use std::collections::VecDeque;

use leasehold_coordinator_core::effect::Order;
use tokio::sync::mpsc;

use crate::platform::Command;

/// Commands in the order in which they must run.
#[derive(Debug, Default)]
pub(super) struct Outbox(VecDeque<Command>);

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a command, or merges it into the last one.
    pub(super) fn push(&mut self, command: Command) {
        let Command::Order { epoch, order } = command else {
            return self.0.push_back(command);
        };
        let last = match self.0.back_mut() {
            Some(Command::Order { epoch: of, order: last }) if *of == epoch => Some(last),
            _ => None,
        };
        match (last, order) {
            (Some(Order::Register(last)), Order::Register(more)) => last.extend(more),
            (Some(Order::Unregister(last)), Order::Unregister(more)) => last.extend(more),
            // One renewal answers every request that waits for one.
            (
                Some(Order::Confirm | Order::AskTerm { .. }),
                Order::Confirm | Order::AskTerm { .. },
            ) => {}
            (_, order) => self.0.push_back(Command::Order { epoch, order }),
        }
    }

    /// Sends the oldest command as soon as there is room. Returns false if the platform has ended.
    /// Cancel-safe: the command stays queued.
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
    async fn merges_queued_commands_of_one_epoch_and_keeps_their_order() {
        let mut outbox = Outbox::default();
        let mut push = |epoch, order| outbox.push(Command::Order { epoch: Epoch(epoch), order });
        push(8, Order::Confirm);
        push(8, Order::AskTerm { seen: Epoch(9) });
        push(8, Order::Unregister(Vec::new()));
        push(9, Order::Unregister(Vec::new()));
        push(9, Order::Register(Vec::new()));
        push(9, Order::Register(Vec::new()));
        push(9, Order::Unregister(Vec::new()));
        let (sender, mut receiver) = mpsc::channel(8);
        while !outbox.is_empty() {
            assert!(outbox.send_one(&sender).await);
        }
        drop(sender);
        let mut names = Vec::new();
        while let Some(command) = receiver.recv().await {
            let Command::Order { epoch, order } = command else { panic!("{command:?}") };
            names.push(format!("{epoch} {order:?}"));
        }
        let expected = [
            "8 Confirm",
            "8 Unregister([])",
            "9 Unregister([])",
            "9 Register([])",
            "9 Unregister([])",
        ];
        assert_eq!(names, expected);
    }

    #[tokio::test]
    async fn sending_fails_if_the_platform_has_ended() {
        let mut outbox = Outbox::default();
        outbox.push(Command::Order { epoch: Epoch(1), order: Order::Confirm });
        let (sender, receiver) = mpsc::channel(1);
        drop(receiver);
        assert!(!outbox.send_one(&sender).await);
    }
}
