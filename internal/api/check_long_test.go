package api

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/places"
	"weir/internal/tenants"
)

// manyRules creates as many rules with long slugs as may match a check, and returns a batch of 100
// checks to which they apply.
func manyRules(t *testing.T, s *checkStack) (batch string) {
	t.Helper()
	for i := range 31 {
		slug := fmt.Sprintf("%02d-%s", i, strings.Repeat("x", 60))
		_, err := s.db.Store.CreateRule(t.Context(), s.actor, hourly(slug, "many", 1_000_000_000, "subject"))
		require.NoError(t, err)
	}
	return batchOf(100, `{"subject":"a","resource":"many"}`)
}

func batchOf(n int, check string) string {
	return `{"checks":[` + strings.TrimSuffix(strings.Repeat(check+",", n), ",") + `]}`
}

// A tenant has 64 MiB of long answers to batches that are in progress or that it does not read, so
// 64 batches at once are not refused even if they are as long as possible. Before, each unread one
// kept up to 4 MB, and nothing bounded them but the number of all requests.
func TestUnreadBatchesAreBoundedByBytes(t *testing.T) {
	s := newCheckStack(t)
	batch := manyRules(t, s)
	s.registry = prometheusRegistry()
	s.deps = s.newDeps(t, memoryEngine())
	size := len(s.post("/v1/check/batch", batch).body)
	require.Greater(t, size, 700<<10)
	policy, err := s.deps.Policies.Get(t.Context(), s.actor.TenantID())
	require.NoError(t, err)
	estimate := answerBytes(policy, slices.Repeat([]check.Request{{Subject: "a", Resource: "many"}}, 100))
	require.Greater(t, estimate, size)
	require.Less(t, estimate, size*5/4)
	ask, read := slowClients(t, s)
	unread := 0
	for ; unread*size <= 64<<20; unread++ {
		if ask(s.key, http.MethodPost, "/v1/check/batch", batch) == http.StatusServiceUnavailable {
			break
		}
	}
	require.GreaterOrEqual(t, unread, 64)
	require.LessOrEqual(t, unread*size, 64<<20)
	require.Equal(t, 200, ask(s.key, http.MethodPost, "/v1/check/batch", batchOf(9, `{"subject":"a"}`)), "short answers do not count")
	require.Equal(t, 200, ask(s.other, http.MethodPost, "/v1/check/batch", batchOf(100, `{"subject":"`+strings.Repeat("a", 256)+`"}`)), "of another tenant")
	read()
	require.Equal(t, 200, ask(s.key, http.MethodPost, "/v1/check/batch", batch), "all answers were read")
}

// A repeat with an Idempotency-Key gets the answer by the rules of before, which may be longer than
// one by those of now. It counts by its length. Before, it counted for nothing.
func TestUnreadReplaysAreBoundedByBytes(t *testing.T) {
	s := newCheckStack(t)
	_ = manyRules(t, s)
	settle := func() {
		t.Helper()
		s.deps.Policies.Reload(s.actor.TenantID())
		require.NoError(t, s.deps.Policies.Settle(t.Context(), s.actor.TenantID()))
	}
	settle()
	batch, key := batchOf(40, `{"subject":"a","resource":"many"}`), header{"Idempotency-Key", "k"}
	size := len(s.post("/v1/check/batch", batch, key).body)
	require.Greater(t, size, 256<<10)
	rules, _, err := s.db.Store.Rules(t.Context(), s.actor, tenants.RuleFilter{Resource: "many"}, tenants.Page{Limit: 100})
	require.NoError(t, err)
	require.Len(t, rules, 31)
	for _, rule := range rules {
		_, err := s.db.Store.EditRule(t.Context(), s.actor, rule.Slug, tenants.Match{}, func(r *limit.Rule) error { r.Mode = limit.Off; return nil })
		require.NoError(t, err)
	}
	settle()
	policy, err := s.deps.Policies.Get(t.Context(), s.actor.TenantID())
	require.NoError(t, err)
	require.Less(t, answerBytes(policy, slices.Repeat([]check.Request{{Subject: "a", Resource: "many"}}, 40)), longCheck)
	ask, _ := slowClients(t, s)
	unread := 0
	for ; unread*size <= maxTenantLong; unread++ {
		if ask(s.key, http.MethodPost, "/v1/check/batch", batch, key) == http.StatusServiceUnavailable {
			break
		}
	}
	require.Greater(t, unread, maxTenantLong/size/2)
	require.LessOrEqual(t, unread*size, maxTenantLong)
}

// An explained check of a tenant with many rules is not answered directly on the connection, where
// an answer that its client does not read would count for nothing. Before, such answers kept 10 MB
// on each connection with HTTP/2.
func TestLongExplainedChecksAreNotDirect(t *testing.T) {
	s := newSecureCheckStack(t)
	explained := explainedOf(t, s, 200)
	lane, client := s.dial(), s.http2Client()
	for _, ask := range []func(body string) answer{
		func(body string) answer { return s.http2Check(client, body) },
		func(body string) answer { lane.send(s.laneRequest(body)); return lane.receive() },
	} {
		before := s.ordinary.Load()
		require.Empty(t, ask(`{"subject":"short"}`).decision(200).Skipped)
		require.Equal(t, before, s.ordinary.Load())
		require.Greater(t, len(ask(explained).decision(200).Skipped), 200)
		require.Equal(t, before+1, s.ordinary.Load())
	}
}

// Explained checks whose long answers are not read are refused beyond the tenant's bytes.
func TestUnreadExplainedChecks(t *testing.T) {
	s := newSecureCheckStack(t)
	explained := explainedOf(t, s, 200)
	const n, bound = 100, 1 << 20
	long := places.NewBytes[limit.TenantID](2*bound, bound)
	s.lane.server.Load().capacity.long = long
	size := len(s.http2Check(s.http2Client(), explained).body)
	fields := []string{"authorization", "Bearer " + s.key, "content-type", "application/json"}
	explained = strings.Replace(explained, "{", `{"cost":0,`, 1) // all of them are allowed
	statuses := openUnread(t, "https://"+s.secure.addr.String(), s.secure.trust, n, http.MethodPost, "/v1/check", explained, fields...)
	require.Greater(t, statuses["200"], bound/size/3)
	require.LessOrEqual(t, statuses["200"]*size, bound)
	require.Equal(t, n, statuses["200"]+statuses["503"])
	require.GreaterOrEqual(t, long.Taken(), statuses["200"]*size)
}

// While the lane sends a long answer, other requests use the memory of the request.
func TestLaneKeepsNoScratchWhileItSends(t *testing.T) {
	s := newCheckStack(t)
	_ = manyRules(t, s)
	sent := 0
	c := &laneConn{lane: s.lane}
	c.Conn = &writeConn{write: func(b []byte) {
		sent++
		require.Greater(t, len(b), longWire)
		require.Contains(t, string(b), `"resource":"many"`)
		require.True(t, c.scratch == nil)
	}}
	for range 3 {
		c.in = []byte(s.laneRequest(`{"subject":"a","resource":"many"}`))
		var verdict laneVerdict
		c.head, verdict = readLaneHead(c.in)
		require.Equal(t, laneCheck, verdict)
		require.True(t, s.lane.server.Load().answerLane(c))
	}
	require.Equal(t, 3, sent)
}

// writeConn is a connection of which only what is written matters.
type writeConn struct {
	net.Conn
	write func(b []byte)
}

func (c *writeConn) Write(b []byte) (int, error)      { c.write(b); return len(b), nil }
func (c *writeConn) SetWriteDeadline(time.Time) error { return nil }
func (c *writeConn) RemoteAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }
