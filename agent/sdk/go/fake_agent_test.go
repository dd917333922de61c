package leasehold

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
)

// hang is the time after which a hang shows as a failure.
const hang = 60 * time.Second

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(hang); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatal("timeout: ", what)
}

// await waits until a channel is closed or has a value. Any goroutine of a test may call it.
func await[T any](t *testing.T, what string, channel <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-channel:
	case <-time.After(hang):
		t.Error("timeout: ", what)
	}
	return value
}

// call is a call that the agent got.
type call struct {
	method string
	// uri is the path with its query, as it was sent.
	uri  string
	body map[string]any
}

// message is a part of a lease.
type message = map[string]any

// fakeAgent is one process of an agent's after another at one address: it counts slots, lists what
// the test sets, and can be killed.
type fakeAgent struct {
	t        *testing.T
	network  string
	address  string
	listener net.Listener
	server   *http.Server

	mu sync.Mutex
	// changed is closed at the next change.
	changed  chan struct{}
	isDead   bool
	process  int
	version  int
	pool     int
	draining bool
	streams  map[string]message
	bindings map[string]message
	// refusal is the answer to each request for a slot, if it is not empty.
	refusal Reason
	// isFull: the journal cannot be written.
	isFull bool
	// onStart is called at each announcement of a start, with the lock held.
	onStart func()
	// admitted: while it is set, an admitted job is answered when it can be received from.
	admitted chan struct{}
	calls    []call

	// The journal.
	startID string
	jobs    map[string]struct{}
	unnamed int
}

func newFakeAgent(t *testing.T) *fakeAgent {
	return newFakeAgentAt(t, "tcp", "127.0.0.1:0")
}

func newFakeAgentAt(t *testing.T, network, address string) *fakeAgent {
	f := &fakeAgent{
		t: t, network: network, address: address, changed: make(chan struct{}), isDead: true,
		version: 1, pool: 1, streams: map[string]message{}, bindings: map[string]message{},
	}
	f.forget()
	f.revive()
	t.Cleanup(f.kill)
	return f
}

// url is what a worker takes as an address.
func (f *fakeAgent) url() string {
	if f.network == "unix" {
		return "unix:" + f.address
	}
	return "http://" + f.address
}

// forget loses the journal.
func (f *fakeAgent) forget() {
	f.change(func() { f.startID, f.jobs, f.unnamed = "", map[string]struct{}{}, 0 })
}

// revive starts a process.
func (f *fakeAgent) revive() {
	listener, err := net.Listen(f.network, f.address)
	if err != nil {
		f.t.Fatal(err)
	}
	f.address = listener.Addr().String()
	f.listener, f.server = listener, &http.Server{Handler: f}
	f.change(func() { f.isDead, f.process = false, f.process+1 })
	go f.server.Serve(listener)
}

// kill ends the process: nothing listens, and all connections break.
func (f *fakeAgent) kill() {
	f.change(func() { f.isDead = true })
	f.listener.Close()
	f.server.Close()
}

// change changes what the agent lists, and tells the watches.
func (f *fakeAgent) change(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
	f.version++
	f.notify()
}

func (f *fakeAgent) notify() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// look reads what the agent has.
func look[T any](f *fakeAgent, read func() T) T {
	f.mu.Lock()
	defer f.mu.Unlock()
	return read()
}

// show lists a stream of the set cars.
func (f *fakeAgent) show(name, token, state string, times message) {
	shown := message{"set": "cars", "stream": name, "token": token, "state": state}
	for key, value := range times {
		shown[key] = value
	}
	f.change(func() { f.streams[name] = shown })
}

// hide lists a stream no more.
func (f *fakeAgent) hide(name string) {
	f.change(func() { delete(f.streams, name) })
}

// bind lists the binding ns/first/in/2, whose documents go to these workers of the node out, all
// with the same load.
func (f *fakeAgent) bind(token, state string, times message, next ...string) {
	endpoints := []message{}
	for _, worker := range next {
		endpoint := message{"worker": worker, "address": worker + ":80", "documents_per_second": 1.5}
		endpoints = append(endpoints, endpoint)
	}
	shown := message{
		"pipeline": "ns/first", "node": "in", "index": 2, "token": token, "state": state,
		"documents_per_second": 2.5, "next": []message{{"node": "out", "endpoints": endpoints}},
	}
	for key, value := range times {
		shown[key] = value
	}
	f.change(func() { f.bindings["in"] = shown })
}

// called returns the calls so far whose path starts so.
func (f *fakeAgent) called(method, start string) []call {
	return look(f, func() []call {
		var found []call
		for _, one := range f.calls {
			if one.method == method && strings.HasPrefix(one.uri, start) {
				found = append(found, one)
			}
		}
		return found
	})
}

// known returns the ids of the jobs that run, in order.
func (f *fakeAgent) known() string {
	return look(f, func() string {
		return strings.Join(sortedKeys(f.jobs), " ")
	})
}

func sortedKeys[V any](all map[string]V) []string {
	var keys []string
	for key := range all {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// unnamedJobs returns how many jobs run without a known id.
func (f *fakeAgent) unnamedJobs() int {
	return look(f, func() int { return f.unnamed })
}

// ServeHTTP answers a call.
func (f *fakeAgent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	process := look(f, func() int { return f.process })
	if r.URL.Path == "/v1/lease/watch" {
		f.watch(w, r, process)
		return
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	var body map[string]any
	if len(text) > 0 && json.Unmarshal(text, &body) != nil {
		f.t.Errorf("no JSON: %s", text)
	}
	f.mu.Lock()
	f.calls = append(f.calls, call{r.Method, r.URL.RequestURI(), body})
	status, answer := f.answer(r, body)
	f.notify()
	isOver := f.isDead
	f.mu.Unlock()
	if isOver {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(answer)
}

// answer returns a status and an answer. The caller holds the lock.
func (f *fakeAgent) answer(r *http.Request, body map[string]any) (int, message) {
	path, query := r.URL.EscapedPath(), r.URL.Query()
	if f.isFull && r.Method != http.MethodGet && r.Method != http.MethodPut {
		return refuse(http.StatusServiceUnavailable, ReasonJournal)
	}
	switch {
	case path == "/v1/start":
		f.start(body["start_id"].(string), int(body["running"].(float64)))
	case path == "/v1/lease":
		return http.StatusOK, f.lease(query)
	case path == "/v1/drain":
		f.draining = true
		f.version++
		return http.StatusOK, message{"jobs_left": len(f.jobs)}
	case strings.HasPrefix(path, "/v1/streams/cars/"):
		name, _ := url.PathUnescape(strings.TrimPrefix(path, "/v1/streams/cars/"))
		return f.release(f.streams, name, query.Get("token"))
	case path == "/v1/bindings/ns%2Ffirst/in/2":
		return f.release(f.bindings, "in", query.Get("token"))
	case strings.HasPrefix(path, "/v1/jobs/"):
		id, _ := url.PathUnescape(strings.TrimPrefix(path, "/v1/jobs/"))
		if r.Method == http.MethodDelete {
			delete(f.jobs, id)
			break
		}
		waitMS, _ := strconv.Atoi(query.Get("wait_ms"))
		return f.begin(r, id, time.Duration(waitMS)*time.Millisecond)
	}
	return http.StatusOK, message{}
}

func (f *fakeAgent) start(id string, running int) {
	if f.startID != id {
		f.startID, f.unnamed, f.jobs = id, running, map[string]struct{}{}
	}
	f.unnamed = min(f.unnamed, running)
	if f.onStart != nil {
		f.onStart()
		f.version++
	}
}

func (f *fakeAgent) release(listed map[string]message, name, token string) (int, message) {
	if listed[name]["token"] != token {
		return refuse(http.StatusConflict, ReasonNotHeld)
	}
	delete(listed, name)
	f.version++
	return http.StatusOK, message{}
}

func (f *fakeAgent) begin(r *http.Request, id string, wait time.Duration) (int, message) {
	if strings.IndexFunc(id, unicode.IsControl) >= 0 {
		return refuse(http.StatusBadRequest, ReasonInvalid)
	}
	if f.refusal != "" {
		return refuse(http.StatusConflict, f.refusal)
	}
	hasSlot := func() bool {
		_, isKnown := f.jobs[id]
		return isKnown || f.startID != "" && len(f.jobs)+f.unnamed < f.pool
	}
	over := time.NewTimer(wait)
	defer over.Stop()
	isOver := false
	for !isOver && !f.draining && !f.isDead && !hasSlot() {
		changed := f.changed
		f.mu.Unlock()
		select {
		case <-changed:
		case <-over.C:
			isOver = true
		case <-r.Context().Done():
			isOver = true
		}
		f.mu.Lock()
	}
	switch {
	case f.draining:
		return refuse(http.StatusConflict, ReasonDraining)
	case f.isDead || r.Context().Err() != nil || !hasSlot():
		return refuse(http.StatusConflict, ReasonNoSlot)
	}
	f.jobs[id] = struct{}{}
	if held := f.admitted; held != nil {
		f.mu.Unlock()
		<-held
		f.mu.Lock()
	}
	return http.StatusOK, message{"token": "1.1"}
}

// lease returns the lease now. The caller holds the lock.
func (f *fakeAgent) lease(query url.Values) message {
	// In the order of their names: a test chooses which one comes first.
	listed := func(kind string, all map[string]message) []message {
		values := []message{}
		if query.Get("without_"+kind) == "true" {
			return values
		}
		for _, name := range sortedKeys(all) {
			values = append(values, all[name])
		}
		return values
	}
	return message{
		"version":            f.version,
		"pool":               message{"size": f.pool, "token": "1.1", "running": len(f.jobs)},
		"streams":            listed("streams", f.streams),
		"bindings":           listed("bindings", f.bindings),
		"draining":           f.draining,
		"connected":          true,
		"cluster":            "ci",
		"worker":             "w1",
		"a_field_of_a_later": []int{1},
	}
}

// watch writes a lease at each change, for as long as this process lives.
func (f *fakeAgent) watch(w http.ResponseWriter, r *http.Request, process int) {
	w.WriteHeader(http.StatusOK)
	for {
		f.mu.Lock()
		changed, isOver := f.changed, f.isDead || f.process != process
		line, err := json.Marshal(f.lease(r.URL.Query()))
		f.mu.Unlock()
		if err != nil || isOver {
			panic(http.ErrAbortHandler)
		}
		if _, err := fmt.Fprintf(w, "%s\n", line); err != nil {
			return
		}
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

func refuse(status int, reason Reason) (int, message) {
	return status, message{"error": message{"reason": reason, "message": "set by the test"}}
}
