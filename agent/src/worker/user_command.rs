//! One run of a user's command, with limits on its time and output. It is killed with all its child
//! processes at the time limit or if its agent is killed.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::net::unix::pipe::Receiver;

use crate::reaper::{Exit, Reaper};
use crate::worker::shell_command::{CommandFailed, ShellCommand};

/// The most bytes kept of each output.
const OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// The most characters of its last line in an error.
const SHOWN_MAX: usize = 200;

/// A command and its environment.
#[derive(Clone, Debug)]
pub(in crate::worker) struct UserCommand {
    /// The option that gives it, for messages.
    pub(in crate::worker) option: &'static str,
    /// The line for `sh -c`.
    pub(in crate::worker) line: String,
    /// Its environment in addition to the agent's.
    pub(in crate::worker) environment: Vec<(&'static str, String)>,
    /// Its time limit.
    pub(in crate::worker) timeout: Duration,
}

impl UserCommand {
    /// Runs it, and returns its standard output.
    ///
    /// # Errors
    /// If it has not exited with 0 in time; with the last line of its stderr.
    pub(in crate::worker) async fn run(&self, reaper: &Reaper) -> anyhow::Result<String> {
        let option = self.option;
        let (mut shell, mut stdout, mut stderr) = self.start(reaper).context(option)?;
        let ended = tokio::select! {
            exit = &mut shell.exit => Some(exit),
            () = stdout.fill() => unreachable!("it waits for ever after the end of the output"),
            () = stderr.fill() => unreachable!("it waits for ever after the end of the output"),
            () = tokio::time::sleep(self.timeout) => None,
        };
        stdout.take_rest();
        stderr.take_rest();
        let Some(exit) = ended else {
            // Dropping the shell kills it and its child processes.
            bail!("{option} did not exit within {:?}{}", self.timeout, stderr.last_line());
        };
        let exit = exit.with_context(|| format!("{option}: its exit code is unknown"))?;
        if exit != Exit(0) {
            bail!(CommandFailed { option, exit, detail: stderr.last_line() });
        }
        if stdout.overflowed {
            bail!("{option} printed more than {OUTPUT_BYTES_MAX} bytes");
        }
        Ok(String::from_utf8_lossy(&stdout.bytes).into_owned())
    }

    fn start(&self, reaper: &Reaper) -> std::io::Result<(ShellCommand, Output, Output)> {
        let (stdout, stdout_end) = std::io::pipe()?;
        let (stderr, stderr_end) = std::io::pipe()?;
        let environment = self.environment.iter().map(|(name, value)| (*name, value));
        let outputs = [stdout_end.into(), stderr_end.into()];
        let shell = ShellCommand::start(&self.line, environment, outputs, reaper)?;
        let output = |end: OwnedFd| Receiver::from_owned_fd(end).map(Output::new);
        Ok((shell, output(stdout.into())?, output(stderr.into())?))
    }
}

/// An output of the command.
#[derive(Debug)]
struct Output {
    pipe: Receiver,
    bytes: Vec<u8>,
    /// There was more than the limit; only the last bytes are kept.
    overflowed: bool,
    ended: bool,
}

impl Output {
    fn new(pipe: Receiver) -> Self {
        Self { pipe, bytes: Vec::new(), overflowed: false, ended: false }
    }

    /// Reads the output, and never returns.
    async fn fill(&mut self) {
        loop {
            if self.ended || self.pipe.readable().await.is_err() {
                std::future::pending::<()>().await;
            }
            self.take();
        }
    }

    /// Reads what is available. A background process may hold the pipe open, so the agent does not
    /// wait for its end.
    fn take_rest(&mut self) {
        let mut left = OUTPUT_BYTES_MAX;
        while !self.ended && left > 0 {
            match self.take() {
                0 => return,
                taken => left = left.saturating_sub(taken),
            }
        }
    }

    fn take(&mut self) -> usize {
        let mut part = [0; 4096];
        match self.pipe.try_read(&mut part) {
            Ok(0) => self.ended = true,
            Ok(read) => {
                self.bytes.extend_from_slice(&part[..read]);
                let excess = self.bytes.len().saturating_sub(OUTPUT_BYTES_MAX);
                self.overflowed |= excess > 0;
                self.bytes.drain(..excess);
                return read;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.ended = true,
        }
        0
    }

    /// The last line that is not empty, to append to an error.
    fn last_line(&self) -> String {
        let text = String::from_utf8_lossy(&self.bytes);
        let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
        let words = line.map(|line| line.chars().take(SHOWN_MAX).collect::<String>());
        words.map_or_else(String::new, |words| format!(": {words}"))
    }
}
