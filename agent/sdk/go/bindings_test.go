package leasehold

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
)

// mustBinding takes the next binding.
func mustBinding(t *testing.T, worker *Worker) *Binding {
	t.Helper()
	binding, err := worker.NextBinding(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	return binding
}

func eventuallyUnbound(t *testing.T, agent *fakeAgent, token string) {
	t.Helper()
	path := "/v1/bindings/ns%2Ffirst/in/2?token=" + token
	released := func() bool { return len(agent.called("DELETE", path)) > 0 }
	eventually(t, "the release of the binding under "+token, released)
}

func TestABindingIsOwnedAndHasTheNewestRoutes(t *testing.T) {
	agent, worker := startStreams(t)
	agent.bind("8.17", "held", minute, "a")
	binding := mustBinding(t, worker)
	if binding.Pipeline() != "ns/first" || binding.Node() != "in" || binding.Index() != 2 {
		t.Error(binding)
	}
	if binding.Token() != (Token{8, 17}) || binding.DocumentsPerSecond() != 2.5 || !binding.Valid() {
		t.Error(binding.Token(), binding.DocumentsPerSecond(), binding.Valid())
	}
	want := Endpoint{Worker: "a", Address: "a:80", DocumentsPerSecond: 1.5}
	if to, isServed := binding.Pick("out"); to != want || !isServed {
		t.Error(to)
	}
	if to, isServed := binding.Pick("elsewhere"); isServed {
		t.Error(to)
	}
	agent.bind("8.17", "held", minute, "a", "b")
	routes := func() int { return len(binding.Next()[0].Endpoints) }
	eventually(t, "the routes", func() bool { return routes() == 2 })
	var picked []string
	for i := 0; i < 4; i++ {
		to, _ := binding.Pick("out")
		picked = append(picked, to.Worker)
	}
	if slices.Sort(picked); strings.Join(picked, " ") != "a a b b" {
		t.Error(picked)
	}
	agent.bind("8.17", "held", minute)
	eventually(t, "no route", func() bool { return routes() == 0 })
	if to, isServed := binding.Pick("out"); isServed {
		t.Error(to)
	}
	binding.Release()
	eventuallyUnbound(t, agent, "8.17")
	if binding.Valid() {
		t.Error("it is valid")
	}
}

func TestTheNextBindingComesAfterTheLastWasReleased(t *testing.T) {
	agent, worker := startStreams(t)
	agent.bind("8.1", "held", nil, "a")
	last := mustBinding(t, worker)
	agent.bind("8.2", "held", nil, "b")
	await(t, "the loss", last.Lost())
	// Another token is another lease: this one's routes stay as they were.
	if to, _ := last.Pick("out"); to.Worker != "a" {
		t.Error(to)
	}
	last.Release()
	if next := mustBinding(t, worker); next.Token() != (Token{8, 2}) {
		t.Error(next)
	}
}

func TestAWorkerThatTakesOnlyStreamsReleasesNoBinding(t *testing.T) {
	agent, worker := startStreams(t)
	agent.bind("8.1", "revoked", nil)
	agent.show("new", "8.2", "held", nil)
	mustStream(t, worker).Release()
	eventuallyReleased(t, agent, "new", "8.2")
	if released := agent.called("DELETE", "/v1/bindings"); released != nil {
		t.Error(released)
	}
}

func TestAHandlerRunsForEachBinding(t *testing.T) {
	agent, worker := startStreams(t)
	agent.bind("8.1", "held", nil)
	held, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- worker.RunBindings(limited(t),
			func(_ context.Context, binding *Binding) error {
				close(held)
				await(t, "the revocation", binding.Stopping())
				return nil
			})
	}()
	await(t, "the handler", held)
	agent.bind("8.1", "revoked", message{"release_within_ms": 30_000})
	eventuallyUnbound(t, agent, "8.1")
	agent.change(func() { agent.draining = true })
	if err := await(t, "the end of all handlers", ended); err != nil {
		t.Error(err)
	}
}

func TestADrainGoesOnWithWhatWasHandedOutAndReleasesTheRest(t *testing.T) {
	agent, worker := startStreams(t)
	agent.bind("8.1", "held", nil)
	binding := mustBinding(t, worker)
	agent.change(func() { agent.draining = true })
	if _, err := worker.NextBinding(limited(t)); !errors.Is(err, ErrDraining) {
		t.Error(err)
	}
	select {
	case <-binding.Stopping():
		t.Error("it is not revoked")
	default:
	}
	if !binding.Valid() {
		t.Error("it is not valid")
	}
	agent.bind("8.2", "held", nil)
	await(t, "the loss", binding.Lost())
	binding.Release()
	eventuallyUnbound(t, agent, "8.2")
}
