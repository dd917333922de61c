package leasehold

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"leasehold.dev/agent/sdk/go/internal/clock"
)

// testLog keeps what a worker logs.
type testLog struct {
	mu    sync.Mutex
	lines []string
}

// Write keeps a line: a handler of slog writes each at once.
func (l *testLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(line))
	return len(line), nil
}

// of returns the lines of a level.
func (l *testLog) of(level slog.Level) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []string
	for _, line := range l.lines {
		if strings.Contains(line, "level="+level.String()) {
			found = append(found, line)
		}
	}
	return found
}

// jump is a clock that a test moves forward, as a machine that was suspended does.
type jump struct{ by atomic.Int64 }

func (j *jump) now() clock.Moment {
	return clock.Now().Add(time.Duration(j.by.Load()))
}

// startWorker starts a worker of an agent, which ends with the test.
func startWorker(t *testing.T, options Options) (*Worker, *testLog) {
	t.Helper()
	return startWorkerWith(t, options, clock.Now, warnAfterDefault)
}

func startWorkerWith(
	t *testing.T, options Options, now func() clock.Moment, warnAfter time.Duration,
) (*Worker, *testLog) {
	t.Helper()
	log := &testLog{}
	all := &slog.HandlerOptions{Level: slog.LevelDebug}
	options.Logger = slog.New(slog.NewTextHandler(log, all))
	worker, err := newWorker(options, now, warnAfter)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { worker.closeWithin(0) })
	return worker, log
}

// limited is the context of a call that must not hang.
func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	t.Cleanup(cancel)
	return ctx
}

// beginJob begins a job in a goroutine; the channel is closed when it runs.
func beginJob(t *testing.T, worker *Worker, id string) <-chan struct{} {
	began := make(chan struct{})
	go func() {
		defer close(began)
		if _, err := worker.Job(limited(t), id); err != nil {
			t.Error(err)
		}
	}()
	return began
}

// mustJob begins a job.
func mustJob(t *testing.T, worker *Worker, id string) *Job {
	t.Helper()
	job, err := worker.Job(limited(t), id)
	if err != nil {
		t.Fatal(err)
	}
	return job
}

func TestAWorkerSaysThatItLivesAsLongAsItDoes(t *testing.T) {
	agent := newFakeAgent(t)
	worker, _ := startWorker(t, Options{Address: agent.url(), BeatWithin: time.Second})
	eventually(t, "three beats", func() bool { return len(agent.called("POST", "/v1/beat")) >= 3 })
	for _, beat := range agent.called("POST", "/v1/beat") {
		if beat.uri != "/v1/beat?within_ms=1000" {
			t.Errorf("the worker promises %s", beat.uri)
		}
	}
	if err := worker.Close(); err != nil {
		t.Error(err)
	}
	eventually(t, "the promise to be taken back", func() bool {
		beats := agent.called("POST", "/v1/beat")
		return beats[len(beats)-1].uri == "/v1/beat?within_ms=0"
	})
}

func TestAWorkerWithoutBeatsSaysNothing(t *testing.T) {
	agent := newFakeAgent(t)
	worker, _ := startWorker(t, Options{Address: agent.url(), BeatWithin: NoBeats})
	mustJob(t, worker, "a").End()
	// One with beats takes its promise back when it closes, and waits for that.
	if err := worker.closeWithin(hang); err != nil {
		t.Error(err)
	}
	if beats := agent.called("POST", "/v1/beat"); beats != nil {
		t.Error(beats)
	}
}

func TestInvalidOptionsAreRefused(t *testing.T) {
	const address = "http://127.0.0.1:1"
	for _, refused := range []struct {
		options Options
		said    string
	}{
		{Options{Address: address, BeatWithin: time.Second / 2}, "NoBeats, or 1s or more"},
		{Options{Address: address, BeatWithin: -time.Hour}, "invalid BeatWithin -1h0m0s"},
		// The worker would go on after its lease has ended.
		{Options{Address: address, StopBefore: -time.Second}, "invalid StopBefore -1s"},
		{Options{Address: "127.0.0.1:7411"}, "expected http://HOST:PORT or unix:PATH"},
	} {
		if _, err := New(refused.options); err == nil || !strings.Contains(err.Error(), refused.said) {
			t.Errorf("%+v: %v", refused.options, err)
		}
	}
}

func TestTheEnvironmentSaysWhereTheAgentIs(t *testing.T) {
	for _, found := range []struct{ given, address, socket, text, target string }{
		{"http://a:1", "http://[::1]:1234", "", "http://a:1", "a:1"},
		{"", "http://[::1]:1234", "/run/a.sock", "http://[::1]:1234", "[::1]:1234"},
		{"", "http://localhost/", "", "http://localhost/", "localhost:80"},
		{"", "", "/run/a.sock", "unix:/run/a.sock", "/run/a.sock"},
		{"", "", "", "http://127.0.0.1:7411", "127.0.0.1:7411"},
	} {
		t.Setenv("LEASEHOLD_ADDR", found.address)
		t.Setenv("LEASEHOLD_SOCKET", found.socket)
		at, err := findAddress(found.given)
		if err != nil || at.text != found.text || at.target != found.target {
			t.Errorf("%+v: %+v, %v", found, at, err)
		}
	}
	for _, text := range []string{
		"127.0.0.1:7411", "https://a:1", "http://", "http://a/b", "http://a?b", "http://b@a", "unix:",
		"http://a:b",
	} {
		if at, err := findAddress(text); err == nil {
			t.Errorf("%s: %+v", text, at)
		}
	}
}

func TestAUnixSocketServesTheSame(t *testing.T) {
	agent := newFakeAgentAt(t, "unix", filepath.Join(t.TempDir(), "agent.sock"))
	worker, _ := startWorker(t, Options{Address: agent.url()})
	mustJob(t, worker, "a")
	if agent.known() != "a" {
		t.Error(agent.known())
	}
}

func TestAConnectionNeverReachesAnotherProcess(t *testing.T) {
	fake := newFakeAgent(t)
	at, err := findAddress(fake.url())
	if err != nil {
		t.Fatal(err)
	}
	ctx := limited(t)
	connection, err := newAgent(at).connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.close()
	for i := 0; i < 2; i++ {
		// The second call uses the same connection.
		if _, err := connection.lease(ctx, kinds{}); err != nil {
			t.Fatal(err)
		}
	}
	fake.kill()
	fake.revive()
	for i := 0; i < 2; i++ {
		if lease, err := connection.lease(ctx, kinds{}); err == nil {
			t.Errorf("another process answered: %+v", lease)
		}
	}
}

func TestAnAnswerThatIsTooLongNamesTheLimit(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		// The reader closes the connection before it has all of this.
		w.Write(bytes.Repeat([]byte(" "), answerBytesMax+1))
	}))
	defer other.Close()
	at, err := findAddress(other.URL)
	if err != nil {
		t.Fatal(err)
	}
	ctx, agent := limited(t), newAgent(at)
	if _, err := agent.drain(ctx, false); err != errTooLong {
		t.Error(err)
	}
	connection, err := agent.connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.close()
	leases, err := connection.watch(ctx, kinds{})
	if err != nil {
		t.Fatal(err)
	}
	defer leases.close()
	if _, err := leases.next(); err != errTooLong {
		t.Error(err)
	}
}

func TestAnOutageIsLoggedOnceWithAddressReasonAndAdvice(t *testing.T) {
	agent := newFakeAgent(t)
	agent.kill()
	worker, log := startWorkerWith(t, Options{Address: agent.url()}, clock.Now, 0)
	eventually(t, "several attempts", func() bool { return len(log.of(slog.LevelDebug)) >= 3 })
	warnings := log.of(slog.LevelWarn)
	if len(warnings) != 1 {
		t.Fatal(warnings)
	}
	origin := "the program passes this address"
	for _, words := range []string{agent.url(), "refused", origin, "--listen"} {
		if !strings.Contains(warnings[0], words) {
			t.Errorf("no %q in %s", words, warnings[0])
		}
	}
	agent.revive()
	mustJob(t, worker, "a")
}

func TestAMissingAgentIsUnreachable(t *testing.T) {
	agent := newFakeAgent(t)
	agent.kill()
	worker, log := startWorker(t, Options{Address: agent.url()})
	eventually(t, "an attempt", func() bool { return len(log.of(slog.LevelDebug)) > 0 })
	ctx, cancel := context.WithTimeout(limited(t), 50*time.Millisecond)
	defer cancel()
	_, err := worker.Job(ctx, "a")
	var unreachable *UnreachableError
	if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &unreachable) {
		t.Fatal(err)
	}
	var refused *net.OpError
	if unreachable.Address != agent.url() || !errors.As(err, &refused) {
		t.Errorf("%+v", unreachable)
	}
}

func TestWhatIsNoAgentIsNamedWithWhatItAnswered(t *testing.T) {
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	_, log := startWorkerWith(t, Options{Address: other.URL}, clock.Now, 0)
	eventually(t, "a warning", func() bool { return len(log.of(slog.LevelWarn)) > 0 })
	said := log.of(slog.LevelWarn)[0]
	for _, words := range []string{"it answered 404: ", "is this the address of an agent?"} {
		if !strings.Contains(said, words) {
			t.Errorf("no %q in %s", words, said)
		}
	}
}

func TestClosingEndsTheLoopsAndReportsEnds(t *testing.T) {
	agent, worker := startJobs(t, 2)
	mustJob(t, worker, "a")
	job := mustJob(t, worker, "b")
	ended := make(chan error, 3)
	ctx := limited(t)
	go func() {
		ended <- worker.RunJobs(ctx, 1, func(context.Context, *Job) error { return nil })
	}()
	go func() {
		ended <- worker.RunStreams(ctx, func(context.Context, *Stream) error { return nil })
	}()
	go func() {
		_, err := worker.Job(ctx, "waits")
		ended <- err
	}()
	requested := func() bool { return agent.called("PUT", "/v1/jobs/waits") != nil }
	eventually(t, "the request", requested)
	consumes := func() bool { return agent.called("GET", "/v1/lease?without_bindings") != nil }
	eventually(t, "a lease with streams", consumes)
	agent.change(func() { agent.isFull = true })
	job.End()
	closed := make(chan error)
	go func() { closed <- worker.closeWithin(hang) }()
	for i := 0; i < 3; i++ {
		if err := await(t, "the end of a loop", ended); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	}
	agent.change(func() { agent.isFull = false })
	if err := await(t, "the end of Close", closed); err != nil {
		t.Error(err)
	}
	if agent.called("DELETE", "/v1/jobs/waits") == nil {
		t.Error("the agent may have admitted the job that waited")
	}
	if agent.known() != "a" {
		t.Error("these jobs have slots: ", agent.known())
	}
	if _, err := worker.Job(ctx, "c"); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := worker.NextStream(ctx); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func TestClosingSaysWhatTheAgentHasNotConfirmed(t *testing.T) {
	agent := newFakeAgent(t)
	worker, _ := startWorker(t, Options{Address: agent.url()})
	job := mustJob(t, worker, "a")
	agent.kill()
	job.End()
	if err := worker.closeWithin(time.Millisecond); err == nil {
		t.Error("the end is not confirmed")
	}
}

func TestASecondProcessOfTheWorkerAnnouncesNoStart(t *testing.T) {
	agent := newFakeAgent(t)
	agent.change(func() { agent.startID = "announced by the worker's first process" })
	worker, _ := startWorker(t, Options{Address: agent.url(), NoStart: true})
	job := mustJob(t, worker, "of a second process")
	if agent.known() != "of a second process" {
		t.Error(agent.known())
	}
	job.End()
	if err := worker.closeWithin(hang); err != nil {
		t.Error(err)
	}
	if starts := agent.called("POST", "/v1/start"); starts != nil {
		t.Error(starts)
	}
}
