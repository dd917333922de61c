//! One message to many receivers: when it arrived at each.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use leasehold_demo::clock;
use leasehold_types::Moment;
use serde::Serialize;

/// A step that takes longer is given up, and failed.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks at what is waited for.
const RESOLUTION: Duration = Duration::from_millis(1);

/// The present moment of the clock that all arrivals are taken from.
pub(super) fn now() -> Moment {
    Moment(clock::now_ns())
}

/// Waits until `ask` has an answer. The intervals do not grow, as those of
/// [`crate::process::soon_within`] do: some figures are taken by them.
///
/// # Errors
/// If there is no answer after [`PATIENCE`].
pub(super) async fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> Result<T> {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return Ok(answer);
        }
        ensure!(begun.elapsed() < PATIENCE, "{what}: not done after {} s", PATIENCE.as_secs());
        tokio::time::sleep(RESOLUTION).await;
    }
}

/// The arrivals of one message, in milliseconds from when it was sent, the first one first; there
/// is at least one.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub(super) struct Push(Vec<f64>);

impl Push {
    /// What arrived at each receiver since `begun`; `None` while one has nothing.
    pub(super) fn of(
        begun: Moment,
        arrivals: impl Iterator<Item = Option<Moment>>,
    ) -> Option<Self> {
        let since = |arrived: Option<Moment>| {
            let arrived = arrived.filter(|arrived| *arrived >= begun)?;
            Some((arrived.since(begun).as_secs_f64() * 1e6).round() / 1e3)
        };
        let mut times: Vec<f64> = arrivals.map(since).collect::<Option<_>>()?;
        times.sort_by(f64::total_cmp);
        (!times.is_empty()).then_some(Self(times))
    }

    pub(super) fn first(&self) -> f64 {
        self.0[0]
    }

    pub(super) fn middle(&self) -> f64 {
        self.0[self.0.len() / 2]
    }

    pub(super) fn all(&self) -> f64 {
        self.0[self.0.len() - 1]
    }

    pub(super) fn spread(&self) -> f64 {
        self.all() - self.first()
    }

    pub(super) fn times(&self) -> &[f64] {
        &self.0
    }
}

/// The same push again and again.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Pushes {
    /// What was pushed.
    pub(super) name: String,
    /// The arrivals of each round in milliseconds.
    pub(super) rounds_ms: Vec<Push>,
}

impl Pushes {
    pub(super) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), rounds_ms: Vec::new() }
    }

    /// The median over all rounds of a figure of one.
    pub(super) fn median(&self, of: impl Fn(&Push) -> f64) -> f64 {
        median(self.rounds_ms.iter().map(of).collect())
    }
}

/// The median; of an even number of figures the upper one in the middle.
pub(super) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// When each receiver of a peer had its last message.
#[derive(Debug)]
pub(super) struct Arrivals(Vec<AtomicU64>);

impl Arrivals {
    pub(super) fn new(receivers: usize) -> Self {
        Self(std::iter::repeat_with(AtomicU64::default).take(receivers).collect())
    }

    /// A message has arrived now.
    pub(super) fn arrived(&self, receiver: usize) {
        self.0[receiver].store(clock::now_ns(), SeqCst);
    }

    /// Waits until each receiver has had a message since `begun`.
    ///
    /// # Errors
    /// If one has none for long.
    pub(super) async fn all_since(&self, begun: Moment) -> Result<Push> {
        let arrivals = || self.0.iter().map(|at| Some(Moment(at.load(SeqCst))));
        until("a push to all receivers", || Push::of(begun, arrivals())).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_push_has_its_figures_once_every_receiver_has_the_message() {
        let at = |ms: u64| Some(Moment(ms * 1_000_000));
        let sent = Moment(10_000_000);
        assert!(Push::of(sent, [at(11), None].into_iter()).is_none(), "one has nothing");
        assert!(Push::of(sent, [at(11), at(9)].into_iter()).is_none(), "one has an older message");
        let push = Push::of(sent, [at(17), at(11), at(13)].into_iter()).expect("all have it");
        assert_eq!([push.first(), push.middle(), push.all(), push.spread()], [1.0, 3.0, 7.0, 6.0]);
    }

    #[test]
    fn the_median_does_not_depend_on_the_order() {
        assert_eq!(median(vec![9.0, 1.0, 5.0]), 5.0);
        assert!(median(Vec::new()).is_nan());
    }
}
