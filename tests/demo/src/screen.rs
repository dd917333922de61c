//! What the demo shows: on a terminal a table that redraws, elsewhere plain lines.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::time::Instant;

use crate::checker::PhaseResult;

/// A worker's line.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Its name.
    pub worker: String,
    /// Its rollout generation.
    pub generation: u64,
    /// Its state.
    pub phase: String,
    /// Its pool's size.
    pub pool: u32,
    /// Jobs that run.
    pub running: usize,
    /// Streams that it owns.
    pub streams: usize,
    /// The leader's term.
    pub epoch: u64,
}

/// All that the table shows.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// A line a worker.
    pub rows: Vec<Row>,
    /// The name of the current phase.
    pub phase: String,
    /// The highest `maxJobs` in force.
    pub max_jobs: u32,
    /// Jobs that run.
    pub running: usize,
    /// The most at once in this phase.
    pub peak: usize,
    /// Jobs that wait.
    pub queue: usize,
    /// Jobs that were done.
    pub done: usize,
    /// Streams that are owned.
    pub streams: usize,
    /// Records that the sources have.
    pub records: u64,
}

/// The terminal, or a pipe.
#[derive(Debug)]
pub struct Screen {
    redraws: bool,
    lines: usize,
    started: Instant,
}

impl Screen {
    /// Redraws on a terminal that can, unless the user asks for none of it.
    #[must_use]
    pub fn new() -> Self {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
        let redraws = std::io::stdout().is_terminal() && !set("NO_COLOR") && !dumb;
        Self { redraws, lines: 0, started: Instant::now() }
    }

    /// Prints a line for good.
    pub fn say(&mut self, line: &str) {
        let mut text = self.erase();
        let seconds = self.started.elapsed().as_secs_f64();
        let _ = writeln!(text, "{seconds:6.1}s  {line}");
        put(&text);
    }

    /// Prints what became of a phase.
    pub fn say_phase(&mut self, result: &PhaseResult) {
        let PhaseResult { name, max_jobs, peak_jobs, moves, moves_min, ms, .. } = result;
        self.say(&format!(
            "{name:<34} peak {peak_jobs:>2} of {max_jobs:>2} jobs, {moves:>2} moves (fewest \
             {moves_min:>2}), {ms:>5} ms"
        ));
    }

    /// Draws the table in the place of the one before.
    pub fn draw(&mut self, view: &View) {
        if !self.redraws {
            return;
        }
        let mut text = self.erase();
        let table = self.table(view);
        self.lines = table.lines().count();
        // Without wrapping, a narrow terminal cuts a line, and the count of lines stays true.
        let _ = write!(text, "\x1b[?7l{table}\x1b[?7h");
        put(&text);
    }

    /// Takes the table away.
    pub fn clear(&mut self) {
        let text = self.erase();
        put(&text);
    }

    fn erase(&mut self) -> String {
        let lines = std::mem::take(&mut self.lines);
        if lines == 0 { String::new() } else { format!("\x1b[{lines}A\r\x1b[J") }
    }

    fn table(&self, view: &View) -> String {
        let mut text = String::new();
        let seconds = self.started.elapsed().as_secs_f64();
        let _ = writeln!(text, "\n{seconds:6.1}s  \x1b[1m{}\x1b[0m", view.phase);
        let _ = writeln!(
            text,
            "         \x1b[2m{:<10} {:>3}  {:<10} {:<18} {:>7} {:>16}\x1b[0m",
            "worker", "gen", "phase", "jobs of pool", "streams", "epoch"
        );
        for row in &view.rows {
            let Row { worker, generation, phase, pool, running, streams, epoch } = row;
            let bar = bar(*running, usize::try_from(*pool).unwrap_or(usize::MAX));
            let jobs = format!("{running} of {pool}");
            let _ = writeln!(
                text,
                "         {worker:<10} {generation:>3}  {phase:<10} {jobs:<8}{bar} {streams:>6} \
                 {epoch:>16}"
            );
        }
        let View { max_jobs, running, peak, queue, done, streams, records, .. } = view;
        let _ = writeln!(
            text,
            "         {running} jobs run, at most {peak} of {max_jobs} in this phase; {queue} \
             wait, {done} done; {streams} streams owned, {records} records"
        );
        text
    }
}

impl Default for Screen {
    fn default() -> Self {
        Self::new()
    }
}

/// Ten places wide: jobs that run, then free slots.
fn bar(running: usize, pool: usize) -> String {
    let (running, all) = (running.min(10), running.max(pool).min(10));
    let free = all - running;
    format!("\x1b[32m{}\x1b[0m{}{}", "#".repeat(running), ".".repeat(free), " ".repeat(10 - all))
}

/// A closed pipe does not stop the demo: children must be ended in order all the same.
fn put(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_ten_wide() {
        let plain = |text: String| text.replace("\x1b[32m", "").replace("\x1b[0m", "");
        assert_eq!(plain(bar(2, 3)), "##.       ");
        assert_eq!(plain(bar(3, 0)), "###       ", "a draining worker's jobs");
        assert_eq!(plain(bar(50, 60)), "##########");
    }
}
