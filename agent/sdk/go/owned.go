package leasehold

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"leasehold.dev/agent/sdk/go/internal/clock"
	"leasehold.dev/agent/sdk/go/internal/wire"
)

// spareDivisor: a lease is lost at most the tenth part of its remaining time before its end.
const spareDivisor = 10

// kind is a kind of leases.
type kind int

const (
	streamKind kind = iota
	bindingKind
	kindCount
)

// kinds are the kinds of leases that this process consumes.
type kinds [kindCount]bool

// query leaves the other kinds out of a lease: the agent takes what it lists for what the worker
// may work on.
func (k kinds) query() string {
	var leftOut []string
	if !k[streamKind] {
		leftOut = append(leftOut, "without_streams=true")
	}
	if !k[bindingKind] {
		leftOut = append(leftOut, "without_bindings=true")
	}
	if len(leftOut) == 0 {
		return ""
	}
	return "?" + strings.Join(leftOut, "&")
}

// leaseKey names a stream or a binding.
type leaseKey struct {
	kind kind
	// of is the stream set, or the pipeline.
	of string
	// name is the stream, or the node.
	name string
	// index is the number of the share among the node's; 0 for a stream.
	index uint32
}

// String returns the name for people.
func (k leaseKey) String() string {
	if k.kind == streamKind {
		return k.of + "/" + k.name
	}
	return fmt.Sprintf("%s/%s/%d", k.of, k.name, k.index)
}

// path returns its path in the worker API.
func (k leaseKey) path() string {
	path := url.PathEscape(k.of) + "/" + url.PathEscape(k.name)
	if k.kind == streamKind {
		return "/v1/streams/" + path
	}
	return "/v1/bindings/" + path + "/" + strconv.FormatUint(uint64(k.index), 10)
}

// listedLease is a stream or binding as the newest lease of the agent has it.
type listedLease struct {
	key   leaseKey
	token Token
	state wire.StreamLeaseState
	// end is when it is lost unless it is renewed, clock.Never if it does not end by time.
	end clock.Moment
	// releaseBy is when a revoked one should be released, clock.Never for others.
	releaseBy clock.Moment
	// load is a binding's share of the load, in documents per second.
	load float64
	// next is where a binding's documents go.
	next []Next
}

// listedLeases reads a lease that was requested at this moment. Each is lost this long before its
// end, or when a tenth of its time is left, whichever is later.
func listedLeases(
	lease *wire.Lease, asked, now clock.Moment, spareMax time.Duration,
) ([]listedLease, error) {
	var all []listedLease
	list := func(
		key leaseKey, tokenText string, state wire.StreamLeaseState, valid, release *uint64,
	) error {
		token, err := ParseToken(tokenText)
		if err != nil {
			return fmt.Errorf("cannot read the lease of %s: %w", key, err)
		}
		end, releaseBy := clock.Never, clock.Never
		if valid != nil {
			until := asked.Add(milliseconds(*valid))
			end = until.Add(-min(spareMax, until.Since(now)/spareDivisor))
		}
		if release != nil {
			releaseBy = asked.Add(milliseconds(*release))
		}
		listed := listedLease{key: key, token: token, state: state, end: end, releaseBy: releaseBy}
		all = append(all, listed)
		return nil
	}
	for _, one := range lease.Streams {
		key := leaseKey{kind: streamKind, of: one.Set, name: one.Stream}
		err := list(key, one.Token, one.State, one.ValidForMS, one.ReleaseWithinMS)
		if err != nil {
			return nil, err
		}
	}
	for _, one := range lease.Bindings {
		key := leaseKey{kind: bindingKind, of: one.Pipeline, name: one.Node, index: one.Index}
		err := list(key, one.Token, one.State, one.ValidForMS, one.ReleaseWithinMS)
		if err != nil {
			return nil, err
		}
		listed := &all[len(all)-1]
		listed.load, listed.next = one.DocumentsPerSecond, nextOf(one.Next)
	}
	return all, nil
}

// milliseconds returns a duration, the longest one for a number that is too large.
func milliseconds(count uint64) time.Duration {
	const most = uint64(1<<62) / uint64(time.Millisecond)
	return time.Duration(min(count, most)) * time.Millisecond
}

// ownedLease is a lease from when it is handed out until it is released. The state's lock guards
// it.
//
// Invariant: a lease that is lost stays lost.
type ownedLease struct {
	listedLease
	// lost ends when the lease permits no more writes.
	lost context.Context
	lose context.CancelFunc
	// revoked is closed while the lease is revoked, and stopping while it is revoked or lost.
	revoked, stopping chan struct{}
	isRevoked         bool
}

func newOwnedLease(listed listedLease) *ownedLease {
	owned := &ownedLease{listedLease: listed}
	owned.lost, owned.lose = context.WithCancel(context.Background())
	owned.revoked, owned.stopping = make(chan struct{}), make(chan struct{})
	return owned
}

// isLost returns whether the lease permits no more writes.
func (o *ownedLease) isLost() bool {
	return o.lost.Err() != nil
}

// renew applies the newest lease. A lost one stays lost.
func (o *ownedLease) renew(listed listedLease) {
	if o.isLost() {
		return
	}
	o.end, o.next = listed.end, listed.next
	isRevoked := listed.state != wire.Held
	switch {
	case isRevoked && !o.isRevoked:
		o.releaseBy = listed.releaseBy
		close(o.revoked)
		close(o.stopping)
	case !isRevoked && o.isRevoked:
		// No longer revoked: a new leader may decide otherwise.
		o.releaseBy = clock.Never
		o.revoked, o.stopping = make(chan struct{}), make(chan struct{})
	}
	o.isRevoked = isRevoked
}

// markLost ends the lease; returns whether it had not ended.
func (o *ownedLease) markLost() bool {
	if o.isLost() {
		return false
	}
	o.lose()
	if !o.isRevoked {
		close(o.stopping)
	}
	return true
}
