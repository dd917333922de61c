//! The figures of a run as tables, and which bounds they break.

use std::time::Duration;

use tests::bench::grouped;

use crate::attacks::ClientReport;
use crate::counts::AttackReport;
use crate::load::LoadCounts;
use crate::test_bed::MEMORY_MAX_MIB;
use crate::watch::ReplicaWatch;

/// Within this the webhook has to answer the API server.
const WEBHOOK_WITHIN: Duration = Duration::from_secs(1);
const MIB: u64 = 1024 * 1024;
/// Answers to a hello in another's name, or to a false token, that may not come.
const ACCEPTANCES: [&str; 2] = ["WELCOME", "ACCEPTED"];

/// All figures.
pub(crate) struct Verdict {
    pub(crate) report: ClientReport,
    pub(crate) load: LoadCounts,
    pub(crate) watched: Vec<ReplicaWatch>,
    pub(crate) agents: usize,
    pub(crate) connections: usize,
    pub(crate) seconds: u64,
}

impl Verdict {
    pub(crate) fn print(&self) {
        let Self { load, .. } = self;
        println!(
            "\n{} agents, {} s, {} connections besides the calls, at most {} of them open at once",
            self.agents, self.seconds, self.connections, self.report.open_max
        );
        let row = |what: &str, figures: String| println!("  {what:<26} {figures}");
        row("leader changes", load.leaders.to_string());
        row(
            "leases",
            format!(
                "{} renewals, the fewest of an agent {}; {} ended; the oldest was {:.1} s old",
                load.renewals,
                load.renewals_min,
                load.leases.expired,
                load.leases.age.as_secs_f64()
            ),
        );
        row("streams moved", load.leases.moved.to_string());
        row("jobs", format!("{} begun, {} refused", load.jobs, load.jobs_refused));
        row("agents cut off", format!("{}, all back: {}", load.redials, load.unconnected == 0));
        for (number, replica) in self.watched.iter().enumerate() {
            let role = if replica.leads { "leader" } else { "standby" };
            let name = format!("coordinator {} ({role})", number + 1);
            row(
                &name,
                format!(
                    "at most {} MiB of {MEMORY_MAX_MIB} in its control group; {} MiB resident, \
                     with the program's own pages",
                    replica.memory_bytes / MIB,
                    replica.resident_bytes / MIB
                ),
            );
            let answers = |answers: &crate::watch::Answers| {
                format!(
                    "{} answers, median {}, 99 % {}, longest {}; {} failed",
                    answers.times.len(),
                    milliseconds(answers.quantile(0.5)),
                    milliseconds(answers.quantile(0.99)),
                    milliseconds(answers.quantile(1.0)),
                    answers.failures.len()
                )
            };
            row("  webhook before", answers(&replica.webhook_before));
            row("  webhook", answers(&replica.webhook));
            row(
                "  the API server's count",
                format!("{} of {} within 1 s", replica.counted_in_time, replica.counted),
            );
            row("  probes", answers(&replica.probes));
        }
        println!(
            "\n| attack | attempts | what was answered | limits that held |\n|---|---|---|---|"
        );
        for attack in &self.report.attacks {
            println!("{}", table_row(attack));
        }
        println!();
    }

    /// The bounds that were broken, in sentences.
    pub(crate) fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        let Self { load, .. } = self;
        let mut fails = |is_broken: bool, what: String| {
            if is_broken {
                failures.push(what);
            }
        };
        fails(load.leaders > 0, format!("the leader changed {} times", load.leaders));
        let expired = load.leases.expired;
        fails(expired > 0, format!("{expired} leases ended without renewal"));
        let moved = load.leases.moved;
        fails(moved > 0, format!("{moved} streams moved"));
        fails(load.renewals_min == 0, "an agent had no renewal".to_owned());
        let unconnected = load.unconnected;
        fails(unconnected > 0, format!("{unconnected} agents have no connection at the end"));
        load.leases.faults.iter().for_each(|fault| fails(true, fault.clone()));
        for (number, replica) in self.watched.iter().enumerate() {
            let name = format!("coordinator {}", number + 1);
            fails(replica.ended, format!("{name} has ended"));
            let changes = replica.leadership_changes;
            fails(changes > 0, format!("{name}: {changes} looks at another leadership"));
            let memory = replica.memory_bytes.max(replica.resident_bytes) / MIB;
            fails(memory >= MEMORY_MAX_MIB, format!("{name} has used {memory} MiB"));
            let webhook = &replica.webhook;
            if let Some(last) = webhook.failures.last() {
                let count = webhook.failures.len();
                fails(true, format!("{name}: {count} pods were not injected; the last: {last}"));
            }
            let longest = webhook.quantile(1.0);
            let took = format!("{name}: an answer about a pod took {}", milliseconds(longest));
            fails(longest >= WEBHOOK_WITHIN, took);
            let late = replica.counted - replica.counted_in_time;
            let counted = format!("{name}: the API server counted {late} answers after 1 s");
            fails(late > 0 || replica.counted == 0, counted);
        }
        for attack in &self.report.attacks {
            let name = &attack.name;
            fails(attack.attempts == 0, format!("no attempt of the attack {name:?}"));
            for kind in ACCEPTANCES {
                let accepted = attack.answers.get(kind).copied().unwrap_or_default();
                fails(accepted > 0, format!("{name}: {accepted} times {kind}"));
            }
        }
        failures
    }
}

fn table_row(attack: &AttackReport) -> String {
    let mut answers: Vec<_> = attack.answers.iter().collect();
    answers.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let answer = |(kind, count): (&String, &u64)| format!("{kind} {}", grouped(*count));
    let answers: Vec<_> = answers.into_iter().map(answer).collect();
    let open = match attack.open_max {
        0 => String::new(),
        open => format!(", at most {} open", grouped(open)),
    };
    let (name, limit) = (&attack.name, &attack.limit);
    let attempts = grouped(attack.attempts);
    format!("| {name} | {attempts}{open} | {} | {limit} |", answers.join(", "))
}

fn milliseconds(duration: Duration) -> String {
    format!("{:.0} ms", duration.as_secs_f64() * 1e3)
}
