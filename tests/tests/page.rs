//! The page that shows the fleet, in a real Chromium, of real coordinators and agents: what a
//! person sees of rollouts, losses, moves, failovers and mistakes, as they happen.

#[path = "page/accessibility.rs"]
mod accessibility;
#[path = "page/explanations.rs"]
mod explanations;
#[path = "page/failover.rs"]
mod failover;
#[path = "page/fixture.rs"]
mod fixture;
#[path = "page/hostile_text.rs"]
mod hostile_text;
#[path = "page/large_fleet.rs"]
mod large_fleet;
#[path = "page/left.rs"]
mod left;
#[path = "page/many_browsers.rs"]
mod many_browsers;
#[path = "page/workers.rs"]
mod workers;

#[path = "page/streams.rs"]
mod streams;
