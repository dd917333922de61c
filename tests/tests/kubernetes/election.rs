//! The election on a Lease: epochs only grow, and each is one replica's, whatever happens to
//! replicas, to the Lease and to the API server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tests::kube::{Access, Cluster, Component, Namespace, Operator, Replicas};
use tests::process::{eventually, get, throughout};
use tests::toolbox;

use crate::installed::ExclusiveControlPlane;
use crate::lossy_proxy::LossyProxy;

/// Replicas with a namespace of their own, and what they said in its election.
struct Election {
    namespace: Namespace,
    replicas: Replicas,
    /// The logs of replicas that have ended.
    past: Vec<String>,
}

/// What the Lease says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lease {
    holder: String,
    epoch: u64,
    cell: String,
    renewed: String,
}

impl Election {
    fn new(access: &Access, namespace: &str, flags: &[&str]) -> Self {
        Replicas::define(access);
        let replicas = Replicas::new(access, namespace, flags);
        let namespace = Namespace::existing(access, namespace);
        Self { namespace, replicas, past: Vec::new() }
    }

    fn lease(&self) -> Option<Lease> {
        let lease = self.namespace.get("lease", "leasehold-coordinator")?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Some(Lease {
            holder: text(&lease["spec"]["holderIdentity"]),
            epoch: text(&lease["metadata"]["annotations"]["leasehold.dev/epoch"]).parse().ok()?,
            cell: text(&lease["metadata"]["annotations"]["leasehold.dev/cell"]),
            renewed: text(&lease["spec"]["renewTime"]),
        })
    }

    fn annotate(&self, annotation: &str) {
        let annotate = ["annotate", "--overwrite", "lease", "leasehold-coordinator", annotation];
        self.namespace.kubectl(&annotate);
    }

    fn delete_lease(&self) {
        self.namespace.kubectl(&["delete", "lease", "leasehold-coordinator"]);
    }

    /// Waits until the Lease names a leader, in a term above `epoch`.
    fn leads_above(&self, epoch: u64) -> (usize, Lease) {
        eventually("a leader with a higher epoch", || {
            let lease = self.lease().filter(|lease| lease.epoch > epoch)?;
            let holds =
                |replica: &Operator| lease.holder.starts_with(&format!("{}_", replica.identity));
            let at = self.replicas.running.iter().position(holds)?;
            leads(self.replicas.running[at].http, lease.epoch).then_some((at, lease))
        })
    }

    /// Waits, too, until every other replica sends agents to that one.
    fn settles_above(&self, epoch: u64) -> (usize, Lease) {
        eventually("standbys that redirect to the leader", || {
            let (leader, lease) = self.leads_above(epoch);
            let address = self.replicas.running[leader].grpc.to_string();
            let others = self.replicas.running.iter().enumerate().filter(|(at, _)| *at != leader);
            let redirect = |(_, replica): (usize, &Operator)| {
                let log = replica.process.log();
                let mut lines = log.lines().filter(|line| line.contains("another replica leads"));
                lines.next_back().is_some_and(|line| line.contains(&address))
            };
            others.into_iter().all(redirect).then_some((leader, lease))
        })
    }

    /// Waits until the holder has renewed this many times from now.
    fn renews(&self, times: u32) -> Lease {
        let mut last = self.lease().expect("a Lease");
        for _ in 0..times {
            last = eventually("a renewal", || {
                self.lease().filter(|lease| lease.renewed != last.renewed)
            });
        }
        last
    }

    /// Waits until nobody holds the Lease.
    fn until_released(&self) {
        let holder = || self.lease().map(|lease| lease.holder);
        eventually("the Lease without a holder", || holder().filter(String::is_empty));
    }

    fn start(&mut self) -> usize {
        self.replicas.start();
        self.replicas.running.len() - 1
    }

    /// Ends a replica as `kill -9` does.
    fn kill(&mut self, at: usize) {
        let replica = self.replicas.running.remove(at);
        replica.process.signal(Signal::KILL);
        self.past.push(replica.process.log());
    }

    /// Asks a replica to end, and waits until it has.
    fn stop(&mut self, at: usize) {
        let mut replica = self.replicas.running.remove(at);
        replica.process.signal(Signal::TERM);
        let status = replica.process.wait();
        self.past.push(replica.process.log());
        assert!(status.success(), "{status}:\n{}", replica.process.log());
    }

    /// That no epoch was anybody's twice, by what every replica said of itself.
    fn assert_each_epoch_once(&self) {
        let mut terms = BTreeMap::new();
        let running = self.replicas.running.iter().map(|replica| replica.process.log());
        for log in self.past.iter().cloned().chain(running) {
            for epoch in elected(&log) {
                *terms.entry(epoch).or_insert(0) += 1;
            }
        }
        assert!(!terms.is_empty() && terms.values().all(|times| *times == 1), "{terms:?}");
    }
}

impl Drop for Election {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let running = self.replicas.running.iter().map(|replica| replica.process.log());
            for log in self.past.iter().cloned().chain(running) {
                eprintln!("--- a replica\n{log}");
            }
        }
    }
}

/// The epochs that a replica says it was elected with.
fn elected(log: &str) -> Vec<u64> {
    let epoch = |line: &str| line.split("elected epoch=").nth(1)?.split(' ').next()?.parse().ok();
    log.lines().filter_map(epoch).collect()
}

fn leads(http: SocketAddr, epoch: u64) -> bool {
    let Some((_, metrics)) = get(http, "/metrics") else { return false };
    let wanted = ["leasehold_leader 1".to_owned(), format!("leasehold_epoch {epoch}")];
    wanted.iter().all(|line| metrics.lines().any(|sample| sample == line))
}

fn says(replica: &Operator, what: &str) -> Option<()> {
    replica.process.log().contains(what).then_some(())
}

fn times(replica: &Operator, what: &str) -> usize {
    replica.process.log().matches(what).count()
}

#[test]
fn epochs_increase_after_a_leaders_end_and_after_deletion_of_the_lease() {
    let Some(cluster) = Cluster::shared() else { return };
    let namespace = cluster.namespace("epochs");
    let mut election = Election::new(cluster.access(), &namespace, &[]);
    election.start();
    let (_, first) = election.leads_above(0);
    let standby = election.start();
    eventually("a standby that follows", || {
        says(&election.replicas.running[standby], "another replica leads")
    });
    election.replicas.wait_ready();

    // Handed over, then taken from a dead one.
    election.stop(0);
    let (leader, second) = election.leads_above(first.epoch);
    election.start();
    eventually("a standby", || says(&election.replicas.running[1], "another replica leads"));
    election.kill(leader);
    let (_, third) = election.leads_above(second.epoch);

    // The Lease is deleted while its holder leads.
    election.start();
    eventually("a standby", || says(&election.replicas.running[1], "another replica leads"));
    election.delete_lease();
    let (_, fourth) = election.leads_above(third.epoch);
    eventually("the old leader to know", || says(&election.replicas.running[0], "deposed"));
    assert_eq!(fourth.cell, first.cell, "its replicas continue the cell");
    election.annotate("leasehold.dev/cell-");
    eventually("the cell on the Lease again", || {
        election.lease().filter(|lease| lease.cell == first.cell)
    });

    // The Lease is deleted while no replica runs.
    election.kill(1);
    election.kill(0);
    election.delete_lease();
    election.start();
    let (_, fifth) = election.leads_above(fourth.epoch);
    assert_ne!(fifth.cell, first.cell, "nobody knows it any more");
    // A copy of an old Lease is put back, and the lost cell is written on it.
    election.kill(0);
    election.annotate(&format!("leasehold.dev/epoch={}", first.epoch));
    election.annotate(&format!("leasehold.dev/cell={}", first.cell));
    election.start();
    let (_, sixth) = election.leads_above(fifth.epoch);
    assert_eq!(sixth.cell, first.cell);
    election.assert_each_epoch_once();
}

/// The API server's data was put back from a copy: agents know later epochs than it does.
#[test]
fn a_leader_takes_an_epoch_above_the_one_set_by_the_documented_command() {
    let Some(cluster) = Cluster::shared() else { return };
    let namespace = cluster.namespace("named");
    let mut election = Election::new(cluster.access(), &namespace, &[]);
    election.start();
    let (_, first) = election.leads_above(0);
    // `kubectl -n leasehold patch lease leasehold-coordinator -p '{...}'`
    let operations = toolbox::root().join("docs/OPERATIONS.md");
    let operations = std::fs::read_to_string(operations).expect("a document");
    let mut code = operations.split('`').filter(|code| code.contains(" patch lease "));
    let command = code.next().expect("the command");
    let (words, patch) = command.split_once(" -p ").expect("a patch");
    let named = first.epoch + 1_000_000;
    let patch = patch.trim_matches('\'').replace("4711", &named.to_string());
    assert!(patch.contains(&named.to_string()), "{patch}");
    let words = words.strip_prefix("kubectl -n leasehold ").expect("kubectl");
    let words = words.split(' ').chain(["-n", &namespace, "-p", &patch]);
    cluster.access().kubectl(&words.collect::<Vec<_>>());
    election.leads_above(named);
    election.assert_each_epoch_once();
}

#[test]
fn one_of_three_replicas_leads_after_every_crash() {
    let Some(cluster) = Cluster::shared() else { return };
    let namespace = cluster.namespace("three");
    let mut election = Election::new(cluster.access(), &namespace, &[]);
    for _ in 0..3 {
        election.start();
    }
    let mut epoch = 0;
    for round in 0..4 {
        let (leader, lease) = election.settles_above(epoch);
        epoch = lease.epoch;
        match round % 2 {
            0 => election.kill(leader),
            _ => election.stop(leader),
        }
        election.start();
    }
    election.leads_above(epoch);
    election.assert_each_epoch_once();
}

#[test]
fn a_leader_paused_past_its_term_is_deposed_when_it_resumes() {
    let Some(cluster) = Cluster::shared() else { return };
    let namespace = cluster.namespace("stopped");
    // Long enough for a machine that stands still for a while: only the stopped one is deposed.
    let flags = ["--leadership", "8s", "--takeover-after", "5s"];
    let mut election = Election::new(cluster.access(), &namespace, &flags);
    election.start();
    let (old, first) = election.leads_above(0);
    let standby = election.start();
    eventually("a standby", || says(&election.replicas.running[standby], "another replica leads"));

    election.replicas.running[old].process.signal(Signal::STOP);
    let (new, second) = election.leads_above(first.epoch);
    assert_ne!(new, old);
    // Ten renewals are one leadership.
    election.renews(15);
    election.replicas.running[old].process.signal(Signal::CONT);
    let woken = &election.replicas.running[old];
    eventually("the old leader to stand by", || says(woken, "another replica leads"));
    assert!(!leads(woken.http, first.epoch));
    let now = election.renews(2);
    assert_eq!((now.epoch, &now.holder), (second.epoch, &second.holder));
    election.assert_each_epoch_once();
}

#[test]
fn a_standby_that_cannot_reach_the_leader_does_not_depose_it() {
    let Some(cluster) = Cluster::shared() else { return };
    let namespace = cluster.namespace("unreachable");
    let nowhere = tests::process::free_address().to_string();
    let mut election = Election::new(cluster.access(), &namespace, &["--advertise", &nowhere]);
    election.start();
    let (leader, first) = election.leads_above(0);
    let standby = election.start();
    let cannot = "cannot connect to the leader";
    eventually("a failed dial", || says(&election.replicas.running[standby], cannot));
    let still = election.renews(5);
    assert_eq!((still.epoch, &still.holder), (first.epoch, &first.holder));
    assert_eq!(times(&election.replicas.running[standby], cannot), 1, "said once");

    election.kill(leader);
    election.leads_above(first.epoch);
    election.assert_each_epoch_once();
}

#[test]
fn a_leader_keeps_leading_while_the_api_server_is_down() {
    let Some(turn) = ExclusiveControlPlane::for_failures("away") else { return };
    let plane = turn.plane();
    let mut election = Election::new(plane.access(), "away", &[]);
    for _ in 0..3 {
        election.start();
    }
    let (leader, first) = election.leads_above(0);
    plane.kill_component(Component::ApiServer);
    let cannot = "cannot renew leadership";
    eventually("a failed renewal", || says(&election.replicas.running[leader], cannot));
    for at in (0..3).filter(|at| *at != leader) {
        let standby = &election.replicas.running[at];
        eventually("a failed watch", || {
            let log = standby.process.log();
            let failed = |line: &str| {
                line.contains("cannot watch: retrying") && line.contains("the Lease of leadership")
            };
            log.lines().any(failed).then_some(())
        });
    }
    // For longer than a standby waits for a leader that it cannot reach, no standby takes over.
    throughout(Duration::from_secs(10), || {
        assert!(leads(election.replicas.running[leader].http, first.epoch), "it keeps leading");
    });
    plane.start_component(Component::ApiServer);
    let now = election.renews(3);
    assert_eq!((now.epoch, &now.holder), (first.epoch, &first.holder));
    assert_eq!(elected(&election.replicas.running[leader].process.log()), [first.epoch]);

    // And then the next takes over as ever.
    election.stop(leader);
    election.leads_above(first.epoch);
    election.assert_each_epoch_once();
}

#[test]
fn a_lost_answer_never_repeats_an_epoch() {
    let Some(cluster) = Cluster::shared() else { return };
    let namespace = cluster.namespace("lost");
    let proxy = LossyProxy::start(cluster.access());
    let mut election = Election::new(cluster.access(), &namespace, &[]);
    election.replicas = Replicas::new(proxy.access(), &namespace, &[]);

    // The Lease is created, and its creator does not hear of it.
    proxy.lose_one();
    election.start();
    let (_, first) = election.leads_above(0);
    assert_eq!(proxy.left(), 0, "no answer was lost");
    let taken = |log: &str| log.matches("the Lease was taken").count();
    let log = || election.replicas.running[0].process.log();
    assert_eq!((elected(&log()), taken(&log())), (vec![first.epoch], 1));

    // It renews, and does not hear of it.
    for _ in 0..3 {
        proxy.lose_one();
        eventually("a lost answer", || (proxy.left() == 0).then_some(()));
        let now = election.renews(2);
        assert_eq!((now.epoch, &now.holder), (first.epoch, &first.holder));
    }
    let log = log();
    assert_eq!(elected(&log), [first.epoch]);
    assert!(!log.contains("deposed") && !log.contains("another replica leads"), "{log}");

    // It renews, does not hear of it, and releases: that is refused, since the Lease has changed,
    // and it does not hear of that either.
    proxy.lose_one();
    eventually("a lost answer", || (proxy.left() == 0).then_some(()));
    proxy.lose_one();
    election.stop(0);
    assert_eq!(proxy.left(), 0, "no answer was lost");
    election.until_released();

    // It takes over, and does not hear of it.
    proxy.lose_one();
    election.start();
    let (_, second) = election.leads_above(first.epoch);
    assert_eq!(proxy.left(), 0, "no answer was lost");
    assert_eq!(elected(&election.replicas.running[0].process.log()), [second.epoch]);

    // It releases, and does not hear of it.
    proxy.lose_one();
    election.stop(0);
    assert_eq!(proxy.left(), 0, "no answer was lost");
    election.until_released();
    election.assert_each_epoch_once();
}
