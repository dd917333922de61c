package leasehold

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"leasehold.dev/agent/sdk/go/internal/clock"
	"leasehold.dev/agent/sdk/go/internal/wire"
)

// listedStream is a stream of the set cars in a lease.
type listedStream struct {
	name, token string
	state       wire.StreamLeaseState
	// validMS is negative for one that does not end by time.
	validMS int
}

func newTestState() *state {
	shared := newShared(clock.Now, slog.Default(), time.Second)
	shared.state.consume(streamKind)
	return &shared.state
}

// list applies a lease that was requested at this moment.
func list(t *testing.T, state *state, asked clock.Moment, streams ...listedStream) {
	t.Helper()
	lease := &wire.Lease{Draining: state.draining}
	for _, one := range streams {
		stream := wire.StreamLease{Set: "cars", Stream: one.name, Token: one.token, State: one.state}
		if one.validMS >= 0 {
			valid := uint64(one.validMS)
			stream.ValidForMS = &valid
		}
		lease.Streams = append(lease.Streams, stream)
	}
	all, err := listedLeases(lease, asked, asked, state.spareMax)
	if err != nil {
		t.Fatal(err)
	}
	state.apply(lease.Draining, all)
}

// takes returns the streams that can be taken at this moment: NAME TOKEN.
func takes(state *state, now clock.Moment) string {
	var all []string
	for taken := state.take(streamKind, now); taken != nil; taken = state.take(streamKind, now) {
		all = append(all, taken.key.name+" "+taken.token.String())
	}
	return strings.Join(all, ", ")
}

func TestALeaseEndsBeforeItsTimeIsOverCountedFromTheRequest(t *testing.T) {
	second := clock.Moment(time.Second)
	valid := uint64(10_000)
	for _, expected := range []struct {
		spareMax time.Duration
		validMS  *uint64
		end      clock.Moment
	}{
		{time.Second, &valid, 12*second - second/2},
		{20 * time.Millisecond, &valid, 12*second - second/50},
		{time.Second, nil, clock.Never},
	} {
		lease := &wire.Lease{Streams: []wire.StreamLease{{Token: "8.1", ValidForMS: expected.validMS}}}
		all, err := listedLeases(lease, 2*second, 7*second, expected.spareMax)
		if err != nil || all[0].end != expected.end || all[0].releaseBy != clock.Never {
			t.Errorf("%+v: %+v, %v", expected, all, err)
		}
	}
}

func TestAnInvalidTokenIsAnError(t *testing.T) {
	lease := &wire.Lease{Bindings: []wire.Binding{{Pipeline: "first", Node: "in", Token: "8"}}}
	_, err := listedLeases(lease, 0, 0, 0)
	if err == nil || !strings.Contains(err.Error(), `first/in/0: invalid token "8"`) {
		t.Error(err)
	}
}

func TestALongTimeIsNoShortOne(t *testing.T) {
	valid := ^uint64(0)
	lease := &wire.Lease{Streams: []wire.StreamLease{{Token: "8.1", ValidForMS: &valid}}}
	all, err := listedLeases(lease, clock.Now(), clock.Now(), time.Second)
	if err != nil || all[0].end.Since(clock.Now()) < 100*365*24*time.Hour {
		t.Error(all, err)
	}
}

func TestAnUnknownStateIsNoPermission(t *testing.T) {
	state := newTestState()
	list(t, state, clock.Now(), listedStream{"new", "8.1", "borrowed", -1})
	if taken := takes(state, clock.Now()); taken != "" || state.hasUnconfirmed() {
		t.Error(taken, state.released)
	}
	list(t, state, clock.Now(), listedStream{"new", "8.1", wire.Held, -1})
	owned := state.take(streamKind, clock.Now())
	list(t, state, clock.Now(), listedStream{"new", "8.1", "borrowed", -1})
	if !owned.isRevoked {
		t.Error("it is not held any more")
	}
}

func TestAKindThatIsNotConsumedIsNeitherHandedOutNorReleased(t *testing.T) {
	state := newTestState()
	state.consumed = kinds{}
	list(t, state, clock.Now(),
		listedStream{"new", "8.1", wire.Held, -1}, listedStream{"old", "8.2", wire.Revoked, -1})
	if taken := takes(state, clock.Now()); taken != "" || state.hasUnconfirmed() {
		t.Error("another process of the worker may use it: ", taken, state.released)
	}
}

func TestAnExpiredLeaseWaitsForItsRenewal(t *testing.T) {
	state, now := newTestState(), clock.Now()
	list(t, state, now, listedStream{"new", "8.1", wire.Held, 0})
	if taken := takes(state, now); taken != "" {
		t.Error(taken)
	}
	list(t, state, now, listedStream{"new", "8.1", wire.Held, 60_000})
	if taken := takes(state, now); taken != "new 8.1" {
		t.Error(taken)
	}
}

func TestALostLeaseStaysLost(t *testing.T) {
	state, asked := newTestState(), clock.Now()
	list(t, state, asked, listedStream{"new", "8.1", wire.Held, 600_000})
	owned := state.take(streamKind, asked)
	end := state.expire(asked)
	if owned.isLost() || asked.Add(600*time.Second).Since(end) != time.Second {
		t.Error(end.Since(asked))
	}
	if state.expire(end) != clock.Never || !owned.isLost() {
		t.Error("its time is over")
	}
	lost := state.takeLost()
	if len(lost) != 1 || lost[0].why != "it was not renewed" || state.takeLost() != nil {
		t.Error(lost)
	}
	list(t, state, asked, listedStream{"new", "8.1", wire.Revoked, 900_000})
	list(t, state, asked, listedStream{"new", "8.1", wire.Held, 900_000})
	if !owned.isLost() || takes(state, asked) != "" {
		t.Error("it is valid again")
	}
}

func TestWhatNobodyTookIsReleasedInADrain(t *testing.T) {
	state, now := newTestState(), clock.Now()
	list(t, state, now, listedStream{"new", "8.1", wire.Held, -1})
	owned := state.take(streamKind, now)
	state.draining = true
	list(t, state, now,
		listedStream{"new", "8.1", wire.Held, -1}, listedStream{"old", "8.2", wire.Held, -1})
	old := releasedLease{leaseKey{kind: streamKind, of: "cars", name: "old"}, Token{8, 2}}
	if _, isReleased := state.released[old]; !isReleased || len(state.released) != 1 {
		t.Error(state.released)
	}
	if owned.isLost() || owned.isRevoked || takes(state, now) != "" {
		t.Error("it is in use, and no other one comes")
	}
}

func TestAnAgentWithoutAJournalLearnsOfFewerJobsAsTheEarlierOnesEnd(t *testing.T) {
	state := newTestState()
	begin := func(id string) *Job {
		job := &Job{id: id}
		state.running[id] = job
		return job
	}
	first, second := begin("a"), begin("b")
	if state.beginEra() != 2 {
		t.Error(state.unnamed)
	}
	state.endJob(begin("c"))
	state.confirmEnd("c", 1)
	if state.hasFewerUnnamed {
		t.Error("it knows the id of c")
	}
	state.endJob(first)
	state.confirmEnd("a", 1)
	if !state.hasFewerUnnamed || len(state.unnamed) != 1 {
		t.Error(state.unnamed)
	}
	// Its successor may not know what the former process has confirmed.
	if state.beginEra() != 1 {
		t.Error(state.unnamed)
	}
	state.endJob(second)
	state.confirmEnd("b", 1)
	if _, isEnded := state.ended["b"]; !isEnded {
		t.Error("the process of another era has confirmed it")
	}
	state.confirmEnd("b", 2)
	if len(state.ended) != 0 || len(state.unnamed) != 0 {
		t.Error(state.ended, state.unnamed)
	}
}
