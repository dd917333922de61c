package leasehold

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"leasehold.dev/agent/sdk/go/internal/clock"
)

const (
	stopBeforeDefault = time.Second
	beatWithinDefault = 30 * time.Second
	beatWithinMin     = time.Second
	// beatsWithin is how often a worker says that it lives, within the time in which it promises to.
	beatsWithin = 3
	// closeWait is how long Close waits for what the agent has not confirmed.
	closeWait = 2 * time.Second
	// lastBeatWait is how long Close waits until the agent knows that no further beat comes.
	lastBeatWait = time.Second
	// sleepMax: leases count the time for which a machine is suspended; a timer of Go's does not.
	sleepMax = time.Second
)

// NoBeats is the BeatWithin of a worker that does not tell its agent that it lives: its leases
// follow its agent.
const NoBeats time.Duration = -1

// Options says how a worker begins. The zero value is right for most.
type Options struct {
	// Address is http://HOST:PORT or unix:PATH. The default is what LEASEHOLD_ADDR names, then
	// LEASEHOLD_SOCKET, then http://127.0.0.1:7411.
	Address string
	// NoStart is true in every process of a worker but one: that one announces the worker's start.
	NoStart bool
	// StopBefore is how long before its lease ends a stream or binding is lost, or a tenth of the time
	// that was left at its last renewal if that is shorter. The default is one second. A larger value
	// gives writes that are under way more time to end.
	StopBefore time.Duration
	// BeatWithin: the worker tells its agent that it lives. If the agent hears nothing for this long,
	// the worker gets no job, and its streams and bindings go to other workers, until it is heard
	// again: so a process that hangs keeps nothing. The default is 30 seconds, the shortest is one.
	// NoBeats is for a process that may be stopped for longer.
	BeatWithin time.Duration
	// Logger gets what happens to the connection and to leases. The default is [slog.Default].
	Logger *slog.Logger
}

// Worker is a worker, from its start to its drain.
type Worker struct {
	agent        *agent
	shared       *shared
	log          *slog.Logger
	beatWithin   time.Duration
	slotRequests chan struct{}
	// closing ends when no job or lease begins any more.
	closing      context.Context
	startClosing context.CancelFunc
	// closed ends when nothing is reported any more.
	closed context.Context
	stop   context.CancelFunc
	// background has what runs until closed ends.
	background sync.WaitGroup
	// lastBeat is closed when no beat comes any more.
	lastBeat  chan struct{}
	closeOnce sync.Once
	closeErr  error
}

// New begins a worker. It returns at once and connects to the agent by itself. Without an agent it
// warns once, and goes on trying. It fails for invalid options only.
func New(options Options) (*Worker, error) {
	return newWorker(options, clock.Now, warnAfterDefault)
}

func newWorker(
	options Options, now func() clock.Moment, warnAfter time.Duration,
) (*Worker, error) {
	options, err := withDefaults(options)
	if err != nil {
		return nil, err
	}
	at, err := findAddress(options.Address)
	if err != nil {
		return nil, err
	}
	startID := ""
	if !options.NoStart {
		if startID, err = newID(); err != nil {
			return nil, err
		}
	}
	w := &Worker{
		agent:        newAgent(at),
		shared:       newShared(now, options.Logger, options.StopBefore),
		log:          options.Logger,
		beatWithin:   options.BeatWithin,
		slotRequests: make(chan struct{}, slotRequestsMax),
		lastBeat:     make(chan struct{}),
	}
	w.closing, w.startClosing = context.WithCancel(context.Background())
	w.closed, w.stop = context.WithCancel(context.Background())
	link := &link{
		agent: w.agent, shared: w.shared, log: w.log, startID: startID, warnAfter: warnAfter,
	}
	notifier := &notifier{agent: w.agent, shared: w.shared, log: w.log, startID: startID}
	w.run(link.run)
	w.run(notifier.run)
	w.run(w.expireLeases)
	go w.beat()
	return w, nil
}

// withDefaults checks the options, and sets what they leave out.
func withDefaults(options Options) (Options, error) {
	switch {
	case options.StopBefore < 0:
		return options, fmt.Errorf("invalid StopBefore %v: use 0 for the default, or more",
			options.StopBefore)
	case options.StopBefore == 0:
		options.StopBefore = stopBeforeDefault
	}
	switch within := options.BeatWithin; {
	case within == 0:
		options.BeatWithin = beatWithinDefault
	case within != NoBeats && within < beatWithinMin:
		return options, fmt.Errorf(
			"invalid BeatWithin %v: use 0 for the default, NoBeats, or %v or more",
			within, beatWithinMin)
	}
	if options.Logger == nil {
		options.Logger = slog.Default()
	}
	return options, nil
}

// Job waits for a slot, for no longer than ctx, and returns the job, which may run now. Call End
// when it has ended.
//
// It waits through restarts of the agent and outages of the coordinator. The error is ErrDraining
// when the worker drains, a RefusedError for an id that is invalid, ErrJobRuns and ErrClosed, or
// the error of ctx, together with the last RefusedError or UnreachableError if there was one. A
// caller that gives up takes no slot.
func (w *Worker) Job(ctx context.Context, id string) (*Job, error) {
	if id == "" {
		return nil, &RefusedError{ReasonInvalid, "the job id is empty: use another one, or NextJob"}
	}
	return w.begin(ctx, id)
}

// NextJob waits for a slot and returns a job with a new id; otherwise it is Job. The job holds its
// slot until End: call it before you wait for work, or take the work first, and then Job.
func (w *Worker) NextJob(ctx context.Context) (*Job, error) {
	id, err := newID()
	if err != nil {
		return nil, err
	}
	return w.begin(ctx, id)
}

// NextStream waits for the next stream that this worker comes to own. The worker owns it until
// Release. The error is ErrDraining when the worker drains, ErrClosed, or that of ctx.
func (w *Worker) NextStream(ctx context.Context) (*Stream, error) {
	owned, err := w.take(ctx, streamKind)
	if err != nil {
		return nil, err
	}
	return &Stream{Lease: Lease{w.shared, owned}}, nil
}

// NextBinding waits for the next share of a pipeline's node that this worker comes to own, as
// NextStream does for streams.
func (w *Worker) NextBinding(ctx context.Context) (*Binding, error) {
	owned, err := w.take(ctx, bindingKind)
	if err != nil {
		return nil, err
	}
	return &Binding{Lease: Lease{w.shared, owned}}, nil
}

func (w *Worker) take(ctx context.Context, kind kind) (*ownedLease, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	w.shared.change(func(state *state) { state.consume(kind) })
	var taken *ownedLease
	var over error
	waited := w.shared.until(ctx, func(state *state) bool {
		switch {
		case state.closed:
			over = ErrClosed
		case state.draining:
			over = ErrDraining
		default:
			taken = state.take(kind, w.shared.now())
		}
		return over != nil || taken != nil
	})
	if waited != nil {
		return nil, waited
	}
	return taken, over
}

// Draining returns whether the worker drains.
func (w *Worker) Draining() bool {
	isDraining := false
	w.shared.look(func(state *state) { isDraining = state.draining })
	return isDraining
}

// Drain begins a drain; returns how many jobs run. It repeats the call until the agent answers or
// ctx ends.
func (w *Worker) Drain(ctx context.Context) (int, error) {
	return w.askToDrain(ctx, false)
}

// DrainToEnd begins a drain and waits for its end; returns how many jobs outlived its deadline.
func (w *Worker) DrainToEnd(ctx context.Context) (int, error) {
	return w.askToDrain(ctx, true)
}

func (w *Worker) askToDrain(ctx context.Context, toEnd bool) (int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(context.Canceled)
	defer context.AfterFunc(w.closed, func() { cancel(ErrClosed) })()
	var pause pause
	for {
		jobsLeft, err := w.agent.drain(ctx, toEnd)
		if err == nil {
			return jobsLeft, nil
		}
		if isRefusal(err) && !hasReason(err, ReasonStopping) {
			return 0, err
		}
		if context.Cause(ctx) == ErrClosed {
			return 0, ErrClosed
		}
		if ctx.Err() != nil {
			return 0, fmt.Errorf("no answer to the drain: %w", ctx.Err())
		}
		w.log.Debug("no answer to the drain", "error", err)
		pause.sleep(ctx)
	}
}

// Close ends the worker once the agent has confirmed all ends and releases, or after two seconds:
// then it returns an error. Every loop over jobs, streams and bindings ends. Streams and bindings
// that are still owned are lost. The start of the next process covers what was not confirmed.
func (w *Worker) Close() error {
	return w.closeWithin(closeWait)
}

func (w *Worker) closeWithin(wait time.Duration) error {
	w.closeOnce.Do(func() {
		w.shared.change(func(state *state) { state.close() })
		w.startClosing()
		limited, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		waited := w.shared.until(limited, func(state *state) bool {
			inHand := len(state.owned) + len(state.pending) + len(state.abandoned)
			return inHand == 0 && !state.hasUnconfirmed()
		})
		if waited != nil {
			w.closeErr = errors.New(
				"the worker was closed with leases in use, or ends that the agent has not confirmed")
		}
		w.stop()
		w.background.Wait()
		select {
		case <-w.lastBeat:
		case <-time.After(lastBeatWait):
		}
		w.agent.transport.CloseIdleConnections()
	})
	return w.closeErr
}

// run runs work until the worker is closed.
func (w *Worker) run(work func(context.Context)) {
	w.background.Add(1)
	go func() {
		defer w.background.Done()
		work(w.closed)
	}()
}

// expireLeases marks streams and bindings as lost in time, even if the agent does not answer.
func (w *Worker) expireLeases(ctx context.Context) {
	for ctx.Err() == nil {
		var left time.Duration
		var changed chan struct{}
		w.shared.look(func(state *state) {
			now := w.shared.now()
			left, changed = state.expire(now).Since(now), w.shared.changed
		})
		sleep(ctx, changed, min(left, sleepMax))
	}
}

// beat tells the agent that this process lives, as long as it does.
func (w *Worker) beat() {
	defer close(w.lastBeat)
	isClosed := w.beatWithin == NoBeats
	for !isClosed {
		isUp := w.shared.until(w.closed, (*state).isUp) == nil
		isClosed = !isUp || w.closed.Err() != nil
		within := w.beatWithin
		if isClosed {
			// It takes its promise back: it may have ended well.
			within = 0
		}
		if err := w.agent.beat(context.Background(), within); err != nil {
			// An agent of an earlier release does not know the call.
			w.log.Debug("cannot tell the agent that this worker lives", "error", err)
		}
		sleep(w.closed, nil, w.beatWithin/beatsWithin)
	}
}
