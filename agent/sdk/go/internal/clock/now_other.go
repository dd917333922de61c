//go:build !linux

package clock

import "time"

var begun = time.Now()

// Now returns the moment now. Go names no clock here that a suspended machine does not stop, so
// this one may stop meanwhile.
func Now() Moment {
	return Moment(time.Since(begun))
}
