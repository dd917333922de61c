//! Which leases are handed out, lost and released.

use super::*;

/// A lease that lists streams of the set `cars`: name, token, `held` or `revoked`, milliseconds.
fn lease(streams: &[(&str, &str, &str, Option<u64>)]) -> wire::Lease {
    let listed = streams.iter().map(|(stream, token, state, valid_for_ms)| wire::StreamLease {
        set: "cars".into(),
        stream: (*stream).into(),
        token: (*token).into(),
        state: match *state {
            "held" => wire::StreamLeaseState::Held.into(),
            "revoked" => wire::StreamLeaseState::Revoked.into(),
            _ => 99,
        },
        valid_for_ms: *valid_for_ms,
        release_within_ms: None,
    });
    wire::Lease { streams: listed.collect(), ..wire::Lease::default() }
}

fn consuming() -> State {
    let mut state = State { spare_max: Duration::from_secs(1), ..State::default() };
    state.consume(Kind::Stream);
    state
}

fn key(stream: &str) -> Key {
    Key { kind: Kind::Stream, of: "cars".into(), name: stream.into(), index: 0 }
}

/// A lease that lists the binding `first/in/2`: its token, and the workers that come next.
fn bound(token: &str, next: &[&str]) -> wire::Lease {
    let endpoint = |worker: &&str| wire::Endpoint {
        worker: (*worker).into(),
        documents_per_second: 1.0,
        ..wire::Endpoint::default()
    };
    let endpoints = next.iter().map(endpoint).collect();
    let binding = wire::Binding {
        pipeline: "first".into(),
        node: "in".into(),
        index: 2,
        token: token.into(),
        state: wire::StreamLeaseState::Held.into(),
        documents_per_second: 2.5,
        next: vec![wire::Next { node: "out".into(), endpoints }],
        ..wire::Binding::default()
    };
    wire::Lease { bindings: vec![binding], ..wire::Lease::default() }
}

fn token(text: &str) -> Token {
    text.parse().expect("a token")
}

/// The streams that can be taken now: `STREAM TOKEN`.
fn takes(state: &mut State) -> Vec<String> {
    let taken = std::iter::from_fn(|| state.take(Kind::Stream));
    taken.map(|taken| format!("{} {}", taken.key.name, taken.token)).collect()
}

#[test]
fn a_token_is_handed_out_once() {
    let mut state = consuming();
    let held = lease(&[("new", "8.9", "held", None)]);
    state.apply(&held, clock::now());
    assert_eq!(takes(&mut state), ["new 8.9"]);
    state.release(&key("new"), token("8.9"));
    // A lease that was in flight lists it once more.
    state.apply(&held, clock::now());
    assert_eq!(takes(&mut state), Vec::<String>::new());
    state.apply(&lease(&[("new", "8.10", "held", None)]), clock::now());
    assert_eq!(takes(&mut state), ["new 8.10"]);
    assert_eq!(state.released, BTreeSet::from([(key("new"), token("8.9"))]));
}

#[test]
fn the_next_owner_comes_after_the_last_has_released() {
    let mut state = consuming();
    state.apply(&lease(&[("new", "8.1", "held", None)]), clock::now());
    let last = state.take(Kind::Stream).expect("it is held").status;
    state.apply(&lease(&[("new", "8.2", "held", None)]), clock::now());
    assert!(last.borrow().lost, "it was granted anew");
    assert_eq!(takes(&mut state), Vec::<String>::new());
    state.release(&key("new"), token("8.1"));
    assert_eq!(takes(&mut state), ["new 8.2"]);
}

#[test]
fn a_revoked_lease_that_nobody_took_is_released() {
    let mut state = State::default();
    let revoked = lease(&[("new", "8.1", "revoked", None)]);
    state.apply(&revoked, clock::now());
    assert!(state.released.is_empty(), "this process consumes no streams: another one may");
    state.consume(Kind::Stream);
    assert_eq!(state.released, BTreeSet::from([(key("new"), token("8.1"))]));
    assert_eq!(takes(&mut state), Vec::<String>::new());
}

#[test]
fn an_unknown_state_is_no_permission() {
    let mut state = consuming();
    state.apply(&lease(&[("new", "8.1", "borrowed", None)]), clock::now());
    assert_eq!(takes(&mut state), Vec::<String>::new());
}

#[test]
fn a_stream_is_lost_before_its_lease_ends_counted_from_the_request() {
    let mut state = consuming();
    let asked = clock::now();
    state.apply(&lease(&[("new", "8.1", "held", Some(600_000))]), asked);
    let status = state.take(Kind::Stream).expect("it is held").status;
    let lease_end = asked + Duration::from_secs(600);
    let left = state.expire(asked).expect("it ends by time");
    assert!(asked + left < lease_end && lease_end.since(asked + left) <= Duration::from_secs(1));
    assert!(!status.borrow().lost);
    assert_eq!(state.expire(asked + left), None);
    assert!(status.borrow().lost);
    // The agent may still list it: a lost lease stays lost.
    state.apply(&lease(&[("new", "8.1", "held", Some(900_000))]), asked);
    assert!(status.borrow().lost);
    assert_eq!(takes(&mut state), Vec::<String>::new());
}

#[test]
fn a_lease_that_is_over_is_not_handed_out_until_it_is_renewed() {
    let mut state = consuming();
    state.apply(&lease(&[("new", "8.1", "held", Some(0))]), clock::now());
    assert_eq!(takes(&mut state), Vec::<String>::new());
    state.apply(&lease(&[("new", "8.1", "held", Some(60_000))]), clock::now());
    assert_eq!(takes(&mut state), ["new 8.1"]);
}

#[test]
fn a_binding_is_handed_out_once_to_a_consumer_of_bindings_and_its_routes_are_the_newest() {
    let mut state = consuming();
    state.apply(&bound("8.1", &["a"]), clock::now());
    assert_eq!(takes(&mut state), Vec::<String>::new(), "it is no stream");
    assert!(state.take(Kind::Binding).is_none(), "nobody consumes bindings here");
    state.consume(Kind::Binding);
    let taken = state.take(Kind::Binding).expect("it is held");
    assert_eq!((taken.key.to_string(), taken.load), ("first/in/2".into(), 2.5));
    let workers = || {
        let next = taken.status.borrow().next.clone();
        next[0]
            .endpoints
            .iter()
            .map(|endpoint| endpoint.worker.clone())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(workers(), "a");
    state.apply(&bound("8.1", &["a", "b"]), clock::now());
    assert_eq!(workers(), "a b");
    assert!(state.take(Kind::Binding).is_none(), "a token is handed out once");
    // Another token is another lease with its own load: this one's routes stay as they were.
    state.apply(&bound("8.2", &["c"]), clock::now());
    assert!(taken.status.borrow().lost);
    assert_eq!(workers(), "a b");
    state.release(&taken.key, taken.token);
    assert_eq!(state.released, BTreeSet::from([(taken.key.clone(), token("8.1"))]));
    assert_eq!(state.take(Kind::Binding).map(|lease| lease.token), Some(token("8.2")));
}

#[test]
fn a_drain_goes_on_with_what_was_handed_out_and_gives_the_rest_back() {
    let mut state = State::default();
    state.consume(Kind::Binding);
    let draining = |token| wire::Lease { draining: true, ..bound(token, &[]) };
    state.apply(&bound("8.1", &[]), clock::now());
    let taken = state.take(Kind::Binding).expect("it is held");
    state.apply(&draining("8.1"), clock::now());
    assert!(state.released.is_empty(), "it is in use");
    state.release(&taken.key, taken.token);
    state.apply(&draining("8.2"), clock::now());
    assert!(state.take(Kind::Binding).is_none());
    let released = [token("8.1"), token("8.2")].map(|token| (taken.key.clone(), token));
    assert_eq!(state.released, BTreeSet::from(released));
}

#[test]
fn an_agent_without_a_journal_learns_of_fewer_jobs_as_the_earlier_ones_end() {
    let running = ["a", "b"].map(str::to_owned).into();
    let mut state = State { running, ..State::default() };
    assert_eq!(state.begin_era(), 2);
    state.running.insert("c".into());
    state.end("c");
    state.end_confirmed("c", 1);
    assert!(!state.fewer_unnamed, "it knows the id of c");
    state.end("a");
    state.end_confirmed("a", 1);
    assert!(state.fewer_unnamed);
    assert_eq!(state.unnamed_left(), 1);
    // Its successor may not know what the previous process has confirmed.
    assert_eq!(state.begin_era(), 1);
    state.end("b");
    state.end_confirmed("b", 1);
    assert!(state.ended.contains("b"));
    state.end_confirmed("b", 2);
    assert_eq!((state.ended.len(), state.unnamed_left()), (0, 0));
}
