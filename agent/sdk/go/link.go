package leasehold

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"leasehold.dev/agent/sdk/go/internal/clock"
	"leasehold.dev/agent/sdk/go/internal/wire"
)

// warnAfterDefault is how long there may be no agent before a warning says so, once.
const warnAfterDefault = 3 * time.Second

// errConsumesMore ends an era whose watch does not list what this process has begun to consume.
var errConsumesMore = errors.New("this process consumes another kind of lease")

// link is the link to the agent: it watches the lease, and connects again when the connection
// breaks.
//
// Invariant: a worker gets a lease, or asks for a job, only after the agent's present process knows
// this start and the running jobs. One process of the agent is one era.
type link struct {
	agent  *agent
	shared *shared
	log    *slog.Logger
	// startID is empty if another process of this worker announces the start.
	startID string
	// hasStarted: an agent knows this start.
	hasStarted bool
	warnAfter  time.Duration
}

// run follows the lease until ctx ends.
func (l *link) run(ctx context.Context) {
	var pause pause
	// clock.Never once the log has said that there is no agent.
	warnAt := l.shared.now().Add(l.warnAfter)
	for {
		failure := l.follow(ctx)
		isWanted := errors.Is(failure, errConsumesMore)
		wasUp := false
		l.shared.change(func(state *state) {
			wasUp = state.isUp()
			state.control, state.cut = nil, nil
			if !isWanted {
				state.failure = failure
			}
		})
		if ctx.Err() != nil {
			return
		}
		if isWanted {
			continue
		}
		log := l.log.With("agent", l.agent.at.text, "error", failure)
		if wasUp {
			log.Warn("the connection to the agent is lost")
			warnAt = l.shared.now().Add(l.warnAfter)
			pause = 0
		} else {
			log.Debug("cannot connect to the agent")
		}
		if l.shared.now() >= warnAt {
			log.Warn("cannot reach the agent; still trying", "advice", l.agent.at.advice())
			warnAt = clock.Never
		}
		pause.sleep(ctx)
	}
}

// follow follows the lease for one era; it always ends with an error.
func (l *link) follow(ctx context.Context) error {
	if l.startID != "" && !l.hasStarted {
		// Before the first look: what the previous process owned is not taken for this one's.
		if err := l.agent.start(ctx, l.startID, 0); err != nil {
			return err
		}
		l.hasStarted = true
	}
	ctx, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	var consumed kinds
	l.shared.change(func(state *state) {
		consumed, state.cut = state.consumed, cut
	})
	err := l.followEra(ctx, consumed)
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// followEra follows the lease as long as one process of the agent's answers.
func (l *link) followEra(ctx context.Context, consumed kinds) error {
	// The watch connects first: if the agent is replaced before the second connection, it ends.
	watching, err := l.agent.connect(ctx)
	if err != nil {
		return err
	}
	defer watching.close()
	asked := l.shared.now()
	leases, err := watching.watch(ctx, consumed)
	if err != nil {
		return err
	}
	defer leases.close()
	control, err := l.agent.connect(ctx)
	if err != nil {
		return err
	}
	defer control.close()
	first, err := l.beginEra(ctx, control, consumed)
	if err != nil {
		return err
	}
	for {
		lease, err := leases.next()
		if err != nil {
			return err
		}
		// An older lease was sent before the start was announced, and is that of another start.
		if lease.Version < first.Version {
			l.log.Debug("an older lease is passed over", "version", lease.Version)
			continue
		}
		if err := l.apply(lease, asked, nil); err != nil {
			return err
		}
	}
}

// beginEra tells a process of the agent's of this start and its jobs; returns its first lease,
// which is applied.
func (l *link) beginEra(
	ctx context.Context, control *connection, consumed kinds,
) (*wire.Lease, error) {
	running := 0
	l.shared.change(func(state *state) { running = state.beginEra() })
	if l.startID != "" {
		// It may be another process than before, with or without a journal: this is right for both.
		if err := control.start(ctx, l.startID, running); err != nil {
			return nil, err
		}
	}
	asked := l.shared.now()
	first, err := control.lease(ctx, consumed)
	if err != nil {
		return nil, err
	}
	return first, l.apply(first, asked, control)
}

// apply takes a lease that was requested at this moment. With a connection the agent may be asked
// from now on.
func (l *link) apply(lease *wire.Lease, asked clock.Moment, control *connection) error {
	var err error
	var era uint64
	l.shared.change(func(state *state) {
		var all []listedLease
		all, err = listedLeases(lease, asked, l.shared.now(), state.spareMax)
		if err != nil {
			return
		}
		state.apply(lease.Draining, all)
		if control != nil {
			state.control, era = control, state.era
		}
	})
	if err == nil && control != nil {
		l.log.Info("connected to the agent", "agent", l.agent.at.text, "era", era)
	}
	return err
}
