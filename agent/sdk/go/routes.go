package leasehold

import (
	"math"

	"leasehold.dev/agent/sdk/go/internal/wire"
)

// loadMilliMax is more than any load, in thousandths: sums of many stay exact.
const loadMilliMax = 1e15

// Next is a node that documents go to.
type Next struct {
	// Node is its name.
	Node string
	// Endpoints are the workers that serve it; empty while no worker does.
	Endpoints []Endpoint
}

// Endpoint is a worker that serves a node of a pipeline.
type Endpoint struct {
	// Worker is its name.
	Worker string
	// Address is HOST or HOST:PORT; empty where it is not known.
	Address string
	// DocumentsPerSecond is its share of the load.
	DocumentsPerSecond float64
	// Draining means that it takes documents only if all other workers drain as well.
	Draining bool
}

func nextOf(messages []wire.Next) []Next {
	next := make([]Next, 0, len(messages))
	for _, message := range messages {
		endpoints := make([]Endpoint, 0, len(message.Endpoints))
		for _, endpoint := range message.Endpoints {
			endpoints = append(endpoints, Endpoint(endpoint))
		}
		next = append(next, Next{Node: message.Node, Endpoints: endpoints})
	}
	return next
}

// turns counts whose turn it is, node by node and worker by worker: smooth weighted round robin, as
// in nginx. While the workers stay the same, no count differs from its share by a whole turn.
type turns map[string]map[string]int64

// pick returns the worker whose turn it is.
func (t *turns) pick(next Next) (Endpoint, bool) {
	open := openEndpoints(next.Endpoints)
	weights, total := weightsOf(open)
	if *t == nil {
		*t = turns{}
	}
	before, credits := (*t)[next.Node], make(map[string]int64, len(open))
	(*t)[next.Node] = credits
	best := -1
	for i, endpoint := range open {
		// Credit from other workers or loads counts for at most one round.
		credit := max(-total, min(total, before[endpoint.Worker])) + weights[i]
		credits[endpoint.Worker] = credit
		if weights[i] > 0 && (best < 0 || credit > credits[open[best].Worker]) {
			best = i
		}
	}
	if best < 0 {
		return Endpoint{}, false
	}
	credits[open[best].Worker] -= total
	return open[best], true
}

// openEndpoints returns the workers that do not drain, or all of them if all do.
func openEndpoints(all []Endpoint) []Endpoint {
	var stay []Endpoint
	for _, endpoint := range all {
		if !endpoint.Draining {
			stay = append(stay, endpoint)
		}
	}
	if len(stay) == 0 {
		return all
	}
	return stay
}

// weightsOf returns the loads in thousandths, whose sums are exact, and their sum. Without loads
// all take the same.
func weightsOf(endpoints []Endpoint) (weights []int64, total int64) {
	weights = make([]int64, len(endpoints))
	for i, endpoint := range endpoints {
		milli := math.Round(endpoint.DocumentsPerSecond * 1_000)
		weights[i] = int64(max(0, min(loadMilliMax, milli)))
		total += weights[i]
	}
	if total > 0 {
		return weights, total
	}
	for i := range weights {
		weights[i] = 1
	}
	return weights, int64(len(weights))
}
