//! Row 14: one agent more, and in turn one host more of Dapr's placement.

use anyhow::Result;

use super::{Measurement, begin, shown};
use crate::report::dapr::Placement;
use crate::report::fleet::{Fleet, Join};
use crate::report::push::{Pushes, median};
use crate::report::row::Unit;
use crate::report::shares::Shares;
use crate::report::sizes::Sizes;

/// The names of one side's lines.
struct Words {
    /// Those that each join changes something for.
    changed: &'static str,
    moved: &'static str,
    most: &'static str,
}

const LEASEHOLD: Words = Words {
    changed: "agents whose streams change",
    moved: "streams moved",
    most: "streams of the agent with most",
};
const DAPR: Words = Words {
    changed: "hosts that get a table",
    moved: "keys moved",
    most: "keys of the host with most",
};

impl Measurement {
    /// Both sides begin with as many, and grow by one with each round.
    pub(super) async fn joins(&mut self, fleet: &mut Fleet) -> Result<()> {
        let Sizes { agents, streams_assigned: streams, rounds, .. } = self.sizes;
        let what = format!("one more joins; {} streams", shown(streams));
        let mut joins = Pushes::new(format!("one joins {}", begin(14, agents, &what)));
        let hosts = format!("{} hosts of Dapr's placement", shown(agents));
        let mut tables = Pushes::new(format!("one joins {hosts}"));
        fleet.connect_first(agents).await?;
        fleet.own_movable(streams).await?;
        let mut placement = Placement::start(agents, rounds).await?;
        let mut shares = Vec::new();
        for _ in 0..rounds {
            let Join { changed, shares: share } = fleet.join().await?;
            joins.rounds_ms.push(changed);
            shares.push(share);
            if let Some(placement) = &mut placement {
                tables.rounds_ms.push(placement.join().await?);
            }
        }
        self.add_joins(joins, &shares, &LEASEHOLD);
        if let Some(placement) = placement {
            let shares = placement.shares(streams).await?;
            self.add_joins(tables, &shares, &DAPR);
        }
        Ok(())
    }

    /// The lines of one side: each figure is the median over its joins.
    fn add_joins(&mut self, joins: Pushes, shares: &[Shares], words: &Words) {
        self.add_push(14, &joins, None);
        for (what, count) in [
            (words.changed, joins.median(|push| push.times().len() as f64)),
            (words.moved, median_of(shares, |share| share.moved)),
            (words.most, median_of(shares, |share| share.most)),
        ] {
            self.add(14, format!("{}: {what}", joins.name), Unit::Count, count, None);
        }
        self.samples.push(joins);
    }
}

fn median_of(shares: &[Shares], of: impl Fn(&Shares) -> usize) -> f64 {
    median(shares.iter().map(|share| of(share) as f64).collect())
}
