//! All replicas of the coordinator: those that were named, and those that the one that is asked
//! knows of.

use futures_util::future::join_all;
use leasehold_proto::admin::v1 as proto;
use leasehold_proto::admin::v1::GetStatusResponse;
use leasehold_proto::json;
use serde_json::{Value, json};

use super::connection::Coordinator;
use super::output::{Column, TableRow, number, or_none, text, wide_text};
use super::tint::Tint;
use super::words;

/// A replica.
pub(super) struct Replica {
    address: String,
    /// How the replica that is asked describes it, if it does.
    known: Option<proto::Replica>,
    answer: Answer,
}

/// What a replica says of itself.
enum Answer {
    Status(Box<GetStatusResponse>),
    /// It does not answer, for this reason.
    Not(String),
    /// On Kubernetes only the leader is reached.
    NotAsked,
}

impl Replica {
    /// What it says of itself, if it was asked and answers.
    pub(super) fn status(&self) -> Option<&GetStatusResponse> {
        match &self.answer {
            Answer::Status(status) => Some(status),
            Answer::Not(_) | Answer::NotAsked => None,
        }
    }

    /// Where it is reached.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Its version, as it or another replica says; empty if unknown.
    pub(super) fn version(&self) -> &str {
        let known = || self.known.as_ref().map_or("", |known| known.version.as_str());
        self.status().map_or_else(known, |status| &status.version)
    }

    /// What it does, or why that is not known.
    pub(super) fn role(&self) -> String {
        match &self.answer {
            Answer::Status(status) => words::role(status),
            Answer::Not(why) => why.clone(),
            Answer::NotAsked => match &self.known {
                Some(known) if known.leads => "leads".to_owned(),
                Some(_) | None => "stands by".to_owned(),
            },
        }
    }

    pub(super) fn as_json(&self) -> Value {
        let mut value = json!({"address": self.address});
        if let Some(known) = &self.known {
            value["known"] = json::value(known);
        }
        match &self.answer {
            Answer::Status(status) => value["status"] = json::value(status.as_ref()),
            Answer::Not(why) => value["error"] = json!(why),
            Answer::NotAsked => {}
        }
        value
    }
}

impl TableRow for Replica {
    const PLURAL: &'static str = "replicas";
    const COLUMNS: &'static [Column<Self>] = &[
        text("COORDINATOR", |replica| replica.address.clone()),
        text("ROLE", Self::role),
        number("AGENTS", |replica| {
            replica.status().map_or_else(|| "?".to_owned(), |status| status.sessions.to_string())
        }),
        text("VERSION", |replica| match replica.version() {
            "" => "?".to_owned(),
            version => version.to_owned(),
        }),
        wide_text("NAME", |replica| {
            or_none(replica.known.as_ref().map_or("", |known| known.identity.as_str()))
        }),
    ];

    fn name(&self) -> String {
        self.address.clone()
    }

    fn tint(&self) -> Option<Tint> {
        matches!(self.answer, Answer::Not(_)).then_some(Tint::Alarm)
    }
}

/// All replicas, by address.
///
/// # Errors
/// If none answers.
pub(super) async fn all(coordinator: &mut Coordinator) -> anyhow::Result<Vec<Replica>> {
    let own = coordinator.status().await?;
    let given = coordinator.addresses().to_vec();
    let others = given.iter().filter(|address| *address != coordinator.address());
    let mut replicas = ask(coordinator, others.cloned()).await;
    let address = match own.address.as_str() {
        // An earlier release does not say its own address.
        "" => coordinator.address().to_owned(),
        address => address.to_owned(),
    };
    replicas.push(Replica { address, known: None, answer: Answer::Status(Box::new(own.clone())) });
    let is_new = |address: &String| replicas.iter().all(|one| one.address != *address);
    let known = own.replicas.iter().map(|known| known.address.clone());
    let mut known: Vec<_> = known.chain([own.leader_address.clone()]).filter(is_new).collect();
    known.retain(|address| !address.is_empty());
    known.sort();
    known.dedup();
    replicas.extend(if given.is_empty() {
        let not_asked = |address| Replica { address, known: None, answer: Answer::NotAsked };
        known.into_iter().map(not_asked).collect()
    } else {
        ask(coordinator, known).await
    });
    for replica in &mut replicas {
        replica.known = own.replicas.iter().find(|one| one.address == replica.address).cloned();
    }
    replicas.sort_by(|one, two| one.address.cmp(&two.address));
    Ok(replicas)
}

/// What the replicas at these addresses say of themselves.
async fn ask(
    coordinator: &Coordinator,
    addresses: impl IntoIterator<Item = String>,
) -> Vec<Replica> {
    let asked = addresses.into_iter().map(async |address| {
        match coordinator.status_of(&address).await {
            Ok(status) => {
                // It may be reached at another address than the one that it tells others.
                let own = Some(status.address.clone()).filter(|own| !own.is_empty());
                let answer = Answer::Status(Box::new(status));
                Replica { address: own.unwrap_or(address), known: None, answer }
            }
            Err(error) => {
                Replica { address, known: None, answer: Answer::Not(format!("{error:#}")) }
            }
        }
    });
    join_all(asked).await
}
