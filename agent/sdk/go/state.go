package leasehold

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"leasehold.dev/agent/sdk/go/internal/clock"
	"leasehold.dev/agent/sdk/go/internal/wire"
)

// shared is the state of a worker behind one lock, with a notification of each change.
type shared struct {
	now func() clock.Moment
	log *slog.Logger

	mu    sync.Mutex
	state state
	// changed is closed at the next change.
	changed chan struct{}
}

func newShared(now func() clock.Moment, log *slog.Logger, spareMax time.Duration) *shared {
	return &shared{
		now: now,
		log: log,
		state: state{
			pending:   map[string]struct{}{},
			running:   map[string]*Job{},
			unnamed:   map[string]struct{}{},
			abandoned: map[string]struct{}{},
			ended:     map[string]struct{}{},
			released:  map[releasedLease]struct{}{},
			failure:   errors.New("it has not answered yet"),
			spareMax:  spareMax,
			owned:     map[leaseKey]*ownedLease{},
			listed:    map[leaseKey]listedLease{},
			spent:     map[leaseKey]Token{},
		},
		changed: make(chan struct{}),
	}
}

// look reads the state, or changes it without a notification.
func (s *shared) look(read func(*state)) {
	s.mu.Lock()
	read(&s.state)
	lost := s.state.takeLost()
	s.mu.Unlock()
	// A logger may be the program's own: it is called without the lock.
	for _, one := range lost {
		s.log.Warn("a lease is lost", "lease", one.owned.key.String(),
			"token", one.owned.token.String(), "why", one.why)
	}
}

// change changes the state, and wakes all that wait for a change.
func (s *shared) change(change func(*state)) {
	s.look(func(state *state) {
		change(state)
		s.notify()
	})
}

// notify wakes all that wait for a change. The caller holds the lock.
func (s *shared) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// until waits until ready returns true, and for no longer than ctx. It may change the state when it
// returns true, and that is notified.
func (s *shared) until(ctx context.Context, ready func(*state) bool) error {
	for {
		var changed chan struct{}
		isReady := false
		s.look(func(state *state) {
			if isReady = ready(state); isReady {
				s.notify()
			}
			changed = s.changed
		})
		if isReady {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// releasedLease is a lease that was released.
type releasedLease struct {
	key   leaseKey
	token Token
}

// lostLease is a lease that was lost, and why: for the log.
type lostLease struct {
	owned *ownedLease
	why   string
}

// state is all that a worker, its jobs and its leases share.
//
// Invariant: a stream or binding is handed out at most once under a token, and never to a second
// owner in this process before the first has released it.
type state struct {
	// control is the connection of this era; nil until the agent's process knows this start and its
	// jobs.
	control *connection
	// cut ends the era; nil between two of them.
	cut context.CancelCauseFunc
	// era counts the agent's processes that this worker has connected to.
	era uint64
	// failure is why the last attempt to reach the agent failed.
	failure error
	// pending has the jobs that wait for their slots.
	pending map[string]struct{}
	// running has the jobs that run.
	running map[string]*Job
	// unnamed has the jobs that ran when this era began: an agent without a journal knows only their
	// number.
	unnamed map[string]struct{}
	// hasFewerUnnamed: an agent that knows only their number has not confirmed yet that there are
	// fewer.
	hasFewerUnnamed bool
	// abandoned has jobs whose callers gave up while a request for a slot was under way.
	abandoned map[string]struct{}
	// ended has jobs that ended, unconfirmed by the agent: never more than ran at once.
	ended map[string]struct{}
	// released has leases that were released, unconfirmed by the agent: at most one for each listed.
	released map[releasedLease]struct{}
	// draining: the newest lease says that the worker drains.
	draining bool
	// closed: no job or lease begins.
	closed bool
	// consumed has the kinds of leases that this process consumes.
	consumed kinds
	// spareMax is the longest time before a lease's end at which it is lost.
	spareMax time.Duration
	// owned has the leases that were handed out and not released.
	owned map[leaseKey]*ownedLease
	// listed is the newest lease of the agent.
	listed map[leaseKey]listedLease
	// fresh has the listed leases of each kind that wait to be handed out, in their order.
	fresh [kindCount][]leaseKey
	// spent has the highest token of each lease that was handed out or released.
	spent map[leaseKey]Token
	// lost has the leases that were lost since the last look, for the log.
	lost []lostLease
}

// isUp returns whether the agent may be asked.
func (s *state) isUp() bool {
	return s.control != nil
}

// apply takes the newest lease.
func (s *state) apply(draining bool, all []listedLease) {
	s.draining = draining
	s.listed = make(map[leaseKey]listedLease, len(all))
	for _, one := range all {
		s.listed[one.key] = one
	}
	for key, owned := range s.owned {
		listed, isListed := s.listed[key]
		if isListed && listed.token == owned.token {
			owned.renew(listed)
		} else {
			s.lose(owned, "it was withdrawn")
		}
	}
	s.fresh = [kindCount][]leaseKey{}
	for _, one := range all {
		s.offer(one)
	}
}

// consume records that this process consumes leases of a kind. Another kind needs another watch.
func (s *state) consume(kind kind) {
	if s.consumed[kind] {
		return
	}
	s.consumed[kind] = true
	if s.cut != nil {
		s.cut(errConsumesMore)
	}
}

// take hands out a lease of a kind, if one waits.
func (s *state) take(kind kind, now clock.Moment) *ownedLease {
	for len(s.fresh[kind]) > 0 {
		key := s.fresh[kind][0]
		s.fresh[kind] = s.fresh[kind][1:]
		listed := s.listed[key]
		if listed.end <= now {
			// It may still be renewed: the next lease offers it again.
			continue
		}
		taken := newOwnedLease(listed)
		s.owned[key], s.spent[key] = taken, listed.token
		return taken
	}
	return nil
}

// release ends a lease that was handed out.
func (s *state) release(owned *ownedLease) {
	if s.owned[owned.key] != owned {
		return
	}
	delete(s.owned, owned.key)
	owned.markLost()
	s.released[releasedLease{owned.key, owned.token}] = struct{}{}
	if listed, isListed := s.listed[owned.key]; isListed {
		s.offer(listed)
	}
}

// offer queues a held lease to be handed out. It releases one that was not handed out, if it is
// revoked or its worker drains: nobody takes it any more.
func (s *state) offer(listed listedLease) {
	spent, isSpent := s.spent[listed.key]
	_, isOwned := s.owned[listed.key]
	if !s.consumed[listed.key.kind] || isOwned || isSpent && !spent.Less(listed.token) {
		return
	}
	isHeld := listed.state == wire.Held
	if isHeld && !s.draining {
		kind := listed.key.kind
		s.fresh[kind] = append(s.fresh[kind], listed.key)
	} else if isHeld || listed.state == wire.Revoked {
		s.spent[listed.key] = listed.token
		s.released[releasedLease{listed.key, listed.token}] = struct{}{}
	}
}

// expire marks leases as lost whose time is over; returns when the next one's is, or clock.Never.
func (s *state) expire(now clock.Moment) clock.Moment {
	next := clock.Never
	for _, owned := range s.owned {
		if s.isValid(owned, now) {
			next = min(next, owned.end)
		}
	}
	return next
}

// isValid returns whether a lease permits writes at this moment. One whose time is over is lost.
func (s *state) isValid(owned *ownedLease, now clock.Moment) bool {
	if !owned.isLost() && owned.end <= now {
		s.lose(owned, "it was not renewed")
	}
	return !owned.isLost()
}

func (s *state) lose(owned *ownedLease, why string) {
	if owned.markLost() {
		s.lost = append(s.lost, lostLease{owned, why})
	}
}

func (s *state) takeLost() []lostLease {
	lost := s.lost
	s.lost = nil
	return lost
}

// beginEra begins the era of another process of the agent's; returns how many jobs run here.
func (s *state) beginEra() int {
	s.era++
	s.hasFewerUnnamed = false
	s.unnamed = make(map[string]struct{}, len(s.running))
	for id := range s.running {
		s.unnamed[id] = struct{}{}
	}
	return len(s.unnamed)
}

// endJob records that a job has ended. Repeating it has no effect.
func (s *state) endJob(job *Job) {
	if s.running[job.id] == job {
		delete(s.running, job.id)
		s.ended[job.id] = struct{}{}
	}
}

// confirmEnd records that the agent's process of an era has confirmed a job's end. A later process
// must confirm it as well.
func (s *state) confirmEnd(id string, era uint64) {
	if s.era != era {
		return
	}
	delete(s.ended, id)
	if _, isUnnamed := s.unnamed[id]; isUnnamed {
		delete(s.unnamed, id)
		s.hasFewerUnnamed = true
	}
}

// hasUnconfirmed returns whether the agent has yet to confirm an end or a release.
func (s *state) hasUnconfirmed() bool {
	return len(s.ended) > 0 || len(s.released) > 0 || s.hasFewerUnnamed
}

// close ends what is in hand: no job or lease begins from now on.
func (s *state) close() {
	s.closed = true
	for _, owned := range s.owned {
		s.lose(owned, "the worker was closed")
	}
}
