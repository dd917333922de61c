package leasehold

import (
	"strings"
	"testing"
)

// load is a worker and its share of the load, with a ~ before one that drains.
type load struct {
	worker string
	load   float64
}

// picks returns the workers that are picked, one after another.
func picks(turns *turns, count int, loads ...load) string {
	next := Next{Node: "out"}
	for _, one := range loads {
		name, isDraining := strings.CutPrefix(one.worker, "~")
		endpoint := Endpoint{Worker: name, DocumentsPerSecond: one.load, Draining: isDraining}
		next.Endpoints = append(next.Endpoints, endpoint)
	}
	picked := ""
	for i := 0; i < count; i++ {
		endpoint, isServed := turns.pick(next)
		if !isServed {
			endpoint.Worker = "-"
		}
		picked += endpoint.Worker
	}
	return picked
}

func expectPicks(t *testing.T, turns *turns, want string, loads ...load) {
	t.Helper()
	if picked := picks(turns, len(want), loads...); picked != want {
		t.Errorf("%s instead of %s", picked, want)
	}
}

func TestWorkersTakeTurnsInProportionToTheirLoadsAndSmoothly(t *testing.T) {
	expectPicks(t, new(turns), "aabacaaaabacaa", load{"a", 5}, load{"b", 1}, load{"c", 1})
	expectPicks(t, new(turns), "babbbabb", load{"a", 2.5}, load{"b", 7.5})
}

func TestADrainingWorkerTakesDocumentsOnlyIfAllWorkersDrain(t *testing.T) {
	turns := new(turns)
	expectPicks(t, turns, "bbb", load{"~a", 5}, load{"b", 1})
	expectPicks(t, turns, "abab", load{"~a", 1}, load{"~b", 1})
	expectPicks(t, turns, "-")
}

func TestAChangeOfTheWorkersKeepsTheTurnsOfThoseThatStay(t *testing.T) {
	turns := new(turns)
	expectPicks(t, turns, "a", load{"a", 1}, load{"b", 1}, load{"c", 1})
	expectPicks(t, turns, "bbaba", load{"a", 1}, load{"b", 1})
	expectPicks(t, turns, "bb", load{"a", 0}, load{"b", 1})
	expectPicks(t, turns, "baba", load{"a", 0}, load{"b", 0})
}

func TestCreditFromLargerLoadsIsLimitedUnderSmallerLoads(t *testing.T) {
	turns := new(turns)
	expectPicks(t, turns, "a", load{"a", 900}, load{"b", 800})
	expectPicks(t, turns, "bbabab", load{"a", 1}, load{"b", 1})
}
