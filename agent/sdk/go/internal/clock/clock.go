// Package clock reads the one clock that leases are counted by: it never jumps, and it goes on
// while the machine is suspended.
package clock

import (
	"math"
	"time"
)

// Moment is a reading of the clock in nanoseconds. Only differences mean anything.
type Moment int64

// Never is later than every reading: the end of what does not end by time.
const Never Moment = math.MaxInt64

// Add returns the moment this long after m.
func (m Moment) Add(duration time.Duration) Moment {
	return m + Moment(duration)
}

// Since returns the time from earlier to m, or 0 if m is not later.
func (m Moment) Since(earlier Moment) time.Duration {
	return max(0, time.Duration(m-earlier))
}
