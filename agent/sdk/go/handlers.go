package leasehold

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// failedPause is how long a stream or binding whose handler has failed is kept before it is
// released: the next owner, this worker perhaps, fails no faster than this.
const failedPause = time.Second

// Jobs yields one job after another, each ended before the next, until the worker drains or is
// closed, or ctx ends. With Go 1.23 or newer:
//
//	for job := range worker.Jobs(ctx) {
//
// Each holds its slot from when it is yielded. Where there is no work for it, call End before you
// wait.
func (w *Worker) Jobs(ctx context.Context) func(yield func(*Job) bool) {
	return func(yield func(*Job) bool) {
		for {
			job, err := w.NextJob(ctx)
			if err != nil || !yieldJob(job, yield) {
				return
			}
		}
	}
}

func yieldJob(job *Job, yield func(*Job) bool) bool {
	defer job.End()
	return yield(job)
}

// Streams yields each stream that this worker comes to own, until the worker drains or is closed,
// or ctx ends. The worker owns it until Release.
func (w *Worker) Streams(ctx context.Context) func(yield func(*Stream) bool) {
	return each(ctx, w.NextStream)
}

// Bindings yields each share of a pipeline's node that this worker comes to own, as Streams does
// for streams.
func (w *Worker) Bindings(ctx context.Context) func(yield func(*Binding) bool) {
	return each(ctx, w.NextBinding)
}

func each[T any](
	ctx context.Context, next func(context.Context) (*T, error),
) func(yield func(*T) bool) {
	return func(yield func(*T) bool) {
		for {
			one, err := next(ctx)
			if err != nil || !yield(one) {
				return
			}
		}
	}
}

// RunJobs calls handler for one job after another, each in a goroutine, with up to concurrency of
// them at a time as far as the pool has slots. It returns nil when the worker has drained, and
// otherwise ErrClosed or the error of ctx; in each case when the last handler has returned.
//
// A job ends when its handler returns; an error of the handler is logged. A handler without work
// calls End before it waits: each job holds its slot from the handler's begin. The end of ctx ends
// the context of the handlers; nothing else does.
func (w *Worker) RunJobs(
	ctx context.Context, concurrency int, handler func(context.Context, *Job) error,
) error {
	if concurrency < 1 {
		return fmt.Errorf("invalid concurrency %d: use 1 or more", concurrency)
	}
	var handlers sync.WaitGroup
	defer handlers.Wait()
	running := make(chan struct{}, concurrency)
	for {
		select {
		case running <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		job, err := w.NextJob(ctx)
		if err != nil {
			return unlessDrained(err)
		}
		handlers.Add(1)
		go func() {
			defer handlers.Done()
			defer func() { <-running }()
			defer job.End()
			if err := handler(ctx, job); err != nil && !isEndOf(ctx, err) {
				w.log.Error("the handler of a job failed", "job", job.id, "error", err)
			}
		}()
	}
}

// RunStreams calls handler for each stream, each in a goroutine. It returns nil when the worker has
// drained, and otherwise ErrClosed or the error of ctx; in each case when the last handler has
// returned.
//
// A handler works until Stopping, and when it returns the stream is released. Its context ends with
// ctx, and when the stream is lost. An error of the handler is logged, unless it is that of its
// context.
func (w *Worker) RunStreams(
	ctx context.Context, handler func(context.Context, *Stream) error,
) error {
	return runEach(ctx, w, w.NextStream, handler)
}

// RunBindings calls handler for each share of a pipeline's node, as RunStreams does for streams.
func (w *Worker) RunBindings(
	ctx context.Context, handler func(context.Context, *Binding) error,
) error {
	return runEach(ctx, w, w.NextBinding, handler)
}

// leased is a Stream or a Binding.
type leased interface {
	Context(context.Context) (context.Context, context.CancelFunc)
	Stopping() <-chan struct{}
	Release()
	String() string
}

func runEach[T leased](
	ctx context.Context,
	w *Worker,
	next func(context.Context) (T, error),
	handler func(context.Context, T) error,
) error {
	var handlers sync.WaitGroup
	defer handlers.Wait()
	for {
		one, err := next(ctx)
		if err != nil {
			return unlessDrained(err)
		}
		handlers.Add(1)
		go func() {
			defer handlers.Done()
			defer one.Release()
			own, cancel := one.Context(ctx)
			defer cancel()
			if err := handler(own, one); err != nil && !isEndOf(own, err) {
				w.log.Error("the handler of a lease failed", "lease", one.String(), "error", err)
				sleep(own, one.Stopping(), failedPause)
			}
		}()
	}
}

// isEndOf returns whether an error says that ctx has ended, and nothing else.
func isEndOf(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)))
}

func unlessDrained(err error) error {
	if errors.Is(err, ErrDraining) {
		return nil
	}
	return err
}
