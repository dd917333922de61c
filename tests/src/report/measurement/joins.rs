//! Row 14: one agent more.

use anyhow::Result;

use super::{Measurement, begin, shown};
use crate::report::fleet::{Fleet, Join};
use crate::report::push::{Pushes, median};
use crate::report::row::Unit;
use crate::report::shares::Shares;
use crate::report::sizes::Sizes;

impl Measurement {
    /// The fleet grows by one agent with each round.
    pub(super) async fn joins(&mut self, fleet: &mut Fleet) -> Result<()> {
        let Sizes { agents, streams_assigned: streams, rounds, .. } = self.sizes;
        let what = format!("one more joins; {} streams", shown(streams));
        let mut joins = Pushes::new(format!("one joins {}", begin(14, agents, &what)));
        fleet.connect_first(agents).await?;
        fleet.own_movable(streams).await?;
        let mut shares = Vec::new();
        for _ in 0..rounds {
            let Join { changed, shares: share } = fleet.join().await?;
            joins.rounds_ms.push(changed);
            shares.push(share);
        }
        self.add_joins(joins, &shares);
        Ok(())
    }

    /// Each figure is the median over all joins.
    fn add_joins(&mut self, joins: Pushes, shares: &[Shares]) {
        self.add_push(14, &joins, None);
        for (what, count) in [
            ("agents whose streams change", joins.median(|push| push.times().len() as f64)),
            ("streams moved", median_of(shares, |share| share.moved)),
            ("streams of the agent with most", median_of(shares, |share| share.most)),
        ] {
            self.add(14, format!("{}: {what}", joins.name), Unit::Count, count, None);
        }
        self.samples.push(joins);
    }
}

fn median_of(shares: &[Shares], of: impl Fn(&Shares) -> usize) -> f64 {
    median(shares.iter().map(|share| of(share) as f64).collect())
}
