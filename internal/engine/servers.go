package engine

import (
	"context"
	"errors"
)

// Servers is an Engine whose counters are on servers that fail independently.
type Servers interface {
	Engine
	// Only returns the server if there is exactly one, else nil.
	Only() Server
	// ServerOf returns the server that holds a key at present. It does not wait.
	ServerOf(key string) Server
	// EvaluateOn is Evaluate for calls whose counters are on one server, which ServerOf has
	// returned. If the counters have moved to another server, it follows them there. The Err of a
	// call that another server could not answer is ErrRedirected.
	EvaluateOn(ctx context.Context, server Server, calls ...*Call)
	// All asks the store for all servers that hold keys. If that fails, it returns the known ones.
	All(ctx context.Context) []Server
	// Class returns the class of a failure.
	Class(err error) Failure
}

// Server is one server of a counter store, a comparable value.
type Server interface {
	// ProbeKey returns a key that the server holds, or "" if it holds none any more.
	ProbeKey() string
	// Lost says that the server was seen to have lost counters, at an instant of its clock.
	Lost(nowMS int64)
	// Renew closes the connections to a server that does not answer, and finds out in the
	// background where its keys are by now. It returns the error of the last probe, or one that
	// says more.
	Renew(err error) error
}

// Failure is a class of errors, of a closed set.
type Failure string

// ErrRedirected marks the error of a call that its server has answered: by a redirection to
// another server, which then failed, or by asking to try again later. Its server has not failed.
var ErrRedirected = errors.New("the counters are moving to another server")

// SplitByServer returns the server of the first call, all calls whose counters are on that server,
// and the others. It reorders the slice but keeps the order of the calls of each server. Nearly
// always, all calls are of one tenant and on one server.
func SplitByServer(s Servers, calls []*Call) (server Server, same, others []*Call) {
	server, count := s.ServerOf(calls[0].firstKey()), 1
	for i := 1; i < len(calls); i++ {
		if c := calls[i]; s.ServerOf(c.firstKey()) == server {
			copy(calls[count+1:i+1], calls[count:i])
			calls[count] = c
			count++
		}
	}
	return server, calls[:count], calls[count:]
}

// firstKey is a key of the call: all its counters are on one server.
func (c *Call) firstKey() string {
	if len(c.Counters) == 0 {
		return ""
	}
	return c.Counters[0].Key
}
