package clock

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestMomentsSubtractAndNeverFallBelowZero(t *testing.T) {
	begun := Now()
	if end := begun.Add(time.Minute); end.Since(begun) != time.Minute || begun.Since(end) != 0 {
		t.Errorf("a minute after %d is %d", begun, end)
	}
	if Now() < begun {
		t.Error("the clock went back")
	}
	if Never.Since(begun) < 100*365*24*time.Hour {
		t.Error("never is soon")
	}
}

func TestTheClockCountsTheTimeSinceTheBootAsTheKernelDoes(t *testing.T) {
	before := Now()
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		t.Skip("no /proc/uptime, which counts as CLOCK_BOOTTIME does: ", err)
	}
	after := Now()
	seconds, err := strconv.ParseFloat(strings.Fields(string(text))[0], 64)
	if err != nil {
		t.Fatal(err)
	}
	// It has two decimal places, rounded down.
	uptime, step := Moment(seconds*float64(time.Second)), Moment(10*time.Millisecond)
	if uptime < before-step || uptime > after {
		t.Errorf("the machine is up for %d ns, the clock says %d to %d", uptime, before, after)
	}
}
