// Package leasehold runs a worker under its leases: how many jobs may run, which streams the worker
// owns, and which shares of pipelines it serves. An agent of Leasehold beside the worker holds the
// leases; this package asks it, over TCP or a Unix socket.
//
//	worker, err := leasehold.New(leasehold.Options{})
//	if err != nil {
//		return err
//	}
//	defer worker.Close()
//
//	job, err := worker.Job(ctx, "build-42") // waits for a slot
//	if err != nil {
//		return err // errors.Is(err, leasehold.ErrDraining): no new job will start
//	}
//	defer job.End() // repeated until the agent has confirmed it
//	return build(ctx, job.ID())
//
// RunJobs, RunStreams and RunBindings call a handler for each job, stream or binding, each in a
// goroutine of its own, until the worker has drained:
//
//	err := worker.RunStreams(ctx, func(ctx context.Context, stream *leasehold.Stream) error {
//		for {
//			batch, err := read(ctx, stream.Name()) // ctx ends when the stream is lost
//			if err != nil {
//				return err
//			}
//			if err := sink.Write(ctx, batch, stream.Token()); err != nil {
//				return err
//			}
//			select {
//			case <-stream.Stopping(): // revoked, or lost: returning releases it
//				return nil
//			default:
//			}
//		}
//	})
//
// However often the agent restarts: a job runs only after the agent has admitted it. Ends and
// releases are repeated until the agent confirms them. A stream or binding is handed out once under
// a token, and it is lost, by this process's own clock, before its lease ends. That clock counts
// the time for which a machine is suspended (on Linux; elsewhere Go names no such clock).
//
// No clock helps a process that is stopped between its check and its write: send the token with
// every write, to a sink that refuses tokens lower than the highest that it has seen.
//
// All functions and methods may be called from any goroutine.
package leasehold
