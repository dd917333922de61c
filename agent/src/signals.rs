//! Signal handlers: as PID 1 the process has no default ones.

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// The action for a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalAction {
    /// Drain, then exit; the second time, exit at once. (SIGTERM, SIGINT)
    Shutdown(Signal),
    /// Exit at once. (SIGQUIT)
    Quit(Signal),
    /// Forward it to the child. (SIGHUP, SIGUSR1, SIGUSR2)
    Forward(Signal),
}

/// A receiver for each signal.
#[derive(Debug)]
pub(crate) struct Signals {
    term: Stream,
    int: Stream,
    quit: Stream,
    hup: Stream,
    usr1: Stream,
    usr2: Stream,
}

impl Signals {
    /// Installs the handlers.
    pub(crate) fn take() -> std::io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            int: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            hup: signal(SignalKind::hangup())?,
            usr1: signal(SignalKind::user_defined1())?,
            usr2: signal(SignalKind::user_defined2())?,
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> SignalAction {
        tokio::select! {
            Some(()) = self.term.recv() => SignalAction::Shutdown(Signal::TERM),
            Some(()) = self.int.recv() => SignalAction::Shutdown(Signal::INT),
            Some(()) = self.quit.recv() => SignalAction::Quit(Signal::QUIT),
            Some(()) = self.hup.recv() => SignalAction::Forward(Signal::HUP),
            Some(()) = self.usr1.recv() => SignalAction::Forward(Signal::USR1),
            Some(()) = self.usr2.recv() => SignalAction::Forward(Signal::USR2),
            else => std::future::pending().await,
        }
    }

    /// Waits for the next signal that ends the agent.
    pub(crate) async fn shutdown(&mut self) -> Signal {
        loop {
            match self.next().await {
                SignalAction::Shutdown(signal) | SignalAction::Quit(signal) => return signal,
                SignalAction::Forward(_) => {}
            }
        }
    }
}

/// The exit code of a program that a signal terminated.
pub(crate) fn exit_code(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX)
}
