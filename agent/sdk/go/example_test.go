package leasehold_test

import (
	"context"
	"errors"
	"log"
	"time"

	leasehold "leasehold.dev/agent/sdk/go"
)

// These stand for what belongs to a worker.
var (
	build func(ctx context.Context, item string) error
	queue interface {
		Take(ctx context.Context) string
		Poll() (item string, found bool)
		PutBack(item string)
	}
	read func(ctx context.Context, stream string) (batch string, err error)
	sink interface {
		Write(ctx context.Context, batch string, token leasehold.Token) error
	}
	send func(ctx context.Context, address, document string, token leasehold.Token) error
)

func ExampleWorker_Job() {
	ctx := context.Background()
	worker, err := leasehold.New(leasehold.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer worker.Close()
	for {
		item := queue.Take(ctx) // First the work: who waits for work must hold no slot.
		job, err := worker.Job(ctx, item)
		if err != nil {
			queue.PutBack(item)
			break // errors.Is(err, leasehold.ErrDraining): the worker drains.
		}
		if err := build(ctx, item); err != nil {
			log.Print(err)
		}
		job.End()
	}
}

func ExampleWorker_Job_limit() {
	worker, err := leasehold.New(leasehold.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer worker.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	job, err := worker.Job(ctx, "build-42")
	var refused *leasehold.RefusedError
	switch {
	case errors.Is(err, leasehold.ErrDraining):
		log.Print("this worker begins no more jobs")
	case errors.Is(err, context.DeadlineExceeded) && errors.As(err, &refused):
		log.Print("no slot within 30 seconds: ", refused.Reason)
	case err != nil:
		log.Print(err)
	default:
		defer job.End()
		log.Print("runs under ", job.Token())
	}
}

func ExampleWorker_RunJobs() {
	worker, err := leasehold.New(leasehold.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer worker.Close()
	work := func(ctx context.Context, job *leasehold.Job) error {
		item, found := queue.Poll() // Does not wait.
		if !found {
			job.End() // Before the pause: another worker may need the slot.
			time.Sleep(time.Second)
			return nil
		}
		return build(ctx, item)
	}
	if err := worker.RunJobs(context.Background(), 3, work); err != nil {
		log.Fatal(err)
	}
}

func ExampleWorker_RunStreams() {
	worker, err := leasehold.New(leasehold.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer worker.Close()
	consume := func(ctx context.Context, stream *leasehold.Stream) error {
		for {
			select {
			case <-stream.Stopping(): // Revoked, or lost: returning releases it.
				return nil
			default:
			}
			batch, err := read(ctx, stream.Name()) // The context ends when the stream is lost.
			if err != nil {
				return err
			}
			if err := sink.Write(ctx, batch, stream.Token()); err != nil {
				return err
			}
		}
	}
	if err := worker.RunStreams(context.Background(), consume); err != nil {
		log.Fatal(err)
	}
}

func ExampleBinding_Pick() {
	worker, err := leasehold.New(leasehold.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer worker.Close()
	serve := func(ctx context.Context, binding *leasehold.Binding) error {
		for {
			select {
			case <-binding.Stopping():
				return nil
			case <-time.After(100 * time.Millisecond):
			}
			to, isServed := binding.Pick("out")
			if !isServed {
				continue // No worker serves that node at this moment.
			}
			if err := send(ctx, to.Address, "a document", binding.Token()); err != nil {
				return err
			}
		}
	}
	if err := worker.RunBindings(context.Background(), serve); err != nil {
		log.Fatal(err)
	}
}
