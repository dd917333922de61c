//! What an autoscaler has wanted lately, which holds back a scale-in.

use std::collections::VecDeque;
use std::time::Duration;

use leasehold_types::Moment;

/// The recommendations of a time that ends now.
#[derive(Debug)]
pub(crate) struct StabilizationWindow {
    length: Duration,
    recommendations: VecDeque<(Moment, u32)>,
}

impl StabilizationWindow {
    /// A window of this length without a recommendation.
    pub(crate) fn new(length: Duration) -> Self {
        Self { length, recommendations: VecDeque::new() }
    }

    /// The highest recommendation of the window, of which `wanted` is the last. The first one of
    /// all is the number of replicas that is found.
    pub(crate) fn highest(&mut self, wanted: u32, replicas: u32, now: Moment) -> u32 {
        if self.recommendations.is_empty() {
            self.recommendations.push_back((now, replicas));
        }
        // One that is not above a newer one decides nothing any more.
        while self.recommendations.back().is_some_and(|(_, before)| *before <= wanted) {
            self.recommendations.pop_back();
        }
        self.recommendations.push_back((now, wanted));
        while self.recommendations.front().is_some_and(|(at, _)| *at + self.length <= now) {
            self.recommendations.pop_front();
        }
        self.recommendations.front().map_or(wanted, |(_, highest)| *highest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recommendation_counts_for_the_length_of_the_window() {
        let at = |seconds: u64| Moment(1) + Duration::from_secs(seconds);
        let mut window = StabilizationWindow::new(Duration::from_secs(10));
        assert_eq!(window.highest(2, 5, at(0)), 5, "what is found counts as wanted");
        assert_eq!(window.highest(4, 5, at(6)), 5);
        assert_eq!(window.highest(3, 5, at(10)), 4, "5 was found ten seconds ago");
        assert_eq!(window.highest(7, 4, at(11)), 7);
        assert_eq!(window.highest(1, 7, at(20)), 7);
        assert_eq!(window.highest(1, 7, at(21)), 1);
        let mut none = StabilizationWindow::new(Duration::ZERO);
        assert_eq!(none.highest(1, 9, at(0)), 1, "a window of no length holds nothing back");
    }
}
