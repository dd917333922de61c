package leasehold

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// minute is the time of most streams here.
var minute = message{"valid_for_ms": 60_000}

func startStreams(t *testing.T) (*fakeAgent, *Worker) {
	t.Helper()
	agent := newFakeAgent(t)
	worker, _ := startWorker(t, Options{Address: agent.url()})
	return agent, worker
}

// startStream starts a worker that owns the stream new under the token 8.1.
func startStream(t *testing.T, times message) (*fakeAgent, *Worker, *Stream) {
	t.Helper()
	agent, worker := startStreams(t)
	agent.show("new", "8.1", "held", times)
	return agent, worker, mustStream(t, worker)
}

// mustStream takes the next stream.
func mustStream(t *testing.T, worker *Worker) *Stream {
	t.Helper()
	stream, err := worker.NextStream(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// released returns the releases of a stream under a token.
func (f *fakeAgent) released(name, token string) []call {
	return f.called("DELETE", "/v1/streams/cars/"+name+"?token="+token)
}

func eventuallyReleased(t *testing.T, agent *fakeAgent, name, token string) {
	t.Helper()
	released := func() bool { return len(agent.released(name, token)) > 0 }
	eventually(t, "the release of "+name, released)
}

func TestAStreamIsOwnedUntilItIsReleased(t *testing.T) {
	agent, worker := startStreams(t)
	agent.show("new/1 ä", "8.17", "held", minute)
	stream := mustStream(t, worker)
	if stream.Set() != "cars" || stream.Name() != "new/1 ä" || stream.Token() != (Token{8, 17}) {
		t.Error(stream)
	}
	left, ends := stream.TimeLeft()
	if !stream.Valid() || !ends || left > time.Minute || left == 0 {
		t.Error(stream.Valid(), ends, left)
	}
	if within, isSet := stream.ReleaseWithin(); isSet {
		t.Error(within)
	}
	stream.Release()
	stream.Release()
	eventuallyReleased(t, agent, "new%2F1%20%C3%A4", "8.17")
	if left, ends := stream.TimeLeft(); stream.Valid() || left != 0 || !ends {
		t.Error("it is valid")
	}
	await(t, "its end", stream.Lost())
}

func TestStreamsAreRequestedOnlyOnceTheyAreConsumed(t *testing.T) {
	agent, worker := startStreams(t)
	agent.show("new", "8.17", "held", minute)
	mustJob(t, worker, "a")
	// What the agent shows counts as something that the worker may work on.
	queries := func() string {
		var all []string
		for _, one := range agent.called("GET", "/v1/lease") {
			all = append(all, one.uri)
		}
		return strings.Join(all, " ")
	}
	const neither = "/v1/lease?without_streams=true&without_bindings=true"
	if queries() != neither {
		t.Error(queries())
	}
	if mustStream(t, worker).Name() != "new" {
		t.Error("another stream")
	}
	if queries() != neither+" /v1/lease?without_bindings=true" {
		t.Error(queries())
	}
	if agent.known() != "a" {
		t.Error("the second connection ended the job")
	}
}

func TestAPinnedStreamDoesNotEndByTime(t *testing.T) {
	_, _, stream := startStream(t, nil)
	if left, ends := stream.TimeLeft(); ends || !stream.Valid() {
		t.Error(left)
	}
}

func TestARevokedStreamIsValidUntilItIsReleased(t *testing.T) {
	agent, _, stream := startStream(t, minute)
	revoked := message{"valid_for_ms": 60_000, "release_within_ms": 30_000}
	agent.show("new", "8.1", "revoked", revoked)
	await(t, "the revocation", stream.Stopping())
	await(t, "the revocation", stream.Revoked())
	if within, isSet := stream.ReleaseWithin(); !isSet || within > 30*time.Second {
		t.Error(within, isSet)
	}
	if !stream.Valid() || agent.released("new", "8.1") != nil {
		t.Error("it was released")
	}
	stream.Release()
	eventuallyReleased(t, agent, "new", "8.1")
}

func TestARevocationMayBeTakenBack(t *testing.T) {
	agent, _, stream := startStream(t, nil)
	agent.show("new", "8.1", "revoked", nil)
	await(t, "the revocation", stream.Revoked())
	agent.show("new", "8.1", "held", nil)
	eventually(t, "the revocation to be taken back", func() bool {
		select {
		case <-stream.Stopping():
			return false
		default:
			return true
		}
	})
	agent.show("new", "8.1", "revoked", nil)
	await(t, "another revocation", stream.Stopping())
}

func TestARevokedStreamThatWasNotHandedOutIsReleased(t *testing.T) {
	agent, worker := startStreams(t)
	agent.show("old", "8.1", "held", nil)
	agent.show("new", "8.2", "held", nil)
	taken, left := mustStream(t, worker).Name(), "old"
	if taken == "old" {
		left = "new"
	}
	agent.show("old", "8.1", "revoked", nil)
	agent.show("new", "8.2", "revoked", nil)
	eventually(t, "the release", func() bool { return agent.released(left, "") != nil })
	if agent.released(taken, "") != nil {
		t.Error("a stream in use was released")
	}
}

func TestAWorkerThatUsesNoStreamsReleasesNone(t *testing.T) {
	agent, worker := startStreams(t)
	agent.show("new", "8.1", "revoked", nil)
	mustJob(t, worker, "a").End()
	eventuallyKnown(t, agent, "")
	if agent.released("new", "") != nil {
		t.Error("another process of the worker may use it")
	}
}

func TestATokenIsHandedOutOnce(t *testing.T) {
	agent, worker := startStreams(t)
	agent.show("new", "8.9", "held", nil)
	mustStream(t, worker).Release()
	eventuallyReleased(t, agent, "new", "8.9")
	// What was under way lists it once more, before another stream; then it is granted again.
	agent.show("new", "8.9", "held", nil)
	agent.show("other", "8.11", "held", nil)
	if other := mustStream(t, worker); other.Name() != "other" {
		t.Error(other)
	}
	agent.show("new", "8.10", "held", nil)
	if token := mustStream(t, worker).Token(); token != (Token{8, 10}) {
		t.Error(token)
	}
}

func TestTheNextOwnerComesAfterTheLastHasReleased(t *testing.T) {
	agent, worker, last := startStream(t, nil)
	agent.show("new", "8.2", "held", nil)
	await(t, "the loss", last.Lost())
	agent.show("other", "8.3", "held", nil)
	if other := mustStream(t, worker); other.Name() != "other" {
		t.Error(other)
	}
	last.Release()
	if next := mustStream(t, worker); next.Token() != (Token{8, 2}) {
		t.Error(next)
	}
}

func TestAWithdrawnStreamIsLostAndItsContextEnds(t *testing.T) {
	agent, _, stream := startStream(t, nil)
	ctx, cancel := stream.Context(limited(t))
	defer cancel()
	agent.hide("new")
	await(t, "the loss", stream.Lost())
	await(t, "the end of the context", ctx.Done())
	if !errors.Is(context.Cause(ctx), ErrLost) || stream.Valid() {
		t.Error(context.Cause(ctx))
	}
}

func TestTheContextOfAStreamEndsWithItsParent(t *testing.T) {
	_, _, stream := startStream(t, nil)
	parent, end := context.WithCancel(limited(t))
	ctx, cancel := stream.Context(parent)
	defer cancel()
	if ctx.Err() != nil {
		t.Error("the stream is owned")
	}
	end()
	if await(t, "the end", ctx.Done()); !errors.Is(context.Cause(ctx), context.Canceled) {
		t.Error(context.Cause(ctx))
	}
}

func TestAStreamOutlivesItsAgentButNotItsLease(t *testing.T) {
	agent, jump := newFakeAgent(t), &jump{}
	worker, _ := startWorkerWith(t, Options{Address: agent.url()}, jump.now, warnAfterDefault)
	agent.show("new", "8.1", "held", message{"valid_for_ms": 600_000})
	stream := mustStream(t, worker)
	agent.kill()
	left, _ := stream.TimeLeft()
	if !stream.Valid() || left > 599*time.Second {
		t.Error("it must be lost a second before its end, in ", left)
	}
	// The process was stopped or the machine suspended: no timer tells of that.
	jump.by.Add(int64(left))
	if stream.Valid() {
		t.Error("its time is over")
	}
	await(t, "the loss", stream.Lost())
	await(t, "the loss", stream.Stopping())
	agent.revive()
	// The agent may still list it: what is lost stays lost until it is released.
	agent.show("new", "8.1", "held", message{"valid_for_ms": 900_000})
	mustJob(t, worker, "after the restart")
	if stream.Valid() {
		t.Error("it is valid again")
	}
	stream.Release()
	eventuallyReleased(t, agent, "new", "8.1")
}

func TestAStreamIsLostByTheClockWithoutACall(t *testing.T) {
	_, _, stream := startStream(t, message{"valid_for_ms": 2_000})
	// The agent is there, and says nothing.
	await(t, "the loss", stream.Lost())
}

func TestAnExpiredLeaseIsNotHandedOut(t *testing.T) {
	agent, worker := startStreams(t)
	agent.show("expired", "8.1", "held", message{"valid_for_ms": 0})
	agent.show("new", "8.2", "held", minute)
	if stream := mustStream(t, worker); stream.Name() != "new" {
		t.Error(stream)
	}
}

func TestALeaseOfBeforeTheStartIsPassedOver(t *testing.T) {
	agent := newFakeAgent(t)
	worker, log := startWorker(t, Options{Address: agent.url()})
	mustJob(t, worker, "connected")
	agent.show("former", "8.1", "held", nil)
	// The watch for streams lists it. Only then the agent hears of the start once more.
	agent.change(func() { agent.onStart = func() { delete(agent.streams, "former") } })
	taken := make(chan *Stream, 1)
	go func() {
		stream, _ := worker.NextStream(limited(t))
		taken <- stream
	}()
	eventually(t, "the older lease", func() bool {
		return strings.Contains(strings.Join(log.of(slog.LevelDebug), "\n"), "an older lease")
	})
	agent.show("new", "8.2", "held", nil)
	if stream := await(t, "a stream", taken); stream == nil || stream.Name() != "new" {
		t.Error(stream)
	}
}

func TestADrainEndsTheLoopOverStreams(t *testing.T) {
	agent, worker, stream := startStream(t, nil)
	agent.change(func() { agent.draining = true })
	worker.Streams(limited(t))(func(another *Stream) bool {
		t.Error(another)
		return true
	})
	if _, err := worker.NextStream(limited(t)); !errors.Is(err, ErrDraining) {
		t.Error(err)
	}
	stream.Release()
}

func TestAHandlerRunsForEachStream(t *testing.T) {
	agent := newFakeAgent(t)
	worker, log := startWorker(t, Options{Address: agent.url()})
	agent.show("new", "8.1", "held", nil)
	agent.show("old", "8.2", "held", nil)
	agent.show("gone", "8.3", "held", nil)
	running := make(chan string, 3)
	ended := make(chan error, 1)
	go func() {
		ended <- worker.RunStreams(limited(t),
			func(ctx context.Context, stream *Stream) error {
				running <- stream.Name()
				await(t, "the end of a stream", stream.Stopping())
				if stream.Name() == "old" {
					return errors.New("the old one fails")
				}
				return ctx.Err()
			})
	}()
	for i := 0; i < 3; i++ {
		await(t, "the handlers", running)
	}
	agent.show("old", "8.2", "revoked", nil)
	eventuallyReleased(t, agent, "old", "8.2")
	agent.hide("gone")
	eventuallyReleased(t, agent, "gone", "8.3")
	agent.show("new", "8.1", "revoked", nil)
	agent.change(func() { agent.draining = true })
	if err := await(t, "the end of all handlers", ended); err != nil {
		t.Error(err)
	}
	eventuallyReleased(t, agent, "new", "8.1")
	// Of one that was withdrawn the agent says that it is not held: that is confirmation enough.
	eventuallyConfirmed(t, worker)
	// The end of a handler's own context is no failure.
	errs := log.of(slog.LevelError)
	if len(errs) != 1 || !strings.Contains(errs[0], "the old one fails") {
		t.Error(errs)
	}
}

func TestTheEndOfTheContextReleasesTheStreams(t *testing.T) {
	agent, worker := startStreams(t)
	agent.show("new", "8.1", "held", nil)
	ctx, cancel := context.WithCancel(limited(t))
	err := worker.RunStreams(ctx, func(ctx context.Context, _ *Stream) error {
		cancel()
		await(t, "the end of the context", ctx.Done())
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	eventuallyReleased(t, agent, "new", "8.1")
}
