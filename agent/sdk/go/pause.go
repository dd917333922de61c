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
	sleep(ctx, nil, length)
}

// sleep waits until wake is closed, for no longer than ctx and this time. A nil wake is never
// closed.
func sleep(ctx context.Context, wake <-chan struct{}, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-wake:
	case <-timer.C:
	case <-ctx.Done():
	}
}
