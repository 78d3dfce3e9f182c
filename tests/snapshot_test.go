package tests

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/seal"
)

// switched is a relay in front of Postgres. While it is off, it refuses.
type switched struct {
	listener net.Listener
	target   string

	mu    sync.Mutex
	on    bool
	conns []net.Conn
}

func newSwitched(t *testing.T, databaseURL string) (relay *switched, throughURL string) {
	t.Helper()
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	s := &switched{target: u.Host}
	s.listener, err = net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var running sync.WaitGroup
	t.Cleanup(func() {
		_ = s.listener.Close()
		s.turn(false)
		running.Wait()
	})
	running.Go(func() {
		for {
			client, err := s.listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { s.serve(client) })
		}
	})
	u.Host = s.listener.Addr().String()
	return s, u.String()
}

func (s *switched) serve(client net.Conn) {
	defer client.Close()
	s.mu.Lock()
	if !s.on {
		s.mu.Unlock()
		return
	}
	server, err := net.Dial("tcp", s.target)
	if err == nil {
		s.conns = append(s.conns, client, server)
	}
	s.mu.Unlock()
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	_, _ = io.Copy(client, server)
}

func (s *switched) turn(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on = on
	if !on {
		for _, c := range s.conns {
			_ = c.Close()
		}
		s.conns = nil
	}
}

// An instance with a snapshot starts while Postgres is unavailable: it answers checks by the limits
// and keys of the file, exactly and with the same counters, says that it is degraded, and follows
// Postgres as soon as that answers.
func TestStartWithoutPostgres(t *testing.T) {
	t.Parallel()
	s := newSettings(t).With(settings{
		"WEIR_ENCRYPTION_KEY": seal.NewKey(), "WEIR_SNAPSHOT_FILE": filepath.Join(t.TempDir(), "snapshot"), "WEIR_LOG_LEVEL": "info",
	})
	first := start(t, s).AwaitReady()
	tenant := newTenant(t, s, first)
	tenant.putRule("api", `{"resource":"api","limit":3,"window":"1h","algorithm":"fixed_window"}`, first)
	check := func(i *instance, want int) {
		t.Helper()
		got, d, err := tenant.check(i.URL()+"/v1/check", `{"subject":"user_42","resource":"api"}`)
		require.NoError(t, err)
		require.Equal(t, want, got.status, "%s", got.body)
		require.False(t, d.Degraded)
	}
	check(first, http.StatusOK)
	require.Zero(t, first.Stop())

	// The first writer wrote before the tenant was created, so another instance writes the file.
	second := start(t, s).AwaitReady()
	require.Eventually(t, func() bool {
		content, err := os.ReadFile(s["WEIR_SNAPSHOT_FILE"])
		return err == nil && strings.Contains(string(content), `"api"`)
	}, patience, tick)
	require.Zero(t, second.Stop())

	relay, through := newSwitched(t, s["WEIR_DATABASE_URL"])
	third := start(t, s.With(settings{"WEIR_DATABASE_URL": through})).AwaitReady()
	third.AwaitLog("started with the configuration in WEIR_SNAPSHOT_FILE")
	check(third, http.StatusOK)
	check(third, http.StatusOK)
	check(third, http.StatusTooManyRequests)
	ready := tenant.do(http.MethodGet, third.URL()+"/readyz", "", http.StatusOK)
	require.Contains(t, string(ready.body), `"postgres"`)
	tenant.do(http.MethodGet, third.URL()+"/v1/rules", "", http.StatusServiceUnavailable)

	relay.turn(true)
	third.AwaitLog("the database answers")
	tenant.putRule("api", `{"resource":"api","limit":5,"window":"1h","algorithm":"fixed_window"}`, third)
	check(third, http.StatusOK)
	require.Eventually(t, func() bool {
		ready := tenant.do(http.MethodGet, third.URL()+"/readyz", "", http.StatusOK)
		return !strings.Contains(string(ready.body), `"postgres"`)
	}, patience, tick)
	require.Zero(t, third.Stop())

	// A schema that cannot be migrated when Postgres answers does not end the answers to checks.
	db, err := pgx.Connect(t.Context(), s["WEIR_DATABASE_URL"])
	require.NoError(t, err)
	defer db.Close(context.WithoutCancel(t.Context()))
	_, err = db.Exec(t.Context(), "UPDATE schema_migrations SET dirty = true")
	require.NoError(t, err)
	relay, through = newSwitched(t, s["WEIR_DATABASE_URL"])
	refused := start(t, s.With(settings{"WEIR_DATABASE_URL": through})).AwaitReady()
	relay.turn(true)
	refused.AwaitLog("the database cannot be migrated")
	got, d, err := tenant.check(refused.URL()+"/v1/check", `{"subject":"user_43","resource":"api"}`) // the file may have either limit
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, got.status, "%s", got.body)
	require.False(t, d.Degraded)
	require.Zero(t, refused.Stop())

	// A file of another installation ends the instance when Postgres answers.
	elsewhere := newSettings(t)
	relay, through = newSwitched(t, elsewhere["WEIR_DATABASE_URL"])
	fourth := start(t, s.With(settings{"WEIR_DATABASE_URL": through})).AwaitReady()
	relay.turn(true)
	require.Equal(t, 1, fourth.Exit())
	require.Contains(t, fourth.Log(), "another database")
}

// A file that one tenant could fill has the operator's tenant and the small ones, with which an
// instance starts.
func TestStartWithoutPostgresWithAFullFile(t *testing.T) {
	t.Parallel()
	s := newSettings(t).With(settings{
		"WEIR_ENCRYPTION_KEY": seal.NewKey(), "WEIR_SNAPSHOT_FILE": filepath.Join(t.TempDir(), "snapshot"), "WEIR_LOG_LEVEL": "info",
	})
	first := start(t, s.With(settings{"WEIR_SNAPSHOT_FILE": ""})).AwaitReady()
	tenant, large := newTenant(t, s, first), newTenantOf(t, s, first, "large")
	tenant.putRule("api", `{"resource":"api","limit":1,"window":"1h","algorithm":"fixed_window"}`, first)
	db, err := pgx.Connect(t.Context(), s["WEIR_DATABASE_URL"])
	require.NoError(t, err)
	defer db.Close(context.WithoutCancel(t.Context()))
	_, err = db.Exec(t.Context(), `INSERT INTO subjects (tenant_id, subject, id, version)
		SELECT t.id, 'customer' || lpad(n::text, 200, '0'), gen_random_uuid(), 1 FROM tenants t, generate_series(1, 5000) n WHERE t.slug = 'large'`)
	require.NoError(t, err)
	large.do(http.MethodPost, first.URL()+"/v1/check", `{"subject":"user_42"}`, http.StatusOK)
	require.Zero(t, first.Stop())

	written := func(extra settings) (bytes int64) {
		t.Helper()
		writer := start(t, s.With(extra)).AwaitReady()
		require.Eventually(t, func() bool {
			info, err := os.Stat(s["WEIR_SNAPSHOT_FILE"])
			if err == nil {
				bytes = info.Size()
			}
			return err == nil
		}, patience, tick)
		require.Zero(t, writer.Stop())
		return bytes
	}
	all := written(nil)
	require.Greater(t, all, int64(1<<20))
	require.NoError(t, os.Remove(s["WEIR_SNAPSHOT_FILE"]))
	size := settings{"WEIR_SNAPSHOT_SIZE": strconv.FormatInt(all-300, 10)} // not enough for the last one
	require.Less(t, written(size), all/2)

	_, through := newSwitched(t, s["WEIR_DATABASE_URL"])
	second := start(t, s.With(size).With(settings{"WEIR_DATABASE_URL": through})).AwaitReady()
	second.AwaitLog("started with the configuration in WEIR_SNAPSHOT_FILE")
	got, _, err := tenant.check(second.URL()+"/v1/check", `{"subject":"user_42","resource":"api"}`)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, got.status, "%s", got.body)
	require.Zero(t, second.Stop())
}

// A key that was revoked while an instance was down works there only until Postgres answers. The
// instance cannot know of the revocation before, and WEIR_SNAPSHOT_MAX_AGE bounds how old its file
// may be.
func TestKeyRevokedBeforeStartWithoutPostgres(t *testing.T) {
	t.Parallel()
	with := settings{"WEIR_ENCRYPTION_KEY": seal.NewKey(), "WEIR_SNAPSHOT_FILE": filepath.Join(t.TempDir(), "snapshot"), "WEIR_LOG_LEVEL": "info"}
	plain := newSettings(t)
	s := plain.With(with)
	first := start(t, plain).AwaitReady()
	tenant := newTenant(t, s, first)
	got := tenant.do(http.MethodPost, first.URL()+"/v1/keys", `{"name":"lost","scopes":["check"]}`, http.StatusCreated)
	var key struct{ ID, Secret string }
	require.NoError(t, json.Unmarshal(got.body, &key))
	lost := newClient(t, key.Secret)
	const check = `{"subject":"user_42"}`
	lost.do(http.MethodPost, first.URL()+"/v1/check", check, http.StatusOK)

	second := start(t, s).AwaitReady() // it writes the file
	require.Eventually(t, func() bool {
		content, err := os.ReadFile(s["WEIR_SNAPSHOT_FILE"])
		return err == nil && len(content) > 0
	}, patience, tick)
	require.Zero(t, second.Stop())
	tenant.do(http.MethodDelete, first.URL()+"/v1/keys/"+key.ID, "", http.StatusNoContent)
	require.Zero(t, first.Stop())

	relay, through := newSwitched(t, s["WEIR_DATABASE_URL"])
	third := start(t, s.With(settings{"WEIR_DATABASE_URL": through})).AwaitReady()
	third.AwaitLog("started with the configuration in WEIR_SNAPSHOT_FILE")
	lost.do(http.MethodPost, third.URL()+"/v1/check", check, http.StatusOK)
	relay.turn(true)
	require.Eventually(t, func() bool {
		got, err := lost.try(http.MethodPost, third.URL()+"/v1/check", check)
		require.NoError(t, err)
		return got.status == http.StatusUnauthorized
	}, patience, tick, "the revoked key still works")
	tenant.do(http.MethodPost, third.URL()+"/v1/check", check, http.StatusOK)
	require.Zero(t, third.Stop())
}
