package tests

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
	"weir/tests/harness"
)

// Passwords are rotated, and a limiter must not be restarted for it. The server reads the new user
// and password from the files, for Redis and for Postgres, and keeps the last valid ones while a
// file is invalid.
func TestCredentialsRotateWithoutRestart(t *testing.T) {
	t.Parallel()
	owner := harness.NewDatabase(t)
	u, err := url.Parse(owner)
	require.NoError(t, err)
	first, second := strings.TrimPrefix(u.Path, "/")+"_first", strings.TrimPrefix(u.Path, "/")+"_second"
	databaseFile, redisFile := filepath.Join(t.TempDir(), "database"), filepath.Join(t.TempDir(), "redis")
	write := func(file, content string) {
		t.Helper()
		require.NoError(t, os.WriteFile(file+".new", []byte(content), 0o600))
		require.NoError(t, os.Rename(file+".new", file))
	}
	login := func(role string) string {
		as := *u
		as.User = url.UserPassword(role, "x")
		return as.String() + "\n"
	}
	redis := testenv.StartRedis(t)
	admin := redisAdmin(t, redis)
	redisLogin := func(user string) string {
		return strings.Replace(redis.URL, "redis://", "redis://"+user+":secret-of-"+user+"@", 1) + "\n"
	}
	allow := func(user string) {
		t.Helper()
		require.NoError(t, admin.Do(t.Context(), "acl", "setuser", user, "on", ">secret-of-"+user, "~*", "&*", "+@all").Err())
	}
	allow("first")
	write(redisFile, redisLogin("first"))

	s := newSettings(t).With(settings{"WEIR_DATABASE_URL": owner})
	_, stderr, code := runServer(t, s, "migrate", "up")
	require.Zero(t, code, stderr)
	for _, role := range []string{first, second} {
		harness.Exec(t, owner, `CREATE ROLE `+role+` LOGIN PASSWORD 'x' IN ROLE weir_app, weir_system`)
		t.Cleanup(func() { harness.Exec(t, owner, `DROP ROLE `+role) })
	}
	write(databaseFile, login(first))
	delete(s, "WEIR_DATABASE_URL")
	delete(s, "WEIR_REDIS_URL")
	served := s.With(settings{"WEIR_DATABASE_URL_FILE": databaseFile, "WEIR_REDIS_URL_FILE": redisFile, "WEIR_MIGRATE": "false"})
	i := start(t, served).AwaitReady()
	tenant := newTenant(t, served, i)
	tenant.putRule("api", `{"resource":"api","limit":100,"window":"1h","on_unavailable":"allow"}`, i)
	counts := func() bool {
		_, d, err := tenant.check(i.URL()+"/v1/check", `{"subject":"user_42","resource":"api"}`)
		return err == nil && !d.Degraded
	}
	require.Eventually(t, counts, patience, tick)

	// The old logins end, and the files are invalid for a moment.
	write(redisFile, "nonsense")
	allow("second")
	require.NoError(t, admin.Do(t.Context(), "acl", "deluser", "first").Err()) // closes its connections
	i.AwaitLog("credentials not read")
	write(redisFile, redisLogin("second"))
	require.Eventually(t, counts, patience, tick)
	i.AwaitLog(`"variable":"WEIR_REDIS_URL_FILE"`)

	write(databaseFile, login(second))
	harness.Exec(t, owner, `ALTER ROLE `+first+` NOLOGIN`)
	harness.Exec(t, owner, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '`+first+`'`)
	require.Eventually(t, func() bool {
		got, err := tenant.try(http.MethodGet, i.URL()+"/v1/rules/api", "")
		return err == nil && got.status == http.StatusOK
	}, patience, tick)
	i.AwaitLog(`"msg":"credentials changed","variable":"WEIR_DATABASE_URL_FILE"`)
	require.NotContains(t, i.Log(), "secret-of")
	require.Zero(t, i.Stop())
}

// An invalid file stops the start, with one line that names the variable and shows no password.
func TestURLFilesAreChecked(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "url")
	for content, want := range map[string]string{
		"":                       "is empty",
		"http://u:hunter2@host":  "must be redis://USER:PASSWORD@HOST:PORT/0",
		"redis://u:hunter2@host": "are both set",
	} {
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		s := newSettings(t).With(settings{"WEIR_REDIS_URL_FILE": file})
		if want != "are both set" {
			delete(s, "WEIR_REDIS_URL")
		}
		_, stderr, code := runServer(t, s)
		require.Equal(t, 2, code)
		require.Contains(t, stderr, "WEIR_REDIS_URL_FILE")
		require.Contains(t, stderr, want)
		require.NotContains(t, stderr, "hunter2")
		require.Equal(t, 1, strings.Count(strings.TrimSpace(stderr), "\n")+1)
	}
}
