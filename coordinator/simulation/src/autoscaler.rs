//! A HorizontalPodAutoscaler, by the algorithm of Kubernetes, with its defaults. Its metric is
//! external and has an average value: the jobs of the cluster that wait or run, for each pod.

use std::time::Duration;

use leasehold_types::Moment;

use crate::stabilization::StabilizationWindow;

/// How often it looks at the metric (`--horizontal-pod-autoscaler-sync-period`).
pub(crate) const SYNC_PERIOD: Duration = Duration::from_secs(15);
/// The part by which the metric may differ from the target
/// (`--horizontal-pod-autoscaler-tolerance`).
const TOLERANCE: f64 = 0.1;
/// For how long the highest recommendation holds back a scale-in.
const STABILIZATION: Duration = Duration::from_secs(300);
/// What `behavior.scaleUp` allows within a period of 15 s: so many pods more, or so many times as
/// many, whichever is more.
const PODS_MORE: u32 = 4;
const TIMES_AS_MANY: u32 = 2;

/// The autoscaler of a Deployment.
#[derive(Debug)]
pub(crate) struct Autoscaler {
    /// The jobs for each pod that it aims at, above 0.
    target: f64,
    replicas_min: u32,
    replicas_max: u32,
    window: StabilizationWindow,
}

impl Autoscaler {
    pub(crate) fn new(target: f64, replicas_min: u32, replicas_max: u32) -> Self {
        let window = StabilizationWindow::new(STABILIZATION);
        Self { target, replicas_min, replicas_max, window }
    }

    pub(crate) fn set_replicas_max(&mut self, replicas_max: u32) {
        self.replicas_max = replicas_max;
    }

    /// The replicas from now on, where there are `replicas` and so many jobs wait or run.
    pub(crate) fn replicas(&mut self, jobs: f64, replicas: u32, now: Moment) -> u32 {
        let ratio = jobs / (self.target * f64::from(replicas.max(1)));
        let wanted = if (ratio - 1.0).abs() <= TOLERANCE {
            replicas
        } else {
            // Within u32: jobs are at most some millions, and the target is 0.01 at least.
            (jobs / self.target).ceil() as u32
        };
        let highest = self.window.highest(wanted, replicas, now);
        let stable = if wanted > replicas {
            wanted.min((replicas + PODS_MORE).max(replicas * TIMES_AS_MANY))
        } else {
            highest.min(replicas)
        };
        // After a budget is lowered, the most may be below the least: the most counts.
        stable.max(self.replicas_min).min(self.replicas_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The replicas after each look, from 10 on, at these numbers of jobs.
    fn followed(jobs: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let mut scaler = Autoscaler::new(5.0, 2, 40);
        let (mut now, mut replicas) = (Moment(1), 10);
        let mut all = Vec::new();
        for jobs in jobs {
            replicas = scaler.replicas(f64::from(jobs), replicas, now);
            all.push(replicas);
            now = now + SYNC_PERIOD;
        }
        all
    }

    #[test]
    fn it_follows_the_metric_upwards_at_the_speed_that_kubernetes_allows() {
        assert_eq!(followed([50, 54, 46]), [10, 10, 10], "less than a tenth is tolerated");
        assert_eq!(
            followed([56, 300, 300, 300]),
            [12, 24, 40, 40],
            "twice as many, and 40 at most"
        );
        let mut scaler = Autoscaler::new(5.0, 1, 40);
        assert_eq!(scaler.replicas(100.0, 1, Moment(1)), 5, "four more");
    }

    #[test]
    fn it_scales_in_once_nothing_above_was_wanted_for_five_minutes() {
        // 20 looks are five minutes. The replicas of the start hold back a scale-in for as long.
        let replicas = followed([5; 22]);
        assert_eq!(replicas[..20], [10; 20]);
        assert_eq!(replicas[20..], [2, 2], "the least");
        let looks = [5].into_iter().chain([60]).chain(std::iter::repeat_n(5, 21));
        let replicas = followed(looks);
        assert_eq!((replicas[0], &replicas[1..21]), (10, [12; 20].as_slice()));
        assert_eq!(replicas[21..], [2, 2], "five minutes after it wanted 12");
    }

    #[test]
    fn it_keeps_below_the_most_even_where_that_is_below_the_least() {
        let mut scaler = Autoscaler::new(5.0, 6, 40);
        scaler.set_replicas_max(4);
        for (look, jobs) in [0.0, 100.0].into_iter().enumerate() {
            let now = Moment(1) + SYNC_PERIOD * look as u32;
            assert_eq!(scaler.replicas(jobs, 10, now), 4, "{jobs} jobs");
        }
    }
}
