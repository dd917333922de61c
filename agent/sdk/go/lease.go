package leasehold

import (
	"context"
	"fmt"
	"sync"
	"time"

	"leasehold.dev/agent/sdk/go/internal/clock"
)

// Lease is what a [Stream] and a [Binding] have in common: the worker owns it until it is released.
// It is lost shortly before it ends, by this process's own clock, even if the agent cannot be
// reached.
type Lease struct {
	shared *shared
	owned  *ownedLease
}

// Token returns the fencing token: send it with every write under the lease.
func (l *Lease) Token() Token {
	return l.owned.token
}

// Valid returns whether the lease permits writes at this moment, by the clock.
func (l *Lease) Valid() bool {
	isValid := false
	l.shared.look(func(state *state) { isValid = state.isValid(l.owned, l.shared.now()) })
	return isValid
}

// TimeLeft returns the time until the lease is lost unless it is renewed. It returns false if the
// lease does not end by time.
func (l *Lease) TimeLeft() (time.Duration, bool) {
	var end, now clock.Moment
	l.shared.look(func(state *state) {
		now = l.shared.now()
		if state.isValid(l.owned, now) {
			end = l.owned.end
		}
	})
	if end == clock.Never {
		return 0, false
	}
	return end.Since(now), true
}

// ReleaseWithin returns the time within which a revoked lease should be released. It returns false
// if the lease is not revoked, or if no time is set.
func (l *Lease) ReleaseWithin() (time.Duration, bool) {
	by := clock.Never
	l.shared.look(func(*state) { by = l.owned.releaseBy })
	if by == clock.Never {
		return 0, false
	}
	return by.Since(l.shared.now()), true
}

// Lost returns a channel that is closed when the lease permits no more writes: it was lost or
// released.
func (l *Lease) Lost() <-chan struct{} {
	return l.owned.lost.Done()
}

// Revoked returns a channel that is closed when the lease is revoked: finish the current work, then
// release it. A new leader may take that back: then a later call returns an open channel.
func (l *Lease) Revoked() <-chan struct{} {
	var revoked chan struct{}
	l.shared.look(func(*state) { revoked = l.owned.revoked })
	return revoked
}

// Stopping returns a channel that is closed when the lease is revoked or lost: what a worker looks
// at between two steps. Like Revoked it may be another one at a later call.
func (l *Lease) Stopping() <-chan struct{} {
	var stopping chan struct{}
	l.shared.look(func(*state) { stopping = l.owned.stopping })
	return stopping
}

// Context returns a context that ends with parent, or when the lease permits no more writes, with
// the cause ErrLost. Call cancel when the work is done.
func (l *Lease) Context(parent context.Context) (ctx context.Context, cancel context.CancelFunc) {
	ctx, end := context.WithCancelCause(parent)
	stop := context.AfterFunc(l.owned.lost, func() { end(ErrLost) })
	return ctx, func() {
		stop()
		end(context.Canceled)
	}
}

// Release ends the lease: its token permits no more writes. Returns at once, and is repeated until
// the agent has confirmed it. Calling it again has no effect.
func (l *Lease) Release() {
	l.shared.change(func(state *state) { state.release(l.owned) })
}

// String returns the lease's name and token, for people.
func (l *Lease) String() string {
	return fmt.Sprintf("%s under %s", l.owned.key, l.owned.token)
}

// Stream is a stream that this worker owns until it is released.
type Stream struct {
	Lease
}

// Set returns the stream set.
func (s *Stream) Set() string {
	return s.owned.key.of
}

// Name returns the stream's name.
func (s *Stream) Name() string {
	return s.owned.key.name
}

// Binding is a share of a pipeline's node that this worker owns until it is released.
type Binding struct {
	Lease
	choice sync.Mutex
	turns  turns
}

// Pipeline returns the pipeline.
func (b *Binding) Pipeline() string {
	return b.owned.key.of
}

// Node returns the node of the pipeline that this worker serves.
func (b *Binding) Node() string {
	return b.owned.key.name
}

// Index returns the number of this share among the node's, from 0.
func (b *Binding) Index() uint32 {
	return b.owned.key.index
}

// DocumentsPerSecond returns this worker's share of the load. It stays the same for as long as the
// token.
func (b *Binding) DocumentsPerSecond() float64 {
	return b.owned.load
}

// Next returns where documents go from here, by node, at this moment; nothing at the end of the
// pipeline. Do not change what it returns.
func (b *Binding) Next() []Next {
	var next []Next
	b.shared.look(func(*state) { next = b.owned.next })
	return next
}

// Pick returns where the next document for a node goes: the node's workers take turns in proportion
// to their shares of the load, those that drain only if no other is left. It returns false if no
// worker serves the node at this moment, or if no node of that name comes next.
func (b *Binding) Pick(node string) (Endpoint, bool) {
	for _, next := range b.Next() {
		if next.Node == node {
			b.choice.Lock()
			defer b.choice.Unlock()
			return b.turns.pick(next)
		}
	}
	return Endpoint{}, false
}
