//! How many seeds it takes to detect each deliberate fault of the cores: from several starts, until
//! a seed breaks a property that the fault is known to break.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::mutant::Mutant;
use crate::runner::run_seed;

/// How one fault was detected.
#[derive(Clone, Debug)]
pub struct Detection {
    /// The fault.
    pub mutant: Mutant,
    /// From each start: how many seeds it took and which property was broken; `None` if it was
    /// missed.
    pub detected: Vec<Option<(u64, &'static str)>>,
    /// Properties that broke before, which it is not known to break.
    pub others: BTreeMap<&'static str, u64>,
}

impl Detection {
    /// Whether it was missed from some start.
    #[must_use]
    pub fn missed(&self) -> bool {
        self.detected.iter().any(Option::is_none)
    }

    fn run(search: &Search, seeds_max: u64) -> Self {
        let mutant = search.mutant;
        let mut others = BTreeMap::new();
        let detected = search.starts.iter().map(|start| {
            (0..seeds_max).find_map(|index| {
                let property = run_seed(start + index, Some(mutant), false).failure?.property;
                if mutant.breaks().contains(&property) {
                    return Some((index + 1, property));
                }
                *others.entry(property).or_default() += 1;
                None
            })
        });
        let detected = detected.collect();
        Self { mutant, detected, others }
    }

    fn seeds(&self) -> Vec<u64> {
        let mut seeds: Vec<_> = self
            .detected
            .iter()
            .map(|detection| detection.map_or(u64::MAX, |(seeds, _)| seeds))
            .collect();
        seeds.sort_unstable();
        seeds
    }
}

/// Its name, the median and the worst number of seeds, and the properties that detected it.
impl fmt::Display for Detection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |seeds: Option<&u64>| match seeds {
            None | Some(&u64::MAX) => "missed".to_owned(),
            Some(seeds) => seeds.to_string(),
        };
        let seeds = self.seeds();
        let (median, worst) = (text(seeds.get(seeds.len() / 2)), text(seeds.last()));
        let mut by: BTreeMap<&str, u64> = BTreeMap::new();
        for (_, property) in self.detected.iter().flatten() {
            *by.entry(property).or_default() += 1;
        }
        let by: Vec<_> = by.iter().map(|(property, times)| format!("{property}*{times}")).collect();
        write!(f, "{:<28} {median:>7} {worst:>7}  {}", self.mutant.name(), by.join(" "))?;
        if !self.others.is_empty() {
            write!(f, "  (also broke {:?})", self.others)?;
        }
        Ok(())
    }
}

/// A fault to look for, and the seeds to start from.
#[derive(Clone, Debug)]
pub struct Search {
    /// The fault.
    pub mutant: Mutant,
    /// The first seed of each search.
    pub starts: Vec<u64>,
}

/// Looks for all these faults on `threads` threads, each from every start for at most `seeds_max`
/// seeds. `done` is called with each as it is finished.
#[must_use]
pub fn detect_all(
    searches: &[Search],
    seeds_max: u64,
    threads: usize,
    done: &(dyn Fn(&Detection) + Sync),
) -> Vec<Detection> {
    let next = AtomicUsize::new(0);
    let detections = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some(search) = searches.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let detection = Detection::run(search, seeds_max);
                    done(&detection);
                    detections.lock().expect("no detection panics").push(detection);
                }
            });
        }
    });
    let mut detections = detections.into_inner().expect("no detection panics");
    detections.sort_by_key(|detection| detection.mutant.name());
    detections
}
