//! How long nobody leads when the leader goes, with workers connected that run jobs.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use tests::kube::{Replicas, Story};
use tests::process::soon;

use crate::figures::Figures;

/// Times hand-overs and takeovers, so many of each.
pub(crate) async fn measure(story: &mut Story, runs: usize, figures: &mut Figures) {
    let replicas = &mut story.stage.replicas;
    // The script has killed one.
    replicas.start();
    for (what, signal) in [
        ("another leads after SIGTERM to the leader", Signal::TERM),
        ("another leads after kill -9 of the leader", Signal::KILL),
    ] {
        println!("==> {what}, {runs} times");
        let mut taken = Vec::new();
        for _ in 0..runs {
            taken.push(succession(replicas, signal).await);
        }
        figures.add(what, &taken);
    }
}

/// From the signal to the leader until another's metrics say that it leads. Another replica
/// follows the one that went.
async fn succession(replicas: &mut Replicas, signal: Signal) -> Duration {
    soon("ready replicas", || replicas.are_ready().then_some(())).await;
    let leader = soon("a leader", || replicas.leading()).await;
    let old = replicas.running.remove(leader);
    let told = Instant::now();
    old.process.signal(signal);
    while replicas.leading().is_none() {
        // Finer than `soon`, for there is little to be measured.
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert!(told.elapsed() < tests::process::HANG, "nobody leads");
    }
    let taken = told.elapsed();
    replicas.follow(leader, old);
    taken
}
