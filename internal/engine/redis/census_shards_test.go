package redis_test

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	redisengine "weir/internal/engine/redis"
	"weir/internal/limit"
)

// listShard is a master of a Cluster that has lists of counters, or answers nothing.
type listShard struct {
	mu     sync.Mutex
	silent bool
	asked  int    // lists
	info   string // the reply to INFO
	alive  int64  // of the tenant of each list
}

func (s *listShard) set(change func(*listShard)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

func (s *listShard) answer(cmds []redis.Cmder) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cmd := range cmds {
		list, ok := cmd.(*redis.Cmd)
		if ok {
			s.asked++
		}
		if s.silent {
			cmd.SetErr(errors.New("it does not answer"))
		} else if ok {
			list.SetVal(s.alive >> 10) // of a bound of 16 million
		} else if info, ok := cmd.(*redis.StringCmd); ok {
			info.SetVal(s.info)
		}
	}
	return cmds[0].Err()
}

func (s *listShard) reset(silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent, s.asked = silent, 0
}

func (s *listShard) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *listShard) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error { return s.answer([]redis.Cmder{cmd}) }
}

func (s *listShard) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error { return s.answer(cmds) }
}

// allFail is what a Cluster client does with a pipeline of several servers if one of them does not
// answer until the context has ended: it waits before it asks again, and then all commands fail.
type allFail struct{ redis.Hook }

func (allFail) DialHook(next redis.DialHook) redis.DialHook { return next }

func (allFail) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (allFail) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
		}
		return err
	}
}

// twoShards is a Cluster of two masters that are named by their addresses.
func twoShards(t *testing.T, shards map[string]redis.Hook) *redis.ClusterClient {
	return shardsAt(t, shards, func() (first string) { return "one:1" })
}

// shardsAt is a Cluster of two masters, of which the first one has the address that is returned at
// the moment.
func shardsAt(t *testing.T, shards map[string]redis.Hook, first func() string) *redis.ClusterClient {
	client := redis.NewClusterClient(&redis.ClusterOptions{
		MaxRetries: -1, MaxRedirects: -1,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{
				{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: first()}}},
				{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: "two:1"}}},
			}, nil
		},
		NewClient: func(o *redis.Options) *redis.Client {
			node := redis.NewClient(o)
			node.AddHook(shards[o.Addr])
			return node
		},
	})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// While one shard is silent, the lists of tenants on the other one are read in each look, and only
// some of its own ones.
func TestCensusOfOtherShards(t *testing.T) {
	t.Parallel()
	shards := map[string]*listShard{"one:1": {}, "two:1": {}}
	client := twoShards(t, map[string]redis.Hook{"one:1": shards["one:1"], "two:1": shards["two:1"]})
	client.AddHook(allFail{})
	keys := check.NewKeys([16]byte{7})
	census := redisengine.NewCensus(redisengine.CensusOptions{
		Client: client, Prefix: keys.Prefix, Instances: func() int { return 1 }, Bound: func(limit.TenantID) (int64, bool) { return 1000, true },
	})
	const tenants = 2000
	granted := func() (full int) {
		for n := range tenants {
			tenant := limit.TenantID{15: 1}
			binary.BigEndian.PutUint64(tenant[:], uint64(n))
			if census.Left(tenant) == 875 { // a new one has half of that
				full++
			}
		}
		return full
	}
	require.Zero(t, granted())
	silent, other := shards["one:1"], shards["two:1"]
	silent.reset(true)
	census.Look(t.Context())
	ofOthers := granted()
	require.InDelta(t, tenants/2, ofOthers, tenants/8, "all of the other shard")
	require.Equal(t, ofOthers, other.asked)
	require.Less(t, silent.asked, 3*128, "about 64 of each 128 lists are on this shard")
	require.Positive(t, silent.asked)

	silent.reset(false)
	other.reset(true)
	census.Look(t.Context())
	require.Equal(t, tenants, granted())
	require.Equal(t, tenants-ofOthers, silent.asked)

	silent.reset(true)
	census.Look(t.Context())
	require.Less(t, silent.asked+other.asked, 3*128, "none answers")
}

// meeting is a shard that answers when each of the shards was asked.
type meeting struct {
	redis.Hook
	asked chan<- string
	all   <-chan struct{}
	name  string
}

func (m *meeting) DialHook(next redis.DialHook) redis.DialHook { return next }

func (m *meeting) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(context.Context, redis.Cmder) error { return nil } // it tells nothing of its memory
}

func (m *meeting) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		m.asked <- m.name
		select {
		case <-m.all:
		case <-time.After(10 * time.Second):
			return errors.New("the other shard was not asked meanwhile")
		}
		for _, cmd := range cmds {
			cmd.(*redis.Cmd).SetVal(int64(0))
		}
		return nil
	}
}

// All shards are read at the same time, so several that are silent do not add up.
func TestCensusOfShardsAtOnce(t *testing.T) {
	t.Parallel()
	asked, all := make(chan string, 100), make(chan struct{})
	shards := map[string]redis.Hook{}
	for _, name := range []string{"one:1", "two:1"} {
		shards[name] = &meeting{asked: asked, all: all, name: name}
	}
	go func() {
		names := map[string]bool{}
		for name := range asked {
			if names[name] = true; len(names) == len(shards) {
				close(all)
				return
			}
		}
	}()
	keys := check.NewKeys([16]byte{7})
	census := redisengine.NewCensus(redisengine.CensusOptions{
		Client: twoShards(t, shards), Prefix: keys.Prefix, Instances: func() int { return 1 }, Bound: func(limit.TenantID) (int64, bool) { return 1000, true },
	})
	tenant := func(n int) limit.TenantID { return limit.TenantID{byte(n), 15: 1} }
	for n := range 20 {
		census.Left(tenant(n))
	}
	census.Look(t.Context())
	for n := range 20 {
		require.EqualValues(t, 875, census.Left(tenant(n)))
	}
}
