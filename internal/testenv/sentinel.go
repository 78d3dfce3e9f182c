package testenv

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Sentinels are a primary, its replicas and the Sentinels that watch them.
type Sentinels struct {
	URL string // as in WEIR_REDIS_URL

	tb    testing.TB
	nodes []*Redis
	addrs []string // of the Sentinels
}

const (
	sentinelCount = 3
	sentinelName  = "weir"
)

// StartSentinels starts a primary with this many replicas and three Sentinels on free loopback
// ports, and stops them after the test. A silent primary is failed over after downAfter.
func StartSentinels(tb testing.TB, replicas int, downAfter time.Duration) *Sentinels {
	tb.Helper()
	s := &Sentinels{tb: tb}
	primary := StartRedis(tb, "repl-diskless-sync-delay 0")
	s.nodes = []*Redis{primary}
	for range replicas {
		s.nodes = append(s.nodes, StartRedis(tb, "repl-diskless-sync-delay 0", "replicaof 127.0.0.1 "+primary.port))
	}
	ctx, cancel := context.WithTimeout(context.Background(), clusterPatience)
	defer cancel()
	for _, node := range s.nodes[1:] {
		client := adminOf(node.addr())
		defer client.Close()
		require.Eventually(tb, func() bool {
			return replicationField(ctx, client, "master_link_status") == "up"
		}, clusterPatience, 10*time.Millisecond, "the replica is not connected")
	}
	query := url.Values{"master_name": {sentinelName}}
	for range sentinelCount {
		addr := s.startSentinel(primary, downAfter)
		s.addrs = append(s.addrs, addr)
		query.Add("addr", addr)
	}
	s.URL = "redis://" + s.addrs[0] + "/0?" + query.Encode()
	for _, addr := range s.addrs {
		client := sentinelOf(addr)
		defer client.Close()
		require.Eventually(tb, func() bool {
			others, errOthers := client.Sentinels(ctx, sentinelName).Result()
			known, errKnown := client.Replicas(ctx, sentinelName).Result()
			return errOthers == nil && errKnown == nil && len(others) == sentinelCount-1 && len(known) == replicas
		}, clusterPatience, 10*time.Millisecond, "the Sentinels do not know each other")
	}
	return s
}

func (s *Sentinels) startSentinel(primary *Redis, downAfter time.Duration) (addr string) {
	s.tb.Helper()
	dir, port := s.tb.TempDir(), FreePort(s.tb)
	file := filepath.Join(dir, "sentinel.conf") // a Sentinel writes its state into it
	require.NoError(s.tb, os.WriteFile(file, fmt.Appendf(nil, `port %s
bind 127.0.0.1
dir %q
sentinel monitor %[3]s 127.0.0.1 %[4]s %[5]d
sentinel down-after-milliseconds %[3]s %[6]d
sentinel failover-timeout %[3]s 5000
sentinel parallel-syncs %[3]s 2
`, port, dir, sentinelName, primary.port, sentinelCount/2+1, downAfter.Milliseconds()), 0o600))
	binary, err := exec.LookPath("redis-server")
	if err != nil {
		binary, err = exec.LookPath("valkey-server")
	}
	require.NoError(s.tb, err, "this test runs its own Sentinels: install redis-server")
	cmd := exec.Command(binary, file, "--sentinel")
	EndWithParent(cmd)
	require.NoError(s.tb, cmd.Start())
	s.tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it reports only the signal
	})
	client := adminOf("127.0.0.1:" + port)
	defer client.Close()
	require.Eventually(s.tb, func() bool {
		return client.Ping(context.Background()).Err() == nil
	}, clusterPatience, 10*time.Millisecond, "the Sentinel did not start")
	return "127.0.0.1:" + port
}

// sentinelOf is adminOf for a Sentinel.
func sentinelOf(addr string) *redis.SentinelClient {
	return redis.NewSentinelClient(&redis.Options{Addr: addr, MaxRetries: -1, DialTimeout: RedisTimeout, ReadTimeout: RedisTimeout,
		WriteTimeout: RedisTimeout, PoolTimeout: RedisTimeout})
}

// Primary returns the server that most Sentinels name as the primary, or nil while they disagree.
func (s *Sentinels) Primary() *Redis {
	s.tb.Helper()
	votes := map[string]int{}
	for _, addr := range s.addrs {
		client := sentinelOf(addr)
		host, err := client.GetMasterAddrByName(context.Background(), sentinelName).Result()
		_ = client.Close()
		if err == nil && len(host) == 2 {
			votes[host[1]]++
		}
	}
	for _, node := range s.nodes {
		if votes[node.port] > sentinelCount/2 {
			return node
		}
	}
	return nil
}

// Role returns whether a server says that it is a "master" or a "slave".
func (s *Sentinels) Role(node *Redis) string {
	client := adminOf(node.addr())
	defer client.Close()
	return replicationField(context.Background(), client, "role")
}

// Failover makes the Sentinels replace the primary by a replica, although it works.
func (s *Sentinels) Failover() {
	s.tb.Helper()
	client := sentinelOf(s.addrs[0])
	defer client.Close()
	require.NoError(s.tb, client.Failover(context.Background(), sentinelName).Err())
}
