package leasehold

import (
	"context"
	"log/slog"
)

// notifier reports ends and releases to the agent until it has confirmed each of them.
type notifier struct {
	agent  *agent
	shared *shared
	log    *slog.Logger
	// startID is empty if another process of this worker announces the start.
	startID string
}

// unconfirmed is what the agent has yet to confirm.
type unconfirmed struct {
	era      uint64
	control  *connection
	ended    []string
	released []releasedLease
}

// run reports until ctx ends.
func (n *notifier) run(ctx context.Context) {
	var pause pause
	for ctx.Err() == nil {
		var todo unconfirmed
		waited := n.shared.until(ctx, func(state *state) bool {
			if !state.isUp() || !state.hasUnconfirmed() {
				return false
			}
			todo = unconfirmed{era: state.era, control: state.control}
			for id := range state.ended {
				todo.ended = append(todo.ended, id)
			}
			for released := range state.released {
				todo.released = append(todo.released, released)
			}
			return true
		})
		if waited != nil {
			return
		}
		if n.report(ctx, todo) {
			pause = 0
		} else {
			pause.sleep(ctx)
		}
	}
}

// report sends each once; returns whether the agent has confirmed all of them.
func (n *notifier) report(ctx context.Context, todo unconfirmed) bool {
	isConfirmed := true
	for _, id := range todo.ended {
		err := n.agent.endJob(ctx, id)
		if err != nil && !hasReason(err, ReasonInvalid) {
			n.log.Debug("the agent has not confirmed the end of a job", "job", id, "error", err)
			isConfirmed = false
			continue
		}
		n.shared.change(func(state *state) { state.confirmEnd(id, todo.era) })
	}
	for _, released := range todo.released {
		err := n.agent.release(ctx, released.key, released.token)
		// What is not held any more needs no release.
		if err != nil && !hasReason(err, ReasonNotHeld, ReasonInvalid) {
			n.log.Debug("the agent has not confirmed a release",
				"lease", released.key.String(), "error", err)
			isConfirmed = false
			continue
		}
		n.shared.change(func(state *state) { delete(state.released, released) })
	}
	return n.reportFewerJobs(ctx, todo) && isConfirmed
}

// reportFewerJobs sends the lower number of jobs to an agent that knows only their number. It is
// right for the process of this era only: a later one gets a number of its own.
func (n *notifier) reportFewerJobs(ctx context.Context, todo unconfirmed) bool {
	isDue, left := false, 0
	n.shared.look(func(state *state) {
		isDue, left = state.era == todo.era && state.hasFewerUnnamed, len(state.unnamed)
	})
	if !isDue {
		return true
	}
	if n.startID != "" {
		if err := todo.control.start(ctx, n.startID, left); err != nil {
			n.log.Debug("the agent has not confirmed how many jobs run", "error", err)
			// The connection may have ended, and no other one is sure to reach this process.
			n.shared.look(func(state *state) {
				if state.control == todo.control {
					state.cut(err)
				}
			})
			return false
		}
	}
	n.shared.change(func(state *state) {
		if state.era == todo.era && len(state.unnamed) == left {
			state.hasFewerUnnamed = false
		}
	})
	return true
}
