package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

// idempotentWrites is the number of requests of the test below. WEIR_TEST_IDEMPOTENT_WRITES sets
// more than an ordinary run has time for, as make test-idempotency does.
const idempotentWrites = 80

// A server is killed repeatedly, at any point of its work, while clients repeat each request until
// they get a response. No change is lost or made twice, and each has its row in an intact audit
// trail.
func TestKilledWhileWriting(t *testing.T) {
	t.Parallel()
	total := idempotentWrites
	if text := os.Getenv("WEIR_TEST_IDEMPOTENT_WRITES"); text != "" {
		var err error
		total, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	s := newSettings(t)
	s["WEIR_WRITE_RATE"] = "0" // eight clients send as fast as they can
	run := newKilledRun(t, s)
	run.do("prepare", http.MethodPost, "/v1/rules", `{"slug":"base","limit":1000000,"window":"1h","resource":"base"}`)
	run.do("prepare-plan", http.MethodPost, "/v1/plans", `{"slug":"base"}`)
	rotated := make([]string, 0, total/10+1)
	for i := range cap(rotated) {
		rotated = append(rotated, run.do(fmt.Sprintf("rotated-%d", i), http.MethodPost, "/v1/keys", fmt.Sprintf(`{"name":"rotated-%d","scopes":["check"]}`, i)).ID)
	}
	before := run.trail()

	stop := make(chan struct{})
	var killer, clients sync.WaitGroup
	killer.Go(func() { run.killRepeatedly(stop) })
	next := atomic.Int64{}
	expected := make([]string, total) // the row that each request creates
	for range 8 {
		clients.Go(func() {
			for {
				n := int(next.Add(1)) - 1
				if n >= total {
					return
				}
				path, body, row := idempotentWrite(n, rotated)
				answer := run.do(strconv.Itoa(n), http.MethodPost, path, body)
				if strings.HasSuffix(row, ":") {
					row += answer.ID
				}
				expected[n] = row
			}
		})
	}
	clients.Wait()
	close(stop)
	killer.Wait()
	t.Logf("%d writes, %d kills, %d repetitions of which %d were answered from stored responses", total, run.kills.Load(), run.repeated.Load(), run.replayed.Load())
	require.GreaterOrEqual(t, run.kills.Load(), int64(3))
	if total >= 1000 { // with fewer writes, there may be none by chance
		require.Positive(t, run.replayed.Load(), "no kill happened between a commit and its response")
	}

	require.ElementsMatch(t, expected, run.trail()[len(before):], "each change once")
	counts := map[string]int{}
	for _, row := range expected {
		counts[row[:strings.Index(row, ":")]]++
	}
	require.Equal(t, counts["create rule"]+1, run.count("rules"))
	require.Equal(t, counts["create plan"]+1, run.count("plans"))
	require.Equal(t, 1+len(rotated)+counts["create key"]+counts["rotate key"], run.count("api_keys"))
	stdout, stderr, code := runServer(t, s, "audit", "verify", "--tenant", "acme")
	require.Zero(t, code, "%s%s", stdout, stderr)
	require.Contains(t, stdout, "acme: intact")
}

// idempotentWrite returns the n-th request, and its row of the audit trail. If the row ends in a
// colon, the id from the response follows. A tenant has at most a thousand rules, so the other
// requests create plans.
func idempotentWrite(n int, rotated []string) (path, body, row string) {
	switch n % 10 {
	case 0:
		key := rotated[n/10]
		return "/v1/keys/" + key + "/rotate", `{"overlap":"1h"}`, "rotate key:" + key
	case 1, 2, 3:
		return "/v1/keys", fmt.Sprintf(`{"name":"k-%d","scopes":["check"]}`, n), "create key:"
	case 4, 5, 6:
		return fmt.Sprintf("/v1/subjects/s-%d/reset", n), `{"reason":"test"}`, fmt.Sprintf("reset subject:s-%d", n)
	case 7:
		if n < 9000 { // at most 900 rules
			return "/v1/rules", fmt.Sprintf(`{"slug":"r-%d","limit":5,"window":"1m","resource":"r-%d"}`, n, n), fmt.Sprintf("create rule:r-%d", n)
		}
	}
	return "/v1/plans", fmt.Sprintf(`{"slug":"p-%d","limits":{"base":{"limit":%d}}}`, n, n+1), fmt.Sprintf("create plan:p-%d", n)
}

// killedRun is a server that restarts after each kill, with clients that repeat their requests.
type killedRun struct {
	t        *testing.T
	settings settings
	tenant   *client

	server   *instance // used by the killer
	url      string
	kills    atomic.Int64
	answered atomic.Int64
	repeated atomic.Int64
	replayed atomic.Int64
}

func newKilledRun(t *testing.T, s settings) *killedRun {
	t.Helper()
	s["WEIR_HTTP_ADDR"] = "127.0.0.1:" + testenv.FreePort(t) // the same after each start
	i := start(t, s).AwaitReady()
	return &killedRun{t: t, settings: s, tenant: newTenant(t, s, i), server: i, url: i.URL()}
}

// killRepeatedly kills the server a little later after each start, so that it is at a different
// point of its work each time. Each start answers at least a few writes: otherwise the clients
// would never finish on a slow machine.
func (r *killedRun) killRepeatedly(stop chan struct{}) {
	for wait := 50 * time.Millisecond; ; wait += 130 * time.Millisecond {
		enough := r.answered.Load() + 8
		for due := time.Now().Add(wait); time.Now().Before(due) || r.answered.Load() < enough; {
			select {
			case <-stop:
				return
			case <-time.After(tick):
			}
		}
		if wait > 1500*time.Millisecond {
			wait = 50 * time.Millisecond
		}
		r.server.Kill()
		r.kills.Add(1)
		next := start(r.t, r.settings)
		r.server = next
		ready := r.url + "/readyz"
		for status(ready) != http.StatusOK {
			select {
			case <-next.Done():
				r.t.Errorf("the server did not come back:\n%s", next.Log())
				return
			case <-time.After(tick):
			}
		}
	}
}

type idempotentAnswer struct {
	ID string `json:"id"`
}

// do repeats a request until it is answered. It repeats only after errors that allow a retry.
func (r *killedRun) do(key, method, path, body string) (answer idempotentAnswer) {
	deadline := time.Now().Add(patience)
	for try := 0; ; try++ {
		if try > 0 {
			r.repeated.Add(1)
			<-time.After(5 * tick)
		}
		if time.Now().After(deadline) {
			r.t.Errorf("%s %s was not answered", method, path)
			return answer
		}
		got, err := r.tenant.tryWith(method, r.url+path, body, http.Header{"Idempotency-Key": {key}})
		if err != nil || got.status == http.StatusServiceUnavailable || got.status == http.StatusConflict {
			continue
		}
		if got.status != http.StatusCreated && got.status != http.StatusOK {
			r.t.Errorf("%s %s: %d %s", method, path, got.status, got.body)
			return answer
		}
		r.answered.Add(1)
		if got.header.Get("Idempotency-Replayed") != "" {
			r.replayed.Add(1)
		}
		if err := json.Unmarshal(got.body, &answer); err != nil {
			r.t.Errorf("%s %s: %v", method, path, err)
		}
		return answer
	}
}

// trail returns the tenant's audit trail, oldest first, as "ACTION KIND:TARGET".
func (r *killedRun) trail() (rows []string) {
	r.query("SELECT action || ' ' || kind || ':' || target FROM audit WHERE tenant_id = (SELECT id FROM tenants WHERE slug = 'acme') ORDER BY sequence",
		func(found pgx.Rows) (err error) {
			rows, err = pgx.CollectRows(found, pgx.RowTo[string])
			return err
		})
	return rows
}

func (r *killedRun) count(table string) (n int) {
	r.query("SELECT count(*) FROM "+table+" WHERE tenant_id = (SELECT id FROM tenants WHERE slug = 'acme')", func(found pgx.Rows) (err error) {
		n, err = pgx.CollectExactlyOneRow(found, pgx.RowTo[int])
		return err
	})
	return n
}

func (r *killedRun) query(sql string, read func(pgx.Rows) error) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, r.settings["WEIR_DATABASE_URL"])
	require.NoError(r.t, err)
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, sql)
	require.NoError(r.t, err)
	require.NoError(r.t, read(rows))
}
