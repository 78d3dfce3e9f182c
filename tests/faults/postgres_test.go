package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/tests/harness"
)

var postgresRows = []row{
	{id: "P1", fault: "Postgres is unreachable for 8 s under load", quick: true, run: postgresDown,
		goal: "E = 0; p99 ≤ 1.05 x base; the admin API answers 503 within 2 s, with `Retry-After`; the usage of the outage is written afterwards, exactly; recover ≤ 2 s"},
	{id: "P2", fault: "Postgres is unreachable at the start of an instance", run: postgresDownAtStart,
		goal: "with a last-known-good file: ready within 2 s; without: `/healthz` 200, `/readyz` 503 with the reason, no exit, ready within 1 s after Postgres is back"},
	{id: "P3", fault: "All connections to Postgres are ended every second for 10 s, during writes with `Idempotency-Key`", run: backendsEnded,
		goal: "no acknowledged write lost or doubled; the audit trail is intact; E = 0"},
	{id: "P4", fault: "The table of rules is locked for 8 s", quick: true, run: tableLocked,
		goal: "writes get 503 within 5 s; E = 0"},
	{id: "P5", fault: "Postgres is read-only for 5 s", quick: true, run: databaseReadOnly,
		goal: "E = 0; reads work; writes get 503; they work again ≤ 2 s after the end"},
	{id: "P6", fault: "All notifications are lost, for 30 changes; then the listening connections are ended five times, before three changes each", quick: true, run: notificationsLost,
		goal: "a change is in force everywhere within 1 s"},
	{id: "P7", fault: "Restore of an older backup into the same database", quick: true, run: backupRestored,
		goal: "all instances follow the database within 2 s"},
	{id: "P8", fault: "One instance cut off from Postgres, then also from Redis", quick: true, run: oneWithoutPostgres,
		goal: "a revocation reaches it through Redis within 1 s; without both it stays ready and shows the age of its configuration; with `WEIR_MAX_CONFIG_AGE` it becomes not ready"},
	{id: "P9", fault: "A tenant with 300 rules and 10 plans changes its configuration ten times without a pause", run: largeTenantChanges,
		goal: "changes of other tenants: p99 ≤ 300 ms; E = 0; p99 of checks ≤ 1.5 x base"},
	{id: "P10", fault: "A newer server migrates a schema that is at least three migrations old under load, while the older servers serve; then they are replaced one by one", run: upgraded,
		goal: "E = 0; no admin request fails; O = 0; usage is exact; an older server starts with the newer schema, at least that before the newest migration"},
	{id: "P11", fault: "Restore drill: a new instance with a new database from `pg_dump`, and a new Redis from its dump", quick: true, run: restoreDrill,
		goal: "keys work; rules, counters and the audit trail are as in the backup; later changes are gone; ready within 5 s"},
	{id: "P12", fault: "A check of a tenant that is not in memory, while Postgres is unreachable; without a file of `WEIR_SNAPSHOT_FILE`, then with one", quick: true, run: unknownWithoutPostgres,
		goal: "without the file: 503 with `Retry-After`, as a problem document that names the cause, within 2.5 s; with it: decided; tenants in memory are decided in both cases"},
}

// spent returns the units of all checks of a tenant, allowed and denied, that usage reports.
func (r *rig) spent(c *caller) (units int) {
	r.t.Helper()
	var report struct {
		Items []struct {
			Allowed int `json:"cost_allowed"`
			Denied  int `json:"cost_denied"`
		}
	}
	status, body := c.do(http.MethodGet, r.nodes[0].url()+"/v1/usage?grain=day", "")
	require.Equal(r.t, http.StatusOK, status, "%s", body)
	require.NoError(r.t, json.Unmarshal(body, &report))
	for _, item := range report.Items {
		units += item.Allowed + item.Denied
	}
	return units
}

// usageIsExact waits until usage reports every recorded unit of a stream, and then that it reports
// no more.
func (m *measurement) usageIsExact(r *rig, h *history, s int) {
	m.Helper()
	sent := len(h.stream(s).records)
	from := h.load.streams[s].from
	require.Eventually(m.T, func() bool { return r.spent(from) >= sent }, patience, 50*time.Millisecond, "usage of %d checks does not arrive", sent)
	m.none("difference of the usage, units of "+fmt.Sprint(sent), r.spent(from)-sent)
}

// putLimit changes the limit of the rule `requests` of an ordinary tenant.
func (r *rig) putLimit(c *caller, at *node, limit int) (status int, header http.Header, took time.Duration) {
	began := time.Now()
	response, err := c.http.Do(c.request(http.MethodPatch, at.url()+"/v1/rules/requests", fmt.Sprintf(`{"limit":%d}`, limit)))
	if err != nil {
		return 0, nil, time.Since(began)
	}
	_ = response.Body.Close()
	return response.StatusCode, response.Header, time.Since(began)
}

// limitAt returns the limit of the rule `requests` that an instance uses, or 0 without an answer.
func limitAt(c *caller, n *node) int {
	var a struct{ Limit int }
	_, body, err := c.try(http.MethodPost, n.url()+"/v1/check", `{"subject":"peek","resource":"requests","cost":0}`)
	if err != nil || json.Unmarshal(body, &a) != nil {
		return 0
	}
	return a.Limit
}

func postgresDown(m *measurement) {
	r := newRig(m.T)
	l := r.load(r.probing()...)
	ordinary := len(l.streams) - 1
	from := l.streams[ordinary].from
	l.steady(m.seconds(5, 2))
	fault := l.now()
	for _, n := range r.nodes {
		n.postgres.cut()
	}
	l.seconds(m.seconds(4, 1))
	status, header, took := r.putLimit(from, r.nodes[1], 123456)
	m.holds("the admin API answers 503 with `Retry-After`", status == http.StatusServiceUnavailable && header.Get("Retry-After") != "")
	m.within("admin answer", took, 2*time.Second)
	began := time.Now()
	page, _, err := r.probe.try(http.MethodGet, r.nodes[2].url()+"/login", "")
	m.holds("the dashboard answers", err == nil && page > 0)
	m.within("dashboard answer", time.Since(began), 2*time.Second)
	for _, n := range r.nodes {
		m.holds("ready", harness.Status(n.url()+"/readyz") == http.StatusOK)
	}
	l.seconds(m.seconds(4, 1))
	repair := l.now()
	for _, n := range r.nodes {
		n.postgres.join()
	}
	for _, n := range r.nodes {
		l.until("the admin API works", func() bool { status, _, _ := r.putLimit(from, n, 123456); return status == http.StatusOK })
	}
	healthy := l.now()
	l.seconds(1)
	h := l.stop()
	m.decided(h)
	base := h.between(time.Second, fault).p99()
	m.within("p99", h.between(fault, repair).p99(), base*105/100)
	m.within("recover", healthy-repair, 2*time.Second)
	m.limitHeld("", h.exactWindows())
	m.usageIsExact(r, h, ordinary)
	m.note("Base p99 %s. The dashboard answered %d.", round(base), page)
}

// pause waits for the length of a fault that has no load to count by.
func (r *rig) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	<-timer.C
}

// database runs a statement on the database of the rig.
func (r *rig) database(statement string) {
	r.t.Helper()
	harness.Exec(r.t, r.direct["WEIR_DATABASE_URL"], statement)
}

const endOthers = `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`

func backendsEnded(m *measurement) {
	r := newRig(m.T, with(harness.Settings{"WEIR_WRITE_RATE": "0"}))
	l := r.load(r.probing()...)
	l.seconds(2)
	done := make(chan struct{})
	var writers sync.WaitGroup
	var created, repeated atomic.Int64
	for w := range 4 {
		writers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				name := fmt.Sprintf("w%d-%d", w, n)
				for { // repeat until there is an answer
					request := r.probe.request(http.MethodPost, r.nodes[(w+n)%instances].url()+"/v1/plans", `{"slug":"`+name+`"}`)
					request.Header.Set("Idempotency-Key", `"`+name+`"`)
					response, err := r.probe.http.Do(request)
					if err == nil {
						_ = response.Body.Close()
						if response.StatusCode == http.StatusCreated {
							created.Add(1)
							break
						}
						if response.StatusCode < 500 && response.StatusCode != http.StatusConflict {
							m.Errorf("%d for %s", response.StatusCode, name)
							return
						}
					}
					repeated.Add(1)
					r.pause(20 * time.Millisecond)
				}
			}
		})
	}
	for range 10 {
		r.database(endOthers)
		l.seconds(1)
	}
	close(done)
	writers.Wait()
	h := l.stop()
	m.decided(h)
	conn, err := pgx.Connect(m.T.Context(), r.direct["WEIR_DATABASE_URL"])
	require.NoError(m.T, err)
	defer conn.Close(context.Background())
	var plans, rows int
	require.NoError(m.T, conn.QueryRow(m.T.Context(), `SELECT count(*) FROM plans WHERE slug ~ '^w[0-9]-'`).Scan(&plans))
	require.NoError(m.T, conn.QueryRow(m.T.Context(), `SELECT count(*) FROM audit WHERE action = 'create' AND kind = 'plan' AND target ~ '^w[0-9]-'`).Scan(&rows))
	m.none("lost or doubled writes", abs(plans-int(created.Load())))
	m.none("audit rows without a write, or the opposite", abs(rows-plans))
	stdout, _, code := harness.Run(m.T, r.direct, "audit", "verify", "--tenant", "probe")
	m.holds("the audit trail is intact", code == 0 && strings.Contains(stdout, "probe: intact"))
	m.note("%d writes, %d repetitions.", created.Load(), repeated.Load())
}

func abs(n int) int { return max(n, -n) }

func tableLocked(m *measurement) {
	r := newRig(m.T)
	l := r.load(r.probing()...)
	from := l.streams[len(l.streams)-1].from
	l.seconds(3)
	fault := l.now()
	conn, err := pgx.Connect(m.T.Context(), r.direct["WEIR_DATABASE_URL"])
	require.NoError(m.T, err)
	defer conn.Close(context.Background())
	tx, err := conn.Begin(m.T.Context())
	require.NoError(m.T, err)
	_, err = tx.Exec(m.T.Context(), "LOCK TABLE rules IN ACCESS EXCLUSIVE MODE")
	require.NoError(m.T, err)
	status, _, took := r.putLimit(from, r.nodes[0], 123456)
	m.holds("the write gets 503", status == http.StatusServiceUnavailable)
	m.within("answer", took, 5*time.Second)
	l.lasts(fault, m.seconds(8, 4))
	repair := l.now()
	require.NoError(m.T, tx.Rollback(m.T.Context()))
	l.until("writes work", func() bool { status, _, _ := r.putLimit(from, r.nodes[0], 123457); return status == http.StatusOK })
	m.within("recover", l.now()-repair, 2*time.Second)
	h := l.stop()
	m.decided(h)
	m.within("p99", h.between(fault, repair).p99(), h.between(time.Second, fault).p99()*3/2)
	m.note("A slow disk is not simulated.")
}

func databaseReadOnly(m *measurement) {
	r := newRig(m.T)
	l := r.load(r.probing()...)
	from := l.streams[len(l.streams)-1].from
	l.seconds(3)
	u, err := url.Parse(r.direct["WEIR_DATABASE_URL"])
	require.NoError(m.T, err)
	name := strings.TrimPrefix(u.Path, "/")
	fault := l.now()
	r.database("ALTER DATABASE " + name + " SET default_transaction_read_only = on")
	r.database(endOthers)
	l.seconds(2)
	var status int
	l.until("reads work", func() bool {
		status, _, _ = from.try(http.MethodGet, r.nodes[0].url()+"/v1/rules", "")
		return status == http.StatusOK
	})
	m.holds("reads work", true)
	status, _, took := r.putLimit(from, r.nodes[0], 123456)
	m.holds("the write gets 503", status == http.StatusServiceUnavailable)
	m.within("answer", took, 5*time.Second)
	l.lasts(fault, m.seconds(5, 4))
	readOnlySession := strings.Replace(r.direct["WEIR_DATABASE_URL"], "?", "?options=-c%20default_transaction_read_only%3Doff&", 1)
	harness.Exec(m.T, readOnlySession, "ALTER DATABASE "+name+" RESET default_transaction_read_only")
	harness.Exec(m.T, readOnlySession, endOthers)
	repair := l.now()
	l.until("writes work", func() bool { status, _, _ := r.putLimit(from, r.nodes[0], 123457); return status == http.StatusOK })
	m.within("recover", l.now()-repair, 2*time.Second)
	h := l.stop()
	m.decided(h)
	m.usageIsExact(r, h, len(l.streams)-1)
	m.note("A full disk is not simulated.")
}

func backupRestored(m *measurement) {
	r := newRig(m.T)
	l := r.load(r.probing()...)
	c := l.streams[len(l.streams)-1].from
	status, _, _ := r.putLimit(c, r.nodes[0], 111_111)
	require.Equal(m.T, http.StatusOK, status)
	backup := filepath.Join(m.TempDir(), "backup")
	url := r.direct["WEIR_DATABASE_URL"]
	out, err := exec.Command("pg_dump", "--format=custom", "--file="+backup, url).CombinedOutput()
	require.NoError(m.T, err, "%s", out)
	r.spread(c, 5)
	l.seconds(2)
	r.database(`DROP SCHEMA public CASCADE; CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO PUBLIC`)
	out, err = exec.Command("pg_restore", "--single-transaction", "--dbname="+url, backup).CombinedOutput()
	require.NoError(m.T, err, "%s", out)
	r.database(`UPDATE config_version SET epoch = gen_random_uuid()`)
	repair := l.now()
	for _, n := range r.nodes {
		l.until("the instance follows the database", func() bool { return limitAt(c, n) == 111_111 })
	}
	m.within("all instances follow", l.now()-repair, 2*time.Second)
	l.seconds(2)
	h := l.stop()
	m.decided(h)
	m.within("the next change", quantileOf(r.spread(c, 1), 1), time.Second)
}

// revoked creates a key, revokes it, and returns how long it was accepted by an instance.
func (r *rig) revoked(at, by *node) (took time.Duration) {
	r.t.Helper()
	var key struct{ ID, Secret string }
	status, body := r.probe.do(http.MethodPost, by.url()+"/v1/keys", `{"name":"short-lived","scopes":["check"]}`)
	require.Equal(r.t, http.StatusCreated, status, "%s", body)
	require.NoError(r.t, json.Unmarshal(body, &key))
	holder := newCaller(r.t, key.Secret)
	accepted := func() bool {
		status, _ := holder.do(http.MethodPost, at.url()+"/v1/check", `{"subject":"ada","resource":"tally"}`)
		return status != http.StatusUnauthorized
	}
	require.Eventually(r.t, accepted, patience, tick, "the key is not accepted")
	status, _ = r.probe.do(http.MethodDelete, by.url()+"/v1/keys/"+key.ID, "")
	began := time.Now()
	require.Equal(r.t, http.StatusNoContent, status)
	for accepted() {
		require.Less(r.t, time.Since(began), patience)
	}
	return time.Since(began)
}

func oneWithoutPostgres(m *measurement) {
	r := newRig(m.T)
	cut := r.nodes[2]
	keys := make([]struct{ ID, Secret string }, 3)
	for i := range keys { // the instance must know the keys before it is cut off
		status, body := r.probe.do(http.MethodPost, r.nodes[0].url()+"/v1/keys", `{"name":"k","scopes":["check"]}`)
		require.Equal(m.T, http.StatusCreated, status, "%s", body)
		require.NoError(m.T, json.Unmarshal(body, &keys[i]))
		holder := newCaller(m.T, keys[i].Secret)
		require.Eventually(m.T, func() bool {
			status, _ := holder.do(http.MethodPost, cut.url()+"/v1/check", `{"subject":"ada","resource":"tally"}`)
			return status == http.StatusOK
		}, patience, tick)
	}
	cut.postgres.cut()
	var slowest time.Duration
	for _, key := range keys {
		holder := newCaller(m.T, key.Secret)
		status, _ := r.probe.do(http.MethodDelete, r.nodes[0].url()+"/v1/keys/"+key.ID, "")
		began := time.Now()
		require.Equal(m.T, http.StatusNoContent, status)
		require.Eventually(m.T, func() bool {
			status, _ := holder.do(http.MethodPost, cut.url()+"/v1/check", `{"subject":"ada","resource":"tally"}`)
			return status == http.StatusUnauthorized
		}, patience, time.Millisecond, "a revoked key is accepted by an instance without Postgres")
		slowest = max(slowest, time.Since(began))
	}
	m.within("slowest of 3 revocations through Redis", slowest, time.Second)
	cut.redis.cut()
	r.awaitMetric(cut, "weir_config_age_seconds", func(age float64) bool { return age > 2 })
	m.holds("shows the age of its configuration in a metric", true)
	m.holds("stays ready", harness.Status(cut.url()+"/readyz") == http.StatusOK)
	status, _ := r.probe.do(http.MethodPost, cut.url()+"/v1/check", `{"subject":"ada","resource":"allow"}`)
	m.holds("answers checks", status == http.StatusOK)

	limited := newRig(m.T, with(harness.Settings{"WEIR_MAX_CONFIG_AGE": "2s"}))
	limited.nodes[2].postgres.cut()
	require.Eventually(m.T, func() bool { return harness.Status(limited.nodes[2].url()+"/readyz") == http.StatusServiceUnavailable },
		patience, tick, "the instance stays ready")
	m.holds("with `WEIR_MAX_CONFIG_AGE`, it becomes not ready", true)
	m.holds("the others stay ready", harness.Status(limited.nodes[0].url()+"/readyz") == http.StatusOK)
	limited.nodes[2].postgres.join()
	limited.nodes[2].AwaitReady()
}
