//! The signals that this process is sent, each handled by name: as PID 1 it has no defaults.

use rustix::process::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalAction {
    /// Drain, then end; the second time, end at once. (SIGTERM, SIGINT)
    Shutdown(Signal),
    /// End at once. (SIGQUIT)
    Quit(Signal),
    /// Nothing of the agent; a child gets it. (SIGHUP, SIGUSR1, SIGUSR2)
    Forward(Signal),
}

/// The signals, as they come.
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
    /// Takes the signals over from the system's defaults.
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

    /// What the next signal asks for.
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
}

/// The exit code of a program that a signal ended.
pub(crate) fn exit_code(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX)
}
