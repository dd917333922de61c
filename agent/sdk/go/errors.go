package leasehold

import (
	"errors"
	"fmt"
	"slices"
)

var (
	// ErrDraining means that the worker drains: no new job will start, and no stream or binding comes.
	ErrDraining = errors.New("the worker is draining: no new job may start")
	// ErrClosed means that the worker was closed.
	ErrClosed = errors.New("the worker was closed")
	// ErrJobRuns means that a job of this id runs in this process, or waits to run.
	ErrJobRuns = errors.New("the job already runs or waits to run: use another id")
	// ErrLost is the cause of the end of a handler's context whose lease was lost: see
	// [context.Cause].
	ErrLost = errors.New("the lease was lost")
)

// Reason says why the agent refused a call. An agent of a later version may have others.
type Reason string

const (
	// ReasonNoLease means that no pool lease is in force.
	ReasonNoLease Reason = "no_lease"
	// ReasonNoSlot means that every slot runs a job.
	ReasonNoSlot Reason = "no_slot"
	// ReasonDraining means that the worker is draining.
	ReasonDraining Reason = "draining"
	// ReasonNotHeld means that the worker does not hold this lease.
	ReasonNotHeld Reason = "not_held"
	// ReasonLimit means that a named limit is reached.
	ReasonLimit Reason = "limit"
	// ReasonJournal means that the agent could not write its journal.
	ReasonJournal Reason = "journal"
	// ReasonInvalid means that the id or name is invalid.
	ReasonInvalid Reason = "invalid"
	// ReasonFailing means that the worker fails its check.
	ReasonFailing Reason = "failing"
	// ReasonStopping means that the agent is stopping.
	ReasonStopping Reason = "stopping"
)

// RefusedError is a refusal of the agent. [errors.Is] finds ErrDraining in one whose reason is
// ReasonDraining.
type RefusedError struct {
	// Reason is the API's word.
	Reason Reason
	// Message is for people.
	Message string
}

// Error returns the reason and the message.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s: %s", e.Reason, e.Message)
}

// Is makes a refusal with the reason draining an ErrDraining.
func (e *RefusedError) Is(target error) bool {
	return target == ErrDraining && e.Reason == ReasonDraining
}

// UnreachableError means that nothing answered as an agent. It says what to do.
type UnreachableError struct {
	// Address is where the agent was expected: http://HOST:PORT or unix:PATH.
	Address string
	// Err is why there was no answer.
	Err error

	advice string
}

// Error returns the address, the reason and what to do.
func (e *UnreachableError) Error() string {
	return fmt.Sprintf("cannot reach the agent at %s: %v (%s)", e.Address, e.Err, e.advice)
}

// Unwrap returns why there was no answer.
func (e *UnreachableError) Unwrap() error {
	return e.Err
}

// isRefusal returns whether the agent answered, with a refusal.
func isRefusal(err error) bool {
	var refused *RefusedError
	return errors.As(err, &refused)
}

// hasReason returns whether an error is a refusal with one of these reasons.
func hasReason(err error, reasons ...Reason) bool {
	var refused *RefusedError
	return errors.As(err, &refused) && slices.Contains(reasons, refused.Reason)
}
