//! What happened, counted: a simulator that exercises nothing proves nothing.

use std::collections::BTreeMap;
use std::fmt;

/// The number of seeds after which a run must have seen everything in [`WANTED`].
pub const STANDARD_SEEDS: u64 = 2_000;

/// How often at least a run over [`STANDARD_SEEDS`] must have seen each fault, each fault that had
/// an effect ("effective"), each branch of the cores, and each check that had something to check.
const WANTED: &[(&str, u64)] = &[
    ("a person claims a term that was lost", 3),
    ("agent began: journal", 500),
    ("agent began: no journal", 200),
    ("agent resumed", 20),
    ("agent superseded", 20),
    ("agent's pool expired", 500),
    ("agent's stream expired", 500),
    ("effective: a cut held a message", 500),
    ("effective: a message was lost with its link", 200),
    ("effective: a stopped process was late", 500),
    ("checked: a deposed leader's message", 100),
    ("checked: a failover moves no slot", 200),
    ("checked: a failover moves nothing", 200),
    ("checked: a join moves the fewest", 100),
    ("checked: a leave moves only its own", 100),
    ("checked: a leader learns that its number is repeated", 40),
    ("checked: a newer incarnation wins", 100),
    ("checked: a stopped agent delays no other worker", 100),
    ("checked: a worker that dies with its leader takes no slot", 5),
    ("checked: a worker that is given up was silent", 8),
    ("checked: an older incarnation's lease ended", 50),
    ("checked: healthy pipelines stay as they are", 50),
    ("confirmation requested", 500),
    ("converged and still", 1_000),
    ("coordinator saw a protocol violation", 100),
    ("deposed", 500),
    ("drain ended", 500),
    ("drain overdue", 20),
    ("drain overdue: the worker is ended", 10),
    ("drain: jobs left", 20),
    ("drained agent resumed", 20),
    ("edit: a class less", 5),
    ("edit: a set back on another cluster", 20),
    ("edit: a set moved", 80),
    ("edit: a set removed", 30),
    ("edit: another class", 50),
    ("edit: another graph", 50),
    ("edit: another load", 80),
    ("elected", 2_000),
    ("fault: agent died right after a write", 500),
    ("fault: agent stopped", 500),
    ("fault: all links broken", 200),
    ("fault: driver hangs", 100),
    ("fault: drain taken back", 100),
    ("fault: edit", 500),
    ("fault: edit while an entry is written", 300),
    ("fault: entries put back from a copy", 40),
    ("fault: entry made unreadable", 500),
    ("fault: a coordinator of another cell answers", 500),
    ("fault: an agent of another cell says hello", 500),
    ("fault: host booted", 300),
    ("fault: journal fails", 200),
    ("fault: leadership taken while the leader lives", 500),
    ("fault: link broken after hello", 500),
    ("fault: long turn", 2_000),
    ("fault: message doubled", 500),
    ("fault: message dropped", 500),
    ("fault: message reordered", 500),
    ("fault: one-way cut", 500),
    ("fault: only short records fit", 100),
    ("fault: only the store of terms cut off", 50),
    ("fault: pod killed", 300),
    ("fault: pod removed that runs on", 40),
    ("fault: replica crashed", 300),
    ("fault: replica stopped", 300),
    ("fault: rollback", 10),
    ("fault: rollout", 50),
    ("fault: terms and entries put back from a copy", 80),
    ("fault: terms put back from a copy", 40),
    ("fault: two leaders", 100),
    ("fault: store cut off", 300),
    ("fault: twin appeared", 30),
    ("fault: twin takes the name over", 10),
    ("fault: agent without its folder takes its name over", 50),
    ("fault: agent without its folder waits for its name", 50),
    ("checked: a former agent is welcomed", 3),
    ("fault: twin at another leader", 30),
    ("fault: worker and agent crashed", 50),
    ("fault: worker crashed", 300),
    ("fault: worker ended that a copy does not cover", 150),
    ("fault: worker fails its check and goes on", 200),
    ("fault: worker given up that lived", 10),
    ("fault: worker hangs", 200),
    ("fault: worker ignored a revoke", 100),
    ("gap seen: snapshot requested", 200),
    ("grant stopped at the writer", 20),
    ("hold ended", 1_000),
    ("incarnation raised", 20),
    ("job ran", 50_000),
    ("journal failed", 200),
    ("pipeline: Broken to Pending", 300),
    ("pipeline: Broken to Plotted", 400),
    ("pipeline: Pending to Plotted", 700),
    ("pipeline: Plotted to Broken", 400),
    ("pipeline: Plotted to Ready", 700),
    ("pipeline: Ready to Broken", 200),
    ("pipeline: Ready to Plotted", 200),
    ("pipeline: adopted, Broken", 50),
    ("pipeline: adopted, Ready", 200),
    ("pipeline: deleted", 40),
    ("pool granted", 5_000),
    ("refused: newer link", 200),
    ("refused: name taken", 200),
    ("registered", 1_000),
    ("report claims streams", 1_000),
    ("report of a closed link left out", 1_000),
    ("stale message came", 200),
    ("stepped down", 50),
    ("stream freed: expired", 500),
    ("stream freed: gone", 200),
    ("stream freed: released", 2_000),
    ("stream granted", 10_000),
    ("unreadable entry: renewal requested", 200),
    ("worker fails", 300),
    ("worker lost", 500),
    ("worker recovered", 200),
];

/// Counters by name.
#[derive(Clone, Debug, Default)]
pub struct Coverage(BTreeMap<&'static str, u64>);

impl Coverage {
    /// Counts one.
    pub fn hit(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    /// How often it happened.
    #[must_use]
    pub fn count(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    /// What happened less often than a standard run must have seen it, with both numbers.
    #[must_use]
    pub fn missing(&self) -> Vec<(&'static str, u64, u64)> {
        let counted = WANTED.iter().map(|(what, least)| (*what, self.count(what), *least));
        counted.filter(|(_, count, least)| count < least).collect()
    }

    /// Adds another run's counters.
    pub fn add(&mut self, other: &Self) {
        for (what, count) in &other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in &self.0 {
            writeln!(f, "  {what:<40} {count:>10}")?;
        }
        Ok(())
    }
}
