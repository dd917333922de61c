package leasehold

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"time"
)

const (
	// slotWaitMax is how long the agent may hold one request for a slot.
	slotWaitMax = 10 * time.Second
	// slotRequestsMax is how many requests for a slot are in flight at most; more wait here. The agent
	// serves 1,024 connections, and the end of a job must not wait behind requests for slots.
	slotRequestsMax = 256
)

// Job is a job that may run. It holds its slot until End.
type Job struct {
	id     string
	token  Token
	shared *shared
}

// ID returns its id.
func (j *Job) ID() string {
	return j.id
}

// Token returns the token of the worker's pool lease, under which the job began. It fences no job:
// docs/SDK.md says what it is good for.
func (j *Job) Token() Token {
	return j.token
}

// End ends the job and frees its slot. Returns at once, and is repeated until the agent has
// confirmed it. Calling it again has no effect.
func (j *Job) End() {
	j.shared.change(func(state *state) { state.endJob(j) })
}

// String returns the job's id and token, for people.
func (j *Job) String() string {
	return fmt.Sprintf("job %s under %s", j.id, j.token)
}

// newID returns an id that no other job, and no other start of a worker, has.
func newID() (string, error) {
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return "", fmt.Errorf("no random number for an id: %w", err)
	}
	return hex.EncodeToString(id[:]), nil
}

// pendingJob is a job that waits for its slot.
//
// Invariant: a job runs only after the agent's present process has admitted it, or has learnt of it
// when its era began. Neither the job's end nor a second request is sent while the agent may still
// handle a request: each has a connection of its own, and a request that the agent handles last
// would admit a job that has ended.
type pendingJob struct {
	worker *Worker
	id     string
	pause  pause
	// last is the last answer that was no permission, or why there was none.
	last error
	// isUnsure: the agent may have admitted the job although this process got no answer.
	isUnsure bool
	// over is closed when the agent cannot handle the last request any more; nil before the first.
	over chan struct{}
}

// begin waits until the agent admits the job, refuses it for good, or ctx ends.
func (w *Worker) begin(ctx context.Context, id string) (*Job, error) {
	isFree := false
	w.shared.look(func(state *state) {
		_, isRunning := state.running[id]
		_, isPending := state.pending[id]
		if isFree = !isRunning && !isPending; isFree {
			state.pending[id] = struct{}{}
		}
	})
	if !isFree {
		return nil, fmt.Errorf("job %q: %w", id, ErrJobRuns)
	}
	// A worker that closes asks for no more slots.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(context.Canceled)
	defer context.AfterFunc(w.closing, func() { cancel(ErrClosed) })()

	pending := &pendingJob{worker: w, id: id}
	job, err := pending.admit(ctx)
	w.shared.change(func(state *state) {
		delete(state.pending, id)
		if pending.isUnsure {
			state.abandoned[id] = struct{}{}
		}
	})
	if pending.isUnsure {
		go pending.abandon()
	}
	return job, err
}

// abandon reports the end of a job that the agent may have admitted, so that it leaves no slot in
// use.
func (p *pendingJob) abandon() {
	<-p.over
	p.worker.shared.change(func(state *state) {
		delete(state.abandoned, p.id)
		state.ended[p.id] = struct{}{}
	})
}

func (p *pendingJob) admit(ctx context.Context) (*Job, error) {
	for {
		era, err := p.waitForLink(ctx)
		if err != nil {
			return nil, err
		}
		wait := slotWaitMax
		if deadline, ok := ctx.Deadline(); ok {
			// The agent answers before it: its reason is worth more than a time that is over.
			wait = max(0, min(wait, time.Until(deadline)*9/10))
		}
		token, err := p.ask(ctx, wait)
		if err == nil {
			if job := p.runIn(era, token); job != nil {
				return job, nil
			}
			continue
		}
		if hasReason(err, ReasonDraining, ReasonInvalid) {
			return nil, fmt.Errorf("job %q: %w", p.id, err)
		}
		if ctx.Err() != nil {
			return nil, p.gaveUp(ctx)
		}
		p.last = err
		hasWaited := hasReason(err, ReasonNoSlot, ReasonNoLease, ReasonFailing) && wait > pauseMin
		if !hasWaited {
			p.pause.sleep(ctx)
		}
	}
}

// waitForLink waits until the agent may be asked; returns the era in which it is.
func (p *pendingJob) waitForLink(ctx context.Context) (uint64, error) {
	var era uint64
	var over error
	waited := p.worker.shared.until(ctx, func(state *state) bool {
		_, isEnded := state.ended[p.id]
		_, isAbandoned := state.abandoned[p.id]
		isEnding := isEnded || isAbandoned
		switch {
		case state.closed:
			over = ErrClosed
		case state.draining:
			over = ErrDraining
		// An unconfirmed end of an earlier job of the same id would end this one.
		case !state.isUp() || isEnding:
			if !state.isUp() {
				p.last = p.worker.agent.at.unreachable(state.failure)
			}
			return false
		}
		era = state.era
		return true
	})
	if waited != nil {
		return 0, p.gaveUp(ctx)
	}
	if over != nil {
		return 0, fmt.Errorf("job %q: %w", p.id, over)
	}
	return era, nil
}

// ask asks the agent once, on a connection of its own.
func (p *pendingJob) ask(ctx context.Context, wait time.Duration) (Token, error) {
	agent := p.worker.agent
	if p.over != nil {
		select {
		case <-p.over:
		case <-ctx.Done():
			return Token{}, ctx.Err()
		}
	}
	select {
	case p.worker.slotRequests <- struct{}{}:
	case <-ctx.Done():
		return Token{}, ctx.Err()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, answerTimeout+wait, errNoAnswer)
	defer cancel()
	connection, err := agent.connect(ctx)
	if err != nil {
		<-p.worker.slotRequests
		return Token{}, agent.at.unreachable(err)
	}
	p.isUnsure = true
	answered := make(chan slotAnswer, 1)
	over := make(chan struct{})
	p.over = over
	go func() {
		defer close(over)
		defer func() { <-p.worker.slotRequests }()
		defer connection.close()
		token, err := connection.beginJob(p.worker.closed, p.id, wait)
		answered <- slotAnswer{token, err}
	}()
	select {
	case answer := <-answered:
		if isRefusal(answer.err) {
			p.isUnsure = false
			return Token{}, answer.err
		}
		if answer.err != nil {
			return Token{}, agent.at.unreachable(answer.err)
		}
		return answer.token, nil
	case <-ctx.Done():
		connection.hangUp()
		return Token{}, agent.at.unreachable(context.Cause(ctx))
	}
}

// slotAnswer is the answer to a request for a slot.
type slotAnswer struct {
	token Token
	err   error
}

// runIn returns the job, which runs from now on, unless another process of the agent's has taken
// over meanwhile: that one does not know the job, so it is asked as well.
func (p *pendingJob) runIn(era uint64, token Token) *Job {
	job := &Job{id: p.id, token: token, shared: p.worker.shared}
	p.worker.shared.change(func(state *state) {
		if state.era != era || state.closed {
			job = nil
			return
		}
		state.running[p.id] = job
		p.isUnsure = false
	})
	return job
}

// gaveUp returns the error for a ctx that has ended.
func (p *pendingJob) gaveUp(ctx context.Context) error {
	if context.Cause(ctx) == ErrClosed {
		return fmt.Errorf("job %q: %w", p.id, ErrClosed)
	}
	if p.last == nil {
		return fmt.Errorf("job %q got no slot: %w", p.id, ctx.Err())
	}
	return fmt.Errorf("job %q got no slot: %w: %w", p.id, ctx.Err(), p.last)
}
