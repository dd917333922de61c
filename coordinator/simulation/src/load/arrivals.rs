//! When jobs arrive: a Poisson process, whose rate may change with the time of the day.

use std::time::Duration;

use super::day_steps::DaySteps;

/// The rates of arrivals over a day, which repeats, in jobs per second.
#[derive(Clone, Debug)]
pub(crate) struct Arrivals(DaySteps<f64>);

impl Arrivals {
    /// Arrivals at these rates.
    pub(super) fn new(rates: DaySteps<f64>) -> Self {
        Self(rates)
    }

    /// The first arrival after `after`, both counted from the start; none before `end`.
    pub(crate) fn next(
        &self,
        after: Duration,
        end: Duration,
        rng: &mut fastrand::Rng,
    ) -> Option<Duration> {
        let mut time = after;
        while time < end {
            let (rate, until) = self.0.at(time);
            if rate > 0.0 {
                // A gap that ends after the step is forgotten: the process has no memory.
                let gap = Duration::from_secs_f64(-(1.0 - rng.f64()).ln() / rate);
                if until.is_none_or(|until| time + gap < until) {
                    let at = time + gap;
                    return (at < end).then_some(at);
                }
            }
            time = until?;
        }
        None
    }

    /// About how many jobs arrive in this time from the start.
    pub(super) fn expected(&self, length: Duration) -> f64 {
        let (mut jobs, mut time) = (0.0, Duration::ZERO);
        while time < length {
            let (rate, until) = self.0.at(time);
            let until = until.map_or(length, |until| until.min(length));
            jobs += rate * (until - time).as_secs_f64();
            time = until;
        }
        jobs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn arrivals(steps: &[(u32, f64)], start: u32) -> Arrivals {
        let steps = steps.iter().map(|(hour, rate)| (HOUR * *hour, rate / 3600.0)).collect();
        Arrivals::new(DaySteps::new(steps, HOUR * start))
    }

    /// The arrivals of three days, by hour from the start.
    fn by_hour(arrivals: &Arrivals) -> Vec<u32> {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut hours = vec![0; 72];
        let mut time = Duration::ZERO;
        while let Some(at) = arrivals.next(time, HOUR * 72, &mut rng) {
            assert!(at >= time);
            hours[(at.as_secs() / 3600) as usize] += 1;
            time = at;
        }
        hours
    }

    #[test]
    fn jobs_arrive_at_the_rate_of_the_time_of_the_day() {
        // From 20:00: 100 an hour until 8:00, then 1,000 until 18:00, and again.
        let steps = arrivals(&[(8, 1000.0), (18, 100.0)], 20);
        for (hour, count) in by_hour(&steps).into_iter().enumerate() {
            let is_day = (8..18).contains(&((20 + hour) % 24));
            let around = if is_day { 800..1200 } else { 50..160 };
            assert!(around.contains(&count), "{count} in hour {hour}");
        }
        assert_eq!(steps.expected(HOUR * 24).round(), 10.0 * 1000.0 + 14.0 * 100.0);
    }

    #[test]
    fn no_job_arrives_where_the_rate_is_0() {
        let steps = arrivals(&[(0, 0.0), (12, 500.0)], 0);
        let counts = by_hour(&steps);
        let idle = counts.iter().enumerate().filter(|(hour, _)| hour % 24 < 12);
        assert_eq!(idle.map(|(_, count)| count).sum::<u32>(), 0);
        assert!(counts[12] > 300);
        let never = arrivals(&[(0, 0.0)], 0);
        assert_eq!(never.next(Duration::ZERO, HOUR, &mut fastrand::Rng::with_seed(1)), None);
    }
}
