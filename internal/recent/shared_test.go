package recent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/testenv"
)

// movedClock stands still between calls of move.
type movedClock struct{ ms atomic.Int64 }

func (c *movedClock) now() time.Time { return time.UnixMilli(c.ms.Load()) }

func (c *movedClock) move() { c.ms.Add(time.Second.Milliseconds()) }

// publishes calls a function before each message that a client publishes.
type publishes struct {
	redis.Hook
	before func(channel string, message []byte)
}

func (p publishes) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p publishes) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (p publishes) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, c redis.Cmder) error {
		if args := c.Args(); c.Name() == "publish" && strings.HasPrefix(fmt.Sprint(args[1]), recentChannel) {
			p.before(args[1].(string), args[2].([]byte))
		}
		return next(ctx, c)
	}
}

// denyMany records as many denials of a tenant as an instance keeps.
func denyMany(r *Log, tenant limit.TenantID, char string) {
	for i := range recentDenied {
		name := fmt.Sprintf("%03d", i) + strings.Repeat(char, 253)
		r.keep(tenant, &check.Decision{Subject: name, Resource: name, Deciding: -1, Cost: 1}, r.clock(), true, false)
	}
	for i := range recentAllowed {
		name := fmt.Sprintf("%03d", i) + strings.Repeat(char, 253)
		r.keep(tenant, &check.Decision{Subject: name, Resource: name, Allowed: true, Deciding: -1, Cost: 1}, r.clock(), true, false)
	}
}

// All live pages of a tenant share the answers of half a second, each with its own filter.
func TestListsShareAnswers(t *testing.T) {
	server := testenv.StartRedis(t)
	var clock movedClock
	clock.move()
	var requests atomic.Int64
	a := instanceAt(t, server.URL, 1, clock.now)
	b := instanceAt(t, server.URL, 1, clock.now, publishes{before: func(channel string, _ []byte) {
		if channel == recentChannel {
			requests.Add(1)
		}
	}})
	tenant := uuid.New()
	denyMany(a.Log, tenant, "s")
	var lists [96]List
	require.Eventually(t, func() bool {
		clock.move()
		before := requests.Load()
		var all sync.WaitGroup
		for i := range lists {
			all.Go(func() {
				lists[i] = b.List(t.Context(), tenant, Query{Prefix: fmt.Sprintf("%03d", i), Denied: true})
			})
		}
		all.Wait()
		require.LessOrEqual(t, requests.Load()-before, int64(1))
		return !slices.ContainsFunc(lists[:], func(l List) bool { return l.Answered != 2 })
	}, time.Minute, time.Millisecond, "a does not answer")
	for i := range lists {
		require.Equal(t, 2, lists[i].Answered)
		require.Len(t, lists[i].Decisions, 1, "of all that an instance keeps")
		require.True(t, strings.HasPrefix(lists[i].Decisions[0].Subject, fmt.Sprintf("%03d", i)))
	}
	before := requests.Load()
	require.Empty(t, b.List(t.Context(), uuid.New(), Query{}).Decisions, "another tenant's")
	require.Equal(t, before+1, requests.Load())
	b.forgetShared()
	require.Len(t, b.ask.shared, 2)
	clock.move()
	b.forgetShared()
	require.Empty(t, b.ask.shared)
}

// An answer does not grow beyond what other instances read if names have characters that HTML
// escapes.
func TestNamesAreNotEscapedForHTML(t *testing.T) {
	r := newRig(t, check.PolicyData{}).log
	size := func(char string) int {
		tenant := uuid.New()
		denyMany(r, tenant, char)
		message, err := encode(recentAnswer{Decisions: r.list(tenant, Query{})})
		require.NoError(t, err)
		return len(message)
	}
	plain := size("s")
	require.Equal(t, plain, size("<"))
	require.Equal(t, plain, size("&"))
	longest := size(`\"`) // two bytes, each with an escape
	require.Less(t, longest, recentMessage)
}

// While a tenant has many requests, those of another tenant are answered after one of them.
func TestTenantsTakeTurnsInAnswers(t *testing.T) {
	server := testenv.StartRedis(t)
	var clock movedClock
	clock.move()
	var mu sync.Mutex
	var order []uint64
	free := make(chan struct{})
	var a member
	a = instanceAt(t, server.URL, 1, clock.now, publishes{before: func(_ string, message []byte) {
		content, err := messagesAEAD(check.NewKeys([16]byte{1})).Open(nil, nil, message, nil)
		var answer recentAnswer
		if err != nil || json.Unmarshal(content, &answer) != nil {
			t.Error("not an answer")
		}
		mu.Lock()
		order = append(order, answer.ID)
		mu.Unlock()
		<-free
	}})
	options, err := redis.ParseURL(server.URL)
	require.NoError(t, err)
	client := redis.NewClient(options)
	defer func() { _ = client.Close() }()
	require.Eventually(t, func() bool {
		return client.PubSubNumSub(t.Context(), recentChannel).Val()[recentChannel] == 1
	}, time.Minute, time.Millisecond)
	request := func(id uint64, tenant limit.TenantID) {
		message, err := json.Marshal(recentRequest{ID: id, From: "another", Tenant: tenant, Query: Query{Prefix: fmt.Sprint(id)}})
		require.NoError(t, err)
		require.NoError(t, client.Publish(t.Context(), recentChannel, a.aead.Seal(nil, nil, message, nil)).Err())
	}
	release := sync.OnceFunc(func() { close(free) })
	defer release()
	loud, quiet := uuid.New(), uuid.New()
	for id := range uint64(96) {
		request(id, loud)
		if id == 48 { // neither the oldest nor the newest
			request(1000, quiet)
		}
	}
	require.Eventually(t, func() bool { return a.turns.Waiting() == 97-replyingAtOnce }, 20*time.Second, time.Millisecond)
	for answered := replyingAtOnce; answered < replyingAtOnce+3; answered++ { // one by one, so that the order is that of the turns
		require.Eventually(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(order) == answered
		}, time.Minute, time.Millisecond)
		free <- struct{}{}
	}
	release()
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(order) == 97
	}, time.Minute, time.Millisecond)
	require.Contains(t, order[:replyingAtOnce+3], uint64(1000))
}

// A request whose sender no longer waits is not answered.
func TestLateRequestsGetNoAnswer(t *testing.T) {
	var clock movedClock
	r := newRig(t, check.PolicyData{}).log
	r.clock = clock.now
	for range replyingAtOnce {
		require.NoError(t, r.turns.Take(t.Context(), limit.TenantID{}))
	}
	var replies sync.WaitGroup
	r.receive(t.Context(), nil, []byte(`{"ID": 1, "From": "another"}`), &replies)
	require.Eventually(t, func() bool { return r.turns.Waiting() == 1 }, time.Minute, time.Millisecond)
	clock.move()
	r.turns.Leave()
	replies.Wait() // an answer would need a client
}
