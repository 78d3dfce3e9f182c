package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

// heldRedis is a Redis that receives nothing on connections with a call for a record, while it is
// told to hold them. Other connections are not affected.
type heldRedis struct {
	url      string
	hold     atomic.Bool
	held     atomic.Int64
	released chan struct{}
	release  func()

	mu  sync.Mutex
	all []*bytes.Buffer // what was sent on each connection
}

var recordMarks = [][]byte{[]byte("}once"), []byte("}lease")}

func newHeldRedis(t *testing.T) *heldRedis {
	h := &heldRedis{released: make(chan struct{})}
	h.release = sync.OnceFunc(func() { close(h.released) })
	t.Cleanup(h.release)
	to := strings.TrimSuffix(strings.TrimPrefix(testenv.StartRedis(t).URL, "redis://"), "/0")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	h.url = "redis://" + listener.Addr().String()
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				_ = client.Close()
				return
			}
			sent := new(bytes.Buffer)
			h.mu.Lock()
			h.all = append(h.all, sent)
			h.mu.Unlock()
			go h.carry(server, client, sent)
			go h.carry(client, server, nil)
		}
	}()
	return h
}

// carry copies what arrives, and notes it if sent is not nil.
func (h *heldRedis) carry(to, from net.Conn, sent *bytes.Buffer) {
	defer to.Close()
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if sent != nil {
			h.mu.Lock()
			sent.Write(buf[:n])
			h.mu.Unlock()
			if h.hold.Load() && h.carried(sent, recordMarks...) {
				h.held.Add(1)
				<-h.released
			}
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// carried reports whether one of the marks was sent on a connection.
func (h *heldRedis) carried(sent *bytes.Buffer, marks ...[]byte) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, mark := range marks {
		if bytes.Contains(sent.Bytes(), mark) {
			return true
		}
	}
	return false
}

// Many checks with a key, and leases, of one tenant wait for Redis. Checks of another tenant do not
// wait, because records have connections of their own. Before, records used up the connections of
// all checks, which opened the circuit breaker and degraded everybody.
func TestRecordsHoldNoChecksUp(t *testing.T) {
	h := newHeldRedis(t)
	s := newSettings(t).With(settings{"WEIR_REDIS_URL": h.url})
	i := start(t, s).AwaitReady()
	busy, other := newTenantOf(t, s, i, "busy"), newTenantOf(t, s, i, "other")
	for _, tenant := range []*client{busy, other} {
		tenant.putRule("strict", `{"resource":"strict","algorithm":"fixed_window","limit":100000,"window":"30d","on_unavailable":"deny"}`, i)
		tenant.putRule("leased", `{"resource":"leased","algorithm":"fixed_window","limit":100000,"window":"30d","consistency":"leased","on_unavailable":"deny"}`, i)
	}
	keyed := func(n int) (answer, error) {
		return busy.tryWith(http.MethodPost, i.URL()+"/v1/check", fmt.Sprintf(`{"subject":"s%d","resource":"strict"}`, n),
			http.Header{"Idempotency-Key": {fmt.Sprint("k", n)}})
	}

	// All of them work, and use other connections than checks.
	got, err := keyed(-1)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, got.status, "%s", got.body)
	var lease struct{ Lease string }
	got = busy.do(http.MethodPost, i.URL()+"/v1/leases", `{"subject":"l","resource":"leased","units":10}`, http.StatusOK)
	require.NoError(t, json.Unmarshal(got.body, &lease))
	busy.do(http.MethodPost, i.URL()+"/v1/leases/"+lease.Lease+"/return", `{"units":10}`, http.StatusNoContent)
	refund := []byte("units > 0 and less(")
	refunds := 0
	h.mu.Lock()
	all := slices.Clone(h.all)
	h.mu.Unlock()
	for _, sent := range all {
		if h.carried(sent, append(recordMarks, refund)...) {
			require.False(t, h.carried(sent, []byte("encode('<I6I4', clock, repaired)")), "a connection of checks")
		}
		if h.carried(sent, refund) {
			refunds++
		}
	}
	require.Equal(t, 1, refunds, "the script of refunds was sent as text")

	h.hold.Store(true)
	const requests = 200
	var wg sync.WaitGroup
	var answered atomic.Int64
	for n := range requests {
		wg.Go(func() {
			got, err := keyed(n)
			if n%4 == 0 {
				got, err = busy.try(http.MethodPost, i.URL()+"/v1/leases", fmt.Sprintf(`{"subject":"l%d","resource":"leased","units":10}`, n))
			}
			if err != nil || got.status != http.StatusOK && got.status != http.StatusServiceUnavailable {
				t.Errorf("%v %d %s", err, got.status, got.body)
			}
			answered.Add(1)
		})
	}
	require.Eventually(t, func() bool { return h.held.Load() >= 8 }, patience, tick)
	for _, tenant := range []*client{other, busy} {
		for n := range 50 {
			got, d, err := tenant.check(i.URL()+"/v1/check", fmt.Sprintf(`{"subject":"s%d","resource":"strict"}`, n))
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, got.status, "%s", got.body)
			require.False(t, d.Degraded)
		}
	}
	h.release()
	wg.Wait()
	require.EqualValues(t, requests, answered.Load())
	require.Contains(t, i.Metrics(), "weir_breaker_opened_total 0\n")
}
