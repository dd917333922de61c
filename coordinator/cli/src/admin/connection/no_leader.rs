//! What to say while no leader answers: which replicas were asked, and what each said.

use std::io::IsTerminal;

use futures_util::future::join_all;
use leasehold_proto::admin::v1::GetStatusResponse;
use leasehold_types::duration;
use tonic::Status;

use super::{Coordinator, FAILOVER_MAX};
use crate::admin::words;

impl Coordinator {
    /// Says on a terminal that a leader is waited for, and which replicas were asked.
    pub(super) async fn say_wait(&self, status: &Status) {
        if self.is_silent || !std::io::stderr().is_terminal() {
            return;
        }
        let most = duration::format_short(FAILOVER_MAX);
        eprintln!("{}: waiting up to {most} for a leader", self.explained(status));
        for said in self.said().await {
            eprintln!("  {said}");
        }
    }

    /// The error after a wait for a leader, with what to do.
    pub(super) async fn no_leader(&self, status: &Status) -> anyhow::Error {
        let most = duration::format_short(FAILOVER_MAX);
        anyhow::anyhow!(
            "no leader has answered for {most}: {} ({}). Start the coordinators that are missing; \
             the others say in their logs, and at /readyz of their --http-listen, why they do not \
             lead",
            self.explained(status),
            self.said().await.join("; ")
        )
    }

    /// What each replica says of itself.
    async fn said(&self) -> Vec<String> {
        if self.addresses().is_empty() {
            return vec![format!("asked: {}", self.address())];
        }
        let asked = async |address: String| {
            let status = self.status_of(&address).await;
            (address, status)
        };
        let mut all = join_all(self.addresses().iter().cloned().map(asked)).await;
        let known = all.iter().filter_map(|(_, status)| status.as_ref().ok());
        let known = known.flat_map(|status| &status.replicas).map(|known| known.address.clone());
        let is_new = |address: &String| {
            all.iter().all(|(asked, status)| {
                asked != address && status.as_ref().is_ok_and(|status| status.address != *address)
            })
        };
        let mut known: Vec<_> = known.filter(is_new).collect();
        known.sort();
        known.dedup();
        all.extend(join_all(known.into_iter().map(asked)).await);
        let line = |(address, status): &(String, anyhow::Result<GetStatusResponse>)| match status {
            Ok(status) => format!("{address} {}{}", words::role(status), first_problem(status)),
            Err(why) => format!("{address}: {why:#}"),
        };
        all.iter().map(line).collect()
    }
}

/// What is wrong with a replica's manifests: it may not lead without any.
fn first_problem(status: &GetStatusResponse) -> String {
    let first = status.problems.first().map(words::problem);
    first.map(|problem| format!(", with a problem of its manifests: {problem}")).unwrap_or_default()
}
