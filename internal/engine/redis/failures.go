package redis

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"

	"github.com/redis/go-redis/v9"

	"weir/internal/engine"
)

// notReached is an error because of which nothing of a call was written to a server. go-redis
// removes one layer of an error that has another one inside (errors.Unwrap), but not of a list.
type notReached struct{ error }

func (e notReached) Unwrap() []error { return []error{engine.ErrNotReached, e.error} }

// behindSilence is the error of a request that was not sent, because the server answered nothing
// meanwhile.
type behindSilence struct{ notReached }

func (e behindSilence) Unwrap() []error { return append(e.notReached.Unwrap(), engine.ErrStoreSilent) }

// poolTimeout makes a long wait for a connection a timeout for callers.
type poolTimeout struct{ error }

func (poolTimeout) Timeout() bool   { return true }
func (t poolTimeout) Unwrap() error { return t.error }

// The classes of failures: what people have to do about each is in docs/operations.md.
const (
	failTimeout     engine.Failure = "timeout"
	failOverload    engine.Failure = "overload"
	failUnreachable engine.Failure = "unreachable"
	failCredentials engine.Failure = "wrong_credentials"
	failPermission  engine.Failure = "no_permission"
	failScripting   engine.Failure = "no_scripting"
	failReadOnly    engine.Failure = "read_only"
	failMemory      engine.Failure = "out_of_memory"
	failClients     engine.Failure = "too_many_clients"
	failProtected   engine.Failure = "protected_mode"
	failPersistence engine.Failure = "cannot_persist"
	failLoading     engine.Failure = "loading"
	failBusy        engine.Failure = "busy"
	failCluster     engine.Failure = "cluster_down"
	failMoving      engine.Failure = "slot_moving"
	failReply       engine.Failure = "invalid_reply"
	failOther       engine.Failure = "other"
)

// replyClasses tells the class of an error that Redis replied by a part of its text. The first one
// that matches counts: an error of a script holds that of a command.
var replyClasses = []struct {
	text  string
	class engine.Failure
}{
	{"wrongpass", failCredentials},
	{"noauth", failCredentials},
	{"invalid password", failCredentials},
	{"invalid username-password", failCredentials},
	{"without any password configured", failCredentials},
	{"noperm", failPermission},
	{"acl failure", failPermission},
	{"permissions to", failPermission},
	{"unknown command", failScripting},
	{"readonly", failReadOnly},
	{"read only replica", failReadOnly},
	{"oom ", failMemory},
	{"max number of clients", failClients},
	{"protected mode", failProtected},
	{"misconf", failPersistence},
	{"noreplicas", failPersistence},
	{"loading", failLoading},
	{"masterdown", failLoading},
	{"busy", failBusy},
	{"clusterdown", failCluster},
	{"cluster is down", failCluster},
	{"non local key", failMoving},
	{"moved ", failMoving},
	{"ask ", failMoving},
	{"tryagain", failMoving},
	{"crossslot", failMoving},
}

// Class implements engine.Servers.
func (e *Engine) Class(err error) engine.Failure { return classOf(err) }

func classOf(err error) engine.Failure {
	var (
		reply   redis.Error
		network net.Error
	)
	switch {
	case errors.Is(err, errReply):
		return failReply
	case errors.Is(err, engine.ErrNotSent):
		return failOverload
	case errors.As(err, &reply):
		return classOfReply(reply.Error())
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, redis.ErrPoolTimeout):
		return failTimeout
	case errors.As(err, &network):
		if network.Timeout() {
			return failTimeout
		}
		return failUnreachable
	case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.Is(err, io.ErrUnexpectedEOF):
		return failUnreachable
	}
	return failOther
}

func classOfReply(text string) engine.Failure {
	text = strings.ToLower(text)
	for _, known := range replyClasses {
		if strings.Contains(text, known.text) {
			return known.class
		}
	}
	return failOther
}
