package faults

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
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
	{id: "P6", fault: "All notifications are lost; then the listening connections are ended", run: notificationsLost,
		goal: "a change is in force everywhere within 1 s"},
	{id: "P7", fault: "Restore of an older backup into the same database", quick: true, run: backupRestored,
		goal: "all instances follow the database within 2 s"},
	{id: "P8", fault: "One instance cut off from Postgres, then also from Redis", quick: true, run: oneWithoutPostgres,
		goal: "a revocation reaches it through Redis within 1 s; without both it stays ready and shows the age of its configuration; with `WEIR_MAX_CONFIG_AGE` it becomes not ready"},
	{id: "P9", fault: "A tenant with 300 rules and 10 plans changes its configuration without a pause", run: largeTenantChanges,
		goal: "changes of other tenants: p99 ≤ 300 ms; E = 0; p99 of checks ≤ 1.5 x base"},
	{id: "P10", fault: "A newer server migrates a schema that is three migrations old under load, while the older servers serve; then they are replaced one by one", run: upgraded,
		goal: "E = 0; no admin request fails; O = 0; usage is exact; an older server starts with the newer schema"},
	{id: "P11", fault: "Restore drill: a new instance with a new database from `pg_dump`, and a new Redis from its dump", quick: true, run: restoreDrill,
		goal: "keys work; rules, counters and the audit trail are as in the backup; later changes are gone; ready within 5 s"},
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
	l.seconds(m.seconds(5, 2))
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
	_, _, outside := outage(h.stream(localStream).windows(probeWindow), incident{h.load.ended, h.load.ended, h.load.ended, h.load.ended}, h.load.ended)
	m.none("O, units", over(outside, probeLimit))
	m.none("U, units", under(outside, probeLimit))
	m.usageIsExact(r, h, ordinary)
	m.note("Base p99 %s. The dashboard answered %d.", round(base), page)
}

func postgresDownAtStart(m *measurement) {
	r := newRig(m.T)
	settings := r.direct.With(harness.Settings{"WEIR_HTTP_ADDR": "127.0.0.1:0", "WEIR_INTERNAL_ADDR": "127.0.0.1:0"})
	cut := r.linkTo(settings, "WEIR_DATABASE_URL")
	cut.cut()
	i := harness.Start(m.T, settings)
	i.AwaitLog("WARN")
	response, err := http.Get(i.URL() + "/readyz")
	require.NoError(m.T, err)
	_ = response.Body.Close()
	m.holds("`/healthz` 200", harness.Status(i.URL()+"/healthz") == http.StatusOK)
	m.holds("`/readyz` 503", response.StatusCode == http.StatusServiceUnavailable)
	r.pause(3 * time.Second)
	select {
	case <-i.Done():
		m.holds("no exit", false)
	default:
		m.holds("no exit", true)
	}
	cut.join()
	began := time.Now()
	i.AwaitReady()
	m.within("ready after Postgres is back", time.Since(began), time.Second)
	r.startFromFile(m)
}

// startFromFile measures the start from a copy of the configuration, without Postgres.
func (r *rig) startFromFile(m *measurement) {
	m.Helper()
	const goal = "starts from a file"
	if !strings.Contains(harness.Help(m.T), "WEIR_SNAPSHOT_FILE") {
		m.add(goal, "the service has no such file", "ready within 2 s", false)
		return
	}
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	file := filepath.Join(m.TempDir(), "snapshot")
	settings := r.direct.With(harness.Settings{
		"WEIR_HTTP_ADDR": "127.0.0.1:0", "WEIR_INTERNAL_ADDR": "127.0.0.1:0",
		"WEIR_SNAPSHOT_FILE": file, "WEIR_ENCRYPTION_KEY": base64.StdEncoding.EncodeToString(key[:]),
	})
	cut := r.linkTo(settings, "WEIR_DATABASE_URL")
	i := harness.Start(m.T, settings).AwaitReady()
	check := func() int {
		status, _, _ := r.probe.try(http.MethodPost, i.URL()+"/v1/check", `{"subject":"ada","resource":"tally"}`)
		return status
	}
	require.Equal(m.T, http.StatusOK, check())
	require.Eventually(m.T, func() bool { found, err := os.Stat(file); return err == nil && found.Size() > 0 }, patience, tick, "no file is written")
	require.Zero(m.T, i.Stop())
	cut.cut()
	began := time.Now()
	i = harness.Start(m.T, settings).AwaitReady()
	m.within("ready from a file", time.Since(began), 2*time.Second)
	m.holds("checks are answered from the file", check() == http.StatusOK)
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
	l.seconds(4)
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
	l.seconds(2)
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

// spread changes the limit of a tenant's rule repeatedly, and returns how long each change took to
// reach the instance that was last.
func (r *rig) spread(c *caller, changes int) (times []time.Duration) {
	r.t.Helper()
	for n := range changes {
		limit := 200_000 + n
		began := time.Now()
		status, _, _ := r.putLimit(c, r.nodes[n%instances], limit)
		require.Equal(r.t, http.StatusOK, status)
		for _, node := range r.nodes {
			for limitAt(c, node) != limit {
				require.Less(r.t, time.Since(began), patience)
			}
		}
		times = append(times, time.Since(began))
	}
	return times
}

func notificationsLost(m *measurement) {
	elsewhere := harness.NewDatabase(m.T)
	r := newRig(m.T, func(r *rig) { r.settings["WEIR_DATABASE_LISTEN_URL"] = elsewhere })
	times := r.spread(r.ordinary("quiet"), 30)
	m.within("slowest of 30 changes without notifications", quantileOf(times, 1), time.Second)
	m.within("median", quantileOf(times, 0.5), time.Second)

	r = newRig(m.T)
	c := r.ordinary("loud")
	var slowest time.Duration
	for range 5 {
		r.database(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'weir_listener'`)
		slowest = max(slowest, quantileOf(r.spread(c, 3), 1))
	}
	m.within("slowest of 15 changes while listeners are ended", slowest, time.Second)
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

func largeTenantChanges(m *measurement) {
	r := newRig(m.T, with(harness.Settings{"WEIR_WRITE_RATE": "0"}))
	document := func(n int) string {
		var rules, plans, limits []string
		for i := range 300 {
			slug := fmt.Sprintf("rule-%d", i)
			rules = append(rules, fmt.Sprintf(`{"slug":%q,"resource":"r-%d","limit":%d,"window":"1m"}`, slug, i, 100+n+i))
			limits = append(limits, fmt.Sprintf(`%q:{"limit":%d}`, slug, 10+n+i))
		}
		for i := range 10 {
			plans = append(plans, fmt.Sprintf(`{"slug":"plan-%d","limits":{%s}}`, i, strings.Join(limits, ",")))
		}
		return `{"rules":[` + strings.Join(rules, ",") + `],"plans":[` + strings.Join(plans, ",") + `]}`
	}
	large := r.tenant("large", document(0))
	other := r.ordinary("other")
	l := r.load(r.probing()...)
	l.seconds(3)
	fault := l.now()
	done := make(chan struct{})
	var writer sync.WaitGroup
	changes := 0
	writer.Go(func() {
		for n := 1; ; n++ {
			select {
			case <-done:
				return
			default:
			}
			if status, body, err := large.try(http.MethodPut, r.nodes[n%instances].url()+"/v1/config", document(n)); err != nil || status != http.StatusOK {
				m.Errorf("%v %d %s", err, status, body)
				return
			}
			changes++
		}
	})
	times := r.spread(other, 40)
	repair := l.now()
	close(done)
	writer.Wait()
	h := l.stop()
	m.decided(h)
	m.within("p99 of 40 changes of another tenant", quantileOf(times, 0.99), 300*time.Millisecond)
	m.within("median", quantileOf(times, 0.5), 300*time.Millisecond)
	base := h.between(time.Second, fault).p99()
	m.within("p99 of checks", h.between(fault, repair).p99(), base*3/2)
	m.note("%d changes of 3 000 limits each meanwhile. Base p99 %s.", changes, round(base))
}

// quantileOf returns a quantile of times, such as 0.99; 1 is the longest.
func quantileOf(times []time.Duration, q float64) time.Duration {
	h := &history{}
	for _, t := range times {
		h.records = append(h.records, record{took: t})
	}
	return h.quantile(q)
}
