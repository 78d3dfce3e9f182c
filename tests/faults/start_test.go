package faults

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/seal"
	"weir/tests/harness"
)

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
	settings := r.withSnapshot(m)
	file := settings["WEIR_SNAPSHOT_FILE"]
	cut := r.linkTo(settings, "WEIR_DATABASE_URL")
	i := harness.Start(m.T, settings).AwaitReady()
	require.Equal(m.T, http.StatusOK, checked(m, r.probe, i.URL(), "tally"))
	require.Eventually(m.T, func() bool { found, err := os.Stat(file); return err == nil && found.Size() > 0 }, patience, tick, "no file is written")
	require.Zero(m.T, i.Stop())
	cut.cut()
	began := time.Now()
	i = harness.Start(m.T, settings).AwaitReady()
	m.within("ready from a file", time.Since(began), 2*time.Second)
	m.holds("checks are answered from the file", checked(m, r.probe, i.URL(), "tally") == http.StatusOK)
}

// withSnapshot returns the settings of a further instance that keeps a copy of the configuration.
func (r *rig) withSnapshot(m *measurement) harness.Settings {
	return r.direct.With(harness.Settings{
		"WEIR_HTTP_ADDR": "127.0.0.1:0", "WEIR_INTERNAL_ADDR": "127.0.0.1:0",
		"WEIR_SNAPSHOT_FILE": filepath.Join(m.TempDir(), "snapshot"), "WEIR_ENCRYPTION_KEY": seal.NewKey(),
	})
}

// unknownWithoutPostgres sends checks of a tenant to instances that do not know it, because
// they cannot reach Postgres since before it was created, and then to an instance that has started
// without Postgres from its copy.
func unknownWithoutPostgres(m *measurement) {
	r := newRig(m.T)
	for _, n := range r.nodes[1:] {
		n.postgres.cut()
	}
	created := r.tenant("created", `{"rules":[{"slug":"requests","resource":"requests","limit":100000,"window":"1m"}]}`)
	settings := r.withSnapshot(m)
	cut := r.linkTo(settings, "WEIR_DATABASE_URL")
	i := harness.Start(m.T, settings).AwaitReady()
	require.Eventually(m.T, func() bool {
		found, err := os.Stat(settings["WEIR_SNAPSHOT_FILE"])
		return err == nil && found.Size() > 0
	},
		patience, tick, "no file is written")
	require.Zero(m.T, i.Stop())
	cut.cut()
	for _, n := range r.nodes[1:] {
		began := time.Now()
		status, header, body, err := created.full(http.MethodPost, n.url()+"/v1/check", `{"subject":"ada","resource":"requests"}`)
		took := time.Since(began)
		require.NoError(m.T, err)
		var problem struct {
			Status       int
			Code, Detail string
		}
		m.holds("503 with `Retry-After`", status == http.StatusServiceUnavailable && header.Get("Retry-After") != "")
		m.holds("a problem document with a cause", header.Get("Content-Type") == "application/problem+json" &&
			json.Unmarshal(body, &problem) == nil && problem.Status == status && problem.Code == "KEY_LOOKUP_UNAVAILABLE" && problem.Detail != "")
		m.Logf("%s", body)
		m.within("answer", took, 2500*time.Millisecond)
		m.holds("a tenant in memory is decided", checked(m, r.probe, n.url(), "tally") == http.StatusOK)
	}
	i = harness.Start(m.T, settings).AwaitReady()
	m.holds("with a file, the tenant is decided", checked(m, created, i.URL(), "requests") == http.StatusOK)
	m.holds("with a file, other tenants are decided", checked(m, r.probe, i.URL(), "tally") == http.StatusOK)
}

// checked returns the status of a check.
func checked(m *measurement, c *caller, url, resource string) int {
	m.Helper()
	status, _ := c.do(http.MethodPost, url+"/v1/check", `{"subject":"ada","resource":"`+resource+`"}`)
	return status
}
