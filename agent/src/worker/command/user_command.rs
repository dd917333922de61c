//! One run of a program of the user's: bounded in time and in what it prints, and ended with all
//! that it has started where it takes too long or its agent is killed.

use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::net::unix::pipe::Receiver;

use crate::reaper::{Exit, Reaper};
use crate::worker::shell_command::ShellCommand;

/// Bytes that are kept of each output.
const OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// Characters of its last words that are shown.
const SHOWN_MAX: usize = 200;

/// A program and what it is to know.
#[derive(Clone, Debug)]
pub(super) struct UserCommand {
    /// The option that gives it, for messages.
    pub(super) option: &'static str,
    /// What `sh -c` runs.
    pub(super) line: String,
    /// What it finds in its environment beside the agent's own.
    pub(super) environment: Vec<(&'static str, String)>,
    /// How long it may take.
    pub(super) timeout: Duration,
}

impl UserCommand {
    /// Runs it, and returns what it has printed.
    ///
    /// # Errors
    /// Where it has not ended with 0 in time, with the last line that it wrote to stderr.
    pub(super) async fn run(&self, reaper: &Reaper) -> anyhow::Result<String> {
        let option = self.option;
        let (mut shell, mut stdout, mut stderr) = self.start(reaper).context(option)?;
        let ended = tokio::select! {
            exit = &mut shell.exit => Some(exit),
            () = stdout.fill() => unreachable!("it goes on after the end of the output"),
            () = stderr.fill() => unreachable!("it goes on after the end of the output"),
            () = tokio::time::sleep(self.timeout) => None,
        };
        stdout.take_rest();
        stderr.take_rest();
        let Some(exit) = ended else {
            // Its shell ends here: it is killed, with all that it has started.
            bail!("{option} did not end within {:?}{}", self.timeout, stderr.last_line());
        };
        let exit = exit.with_context(|| format!("{option}: its exit code is unknown"))?;
        if exit != Exit(0) {
            bail!("{option} ended with {}{}", exit.0, stderr.last_line());
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

/// What a program prints.
#[derive(Debug)]
struct Output {
    pipe: Receiver,
    bytes: Vec<u8>,
    /// There was more than is kept; the first bytes are gone.
    overflowed: bool,
    over: bool,
}

impl Output {
    fn new(pipe: Receiver) -> Self {
        Self { pipe, bytes: Vec::new(), overflowed: false, over: false }
    }

    /// Takes what comes, for ever.
    async fn fill(&mut self) {
        loop {
            if self.over || self.pipe.readable().await.is_err() {
                std::future::pending::<()>().await;
            }
            self.take();
        }
    }

    /// Takes what is there. Something that the program has started may hold the pipe open for
    /// long, so the agent does not wait for its end.
    fn take_rest(&mut self) {
        let mut left = OUTPUT_BYTES_MAX;
        while !self.over && left > 0 {
            match self.take() {
                0 => return,
                taken => left = left.saturating_sub(taken),
            }
        }
    }

    fn take(&mut self) -> usize {
        let mut part = [0; 4096];
        match self.pipe.try_read(&mut part) {
            Ok(0) => self.over = true,
            Ok(read) => {
                self.bytes.extend_from_slice(&part[..read]);
                let excess = self.bytes.len().saturating_sub(OUTPUT_BYTES_MAX);
                self.overflowed |= excess > 0;
                self.bytes.drain(..excess);
                return read;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => self.over = true,
        }
        0
    }

    /// The last line that is not empty, as the end of a message.
    fn last_line(&self) -> String {
        let text = String::from_utf8_lossy(&self.bytes);
        let line = text.lines().rev().map(str::trim).find(|line| !line.is_empty());
        let words = line.map(|line| line.chars().take(SHOWN_MAX).collect::<String>());
        words.map_or_else(String::new, |words| format!(": {words}"))
    }
}
