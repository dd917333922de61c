package clock

import (
	"fmt"
	"syscall"
	"unsafe"
)

// bootTime is CLOCK_BOOTTIME of time.h, which the package syscall does not name.
const bootTime = 7

// Now returns the moment now.
func Now() Moment {
	var at syscall.Timespec
	_, _, errno := syscall.RawSyscall(
		syscall.SYS_CLOCK_GETTIME, bootTime, uintptr(unsafe.Pointer(&at)), 0)
	if errno != 0 {
		panic(fmt.Sprintf("clock_gettime(CLOCK_BOOTTIME), which Linux has since 2.6.39: %v", errno))
	}
	return Moment(at.Nano())
}
