// Package wire has the messages of the worker API as JSON has them, with the fields that the SDK
// uses.
//
// They follow proto/leasehold/worker/v1/worker.proto under the same names;
// tests/tests/sdk/go_messages.rs compares the two. A field that a newer agent adds is ignored; a
// field that an older agent leaves out has its zero value.
package wire

// StreamLeaseState says what the worker must do with a stream or a binding. An unknown one, of a
// newer agent, permits nothing.
type StreamLeaseState string

const (
	// Held means that the worker owns it.
	Held StreamLeaseState = "held"
	// Revoked means that the worker must stop using it, then release it.
	Revoked StreamLeaseState = "revoked"
)

// StreamLease is the lease of one stream.
type StreamLease struct {
	// Set is the stream set.
	Set string `json:"set"`
	// Stream is the stream's name.
	Stream string `json:"stream"`
	// Token is the fencing token, written EPOCH.SEQ.
	Token string `json:"token"`
	// State is Held or Revoked.
	State StreamLeaseState `json:"state"`
	// ValidForMS counts from when the worker sent the request, in milliseconds; nil for a pinned
	// stream, which does not expire.
	ValidForMS *uint64 `json:"valid_for_ms"`
	// ReleaseWithinMS counts from when the worker sent the request, in milliseconds; nil where it is
	// not revoked.
	ReleaseWithinMS *uint64 `json:"release_within_ms"`
}

// Endpoint is a worker that serves a node of a pipeline.
type Endpoint struct {
	// Worker is its name.
	Worker string `json:"worker"`
	// Address is HOST or HOST:PORT; empty where it is not known.
	Address string `json:"address"`
	// DocumentsPerSecond is its share of the load.
	DocumentsPerSecond float64 `json:"documents_per_second"`
	// Draining means that it takes documents only if no other worker does.
	Draining bool `json:"draining"`
}

// Next is a node that follows in the pipeline.
type Next struct {
	// Node is its name.
	Node string `json:"node"`
	// Endpoints are the workers that serve it; empty while no worker does.
	Endpoints []Endpoint `json:"endpoints"`
}

// Binding is the lease of one share of a pipeline's node.
type Binding struct {
	// Pipeline is the pipeline.
	Pipeline string `json:"pipeline"`
	// Node is the node that the worker serves.
	Node string `json:"node"`
	// Index says which of the node's shares it is, from 0.
	Index uint32 `json:"index"`
	// Token is the fencing token, written EPOCH.SEQ.
	Token string `json:"token"`
	// State is Held or Revoked.
	State StreamLeaseState `json:"state"`
	// ValidForMS counts from when the worker sent the request, in milliseconds; nil where the lease
	// does not expire.
	ValidForMS *uint64 `json:"valid_for_ms"`
	// ReleaseWithinMS counts from when the worker sent the request, in milliseconds; nil where it is
	// not revoked.
	ReleaseWithinMS *uint64 `json:"release_within_ms"`
	// DocumentsPerSecond is the worker's part of the node's load.
	DocumentsPerSecond float64 `json:"documents_per_second"`
	// Next are the nodes that documents go to; empty at the end of the pipeline.
	Next []Next `json:"next"`
}

// Lease is everything that the worker may do now.
type Lease struct {
	// Version grows with every change; a renewal does not change it.
	Version uint64 `json:"version"`
	// Streams are those that the worker owns, and those that are revoked.
	Streams []StreamLease `json:"streams"`
	// Draining means that the worker must start no new job and release every stream.
	Draining bool `json:"draining"`
	// Bindings are the shares of pipelines that the worker serves, and those that are revoked.
	Bindings []Binding `json:"bindings"`
}

// StartWorkerRequest announces the start of the worker's process.
type StartWorkerRequest struct {
	// StartID is new for each process.
	StartID string `json:"start_id"`
	// Running is how many jobs already run in it.
	Running uint32 `json:"running"`
}

// BeginJobResponse is the answer to a job that may run.
type BeginJobResponse struct {
	// Token is the pool lease's token, written EPOCH.SEQ.
	Token string `json:"token"`
}

// DrainResponse is the answer to a drain.
type DrainResponse struct {
	// JobsLeft is how many jobs run, or at the end of a drain how many outlived its deadline.
	JobsLeft uint32 `json:"jobs_left"`
}

// Refusal is the body of every answer that is not 200.
type Refusal struct {
	// Error says why.
	Error struct {
		// Reason is one of the API's words.
		Reason string `json:"reason"`
		// Message is for people.
		Message string `json:"message"`
	} `json:"error"`
}
