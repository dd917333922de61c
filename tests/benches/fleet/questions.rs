//! How long the command line takes to show a fleet: the program's start, the coordinator's answer
//! and the table.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tests::toolbox;

/// How often each question is asked.
const TIMES: usize = 9;

/// What is asked, and what it is to take at 10,000 workers.
const QUESTIONS: [(&str, Duration); 2] =
    [("workers", Duration::from_secs(1)), ("status", Duration::from_millis(200))];

/// Asks each question some times; a line of each for people, with the median and the longest time.
///
/// # Errors
/// What the command line complains of.
pub(crate) fn ask(coordinators: &[String]) -> Result<Vec<String>, String> {
    QUESTIONS.iter().map(|(question, goal)| line(coordinators, question, *goal)).collect()
}

fn line(coordinators: &[String], question: &str, goal: Duration) -> Result<String, String> {
    let mut times = Vec::new();
    let mut lines = 0;
    for _ in 0..TIMES {
        let begun = Instant::now();
        let mut command = Command::new(toolbox::binary("leasehold"));
        command.arg(question).args(["--coordinator", &coordinators.join(",")]);
        let output = command.stdin(Stdio::null()).output();
        let output = output.map_err(|error| format!("leasehold: {error}"))?;
        times.push(begun.elapsed());
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!("leasehold {question}: {why}"));
        }
        lines = output.stdout.iter().filter(|byte| **byte == b'\n').count();
    }
    times.sort();
    let (median, longest) = (times[TIMES / 2], times[TIMES - 1]);
    Ok(format!(
        "leasehold {question:<8} {:>9.3} s, at most {:.3} s of {TIMES} times; {lines} lines; to be \
         below {:.1} s at 10,000 workers",
        median.as_secs_f64(),
        longest.as_secs_f64(),
        goal.as_secs_f64()
    ))
}
