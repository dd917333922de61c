package leasehold

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

func startJobs(t *testing.T, pool int) (*fakeAgent, *Worker) {
	t.Helper()
	agent := newFakeAgent(t)
	agent.change(func() { agent.pool = pool })
	worker, _ := startWorker(t, Options{Address: agent.url()})
	return agent, worker
}

// eventuallyKnown waits until these jobs run, as far as the agent knows.
func eventuallyKnown(t *testing.T, agent *fakeAgent, ids string) {
	t.Helper()
	eventually(t, "the jobs to be: "+ids, func() bool { return agent.known() == ids })
}

func TestAJobHoldsItsSlotUntilItEnds(t *testing.T) {
	agent, worker := startJobs(t, 1)
	job := mustJob(t, worker, "build/1 ä")
	if job.ID() != "build/1 ä" || job.Token() != (Token{1, 1}) || agent.known() != "build/1 ä" {
		t.Errorf("%v of %q", job, agent.known())
	}
	job.End()
	job.End()
	eventuallyKnown(t, agent, "")
}

func TestTheStartIsAnnouncedBeforeTheFirstRequest(t *testing.T) {
	agent, worker := startJobs(t, 1)
	mustJob(t, worker, "a").End()
	first := look(agent, func() call { return agent.calls[0] })
	if first.uri != "/v1/start" {
		t.Error(first)
	}
}

func TestHandlersRunAtOnceAsFarAsThereAreSlotsUntilTheDrain(t *testing.T) {
	agent := newFakeAgent(t)
	agent.change(func() { agent.pool = 2 })
	worker, log := startWorker(t, Options{Address: agent.url()})
	var mu sync.Mutex
	begun, together := map[string]struct{}{}, make(chan struct{})
	handle := func(_ context.Context, job *Job) error {
		mu.Lock()
		begun[job.ID()] = struct{}{}
		count := len(begun)
		mu.Unlock()
		if running := len(strings.Fields(agent.known())); running > 2 {
			t.Errorf("%d jobs run, of a pool of 2", running)
		}
		switch {
		case count == 2:
			close(together)
		case count == 4:
			return errors.New("the fourth fails")
		case count > 6:
			agent.change(func() { agent.draining = true })
		}
		await(t, "two at a time", together)
		return nil
	}
	if err := worker.RunJobs(limited(t), 3, handle); err != nil {
		t.Error(err)
	}
	if len(begun) < 7 {
		t.Errorf("only %d jobs", len(begun))
	}
	errs := log.of(slog.LevelError)
	if len(errs) != 1 || !strings.Contains(errs[0], "the fourth fails") {
		t.Error(errs)
	}
	eventuallyKnown(t, agent, "")
	if err := worker.RunJobs(limited(t), 0, handle); err == nil {
		t.Error("no concurrency is 0")
	}
}

func TestTheEndOfTheContextEndsTheLoopAndTheHandlers(t *testing.T) {
	agent, worker := startJobs(t, 2)
	ctx, cancel := context.WithCancel(limited(t))
	err := worker.RunJobs(ctx, 2, func(ctx context.Context, _ *Job) error {
		cancel()
		await(t, "the end of the context", ctx.Done())
		return ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	eventuallyKnown(t, agent, "")
}

func TestAnIteratedJobEndsBeforeTheNext(t *testing.T) {
	agent, worker := startJobs(t, 1)
	count := 0
	worker.Jobs(limited(t))(func(job *Job) bool {
		if agent.known() != job.ID() {
			t.Errorf("%v beside %s", job, agent.known())
		}
		if count++; count == 1 {
			// It may give its slot back early.
			job.End()
			eventuallyKnown(t, agent, "")
		}
		return count < 3
	})
	if count != 3 {
		t.Error(count)
	}
	eventuallyKnown(t, agent, "")
}

func TestAJobWaitsForASlot(t *testing.T) {
	agent, worker := startJobs(t, 1)
	first := mustJob(t, worker, "a")
	began := beginJob(t, worker, "b")
	eventually(t, "the request", func() bool { return agent.called("PUT", "/v1/jobs/b") != nil })
	select {
	case <-began:
		t.Error("two jobs run, of a pool of 1")
	default:
	}
	first.End()
	await(t, "the slot", began)
	if agent.known() != "b" {
		t.Error(agent.known())
	}
}

func TestACallerThatGivesUpTakesNoSlot(t *testing.T) {
	agent, worker := startJobs(t, 1)
	mustJob(t, worker, "a")
	ctx, cancel := context.WithTimeout(limited(t), 50*time.Millisecond)
	defer cancel()
	if _, err := worker.Job(ctx, "b"); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	eventuallyConfirmed(t, worker)
	if agent.known() != "a" {
		t.Error(agent.known())
	}
}

// eventuallyConfirmed waits until the agent has confirmed all ends, also of what was given up.
func eventuallyConfirmed(t *testing.T, worker *Worker) {
	t.Helper()
	eventually(t, "the agent to confirm everything", func() bool {
		isConfirmed := false
		worker.shared.look(func(state *state) {
			isConfirmed = len(state.abandoned) == 0 && !state.hasUnconfirmed()
		})
		return isConfirmed
	})
}

func TestARequestThatIsGivenUpAtAnyMomentTakesNoSlot(t *testing.T) {
	agent, worker := startJobs(t, 100)
	var callers sync.WaitGroup
	for i := 0; i < 100; i++ {
		callers.Add(1)
		go func() {
			defer callers.Done()
			ctx, cancel := context.WithCancel(limited(t))
			go cancel()
			job, err := worker.NextJob(ctx)
			if err == nil {
				job.End()
			} else if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}()
	}
	callers.Wait()
	eventuallyConfirmed(t, worker)
	if agent.known() != "" {
		t.Error("these jobs have slots that nobody ends: ", agent.known())
	}
}

func TestTheEndOfWhatWasGivenUpFollowsTheRequest(t *testing.T) {
	agent, worker := startJobs(t, 2)
	admitted := make(chan struct{})
	agent.change(func() { agent.admitted = admitted })
	ctx, cancel := context.WithCancel(limited(t))
	ended := make(chan error, 1)
	go func() {
		_, err := worker.Job(ctx, "a")
		ended <- err
	}()
	eventuallyKnown(t, agent, "a")
	agent.change(func() { agent.admitted = nil })
	cancel()
	if err := await(t, "the error", ended); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	again := beginJob(t, worker, "a")
	// While the agent handles the request, its end would come too early. Other ends are reported.
	mustJob(t, worker, "b").End()
	eventually(t, "the end of b", func() bool {
		isReported := false
		worker.shared.look(func(state *state) { isReported = !state.hasUnconfirmed() })
		return isReported
	})
	if ends := agent.called("DELETE", "/v1/jobs/a"); ends != nil {
		t.Error("the end overtakes the request: ", ends)
	}
	close(admitted)
	await(t, "the second run", again)
	eventuallyConfirmed(t, worker)
	if ends := agent.called("DELETE", "/v1/jobs/a"); len(ends) != 1 || agent.known() != "a" {
		t.Error("the end of the first request has ended the second run: ", ends)
	}
}

func TestARequestWithoutAnAnswerIsOverBeforeTheNextIsSent(t *testing.T) {
	agent, worker := startJobs(t, 1)
	mustJob(t, worker, "first").End()
	pending := &pendingJob{worker: worker, id: "a", over: make(chan struct{})}
	ctx, cancel := context.WithTimeout(limited(t), 50*time.Millisecond)
	defer cancel()
	_, err := pending.ask(ctx, slotWaitMax)
	if asked := agent.called("PUT", "/v1/jobs/a"); asked != nil || !errors.Is(err, ctx.Err()) {
		t.Error(asked, err)
	}
	close(pending.over)
	if _, err := pending.ask(limited(t), slotWaitMax); err != nil {
		t.Error(err)
	}
	await(t, "the end of the request", pending.over)
}

func TestAnIDThatWasGivenUpMayBeUsedAgain(t *testing.T) {
	agent, worker := startJobs(t, 1)
	first := mustJob(t, worker, "a")
	ctx, cancel := context.WithCancel(limited(t))
	ended := make(chan error, 1)
	go func() {
		_, err := worker.Job(ctx, "b")
		ended <- err
	}()
	asked := func() bool { return len(agent.called("PUT", "/v1/jobs/b")) > 0 }
	eventually(t, "the request", asked)
	cancel()
	if err := await(t, "the error", ended); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	first.End()
	mustJob(t, worker, "b")
	eventuallyConfirmed(t, worker)
	if agent.known() != "b" {
		t.Error("the end of the first request ended the second: ", agent.known())
	}
}

func TestTheErrorOfACallerThatGivesUpHasTheReason(t *testing.T) {
	agent, worker := startJobs(t, 1)
	agent.change(func() { agent.refusal = ReasonLimit })
	ctx, cancel := context.WithCancel(limited(t))
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := worker.Job(ctx, "b")
		ended <- err
	}()
	asked := func() bool { return len(agent.called("PUT", "/v1/jobs/b")) > 1 }
	eventually(t, "a second request", asked)
	cancel()
	err := await(t, "the error", ended)
	var refused *RefusedError
	if !errors.Is(err, context.Canceled) || !errors.As(err, &refused) {
		t.Fatal(err)
	}
	if refused.Reason != ReasonLimit {
		t.Error(refused)
	}
}

func TestAnInvalidIDIsRefusedAtOnce(t *testing.T) {
	_, worker := startJobs(t, 1)
	for _, id := range []string{"a\nb", ""} {
		_, err := worker.Job(limited(t), id)
		var refused *RefusedError
		if !errors.As(err, &refused) || refused.Reason != ReasonInvalid {
			t.Errorf("%q: %v", id, err)
		}
		if errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%q is asked for again and again", id)
		}
	}
}

func TestAnIDRunsOnce(t *testing.T) {
	agent, worker := startJobs(t, 1)
	first := mustJob(t, worker, "a")
	if _, err := worker.Job(limited(t), "a"); !errors.Is(err, ErrJobRuns) {
		t.Error(err)
	}
	first.End()
	second := mustJob(t, worker, "a")
	first.End()
	eventuallyConfirmed(t, worker)
	if agent.known() != "a" {
		t.Error("the end of the first run has ended the second")
	}
	second.End()
	eventuallyKnown(t, agent, "")
}

func TestAnIDRunsAgainOnlyOnceItsEndIsConfirmed(t *testing.T) {
	agent, worker := startJobs(t, 1)
	first := mustJob(t, worker, "a")
	agent.change(func() { agent.isFull = true })
	first.End()
	began := beginJob(t, worker, "a")
	tried := func() bool { return len(agent.called("DELETE", "/v1/jobs/a")) > 1 }
	eventually(t, "the agent to refuse the end again", tried)
	agent.change(func() { agent.isFull = false })
	await(t, "the second run", began)
	eventuallyConfirmed(t, worker)
	if agent.known() != "a" {
		t.Error("the end of the first run has ended the second")
	}
}

func TestADrainEndsTheLoop(t *testing.T) {
	agent, worker := startJobs(t, 1)
	count := 0
	worker.Jobs(limited(t))(func(*Job) bool {
		if count++; count == 3 {
			if jobs, err := worker.Drain(limited(t)); jobs != 1 || err != nil {
				t.Error(jobs, err)
			}
		}
		return true
	})
	if count != 3 {
		t.Error(count)
	}
	eventually(t, "the worker to drain", worker.Draining)
	if _, err := worker.Job(limited(t), "a"); !errors.Is(err, ErrDraining) {
		t.Error(err)
	}
	eventuallyKnown(t, agent, "")
	if jobs, err := worker.DrainToEnd(limited(t)); jobs != 0 || err != nil {
		t.Error(jobs, err)
	}
}

func TestADrainIsRepeatedUntilTheAgentAnswers(t *testing.T) {
	agent := newFakeAgent(t)
	agent.kill()
	worker, log := startWorker(t, Options{Address: agent.url()})
	drained := make(chan error, 1)
	go func() {
		_, err := worker.Drain(limited(t))
		drained <- err
	}()
	eventually(t, "a call without an answer", func() bool {
		return strings.Contains(strings.Join(log.of(slog.LevelDebug), "\n"), "no answer to the drain")
	})
	agent.revive()
	if err := await(t, "the drain", drained); err != nil {
		t.Error(err)
	}
	eventually(t, "the worker to drain", worker.Draining)
}

func TestAnEndIsReportedAfterTheAgentRestarts(t *testing.T) {
	agent, worker := startJobs(t, 1)
	job := mustJob(t, worker, "a")
	agent.kill()
	job.End()
	agent.revive()
	eventuallyKnown(t, agent, "")
	mustJob(t, worker, "b")
	if agent.known() != "b" {
		t.Error(agent.known())
	}
}

func TestAnEndThatTheAgentCannotWriteIsRepeated(t *testing.T) {
	agent, worker := startJobs(t, 1)
	job := mustJob(t, worker, "a")
	agent.change(func() { agent.isFull = true })
	job.End()
	tried := func() bool { return len(agent.called("DELETE", "/v1/jobs/a")) > 1 }
	eventually(t, "a second try", tried)
	if agent.known() != "a" {
		t.Error(agent.known())
	}
	agent.change(func() { agent.isFull = false })
	eventuallyKnown(t, agent, "")
}

func TestAnAgentWithAJournalCountsEachJobOnce(t *testing.T) {
	agent, worker := startJobs(t, 2)
	first := mustJob(t, worker, "a")
	mustJob(t, worker, "b")
	agent.kill()
	agent.revive()
	eventually(t, "a third start", func() bool { return len(agent.called("POST", "/v1/start")) > 2 })
	if start := agent.called("POST", "/v1/start")[2]; start.body["running"] != 2.0 {
		t.Error(start)
	}
	if agent.known() != "a b" || agent.unnamedJobs() != 0 {
		t.Error(agent.known(), agent.unnamedJobs())
	}
	first.End()
	eventuallyKnown(t, agent, "b")
}

func TestAnAgentWithoutAJournalGetsTheNumberOfJobs(t *testing.T) {
	agent, worker := startJobs(t, 3)
	first, second := mustJob(t, worker, "a"), mustJob(t, worker, "b")
	agent.kill()
	agent.forget()
	agent.revive()
	eventually(t, "the number", func() bool { return agent.unnamedJobs() == 2 })
	// A job that this agent knows the id of is no part of that number.
	third := mustJob(t, worker, "c")
	first.End()
	eventually(t, "one fewer", func() bool { return agent.unnamedJobs() == 1 })
	third.End()
	eventuallyKnown(t, agent, "")
	if agent.unnamedJobs() != 1 {
		t.Error(agent.unnamedJobs())
	}
	second.End()
	eventually(t, "none", func() bool { return agent.unnamedJobs() == 0 })
}

func TestAWaitingJobIsRequestedAgainAfterAnAgentRestart(t *testing.T) {
	agent, worker := startJobs(t, 1)
	first := mustJob(t, worker, "a")
	began := beginJob(t, worker, "b")
	eventually(t, "the request", func() bool { return agent.called("PUT", "/v1/jobs/b") != nil })
	agent.kill()
	agent.forget()
	agent.revive()
	eventually(t, "the number", func() bool { return agent.unnamedJobs() == 1 })
	select {
	case <-began:
		t.Error("a waiting job does not run")
	default:
	}
	first.End()
	await(t, "the slot", began)
	if agent.known() != "b" || agent.unnamedJobs() != 0 {
		t.Error(agent.known(), agent.unnamedJobs())
	}
}

func TestAJobThatAFormerProcessAdmittedIsRequestedOfTheNext(t *testing.T) {
	agent, worker := startJobs(t, 1)
	admitted := make(chan struct{})
	agent.change(func() { agent.admitted = admitted })
	began := beginJob(t, worker, "a")
	eventuallyKnown(t, agent, "a")
	// Another process takes over, which has no journal, and is told that no job runs. Only then the
	// former one's answer arrives.
	agent.forget()
	agent.change(func() { agent.process, agent.admitted = agent.process+1, nil })
	starts := func() bool { return len(agent.called("POST", "/v1/start")) > 2 }
	eventually(t, "the start of another era", starts)
	close(admitted)
	await(t, "the slot", began)
	if agent.known() != "a" {
		t.Errorf("the process that is there now does not know the job: %q", agent.known())
	}
}
