package leasehold

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"leasehold.dev/agent/sdk/go/internal/wire"
)

const (
	// answerTimeout is how long an answer may take beyond what the call lets the agent wait.
	answerTimeout = 5 * time.Second
	// answerBytesMax is the longest answer, or line of a watch. A lease of 10,000 streams has some
	// two MB.
	answerBytesMax = 64 << 20
	// idleConnectionsMax is how many connections are kept for calls. The agent serves 1,024.
	idleConnectionsMax = 8
	// idleTimeout is how long a connection for calls is kept. The agent closes it after 10 minutes.
	idleTimeout = time.Minute
)

var (
	// errLeft is the error of a call on a connection that the agent has ended.
	errLeft = errors.New("the agent has ended this connection")
	// errNoAnswer is the error of a call whose answer takes too long.
	errNoAnswer = errors.New("it does not answer")
	// errTooLong is the error of an answer that is longer than answerBytesMax.
	errTooLong = fmt.Errorf(
		"its answer is longer than %d bytes: let this worker own fewer streams", answerBytesMax)
)

// agent sends calls to the agent, several at a time if need be. The error of a call that gets no
// whole answer is no RefusedError.
type agent struct {
	at address
	caller
}

// newAgent returns the agent at an address. Its calls reach the process that listens there.
func newAgent(at address) *agent {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return at.dial(ctx)
		},
		DisableCompression:  true,
		MaxIdleConnsPerHost: idleConnectionsMax,
		IdleConnTimeout:     idleTimeout,
	}
	return &agent{at, caller{at.base, transport}}
}

// connect returns a connection of its own, to the process that listens now.
func (a *agent) connect(ctx context.Context) (*connection, error) {
	socket, err := a.at.dial(ctx)
	if err != nil {
		return nil, err
	}
	once := make(chan net.Conn, 1)
	once <- socket
	transport := &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			select {
			case socket := <-once:
				return socket, nil
			default:
				return nil, errLeft
			}
		},
		DisableCompression: true,
		MaxConnsPerHost:    1,
	}
	return &connection{caller{a.base, transport}, socket}, nil
}

// endJob reports that the job has ended.
func (a *agent) endJob(ctx context.Context, id string) error {
	path := "/v1/jobs/" + url.PathEscape(id)
	return a.call(ctx, answerTimeout, http.MethodDelete, path, nil, nil)
}

// release reports that the worker uses a stream or a binding no more.
func (a *agent) release(ctx context.Context, key leaseKey, token Token) error {
	path := fmt.Sprintf("%s?token=%s", key.path(), token)
	return a.call(ctx, answerTimeout, http.MethodDelete, path, nil, nil)
}

// drain begins a drain; returns how many jobs run, or with toEnd, at its end, how many outlived its
// deadline.
func (a *agent) drain(ctx context.Context, toEnd bool) (int, error) {
	path, timeout := "/v1/drain", answerTimeout
	if toEnd {
		path, timeout = "/v1/drain?wait=true", 0
	}
	var answer wire.DrainResponse
	err := a.call(ctx, timeout, http.MethodPost, path, nil, &answer)
	return int(answer.JobsLeft), err
}

// beat says that the worker lives, and says so again within this time. 0 takes the promise back.
func (a *agent) beat(ctx context.Context, within time.Duration) error {
	path := "/v1/beat?within_ms=" + strconv.FormatInt(within.Milliseconds(), 10)
	return a.call(ctx, answerTimeout, http.MethodPost, path, nil, nil)
}

// connection is one connection to one process of the agent's. It never connects again, so a call
// fails rather than reach another process. One call at a time.
type connection struct {
	caller
	socket net.Conn
}

// beginJob lets the agent wait for at most wait until the job may run; returns the pool lease's
// token.
func (c *connection) beginJob(ctx context.Context, id string, wait time.Duration) (Token, error) {
	path := fmt.Sprintf("/v1/jobs/%s?wait_ms=%d", url.PathEscape(id), wait.Milliseconds())
	var answer wire.BeginJobResponse
	if err := c.call(ctx, 0, http.MethodPut, path, nil, &answer); err != nil {
		return Token{}, err
	}
	return ParseToken(answer.Token)
}

// hangUp makes the agent drop the call that is under way, which then ends: with an answer, if that
// came first.
func (c *connection) hangUp() {
	// Sockets of TCP and Unix have two sides.
	socket, ok := c.socket.(interface{ CloseWrite() error })
	if !ok || socket.CloseWrite() != nil {
		c.socket.Close()
	}
}

// lease returns the lease now, with the kinds of leases that are consumed.
func (c *connection) lease(ctx context.Context, consumed kinds) (*wire.Lease, error) {
	lease := &wire.Lease{}
	path := "/v1/lease" + consumed.query()
	if err := c.call(ctx, answerTimeout, http.MethodGet, path, nil, lease); err != nil {
		return nil, err
	}
	return lease, nil
}

// watch returns the lease now, after every change and at every renewal. It ends with ctx.
func (c *connection) watch(ctx context.Context, consumed kinds) (*leaseWatch, error) {
	// Later nothing is due while nothing changes.
	c.transport.ResponseHeaderTimeout = answerTimeout
	path := "/v1/lease/watch" + consumed.query()
	response, err := c.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		return nil, decode(response, nil)
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, answerBytesMax)
	return &leaseWatch{response.Body, lines}, nil
}

// close ends the connection and every call on it.
func (c *connection) close() {
	c.transport.CloseIdleConnections()
	c.socket.Close()
}

// leaseWatch yields the lease again and again.
type leaseWatch struct {
	body  io.Closer
	lines *bufio.Scanner
}

// next waits for the next lease.
func (w *leaseWatch) next() (*wire.Lease, error) {
	if !w.lines.Scan() {
		switch err := w.lines.Err(); {
		case errors.Is(err, bufio.ErrTooLong):
			return nil, errTooLong
		case err != nil:
			return nil, err
		}
		return nil, errors.New("the agent has ended the watch")
	}
	lease := &wire.Lease{}
	if err := json.Unmarshal(w.lines.Bytes(), lease); err != nil {
		return nil, fmt.Errorf("cannot decode the lease that the agent sent: %w", err)
	}
	return lease, nil
}

func (w *leaseWatch) close() {
	w.body.Close()
}

// caller sends calls and decodes the answers.
type caller struct {
	base      string
	transport *http.Transport
}

// start announces the start of the worker's process, and how many jobs run in it. On a connection
// of its own no other process of the agent's learns of it.
func (c caller) start(ctx context.Context, startID string, running int) error {
	request := wire.StartWorkerRequest{StartID: startID, Running: uint32(running)}
	return c.call(ctx, answerTimeout, http.MethodPost, "/v1/start", request, nil)
}

// call sends one call, and decodes its answer into answer if that is not nil. Without a timeout it
// waits for as long as ctx.
func (c caller) call(
	ctx context.Context, timeout time.Duration, method, path string, request, answer any,
) error {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, errNoAnswer)
		defer cancel()
	}
	response, err := c.send(ctx, method, path, request)
	if err == nil {
		defer response.Body.Close()
		err = decode(response, answer)
	}
	if err != nil && context.Cause(ctx) == errNoAnswer {
		return errNoAnswer
	}
	return err
}

func (c caller) send(
	ctx context.Context, method, path string, message any,
) (*http.Response, error) {
	var body io.Reader
	if message != nil {
		text, err := json.Marshal(message)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("content-type", "application/json")
	return c.transport.RoundTrip(request)
}

// decode reads a whole answer.
func decode(response *http.Response, answer any) error {
	text, err := io.ReadAll(io.LimitReader(response.Body, answerBytesMax+1))
	if err != nil {
		return fmt.Errorf("the agent's answer was cut off: %w", err)
	}
	if len(text) > answerBytesMax {
		return errTooLong
	}
	if response.StatusCode == http.StatusOK {
		if answer == nil {
			return nil
		}
		if err := json.Unmarshal(text, answer); err != nil {
			return fmt.Errorf("cannot decode the agent's answer: %w", err)
		}
		return nil
	}
	var refusal wire.Refusal
	if json.Unmarshal(text, &refusal) != nil || refusal.Error.Reason == "" {
		// An agent's errors are JSON.
		return fmt.Errorf("it answered %d: %.200q; is this the address of an agent?",
			response.StatusCode, text)
	}
	return &RefusedError{Reason: Reason(refusal.Error.Reason), Message: refusal.Error.Message}
}
