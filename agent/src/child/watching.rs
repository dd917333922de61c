//! The watchdog of the child, which kills the child's process group when this agent has ended.
//!
//! Invariant: a watchdog that watches the group is ended only when another one has acknowledged the
//! group. One that has exited, is stopped or hangs is replaced.

use std::time::Duration;

use crate::process_group::ProcessGroup;
use crate::reaper::Reaper;
use crate::watchdog::{Watchdog, WatchedGroup};

/// The pause after a watchdog that could not be started.
const RETRY: Duration = Duration::from_secs(1);

/// What happened to the watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchdogEvent {
    /// It has exited or does not answer, or none could be started.
    Lost,
    /// The one that replaces a lost one has acknowledged the group.
    Replaced,
}

/// The watchdog of the child.
#[derive(Debug)]
pub(super) struct ChildWatchdog {
    reaper: Reaper,
    /// The group to watch; none if no child runs, or if the child may outlive the agent.
    group: Option<ProcessGroup>,
    current: Option<Watchdog>,
    /// The one before, until the current one has acknowledged the group.
    lost: Option<Watchdog>,
    /// One could not be started, and none has acknowledged the group since.
    has_failed: bool,
}

impl ChildWatchdog {
    pub(super) fn new(reaper: Reaper) -> Self {
        Self { reaper, group: None, current: None, lost: None, has_failed: false }
    }

    /// Watches a group, and returns when the watchdog has acknowledged it.
    pub(super) async fn watch(&mut self, group: ProcessGroup) -> anyhow::Result<()> {
        self.group = Some(group);
        if let Some(watchdog) = self.current.as_mut().filter(|watchdog| !watchdog.is_lost()) {
            watchdog.watch(watched(self.group.as_ref()));
            if watchdog.acknowledged().await.is_ok() {
                return Ok(());
            }
        }
        self.replace()?.acknowledged().await?;
        self.end_lost();
        Ok(())
    }

    /// Begins to watch a group of an earlier agent.
    pub(super) fn adopt(&mut self, group: ProcessGroup) {
        self.group = Some(group);
        self.handle(WatchdogEvent::Lost);
    }

    /// Watches no group: the child has exited.
    pub(super) fn forget(&mut self) {
        (self.group, self.has_failed) = (None, false);
        self.current.iter().for_each(|watchdog| watchdog.watch(Vec::new()));
        self.lost.take().iter().for_each(Watchdog::end);
    }

    /// Waits for the next event.
    pub(super) async fn event(&mut self) -> WatchdogEvent {
        match &mut self.current {
            Some(watchdog) if self.lost.is_some() || self.has_failed => {
                match watchdog.acknowledged().await {
                    Ok(()) => WatchdogEvent::Replaced,
                    Err(_) => WatchdogEvent::Lost,
                }
            }
            Some(watchdog) => {
                watchdog.lost().await;
                WatchdogEvent::Lost
            }
            None if self.group.is_some() => {
                tokio::time::sleep(RETRY).await;
                WatchdogEvent::Lost
            }
            None => std::future::pending().await,
        }
    }

    pub(super) fn handle(&mut self, event: WatchdogEvent) {
        match event {
            WatchdogEvent::Replaced => self.end_lost(),
            WatchdogEvent::Lost if self.group.is_none() => {
                self.current.take().iter().for_each(Watchdog::end);
            }
            WatchdogEvent::Lost => {
                if let Err(error) = self.replace() {
                    self.has_failed = true;
                    tracing::error!(
                        "cannot start a watchdog, so the child may outlive this agent: {error:#}"
                    );
                }
            }
        }
    }

    /// Starts another watchdog, which watches the group from its acknowledgement on.
    fn replace(&mut self) -> anyhow::Result<&mut Watchdog> {
        if let Some(lost) = self.current.take() {
            match self.lost {
                // The first of those that are lost has acknowledged the group.
                Some(_) => lost.end(),
                None => self.lost = Some(lost),
            }
        }
        let watchdog = self.current.insert(Watchdog::start(&self.reaper, false)?);
        watchdog.watch(watched(self.group.as_ref()));
        Ok(watchdog)
    }

    fn end_lost(&mut self) {
        let lost = self.lost.take();
        lost.iter().for_each(Watchdog::end);
        if std::mem::take(&mut self.has_failed) || lost.is_some() {
            tracing::warn!(
                "the watchdog of the child had exited or did not answer: the agent started another \
                 one"
            );
        }
    }
}

fn watched(group: Option<&ProcessGroup>) -> Vec<WatchedGroup> {
    group.into_iter().map(|group| WatchedGroup { group: group.clone(), end: None }).collect()
}
