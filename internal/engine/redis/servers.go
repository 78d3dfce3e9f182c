package redis

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"weir/internal/engine"
)

// server is a server of Redis: its client and the queues of calls to it. In a Cluster each master
// has its own, so that one that is silent delays no call to another.
//
// Until the slot map was read, calls take the first server, which goes through the Cluster's client
// and finds out.
type server struct {
	engine *Engine
	client redis.UniversalClient
	queues [modes]*queue
	first  bool
	canary atomic.Int64 // number of a canary that was on the server
	across acrossSlots  // of a node of a Cluster
	lostMS atomic.Int64 // when it was seen last that it had lost counters, by its clock; 0: never
}

// mode is how a pipeline sends calls.
type mode int

const (
	together mode = iota // calls share runs of scripts
	single               // each call is a run
	alone                // each call is a run, with all keys declared that the script may read
	asking               // the server answers for a slot that is being moved to it
	modes
)

var (
	_ engine.Servers = (*Engine)(nil)
	_ engine.Server  = (*server)(nil)
)

func (e *Engine) newServer(client redis.UniversalClient, first bool) *server {
	s := &server{engine: e, client: client, first: first}
	for m := range s.queues {
		s.queues[m] = &queue{
			exchange: func(ctx context.Context, reqs []*request) bool { return s.exchange(ctx, mode(m), reqs) },
			deadline: e.deadline, maxBatch: e.options.MaxBatch, pipelines: e.options.Pipelines,
		}
		if e.cluster == nil {
			break // one server redirects nothing
		}
		s.queues[m].gather = clusterGather
	}
	return s
}

// clusterGather is queue.gather for the nodes of a Cluster. The calls of an instance are spread
// over them, so few wait for each, while a run costs a node as much as several calls.
const clusterGather = 16

// serverOf returns the master of a key.
func (e *Engine) serverOf(key string) *server {
	if e.cluster == nil || !e.mapped.Load() || key == "" {
		return e.first
	}
	master, err := e.cluster.MasterForKey(context.Background(), key) // from memory, once the map was read
	if err != nil {
		return e.first
	}
	return e.serverTo(master)
}

func (e *Engine) serverTo(master *redis.Client) *server {
	if s, known := e.servers.Load(master); known {
		return s
	}
	s, known := e.servers.LoadOrStore(master, e.newServer(master, false))
	if !known {
		go s.tryAcrossSlots()
	}
	return s
}

// serversAtOnce bounds how many servers are sent pipelines at once by one caller.
const serversAtOnce = 64

// atOnce calls do for each of some things, for a few of them at the same time, and waits.
func atOnce[T any](most int, things []T, do func(T)) {
	if len(things) == 1 {
		do(things[0])
		return
	}
	var work sync.WaitGroup
	places := make(chan struct{}, most)
	for _, thing := range things {
		places <- struct{}{}
		work.Go(func() {
			defer func() { <-places }()
			do(thing)
		})
	}
	work.Wait()
}

// eachServer calls do for the indexes of the keys of each server, at the same time, each with a
// time of its own, and waits. In one pipeline, a server that does not answer would be asked four
// times, and if the time ended meanwhile, the answers of the others would be lost.
func (e *Engine) eachServer(ctx context.Context, patience time.Duration, keys []string, do func(ctx context.Context, at []int)) {
	var parts [][]int
	part := map[*server]int{}
	for i, key := range keys {
		s := e.serverOf(key)
		n, known := part[s]
		if !known {
			n, part[s] = len(parts), len(parts)
			parts = append(parts, nil)
		}
		parts[n] = append(parts[n], i)
	}
	atOnce(serversAtOnce, parts, func(at []int) {
		ctx, cancel := context.WithTimeout(ctx, max(patience, e.deadline))
		defer cancel()
		do(ctx, at)
	})
}

// Only implements engine.Servers.
func (e *Engine) Only() engine.Server {
	if e.cluster != nil {
		return nil
	}
	return e.first
}

// ServerOf implements engine.Servers.
func (e *Engine) ServerOf(key string) engine.Server { return e.serverOf(key) }

// All implements engine.Servers. It reads the slot map again.
func (e *Engine) All(ctx context.Context) []engine.Server {
	if e.cluster == nil {
		return []engine.Server{e.first}
	}
	masters, err := e.readMap(ctx)
	if err != nil && !e.mapped.Load() {
		return []engine.Server{e.first}
	}
	if err == nil {
		e.servers.Range(func(master *redis.Client, _ *server) bool {
			if !masters[master] {
				e.servers.Delete(master)
			}
			return true
		})
	}
	var servers []engine.Server
	e.servers.Range(func(_ *redis.Client, s *server) bool {
		servers = append(servers, s)
		if s.across.due() {
			go s.tryAcrossSlots()
		}
		return true
	})
	return servers
}

// readMap reads the slot map from any server that answers, and adds the masters.
func (e *Engine) readMap(ctx context.Context) (map[*redis.Client]bool, error) {
	found := make(chan *redis.Client, 16_384) // one for each slot at most
	err := e.cluster.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
		found <- master
		return nil
	})
	if err != nil {
		return nil, err
	}
	close(found)
	masters := map[*redis.Client]bool{}
	for master := range found {
		masters[master] = true
		e.serverTo(master)
	}
	e.mapped.Store(true)
	return masters, nil
}

// mapPatience is how long a server is waited for that is asked for the slot map.
const mapPatience = 500 * time.Millisecond

// maxCanaries bounds the search for a key of a master: with 1,000 masters of equal size, one of
// them is missed once in 10^28 times.
const maxCanaries = 1 << 16

// ProbeKey implements engine.Server.
func (s *server) ProbeKey() string {
	if s.first {
		return engine.CanaryKey(0)
	}
	for n := range maxCanaries {
		n = (n + int(s.canary.Load())) % maxCanaries
		if key := engine.CanaryKey(n); s.engine.serverOf(key) == s {
			s.canary.Store(int64(n))
			return key
		}
	}
	return ""
}

// Lost implements engine.Server. What was spent of credits may be an older total, so they are not
// spent until Postgres has told the server again.
func (s *server) Lost(nowMS int64) {
	for {
		before := s.lostMS.Load()
		if s.lostMS.CompareAndSwap(before, max(nowMS, before+1)) { // the clock may have stepped back
			return
		}
	}
}

// Renew implements engine.Server.
func (s *server) Renew(err error) error {
	e := s.engine
	if one, ok := s.client.(*redis.Client); ok {
		_ = one.Process(context.Background(), closeCmd{redis.NewStatusCmd(context.Background())}) // cannot fail
		if classOf(err) == failUnreachable {
			err = listen(one.Options(), err)
		}
	}
	if e.cluster != nil {
		s.readMap()
	}
	return err
}

// readMap reads the slot map in the background.
func (s *server) readMap() {
	e := s.engine
	if !e.reading.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer e.reading.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), mapPatience)
		defer cancel()
		_, _ = e.readMap(ctx) // the next failed probe asks again
	}()
}

// listenPatience is how long a server may take to say why it does not take a connection.
const listenPatience = 10 * time.Millisecond

// listen connects to a server that hangs up, and returns what it says by itself, such as that it
// takes no more clients. A command would be answered by a reset, which loses those words. If the
// server says nothing, it returns err.
func listen(o *redis.Options, err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), redisDialTimeout)
	defer cancel()
	conn, dialErr := o.Dialer(ctx, o.Network, o.Addr)
	if dialErr != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	var words [256]byte
	if conn.SetReadDeadline(time.Now().Add(listenPatience)) != nil {
		return err
	}
	length, _ := conn.Read(words[:]) // if that fails, there is nothing
	if line, _, complete := strings.Cut(string(words[:length]), "\r\n"); complete && strings.HasPrefix(line, "-") {
		return spoken(line[1:])
	}
	return err
}

// spoken is an error that a server tells without being asked.
type spoken string

func (s spoken) Error() string { return string(s) }

// RedisError implements redis.Error.
func (spoken) RedisError() {}

// exchange sends requests in one pipeline and waits for the replies.
func (s *server) exchange(ctx context.Context, m mode, reqs []*request) (answered bool) {
	e := s.engine
	p := e.pipelines.Get().(*pipeline)
	p.begin(s, m)
	p.load(reqs)
	p.run(ctx)
	if answered = p.deliver(); answered && e.cluster != nil && !e.mapped.Load() {
		s.readMap()
	}
	p.reset()
	e.pipelines.Put(p)
	return answered
}

// EvictionPolicies returns the maxmemory-policy of each server.
func (e *Engine) EvictionPolicies(ctx context.Context) (policies []string, err error) {
	servers := []*server{e.first}
	if e.cluster != nil {
		servers = servers[:0]
		e.servers.Range(func(_ *redis.Client, s *server) bool {
			servers = append(servers, s)
			return true
		})
	}
	for _, s := range servers {
		info, err := s.client.Info(ctx, "memory").Result()
		if err != nil {
			return nil, err
		}
		_, rest, _ := strings.Cut(info, "maxmemory_policy:")
		policy, _, _ := strings.Cut(rest, "\r\n")
		policies = append(policies, policy)
	}
	return policies, nil
}
