package leasehold

import (
	"context"
	"time"
)

// pauseMin and pauseMax limit the time between two attempts.
const (
	pauseMin = 50 * time.Millisecond
	pauseMax = time.Second
)

// pause is the time before the next attempt; 0 is the shortest.
type pause time.Duration

// sleep waits, for no longer than ctx, and doubles the next pause.
func (p *pause) sleep(ctx context.Context) {
	length := max(pauseMin, time.Duration(*p))
	*p = pause(min(2*length, pauseMax))
	sleep(ctx, length)
}

// sleep waits for a time, and for no longer than ctx.
func sleep(ctx context.Context, length time.Duration) {
	timer := time.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
