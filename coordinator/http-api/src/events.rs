//! What happens, as server-sent events. The number of a change is its time, and which of that time
//! it is, so that a client that comes back with `Last-Event-ID` gets what it has missed. A watch of
//! the fleet has no numbers: it begins with everything.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use leasehold_proto::json;
use leasehold_types::is_timestamp;
use prost::bytes::Bytes;
use prost_reflect::{DynamicMessage, Value};
use tokio::time::{Interval, MissedTickBehavior};
use tonic::{Status, Streaming};

use super::call;
use super::refusal::{http_status, refuse};
use super::routes::{Resume, Route};
use super::{AdminCalls, Caller};

/// How often a client is sent a comment, so that both ends notice a connection that is gone.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// The header in which a client says which event it has seen last.
const LAST_EVENT_ID: &str = "last-event-id";

/// Watches for a client.
pub(super) async fn watch(
    calls: &AdminCalls,
    route: Route,
    request: Result<DynamicMessage, String>,
    resume: Resume,
    headers: HeaderMap,
    caller: Caller,
) -> Response {
    let mut request = match request {
        Ok(request) => request,
        Err(why) => return refuse(&Status::invalid_argument(why)),
    };
    let last = match resume {
        Resume::Never => None,
        Resume::AfterEvent => headers.get(LAST_EVENT_ID),
    };
    let last = match last.map(EventId::of_header).transpose() {
        Ok(last) => last,
        Err(why) => return refuse(&Status::invalid_argument(why)),
    };
    if last.is_some() {
        // All that is kept: what the client has seen of it is skipped.
        request.set_field_by_name("replay", Value::String(String::new()));
    }
    let messages = match call::streaming(calls, route, &request, &headers).await {
        Ok(messages) => messages,
        Err(status) => return refuse(&status),
    };
    let mut tick = tokio::time::interval(KEEPALIVE);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let last_given = EventId::default();
    let watch =
        Watch { route, messages, resume, last_given, seen: last, has_ended: false, tick, caller };
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
        let is_time = time.is_empty() || is_timestamp(time);
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
    messages: Streaming<Bytes>,
    resume: Resume,
    /// The number of the last change.
    last_given: EventId,
    /// The last event that the client has seen.
    seen: Option<EventId>,
    has_ended: bool,
    tick: Interval,
    caller: Caller,
}

impl Watch {
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        if self.has_ended {
            return None;
        }
        loop {
            let message = tokio::select! {
                message = self.messages.message() => message,
                _ = self.tick.tick() => {
                    (self.caller.keep_open)();
                    return Some((Ok(Event::default().comment("")), self));
                }
            };
            let message = match message {
                Ok(Some(message)) => call::decode(self.route, message),
                Ok(None) => return None,
                Err(status) => Err(status),
            };
            let message = match message {
                Ok(message) => json::dynamic(&message),
                Err(status) => {
                    self.has_ended = true;
                    let (_, code) = http_status(status.code());
                    let why = serde_json::json!({"code": code, "message": status.message()});
                    return Some((Ok(Event::default().event("error").data(why.to_string())), self));
                }
            };
            let event = Event::default();
            if self.resume == Resume::Never {
                return Some((Ok(event.data(message.to_string())), self));
            }
            let time = message["time"].as_str().unwrap_or_default().to_owned();
            self.last_given = self.last_given.next(time);
            if self.seen.as_ref().is_some_and(|seen| self.last_given <= *seen) {
                continue;
            }
            let id = format!("{}/{}", self.last_given.time, self.last_given.place);
            return Some((Ok(event.id(id).data(message.to_string())), self));
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
        let wrong = ["", "yesterday", "yesterday/1", "2026-01-31T02:07:00.125Z/x", "12/7"];
        for wrong in
            wrong.into_iter().chain(["1970-01-01T00:00:00Z/1", "1970-01-01 00:00:00.000Z/1"])
        {
            assert_eq!(EventId::parse(wrong), None, "{wrong}");
        }
    }
}
