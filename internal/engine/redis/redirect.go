package redis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"weir/internal/engine"
)

// In a Cluster, slots move between servers while checks run. A server that does not hold a key of a
// call executes nothing of it, and says where to go or that it does not know yet. follow takes the
// call there. What each answer proves is in docs/decisions/0013-one-run-for-a-node.md.
//
//	not served   a run for a node: the server does not serve a key of the call. Ask it again with
//	             the keys declared, so that it says more
//	MOVED        the slot is another server's
//	ASK          the slot is being moved, and none of the declared keys is here any more. That
//	             holds until the slot is moved, since this server creates no keys in it. If all
//	             keys were declared that the call may read, the other server answers for all
//	TRYAGAIN     the slot is being moved, and some of the keys are here. Wait until they are moved
//	READONLY     the server is a replica by now. With declared keys it says who is the master
//
// Each step is an exchange with one server, in queues that only such calls use. So a call that
// waits for a server delays no calls to others.

// errNotServed is the error of a call that a server did not decide, because it does not serve a
// key of the call. It has written nothing for it.
var errNotServed = errors.New("the server does not serve a key of the call")

const (
	maxSteps      = 12               // without a pause
	redirectPause = time.Millisecond // before the first repetition; it doubles
	maxPause      = 8 * time.Millisecond
)

// attempt is where and how a refused call is sent next.
type attempt struct {
	call   *engine.Call
	server *server
	mode   mode
	moved  int // how often a server said that the slot is another's
}

// follow takes calls that a server refused to the servers that hold their counters.
func (e *Engine) follow(ctx context.Context, from *server, calls []*engine.Call) {
	if !slices.ContainsFunc(calls, refused) {
		return
	}
	var attempts []attempt
	for _, c := range calls {
		if refused(c) {
			attempts = append(attempts, attempt{call: c, server: from})
		}
	}
	e.redirects.Add(int64(len(attempts)))
	until, pause := engine.Awake()+e.deadline, redirectPause
	for steps := 0; len(attempts) > 0 && steps < maxSteps; steps++ {
		wait := false
		for i := range attempts {
			if e.advance(&attempts[i]) {
				wait = true
			}
		}
		if wait {
			left := until - engine.Awake()
			if left <= 0 || !rest(ctx, min(pause, left)) {
				break
			}
			pause, steps = min(2*pause, maxPause), 0
		}
		e.step(ctx, attempts)
		attempts = slices.DeleteFunc(attempts, func(r attempt) bool {
			if refused(r.call) {
				return false
			}
			if r.server != from {
				mark(r.call)
			}
			return true
		})
	}
	for i := range attempts {
		mark(attempts[i].call)
	}
}

// mark says of a call's error that it is not one of the server that was asked first.
func mark(c *engine.Call) {
	if c.Err != nil && !errors.Is(c.Err, errStale) {
		c.Err = fmt.Errorf("%w: %w", engine.ErrRedirected, c.Err)
	}
}

// refused reports whether a server has refused a call without executing any of it, because of where
// its keys are.
func refused(c *engine.Call) bool {
	if c.Err == nil {
		return false
	}
	if errors.Is(c.Err, errNotServed) {
		return true
	}
	text := replyText(c.Err)
	for _, prefix := range []string{"MOVED ", "ASK ", "TRYAGAIN ", "READONLY "} {
		if strings.HasPrefix(text, prefix) {
			return true
		}
	}
	return false
}

// replyText returns the error that a server replied with, or "".
func replyText(err error) string {
	if err == nil { // without an allocation
		return ""
	}
	if reply := redis.Error(nil); errors.As(err, &reply) {
		return reply.Error()
	}
	return ""
}

// advance sets the next step of a refused call, and reports whether to wait before it.
func (e *Engine) advance(r *attempt) (wait bool) {
	text := replyText(r.call.Err)
	switch {
	case strings.HasPrefix(text, "MOVED "):
		e.first.readMap()
		r.server, r.mode = e.serverAt(text, r.server), single
		r.moved++
		wait = r.moved > 2 // two servers may name each other until both know
	case strings.HasPrefix(text, "ASK "):
		if r.mode == alone {
			r.server, r.mode = e.serverAt(text, r.server), asking
		} else {
			r.mode = alone
		}
	case strings.HasPrefix(text, "TRYAGAIN "):
		// One call of a shared run may have been the reason.
		wait = r.mode != together
		if r.mode == asking {
			r.server = e.serverOf(r.call.Counters[0].Key)
		}
		r.mode = single
	case r.mode == asking:
		r.server, r.mode = e.serverOf(r.call.Counters[0].Key), single
	default:
		r.mode = alone
	}
	return wait
}

// step sends each call to the server of its attempt, all calls of one server at once.
func (e *Engine) step(ctx context.Context, attempts []attempt) {
	var calls []*engine.Call
	done := make([]bool, len(attempts))
	for i := range attempts {
		if done[i] {
			continue
		}
		calls = calls[:0]
		for j := i; j < len(attempts); j++ {
			if attempts[j].server == attempts[i].server && attempts[j].mode == attempts[i].mode {
				calls, done[j] = append(calls, attempts[j].call), true
			}
		}
		e.send(ctx, attempts[i].server, attempts[i].mode, calls)
	}
}

// serverAt returns the server that a redirection by another names: "MOVED 3999
// 127.0.0.1:6381". It may be new, and not in the slot map yet.
func (e *Engine) serverAt(redirection string, by *server) *server {
	addr := redirection[strings.LastIndexByte(redirection, ' ')+1:]
	one, ok := by.client.(*redis.Client)
	if !ok {
		return e.first
	}
	if host, port, err := net.SplitHostPort(addr); err == nil && (host == "" || host == "?") {
		// The server does not know its own name, or has the same.
		host, _, _ = net.SplitHostPort(one.Options().Addr)
		addr = net.JoinHostPort(host, port)
	}
	var found *server
	e.servers.Range(func(master *redis.Client, s *server) bool {
		if master.Options().Addr == addr {
			found = s
		}
		return found == nil
	})
	if found != nil {
		return found
	}
	guest, _ := e.guests.LoadOrCompute(addr, func() (*server, bool) {
		options := *one.Options()
		options.Addr, options.ConnMaxIdleTime = addr, guestIdle
		s := e.newServer(e.cluster.Options().NewClient(&options), false)
		s.across.inherit(&by.across)
		return s, false
	})
	return guest
}

// guestIdle is how long an unused connection to a server is kept that is not in the slot map.
const guestIdle = time.Minute

// rest waits, and reports whether ctx has not ended.
func rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
