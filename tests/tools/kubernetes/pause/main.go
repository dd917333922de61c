// Pause waits until it is asked to end. It is the sandbox of every pod on the tests' real node, and
// the whole of the containers whose work does not matter.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	<-end
}
