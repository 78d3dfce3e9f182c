package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/testenv"
)

type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

// The class is what an operator acts on: each wording that Redis and Valkey use must have the right
// one.
func TestClasses(t *testing.T) {
	for err, want := range map[error]engine.Failure{
		replyError("WRONGPASS invalid username-password pair or user is disabled."):                                                                failCredentials,
		replyError("NOAUTH Authentication required."):                                                                                              failCredentials,
		replyError("ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?"): failCredentials,
		replyError("NOPERM User weir has no permissions to run the 'evalsha' command"):                                                             failPermission,
		replyError("ERR unknown command 'EVALSHA', with args beginning with: "):                                                                    failScripting,
		replyError("READONLY You can't write against a read only replica."):                                                                        failReadOnly,
		replyError("ERR READONLY You can't write against a read only replica. script: f_1, on @user_script:1."):                                    failReadOnly,
		replyError("OOM command not allowed when used memory > 'maxmemory'."):                                                                      failMemory,
		replyError("ERR max number of clients reached"):                                                                                            failClients,
		replyError("DENIED Redis is running in protected mode because protected mode is enabled"):                                                  failProtected,
		replyError("MISCONF Redis is configured to save RDB snapshots"):                                                                            failPersistence,
		replyError("LOADING Redis is loading the dataset in memory"):                                                                               failLoading,
		replyError("BUSY Redis is busy running a script."):                                                                                         failBusy,
		replyError("CLUSTERDOWN The cluster is down"):                                                                                              failCluster,
		replyError("MOVED 1 127.0.0.1:7000"):                                                                                                       failMoving,
		replyError("ERR something new"):                                                                                                            failOther,
		fmt.Errorf("x: %w", engine.ErrNotSent):                                                                                                     failOverload,
		context.DeadlineExceeded:                                                                                                                   failTimeout,
		os.ErrDeadlineExceeded:                                                                                                                     failTimeout,
		poolTimeout{redis.ErrPoolTimeout}:                                                                                                          failTimeout,
		io.EOF:                                                                                                                                     failUnreachable,
		errReply:                                                                                                                                   failReply,
		errors.New("?"):                                                                                                                            failOther,
	} {
		require.Equal(t, want, classOf(fmt.Errorf("evaluate counters: %w", err)), err)
	}
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	require.Equal(t, failUnreachable, classOf(refused))
}

// A call for which there is no connection was not counted. Before, it counted as one that may have
// been, so that the units were not charged after an outage.
func TestCallsWithoutAConnection(t *testing.T) {
	fewAMinute := limit.Numbers{Algorithm: limit.FixedWindow, Limit: 9, WindowMS: 60_000}
	evaluate := func(t *testing.T, client redis.UniversalClient) error {
		call := &engine.Call{Cost: 1, Counters: []engine.Counter{{Key: "w{unreached}c", Numbers: fewAMinute}}}
		New(client, Options{Deadline: testPatience}).Evaluate(t.Context(), call)
		return call.Err
	}
	t.Run("none is free", func(t *testing.T) {
		client, err := NewClient(testenv.RedisURL(t), WithPoolSize(1), WithTimeout(testPatience))
		require.NoError(t, err)
		defer client.Close()
		only := client.(*redis.Client).Conn()
		defer only.Close()
		require.NoError(t, only.Ping(t.Context()).Err())
		err = evaluate(t, client)
		require.ErrorIs(t, err, redis.ErrPoolTimeout)
		require.ErrorIs(t, err, engine.ErrNotReached)
		require.Equal(t, failTimeout, classOf(err))
		var timeout interface{ Timeout() bool }
		require.ErrorAs(t, err, &timeout, "the circuit breaker counts it as a timeout")
	})
	for name, login := range map[string]string{"refused": "", "refused, with a password": "weir:secret@"} {
		t.Run(name, func(t *testing.T) {
			client, err := NewClient("redis://"+login+"127.0.0.1:"+testenv.FreePort(t), WithTimeout(testPatience))
			require.NoError(t, err)
			defer client.Close()
			for range 3 {
				err = evaluate(t, client)
				require.ErrorIs(t, err, engine.ErrNotReached)
				require.ErrorIs(t, err, syscall.ECONNREFUSED)
				require.Equal(t, failUnreachable, classOf(err))
			}
		})
	}
	t.Run("the answer is missing", func(t *testing.T) {
		server := testenv.StartRedis(t)
		client, err := NewClient(server.URL)
		require.NoError(t, err)
		defer client.Close()
		require.NoError(t, evaluate(t, client))
		server.Pause()
		defer server.Resume()
		call := &engine.Call{Cost: 1, Counters: []engine.Counter{{Key: "w{unreached}c", Numbers: fewAMinute}}}
		New(client, Options{Deadline: 250 * time.Millisecond}).Evaluate(t.Context(), call)
		require.Error(t, call.Err)
		require.NotErrorIs(t, call.Err, engine.ErrNotReached, "Redis decides it when it continues")
	})
}

// Refunds do not wait in the queue of checks. They have another client, so that no check waits for
// a connection because of them. If theirs has none free, that is no failure of the server.
func TestRefundsHaveTheirOwnClient(t *testing.T) {
	clientWithout := func() (client redis.UniversalClient, free func()) {
		client, err := NewClient(testenv.RedisURL(t), WithPoolSize(1), WithTimeout(testPatience))
		require.NoError(t, err)
		only := client.(*redis.Client).Conn()
		require.NoError(t, only.Ping(t.Context()).Err())
		t.Cleanup(func() { _ = client.Close() })
		return client, func() { require.NoError(t, only.Close()) }
	}
	refund := &engine.Refund{Parts: []engine.RefundPart{{
		Key: "w{refunds}c", Units: 1, Ground: 60_000, Numbers: limit.Numbers{Algorithm: limit.FixedWindow, Limit: 9, WindowMS: 60_000},
	}}}
	checks, _ := clientWithout()
	refunds, free := clientWithout()
	eng := New(checks, Options{Deadline: testPatience, Refunds: refunds})
	eng.Refund(t.Context(), refund)
	require.ErrorIs(t, refund.Err, redis.ErrPoolTimeout)
	require.ErrorIs(t, refund.Err, engine.ErrNotSent)
	free()
	eng.Refund(t.Context(), refund)
	require.NoError(t, refund.Err)
	require.Equal(t, 1, refund.Refused, "there is no such counter")
}

// Refunds for which no connection can be made are certainly not counted, so that leases return
// their units later, also in the moments before the circuit breaker opens.
func TestRefundsWithoutAConnection(t *testing.T) {
	refunds := func() (out []*engine.Refund) {
		for i := range 2 {
			out = append(out, &engine.Refund{Parts: []engine.RefundPart{{
				Key: fmt.Sprintf("w{refunds%d}c", i), Units: 1, Ground: 60_000, Numbers: limit.Numbers{Algorithm: limit.FixedWindow, Limit: 9, WindowMS: 60_000},
			}}})
		}
		return out
	}
	for name, login := range map[string]string{"refused": "", "refused, with a password": "weir:secret@"} {
		t.Run(name, func(t *testing.T) {
			client, err := NewClient("redis://"+login+"127.0.0.1:"+testenv.FreePort(t), WithTimeout(testPatience))
			require.NoError(t, err)
			defer client.Close()
			eng := New(client, Options{Deadline: testPatience})
			for range 3 {
				sent := refunds()
				eng.Refund(t.Context(), sent...)
				for _, r := range sent {
					require.ErrorIs(t, r.Err, engine.ErrNotReached)
					require.True(t, engine.NotCounted(r.Err))
					require.Equal(t, failUnreachable, classOf(r.Err))
				}
			}
		})
	}
}

// A server that takes no more clients hangs up on its own. That must not look like a network at
// fault.
func TestServerWithoutFreePlaces(t *testing.T) {
	server := testenv.StartRedis(t, "maxclients 1")
	options, err := redis.ParseURL(server.URL)
	require.NoError(t, err)
	options.ReadTimeout = testPatience
	other := redis.NewClient(options)
	defer other.Close()
	conn := other.Conn()
	defer conn.Close()
	require.NoError(t, conn.Ping(t.Context()).Err())
	client, err := NewClient(server.URL, WithTimeout(testPatience))
	require.NoError(t, err)
	defer client.Close()
	counters := New(client, Options{Deadline: testPatience})
	for range 20 {
		require.Equal(t, failClients, classOf(counters.first.Renew(io.EOF)))
	}
	require.NoError(t, conn.Close())
	require.NoError(t, other.Close())
	require.Eventually(t, func() bool { return counters.first.Renew(io.EOF) == io.EOF }, testPatience, time.Millisecond,
		"it takes connections, and says nothing")
}
