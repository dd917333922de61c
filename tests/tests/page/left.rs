//! Pages that were left: their watches end, although the browser may keep such a page for a while.
//! It allows six connections to a host, and each page has two.

use tests::command_line::MANIFESTS;
use tests::process::get;

use super::fixture::PageFixture;

/// Visits of one page after the other, in one window.
const VISITS: usize = 6;

#[test]
fn pages_that_were_left_give_their_watches_back() {
    let Some(fixture) = PageFixture::start("the page", &[("all.yaml", MANIFESTS)]) else {
        return;
    };
    let counts = (0..VISITS).map(|_| {
        fixture.open("#/fleet/builds");
        let (_, metrics) = get(fixture.coordinator.http, "/metrics").expect("the port answers");
        let mut series = metrics.lines().filter(|line| line.starts_with("leasehold_watches{"));
        let fleet = series.find(|line| line.contains("kind=\"fleet\"")).expect("its series");
        fleet.rsplit(' ').next().and_then(|count| count.parse().ok()).expect("a number")
    });
    let counts: Vec<usize> = counts.collect();
    println!("watches of the fleet at each visit: {counts:?}");
    // The last page's end may still be on its way to the coordinator, but no earlier one's.
    assert!(counts.iter().all(|count| (1..=2).contains(count)), "{counts:?}");
}
