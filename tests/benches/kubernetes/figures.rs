//! Durations that were measured, printed as one table.

use std::time::Duration;

/// Rows of the table.
#[derive(Default)]
pub(crate) struct Figures(Vec<(String, Vec<Duration>)>);

impl Figures {
    /// Adds a row of as many measurements as there are.
    pub(crate) fn add(&mut self, what: &str, taken: &[Duration]) {
        let mut taken = taken.to_vec();
        taken.sort_unstable();
        if let (Some(least), Some(most)) = (taken.first(), taken.last()) {
            println!("    {what}: {} to {}", seconds(*least), seconds(*most));
        }
        self.0.push((what.to_owned(), taken));
    }

    /// Prints all rows.
    pub(crate) fn print(&self) {
        println!("\n{:<60} {:>5} {:>10} {:>10}", "", "runs", "median", "longest");
        for (what, taken) in &self.0 {
            let at = |index: usize| {
                taken.get(index).map_or("-".to_owned(), |duration| seconds(*duration))
            };
            let (middle, last) = (taken.len() / 2, taken.len().saturating_sub(1));
            println!("{what:<60} {:>5} {:>10} {:>10}", taken.len(), at(middle), at(last));
        }
        println!();
    }
}

/// A duration for people.
pub(crate) fn seconds(duration: Duration) -> String {
    format!("{:.3} s", duration.as_secs_f64())
}
