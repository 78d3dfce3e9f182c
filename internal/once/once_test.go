package once

import (
	"bytes"
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/records"
	"weir/internal/testenv"
)

var (
	ctx    = context.Background()
	tenant = uuid.New()
	print1 = PrintOf([]byte("one"))
	print2 = PrintOf([]byte("two"))
)

func newRedis(t *testing.T) redis.UniversalClient {
	return testenv.RedisClient(t)
}

// both runs a test on records in Redis and on records in this process.
func both(t *testing.T, test func(t *testing.T, r *Records)) {
	t.Run("Redis", func(t *testing.T) {
		test(t, New(Options{Client: newRedis(t), Timeout: testenv.RedisTimeout, Wait: time.Millisecond}))
	})
	t.Run("local", func(t *testing.T) { test(t, New(Options{Wait: time.Millisecond})) })
}

func TestRecords(t *testing.T) {
	both(t, func(t *testing.T, r *Records) {
		key := uuid.NewString()
		claim, answer, err := r.Begin(ctx, tenant, key, print1, 0)
		require.NoError(t, err)
		require.NotNil(t, claim)
		require.Nil(t, answer)
		_, _, err = r.Begin(ctx, tenant, key, print1, 0)
		require.ErrorIs(t, err, ErrPending)
		_, _, err = r.Begin(ctx, tenant, key, print2, 0)
		require.ErrorIs(t, err, ErrReused)

		long := bytes.Repeat([]byte("answer "), 1000)
		for _, want := range [][]byte{[]byte("short"), long} {
			key := uuid.NewString()
			claim, _, err := r.Begin(ctx, tenant, key, print1, 0)
			require.NoError(t, err)
			r.Finish(claim, want)
			for range 2 {
				claim, answer, err = r.Begin(ctx, tenant, key, print1, 0)
				require.NoError(t, err)
				require.Nil(t, claim)
				require.Equal(t, want, answer)
			}
			_, _, err = r.Begin(ctx, tenant, key, print2, 0)
			require.ErrorIs(t, err, ErrReused)
			claim, _, err = r.Begin(ctx, uuid.New(), key, print2, 0)
			require.NoError(t, err)
			require.NotNil(t, claim, "another tenant's key is another key")
		}

		r.Release(claim)
		claim, _, err = r.Begin(ctx, tenant, key, print2, 0)
		require.NoError(t, err)
		require.NotNil(t, claim, "a request that was not executed can be repeated")
	})
}

// Of many concurrent repeats on three instances, one gets the claim, and the others get its answer.
func TestConcurrentClaims(t *testing.T) {
	var instances []*Records
	for range 3 {
		instances = append(instances, New(Options{Client: newRedis(t), Timeout: testenv.RedisTimeout, Wait: time.Minute}))
	}
	for range 20 {
		key := uuid.NewString()
		var mu sync.Mutex
		claims := 0
		var wg sync.WaitGroup
		for i := range 32 {
			wg.Go(func() {
				r := instances[i%len(instances)]
				claim, answer, err := r.Begin(ctx, tenant, key, print1, 0)
				if err != nil {
					t.Error(err)
					return
				}
				if claim != nil {
					mu.Lock()
					claims++
					mu.Unlock()
					r.Finish(claim, []byte("the answer"))
				} else if string(answer) != "the answer" {
					t.Errorf("answer %q", answer)
				}
			})
		}
		wg.Wait()
		require.Equal(t, 1, claims)
	}
}

// Every record expires, whatever happens to its claim, and Redis contains no keys of clients.
func TestRecordsExpire(t *testing.T) {
	client := newRedis(t)
	r := New(Options{Client: client, Timeout: testenv.RedisTimeout})
	for _, finish := range []bool{false, true} {
		claim, _, err := r.Begin(ctx, tenant, "secret-"+uuid.NewString(), print1, 0)
		require.NoError(t, err)
		if finish {
			r.Finish(claim, []byte("x"))
		}
		ttl, err := client.PTTL(ctx, claim.name).Result()
		require.NoError(t, err)
		require.Positive(t, ttl)
		require.LessOrEqual(t, ttl, Lifetime)
		require.NotContains(t, claim.name, "secret")
	}

	// The same in this process, with a clock of the test.
	now := time.Now()
	l := newLocal(func() time.Time { return now })
	local := &Records{local: l, away: func(string) bool { return true }}
	claim, _, err := local.Begin(ctx, tenant, "k", print1, 0)
	require.NoError(t, err)
	local.Finish(claim, []byte("x"))
	now = now.Add(Lifetime)
	claim, _, err = local.Begin(ctx, tenant, "k", print2, 0)
	require.NoError(t, err)
	require.NotNil(t, claim)
	require.Len(t, l.entries, 1)
}

// Without Redis, a repeat on the same instance still gets the answer of the first, also if Redis
// fails between the two.
func TestWithoutRedis(t *testing.T) {
	away := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer away.Close()
	r := New(Options{Client: away, Timeout: time.Second})
	claim, _, err := r.Begin(ctx, tenant, "k", print1, 0)
	require.NoError(t, err)
	require.NotNil(t, claim)
	r.Finish(claim, []byte("x"))
	_, answer, err := r.Begin(ctx, tenant, "k", print1, 0)
	require.NoError(t, err)
	require.Equal(t, "x", string(answer))

	key := uuid.NewString()
	r = New(Options{Client: newRedis(t), Timeout: testenv.RedisTimeout})
	claim, _, err = r.Begin(ctx, tenant, key, print1, 0)
	require.NoError(t, err)
	r.client = away
	r.Finish(claim, []byte("y"))
	_, answer, err = r.Begin(ctx, tenant, key, print1, 0)
	require.NoError(t, err)
	require.Equal(t, "y", string(answer))
}

// What was claimed or answered in this process during an outage of Redis is not executed again on
// this instance after Redis returned, until the record expires.
func TestRedisReturns(t *testing.T) {
	var away bool
	now := time.Now()
	r := New(Options{Client: newRedis(t), Away: func(string) bool { return away }, Timeout: testenv.RedisTimeout, Wait: time.Millisecond})
	r.local = newLocal(func() time.Time { return now })
	key := uuid.NewString()
	away = true
	claim, _, err := r.Begin(ctx, tenant, key, print1, 0)
	require.NoError(t, err)
	require.NotNil(t, claim)

	away = false
	_, _, err = r.Begin(ctx, tenant, key, print1, 0)
	require.ErrorIs(t, err, ErrPending, "it is being executed")
	away = true
	r.Finish(claim, []byte("x"))

	away = false
	again, answer, err := r.Begin(ctx, tenant, key, print1, 0)
	require.NoError(t, err)
	require.Nil(t, again, "it was executed")
	require.Equal(t, "x", string(answer))
	_, _, err = r.Begin(ctx, tenant, key, print2, 0)
	require.ErrorIs(t, err, ErrReused)
	again, _, err = r.Begin(ctx, uuid.New(), key, print2, 0)
	require.NoError(t, err)
	require.NotNil(t, again, "another tenant's key is another key")

	now = now.Add(Lifetime)
	again, _, err = r.Begin(ctx, tenant, key, print2, 0)
	require.NoError(t, err)
	require.NotNil(t, again)
	require.True(t, again.shared, "the new record is in Redis")
	require.EqualValues(t, 2, r.local.count.Load(), "of the two claims without an answer")

	// A released claim of this process is claimed in Redis.
	away, key = true, uuid.NewString()
	claim, _, err = r.Begin(ctx, tenant, key, print1, 0)
	require.NoError(t, err)
	away = false
	r.Release(claim)
	claim, _, err = r.Begin(ctx, tenant, key, print1, 0)
	require.NoError(t, err)
	require.NotNil(t, claim)
	require.True(t, claim.shared)
}

// If Finish does not reach Redis, the record stays pending there, and this instance has the answer.
func TestAnswerBesidePendingRecord(t *testing.T) {
	client := newRedis(t)
	r := New(Options{Client: client, Timeout: testenv.RedisTimeout, Wait: time.Millisecond})
	key := uuid.NewString()
	claim, _, err := r.Begin(ctx, tenant, key, print1, 0)
	require.NoError(t, err)
	away := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	defer away.Close()
	r.client = away
	r.Finish(claim, []byte("x"))

	r.client = client
	require.EqualValues(t, statePending, client.Get(ctx, claim.name).Val()[0])
	_, answer, err := r.Begin(ctx, tenant, key, print1, 0)
	require.NoError(t, err)
	require.Equal(t, "x", string(answer))
}

// beforeClaim calls a function once, before the next command is sent to Redis.
type beforeClaim struct {
	once sync.Once
	call func()
}

func (b *beforeClaim) DialHook(next redis.DialHook) redis.DialHook { return next }

func (b *beforeClaim) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (b *beforeClaim) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		b.once.Do(b.call)
		return next(ctx, cmd)
	}
}

// A request does not get the claim in Redis if another one was claimed in this process meanwhile.
func TestClaimedHereMeanwhile(t *testing.T) {
	var away bool
	client := newRedis(t)
	r := New(Options{Client: client, Away: func(string) bool { return away }, Timeout: testenv.RedisTimeout, Wait: time.Millisecond})
	key := uuid.NewString()
	client.AddHook(&beforeClaim{call: func() {
		away = true
		claim, _, err := r.Begin(ctx, tenant, key, print1, 0)
		if err != nil || claim == nil {
			t.Errorf("claim %v, error %v", claim, err)
			return
		}
		r.Finish(claim, []byte("x"))
		away = false
	}})
	claim, answer, err := r.Begin(ctx, tenant, key, print1, 0)
	require.NoError(t, err)
	require.Nil(t, claim)
	require.Equal(t, "x", string(answer))
	require.Zero(t, client.Exists(ctx, r.name(tenant, key)).Val(), "no claim without an owner remains")
}

// If a claim in this process is released, a waiting repeat gets it.
func TestLocalWaiters(t *testing.T) {
	r := New(Options{Wait: time.Minute})
	claim, _, err := r.Begin(ctx, tenant, "k", print1, 0)
	require.NoError(t, err)
	next := make(chan *Claim)
	go func() {
		c, _, err := r.Begin(ctx, tenant, "k", print1, 0)
		if err != nil {
			t.Error(err)
		}
		next <- c
	}()
	r.Release(claim)
	require.NotNil(t, <-next)
	gone, cancel := context.WithCancel(ctx)
	cancel()
	_, _, err = r.Begin(gone, tenant, "k", print1, 0)
	require.ErrorIs(t, err, ErrPending, "a client that disconnected does not wait")
}

// The memory of this process is limited: the oldest record of a tenant with too many is evicted
// first, then that of the tenant with the most, and among equals the oldest.
func TestLocalBounds(t *testing.T) {
	r := New(Options{Wait: time.Millisecond})
	begin := func(tenant uuid.UUID, key string) *Claim {
		claim, _, err := r.Begin(ctx, tenant, key, print1, 0)
		require.NoError(t, err)
		return claim
	}
	neighbour := uuid.New()
	kept := begin(neighbour, "kept")
	r.Finish(kept, []byte("kept"))
	first := begin(tenant, "first")
	for range maxLocalRecords {
		r.Finish(begin(tenant, uuid.NewString()), []byte("x"))
	}
	r.Finish(first, []byte("late"))
	require.LessOrEqual(t, len(r.local.entries), maxLocalRecords/tenantPart+2)
	require.Nil(t, begin(tenant, "first"), "what is being executed is not evicted")
	for range 20 {
		r.Finish(begin(tenant, uuid.NewString()), make([]byte, 1<<20))
	}
	require.LessOrEqual(t, r.local.all.bytes, maxLocalBytes/tenantPart+len("kept"))
	require.Nil(t, begin(neighbour, "kept"), "another tenant's record stays")

	for range maxLocalRecords { // of many tenants
		r.Finish(begin(uuid.New(), "k"), []byte("x"))
	}
	require.LessOrEqual(t, len(r.local.entries), maxLocalRecords+1)
	require.LessOrEqual(t, len(r.local.tenants), maxLocalRecords+1)
	require.NotNil(t, begin(neighbour, "kept"), "it was the oldest")
}

func TestUnreadableRecords(t *testing.T) {
	client := newRedis(t)
	r := New(Options{Client: client, Timeout: testenv.RedisTimeout})
	for _, record := range []string{"", "P", "d" + string(print1[:]) + "of an earlier version", "Z" + string(print1[:]) + "not encrypted"} {
		key := uuid.NewString()
		require.NoError(t, client.Set(ctx, r.name(tenant, key), record, time.Minute).Err())
		_, _, err := r.Begin(ctx, tenant, key, print1, 0)
		require.Error(t, err, "%q", record)
		require.NotErrorIs(t, err, ErrPending)
	}
}

// Long answers are compressed, and read for repeats, in turn of tenants: a repeat of 20 KB, which
// counts as nothing, took a processor two milliseconds. After the wait, they are used without a
// turn.
func TestLongRecordsTakeTurns(t *testing.T) {
	r := New(Options{Client: newRedis(t), Timeout: testenv.RedisTimeout})
	long := make([]byte, packsInTurn)
	for i := range long {
		long[i] = byte(i * i >> 8)
	}
	record := r.answerRecord(&Claim{name: "x", tenant: tenant}, long)
	require.Greater(t, len(record), unpackInTurn+1000)
	var held []func()
	for range 2 * runtime.GOMAXPROCS(0) {
		if leave, err := r.packing.TakeWithin(ctx, uuid.New(), 0); err == nil {
			held = append(held, leave)
		}
	}
	free := func() {
		for _, leave := range held {
			leave()
		}
	}
	key := uuid.NewString()
	claim, _, err := r.Begin(ctx, tenant, key, print1, 0)
	require.NoError(t, err)
	r.wait = 0
	r.Finish(claim, long)
	r.wait = time.Hour
	answers := make(chan []byte)
	go func() {
		_, answer, _ := r.Begin(ctx, tenant, key, print1, 0)
		answers <- answer
	}()
	for r.packing.Waiting() == 0 {
		runtime.Gosched()
	}
	short := uuid.NewString()
	claim, _, err = r.Begin(ctx, tenant, short, print1, 0)
	require.NoError(t, err)
	r.Finish(claim, []byte("short"))
	_, answer, err := r.Begin(ctx, tenant, short, print1, 0)
	require.NoError(t, err)
	require.Equal(t, "short", string(answer), "it needs no turn")
	free()
	require.Equal(t, long, <-answers)
	_, answer, err = r.Begin(ctx, tenant, key, print1, 0)
	require.NoError(t, err)
	require.Equal(t, long, answer)
}

// A key that was used for another request is refused before the answer of the first is decrypted,
// which can have 1 MB.
func TestReusedKeysAreNotDecrypted(t *testing.T) {
	client := newRedis(t)
	r := New(Options{Client: client, Timeout: testenv.RedisTimeout})
	key := uuid.NewString()
	claim, _, err := r.Begin(ctx, tenant, key, print1, 0)
	require.NoError(t, err)
	r.Finish(claim, []byte("answer"))
	stored := []byte(client.Get(ctx, claim.name).Val())
	stored[len(stored)-1] ^= 1 // so that decrypting it fails
	require.NoError(t, client.Set(ctx, claim.name, stored, time.Minute).Err())
	_, _, err = r.Begin(ctx, tenant, key, print2, 0)
	require.ErrorIs(t, err, ErrReused)
	_, _, err = r.Begin(ctx, tenant, key, print1, 0)
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrReused)
}

// A person who reads Redis learns neither requests nor answers, not by trying out likely requests
// either. A person who can write to it cannot change an answer or move one to another key.
func TestRecordsAreEncrypted(t *testing.T) {
	client := newRedis(t)
	r := New(Options{Client: client, Secret: [16]byte{1}, Timeout: testenv.RedisTimeout})
	record := func(key, answer string) (name, stored string) {
		claim, _, err := r.Begin(ctx, tenant, key, print1, 0)
		require.NoError(t, err)
		pending := client.Get(ctx, claim.name).Val()
		require.NotContains(t, pending, string(print1[:]), "the print of a request can be computed by everybody")
		r.Finish(claim, []byte(answer))
		return claim.name, client.Get(ctx, claim.name).Val()
	}
	key, other := uuid.NewString(), uuid.NewString()
	name, stored := record(key, `{"subject":"user_42"}`)
	_, more := record(other, `{"subject":"user_43"}`)
	require.NotContains(t, stored, "user_42")
	require.NotContains(t, stored, string(print1[:]))
	require.NotEqual(t, stored[1:headBytes], more[1:headBytes], "equal requests do not look equal")

	for i := range stored {
		changed := []byte(stored)
		changed[i] ^= 1
		require.NoError(t, client.Set(ctx, name, changed, time.Minute).Err())
		_, answer, err := r.Begin(ctx, tenant, key, print1, 0)
		require.Error(t, err, "byte %d", i)
		require.Nil(t, answer)
	}
	require.NoError(t, client.Set(ctx, name, stored[:headBytes]+more[headBytes:], time.Minute).Err())
	_, _, err := r.Begin(ctx, tenant, key, print1, 0)
	require.Error(t, err, "the answer belongs to another key")

	elsewhere := New(Options{Client: client, Secret: [16]byte{2}, Timeout: testenv.RedisTimeout})
	elsewhere.secret = r.secret // the same name, other keys
	require.NoError(t, client.Set(ctx, name, stored, time.Minute).Err())
	_, _, err = elsewhere.Begin(ctx, tenant, key, print1, 0)
	require.Error(t, err)
}

// holdTurns takes all turns that a tenant can have, until the returned function is called.
func holdTurns(t *testing.T, turns *records.Turns, tenant uuid.UUID) (release func()) {
	t.Helper()
	let := make(chan struct{})
	var left sync.WaitGroup
	for turns.Do(ctx, tenant, 0, func() {}) == nil {
		has := make(chan struct{})
		left.Go(func() { _ = turns.Do(ctx, tenant, time.Minute, func() { close(has); <-let }) })
		<-has
	}
	return func() { close(let); left.Wait() }
}

// A tenant with many calls at once waits for its own turns. What it cannot send in time is neither
// claimed in Redis nor in this process, and the requests of another tenant are not delayed.
func TestTurnsOfATenant(t *testing.T) {
	client, turns := newRedis(t), records.NewTurns()
	patient := New(Options{Client: client, Timeout: testenv.RedisTimeout, Turns: turns})
	r := New(Options{Client: client, Timeout: time.Millisecond, Turns: turns})
	key, own, other := uuid.NewString(), uuid.New(), uuid.New()
	release := holdTurns(t, turns, own)
	claim, answer, err := r.Begin(ctx, own, key, print1, 0)
	require.ErrorIs(t, err, records.ErrBusy)
	require.Nil(t, claim)
	require.Nil(t, answer)
	require.Empty(t, r.local.entries)
	require.Zero(t, client.Exists(ctx, r.name(own, key)).Val())
	claim, _, err = patient.Begin(ctx, other, key, print1, 0)
	require.NoError(t, err)
	require.NotNil(t, claim)
	patient.Release(claim)
	release()

	// Finish and Release wait for a turn, so that no record stays pending.
	for _, finish := range []bool{true, false} {
		claim, _, err = patient.Begin(ctx, own, key, print1, 0)
		require.NoError(t, err)
		require.NotNil(t, claim)
		release = holdTurns(t, turns, own)
		settled := make(chan struct{})
		go func() {
			defer close(settled)
			if finish {
				patient.Finish(claim, []byte("x"))
			} else {
				patient.Release(claim)
			}
		}()
		release()
		<-settled
		require.Empty(t, patient.local.entries)
		again, answer, err := New(Options{Client: client, Timeout: testenv.RedisTimeout}).Begin(ctx, own, key, print1, 0)
		require.NoError(t, err)
		if finish {
			require.Equal(t, "x", string(answer), "another instance finds it")
			key = uuid.NewString()
		} else {
			require.NotNil(t, again)
		}
	}
}
