package leasehold

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
)

const addressDefault = "http://127.0.0.1:7411"

// address is where the agent is.
type address struct {
	// text is http://HOST:PORT or unix:PATH.
	text string
	// network and target are what a dialer takes.
	network, target string
	// base begins the URL of every call.
	base string
	// origin says where the address comes from.
	origin string
}

// findAddress reads the address that the program passes, or else the one that the environment
// names.
func findAddress(given string) (address, error) {
	text, origin := given, "the program passes this address"
	if text == "" {
		text, origin = os.Getenv("LEASEHOLD_ADDR"), "LEASEHOLD_ADDR names this address"
	}
	if text == "" {
		if path := os.Getenv("LEASEHOLD_SOCKET"); path != "" {
			text, origin = "unix:"+path, "LEASEHOLD_SOCKET names this socket"
		}
	}
	if text == "" {
		text, origin = addressDefault, "LEASEHOLD_ADDR and LEASEHOLD_SOCKET are not set"
	}
	found, err := parseAddress(text)
	found.origin = origin
	return found, err
}

func parseAddress(text string) (address, error) {
	if path, isUnix := strings.CutPrefix(text, "unix:"); isUnix && path != "" {
		return address{text: text, network: "unix", target: path, base: "http://localhost"}, nil
	}
	parsed, err := url.Parse(text)
	if err == nil && parsed.Scheme == "http" && parsed.Hostname() != "" {
		port := parsed.Port()
		if port == "" {
			port = "80"
		}
		base := "http://" + parsed.Host
		if rest := strings.TrimPrefix(text, base); rest == "" || rest == "/" {
			target := net.JoinHostPort(parsed.Hostname(), port)
			return address{text: text, network: "tcp", target: target, base: base}, nil
		}
	}
	return address{}, fmt.Errorf(
		"invalid address %q: expected http://HOST:PORT or unix:PATH", text)
}

// dial connects to the process that listens there now.
func (a address) dial(ctx context.Context) (net.Conn, error) {
	dialer := net.Dialer{Timeout: answerTimeout}
	return dialer.DialContext(ctx, a.network, a.target)
}

// advice says what to do where nothing answers as an agent.
func (a address) advice() string {
	return a.origin + "; start this program as the COMMAND of leasehold-agent run, or set " +
		"LEASEHOLD_ADDR to the agent's --listen, as http://HOST:PORT"
}

// unreachable returns the error for an agent that did not answer.
func (a address) unreachable(why error) *UnreachableError {
	return &UnreachableError{Address: a.text, Err: why, advice: a.advice()}
}
