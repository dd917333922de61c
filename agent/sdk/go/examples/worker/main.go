//go:build linux

// Worker is a worker with the SDK: jobs, streams, and a sink that refuses a former owner.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	leasehold "leasehold.dev/agent/sdk/go"
	"leasehold.dev/agent/sdk/go/internal/clock"
)

const usage = `A worker with the SDK for Go: jobs, streams, and a sink that refuses a former owner.

    leasehold-agent run ... -- worker FOLDER

It writes what it did, and when, to FOLDER/journal/WORKER.jsonl, and a record every few milliseconds
to FOLDER/sink/STREAM.jsonl while it owns that stream. While FOLDER/hold exists no job ends. SIGTERM
drains it, and it ends when nothing is left.

Example, in the folder of the SDK:

    go build -o /tmp/worker ./examples/worker
    leasehold-agent run --coordinator 127.0.0.1:7400 --cluster builds --worker w-0 -- \
        /tmp/worker /tmp/w
`

const (
	// concurrency is how many jobs run at once, if the pool allows them.
	concurrency = 4
	step        = 20 * time.Millisecond
	// beatWithin is much less than by default: another worker goes on with the streams of one that
	// hangs.
	beatWithin = 3 * time.Second
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

// run works until the worker has drained.
func run(folder string) error {
	place, err := openPlace(folder)
	if err != nil {
		return err
	}
	worker, err := leasehold.New(leasehold.Options{BeatWithin: beatWithin})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	go func() {
		<-terminated
		if _, err := worker.Drain(ctx); err != nil {
			log.Print("the drain: ", err)
		}
	}()
	ended := make(chan error)
	go func() { ended <- worker.RunJobs(ctx, concurrency, place.build) }()
	go func() { ended <- worker.RunStreams(ctx, place.consume) }()
	err = errors.Join(<-ended, <-ended)
	if closeErr := worker.Close(); closeErr != nil {
		log.Print(closeErr)
	}
	return err
}

// place is the folder of this worker, its name and its journal. The journal has the SDK's own
// clock, so that the tests can compare its times with leases; a worker needs no clock for its
// leases.
type place struct {
	folder, worker string
	journal        *os.File
}

func openPlace(folder string) (*place, error) {
	name := os.Getenv("LEASEHOLD_WORKER")
	if name == "" {
		name = "worker"
	}
	for _, part := range []string{"journal", "sink"} {
		if err := os.MkdirAll(filepath.Join(folder, part), 0o755); err != nil {
			return nil, err
		}
	}
	path := filepath.Join(folder, "journal", name+".jsonl")
	journal, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	return &place{folder, name, journal}, err
}

// note writes an event of this worker in one write, as one line: goroutines may share the journal.
func (p *place) note(event string, at clock.Moment, fields map[string]any) error {
	line := map[string]any{
		"event": event, "at_ns": at, "wall_us": time.Now().UnixMicro(), "worker": p.worker,
	}
	for name, value := range fields {
		line[name] = value
	}
	return writeLine(p.journal, line)
}

// build is the work of a job, which ends when this returns.
func (p *place) build(_ context.Context, job *leasehold.Job) error {
	fields := map[string]any{"job": job.ID(), "token": job.Token()}
	if err := p.note("job_start", clock.Now(), fields); err != nil {
		return err
	}
	time.Sleep(5 * step)
	for {
		if _, err := os.Stat(filepath.Join(p.folder, "hold")); err != nil {
			break
		}
		time.Sleep(step)
	}
	return p.note("job_end", clock.Now(), map[string]any{"job": job.ID()})
}

// consume writes to the sink while this worker owns the stream, which is released when it returns.
func (p *place) consume(_ context.Context, stream *leasehold.Stream) error {
	lease := map[string]any{"set": stream.Set(), "stream": stream.Name(), "token": stream.Token()}
	sink, err := openSink(p, stream)
	if err != nil {
		return err
	}
	defer sink.file.Close()
	why, err := p.write(stream, sink, lease)
	if err != nil || sink.last == 0 {
		return err
	}
	at := clock.Now()
	if !stream.Valid() {
		why = "lost"
	}
	if why != "revoked" {
		// This goroutine may learn late that the stream is over; it wrote nothing after that moment.
		at = sink.last
	}
	lease["why"] = why
	return p.note("own_end", at, lease)
}

// write appends record after record until the stream is over; returns why it is.
func (p *place) write(
	stream *leasehold.Stream, sink *sink, lease map[string]any,
) (why string, err error) {
	for {
		if stream.Valid() {
			isFirst := sink.last == 0
			err := sink.append()
			if errors.Is(err, errFenced) {
				return err.Error(), nil
			}
			if err != nil {
				return "", err
			}
			if isFirst {
				// Ownership counts from the first record: it shuts out a former owner that was
				// stopped between its check of the lease and its write.
				if err := p.note("own_start", sink.last, lease); err != nil {
					return "", err
				}
			}
		}
		select {
		case <-stream.Stopping():
			return "revoked", nil
		case <-time.After(step):
		}
	}
}

// errFenced means that a higher token has been here.
var errFenced = errors.New("fenced")

// sink is a stream's file. It keeps the highest token that it has seen, and refuses lower ones.
type sink struct {
	file   *os.File
	token  leasehold.Token
	worker string
	// last is when the last record was written; 0 before the first.
	last clock.Moment
}

// record is a line of a sink.
type record struct {
	Token  leasehold.Token `json:"token"`
	Record uint64          `json:"record"`
	Worker string          `json:"worker"`
	At     clock.Moment    `json:"at_ns"`
	Text   string          `json:"text"`
}

func openSink(p *place, stream *leasehold.Stream) (*sink, error) {
	path := filepath.Join(p.folder, "sink", escape(stream.Name())+".jsonl")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o644)
	return &sink{file: file, token: stream.Token(), worker: p.worker}, err
}

// append adds the next record.
func (s *sink) append() error {
	if err := s.flock(syscall.LOCK_EX); err != nil {
		return err
	}
	appended := s.appendLocked()
	return errors.Join(appended, s.flock(syscall.LOCK_UN))
}

// flock locks or unlocks the file; a signal may interrupt the wait.
func (s *sink) flock(how int) error {
	for {
		err := syscall.Flock(int(s.file.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

func (s *sink) appendLocked() error {
	last, err := lastRecord(s.file)
	if err != nil {
		return err
	}
	if s.token.Less(last.Token) {
		return fmt.Errorf("%w: token %s is older than %s", errFenced, s.token, last.Token)
	}
	s.last = clock.Now()
	next := last.Record + 1
	text := fmt.Sprintf("record %d", next)
	return writeLine(s.file, record{s.token, next, s.worker, s.last, text})
}

// lastRecord reads the last line of a sink; the zero record if there is none.
func lastRecord(file *os.File) (last record, err error) {
	const lineBytesMax = 4096 // No line is longer.
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil || size == 0 {
		return last, err
	}
	tail := make([]byte, min(size, lineBytesMax))
	if _, err := file.ReadAt(tail, size-int64(len(tail))); err != nil {
		return last, err
	}
	lines := bytes.Split(bytes.TrimSuffix(tail, []byte("\n")), []byte("\n"))
	return last, json.Unmarshal(lines[len(lines)-1], &last)
}

// writeLine writes a value as one line, in one write.
func writeLine(file *os.File, value any) error {
	line, err := json.Marshal(value)
	if err != nil {
		return err
	}
	_, err = file.Write(append(line, '\n'))
	return err
}

// escape makes a file's name of a stream's.
func escape(name string) string {
	return strings.ReplaceAll(url.PathEscape(name), ":", "%3A")
}
