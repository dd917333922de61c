// Runner runs builds from a queue, as many at once over the whole pool as the budget allows.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	leasehold "leasehold.dev/agent/sdk/go"
)

const usage = `Runs builds from a queue, as many at once over the whole pool as the budget allows.

    leasehold-agent run ... -- runner QUEUE

QUEUE is a folder that all runners share. A build is a shell script in QUEUE/pending; write it under
a name that begins with a dot, and rename it when it is whole. It moves to QUEUE/taken/RUNNER while
it runs, in an empty folder of its own, and then to QUEUE/done or QUEUE/failed. Its output is in
QUEUE/logs.

Example:

    leasehold-agent run --coordinator 127.0.0.1:7400 --cluster runners --worker r-0 \
        -- runner /srv/queue
`

const (
	// buildsMax is how many builds one runner has at once, if the budget allows them.
	buildsMax = 2
	// idlePause is how long a runner waits before it looks again at an empty queue.
	idlePause = time.Second
)

func main() {
	flag.Usage = func() { fmt.Fprint(flag.CommandLine.Output(), usage) }
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(flag.Arg(0)); err != nil {
		log.Fatal(err)
	}
}

// run works until SIGTERM, and then until the last build has ended.
func run(folder string) error {
	queue, err := openQueue(folder, os.Getenv("LEASEHOLD_WORKER"))
	if err != nil {
		return err
	}
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	worker, err := leasehold.New(leasehold.Options{})
	if err != nil {
		return err
	}
	defer worker.Close()
	ctx := context.Background()
	ended := make(chan error, 1)
	go func() { ended <- worker.RunJobs(ctx, buildsMax, queue.build) }()
	// The agent sends it after the drain. A runner that ended with the drain would be started
	// again.
	<-terminated
	if !worker.Draining() {
		if _, err := worker.Drain(ctx); err != nil {
			return err
		}
	}
	return <-ended
}

// queue is the folder with the builds. It stands for the queue of your forge: to use another one,
// replace openQueue, take and finish.
type queue struct {
	folder, runner string
}

// openQueue makes the folders, and puts back what an earlier process of this runner has not ended.
func openQueue(folder, runner string) (*queue, error) {
	if runner == "" {
		return nil, errors.New("no LEASEHOLD_WORKER: start the runner beside an agent")
	}
	// Builds have other working directories.
	folder, err := filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	q := &queue{folder, runner}
	for _, part := range []string{"pending", "taken/" + runner, "done", "failed", "logs"} {
		if err := os.MkdirAll(q.path(part), 0o755); err != nil {
			return nil, err
		}
	}
	left, err := os.ReadDir(q.path("taken", runner))
	if err != nil {
		return nil, err
	}
	for _, build := range left {
		log.Print("put back: ", build.Name())
		if err := q.finish(build.Name(), "pending"); err != nil {
			return nil, err
		}
	}
	return q, nil
}

// take takes the first build by name that waits and is whole; returns "" if none does.
func (q *queue) take() (string, error) {
	waiting, err := os.ReadDir(q.path("pending"))
	if err != nil {
		return "", err
	}
	for _, build := range waiting {
		if strings.HasPrefix(build.Name(), ".") {
			continue
		}
		// Of several runners that rename a file one succeeds.
		err := os.Rename(q.path("pending", build.Name()), q.path("taken", q.runner, build.Name()))
		if !errors.Is(err, os.ErrNotExist) {
			return build.Name(), err
		}
	}
	return "", nil
}

// finish moves a build that this runner has taken to another folder.
func (q *queue) finish(build, to string) error {
	return os.Rename(q.path("taken", q.runner, build), q.path(to, build))
}

// build runs one build in the slot of a job. A build that runs is not cut off by the end of a lease,
// and by a drain only at its deadline.
func (q *queue) build(_ context.Context, job *leasehold.Job) error {
	build, err := q.take()
	if build == "" || err != nil {
		// Before the pause: another runner may need the slot.
		job.End()
		time.Sleep(idlePause)
		return err
	}
	output, err := os.Create(q.path("logs", build+".log"))
	if err != nil {
		return errors.Join(err, q.finish(build, "pending"))
	}
	defer output.Close()
	folder, err := os.MkdirTemp("", "build-")
	if err != nil {
		return errors.Join(err, q.finish(build, "pending"))
	}
	defer os.RemoveAll(folder)
	command := exec.Command("sh", q.path("taken", q.runner, build))
	command.Dir = folder
	command.Stdout, command.Stderr = output, output
	to := "done"
	if err := command.Run(); err != nil {
		fmt.Fprintln(output, err)
		to = "failed"
	}
	log.Print(to, ": ", build)
	return q.finish(build, to)
}

func (q *queue) path(parts ...string) string {
	return filepath.Join(append([]string{q.folder}, parts...)...)
}
