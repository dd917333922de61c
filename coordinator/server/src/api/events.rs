//! `GET /api/v1/changes`: the changes of the fleet as server-sent events. The number of each is its
//! time, and which of that time it is, so that a client that comes back with `Last-Event-ID` gets
//! what it has missed.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use leasehold_driver::clock::Timestamp;
use leasehold_proto::json;
use prost::bytes::Bytes;
use prost_reflect::{DynamicMessage, Value};
use tokio::time::{Interval, MissedTickBehavior};
use tonic::{Status, Streaming};

use super::call;
use super::refusal::{http_status, refuse};
use super::routes::Route;
use crate::connections::Peer;
use crate::grpc::AdminCalls;
use crate::web;

/// How often a client is sent a comment, so that both ends notice a connection that is gone.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// The header in which a client says which event it has seen last.
const LAST_EVENT_ID: &str = "last-event-id";

/// Watches changes for a client.
pub(super) async fn watch(
    calls: &AdminCalls,
    route: Route,
    request: Result<DynamicMessage, String>,
    headers: HeaderMap,
    peer: Peer,
) -> Response {
    let mut request = match request {
        Ok(request) => request,
        Err(why) => return refuse(&Status::invalid_argument(why)),
    };
    let last = match headers.get(LAST_EVENT_ID).map(EventId::of_header).transpose() {
        Ok(last) => last,
        Err(why) => return refuse(&Status::invalid_argument(why)),
    };
    if last.is_some() {
        // All that is kept: what the client has seen of it is skipped.
        request.set_field_by_name("replay", Value::String(String::new()));
    }
    let changes = match call::streaming(calls, route, &request, &headers).await {
        Ok(changes) => changes,
        Err(status) => return refuse(&status),
    };
    let mut tick = tokio::time::interval(KEEPALIVE);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let last_given = EventId::default();
    let watch = Watch { route, changes, last_given, seen: last, has_ended: false, tick, peer };
    Sse::new(stream::unfold(watch, Watch::next)).into_response()
}

/// Which event it is: the time of its change, and its place among those of that time, from 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct EventId {
    /// As the coordinator writes it, in UTC; texts of this form have the order of their times.
    time: String,
    place: u64,
}

impl EventId {
    /// What a client shows as the last event that it has seen.
    ///
    /// # Errors
    /// What is wrong with it.
    fn of_header(value: &HeaderValue) -> Result<Self, String> {
        let text = String::from_utf8_lossy(value.as_bytes());
        Self::parse(&text).ok_or_else(|| {
            format!(
                "invalid {LAST_EVENT_ID} {text:?}: expected the id of an event of this path, for \
                 example 2026-01-31T02:07:00.125Z/1; without this header the changes of the last \
                 hour come first"
            )
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let (time, place) = text.rsplit_once('/')?;
        // The event that says how many changes are missing has no time.
        let is_time = time.is_empty() || Timestamp::is_written_as(time);
        let place = place.parse().ok().filter(|_| is_time)?;
        Some(Self { time: time.to_owned(), place })
    }

    /// The number of the next event, which is of this time.
    fn next(&self, time: String) -> Self {
        let place = if self.time == time { self.place + 1 } else { 1 };
        Self { time, place }
    }
}

struct Watch {
    route: Route,
    changes: Streaming<Bytes>,
    /// The number of the last change.
    last_given: EventId,
    /// The last event that the client has seen.
    seen: Option<EventId>,
    has_ended: bool,
    tick: Interval,
    peer: Peer,
}

impl Watch {
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        if self.has_ended {
            return None;
        }
        loop {
            let change = tokio::select! {
                change = self.changes.message() => change,
                _ = self.tick.tick() => {
                    web::keep_open(&self.peer);
                    return Some((Ok(Event::default().comment("")), self));
                }
            };
            let change = match change {
                Ok(Some(change)) => call::decode(self.route, change),
                Ok(None) => return None,
                Err(status) => Err(status),
            };
            let change = match change {
                Ok(change) => json::dynamic(&change),
                Err(status) => {
                    self.has_ended = true;
                    let (_, code) = http_status(status.code());
                    let why = serde_json::json!({"code": code, "message": status.message()});
                    return Some((Ok(Event::default().event("error").data(why.to_string())), self));
                }
            };
            let time = change["time"].as_str().unwrap_or_default().to_owned();
            self.last_given = self.last_given.next(time);
            if self.seen.as_ref().is_some_and(|seen| self.last_given <= *seen) {
                continue;
            }
            let id = format!("{}/{}", self.last_given.time, self.last_given.place);
            return Some((Ok(Event::default().id(id).data(change.to_string())), self));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_time_have_an_order() {
        let first = EventId::default().next("2026-01-31T02:07:00.125Z".to_owned());
        let second = first.next("2026-01-31T02:07:00.125Z".to_owned());
        let third = second.next("2026-01-31T02:07:00.126Z".to_owned());
        assert!(first < second && second < third);
        assert_eq!((second.place, third.place), (2, 1));
        assert_eq!(EventId::parse("2026-01-31T02:07:00.125Z/2"), Some(second));
        assert_eq!(EventId::parse("/1"), Some(EventId { time: String::new(), place: 1 }));
        for wrong in ["", "yesterday", "yesterday/1", "2026-01-31T02:07:00.125Z/x", "12/7"] {
            assert_eq!(EventId::parse(wrong), None, "{wrong}");
        }
    }
}
