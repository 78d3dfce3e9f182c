package tests

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/seal"
	"weir/internal/testenv"
	"weir/tests/harness"
)

// operations returns the operations manual.
func operations(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "operations.md"))
	require.NoError(t, err)
	return string(content)
}

// The manual's ACL user has the permissions that the server needs, and no others. A missing command
// would show only under load, as degraded decisions.
func TestManualRedisUserIsEnough(t *testing.T) {
	t.Parallel()
	line := regexp.MustCompile(`(?m)^ACL SETUSER .*$`).FindString(operations(t))
	require.NotEmpty(t, line)
	server := testenv.StartRedis(t)
	options, err := redis.ParseURL(server.URL)
	require.NoError(t, err)
	admin := redis.NewClient(options)
	defer admin.Close()
	var command []any
	for _, word := range strings.Fields(strings.ReplaceAll(line, "PASSWORD", "hunter2")) {
		command = append(command, word)
	}
	require.NoError(t, admin.Do(t.Context(), command...).Err())

	s := newSettings(t).With(settings{"WEIR_REDIS_URL": strings.Replace(server.URL, "redis://", "redis://weir:hunter2@", 1)})
	i := start(t, s).AwaitReady()
	tenant := newTenant(t, s, i)
	for _, algorithm := range []string{"sliding_window_counter", "sliding_window_log", "fixed_window", "token_bucket", "leaky_bucket_queue"} {
		slug := slugOf(algorithm)
		tenant.putRule(slug, `{"resource":"`+slug+`","algorithm":"`+algorithm+`","limit":2,"window":"1h","penalty":"1m","on_unavailable":"deny"}`, i)
		for range 4 {
			got, d, err := tenant.check(i.URL()+"/v1/check", `{"subject":"user_42","resource":"`+slug+`"}`)
			require.NoError(t, err)
			require.False(t, d.Degraded, "%s", got.body)
		}
	}
	tenant.putRule("paid", `{"resource":"paid","algorithm":"fixed_window","limit":1,"window":"1h"}`, i)
	tenant.do(http.MethodPost, i.URL()+"/v1/subjects/user_42/credits", `{"rule":"paid","units":5}`, http.StatusCreated)
	require.Eventually(t, func() bool {
		_, _, err := tenant.check(i.URL()+"/v1/check", `{"subject":"user_42","resource":"paid","cost":2}`)
		spent := tenant.do(http.MethodGet, i.URL()+"/v1/subjects/user_42/credits", "", http.StatusOK)
		return err == nil && !strings.Contains(string(spent.body), `"spent":0`)
	}, patience, tick, "spent credits are stored")
	require.Contains(t, i.Metrics(), "weir_redis_errors_total 0")

	log, err := admin.ACLLog(t.Context(), 10).Result()
	require.NoError(t, err)
	require.Empty(t, log, "a command of the server was refused")

	options.Username, options.Password = "weir", "hunter2"
	user := redis.NewClient(options)
	defer user.Close()
	for _, forbidden := range [][]any{{"FLUSHALL"}, {"KEYS", "*"}, {"CONFIG", "GET", "*"}, {"GET", "other"}, {"SHUTDOWN", "NOSAVE"}, {"SCRIPT", "FLUSH"}, {"ACL", "WHOAMI"}} {
		require.ErrorContains(t, user.Do(t.Context(), forbidden...).Err(), "NOPERM", "%v", forbidden)
	}
}

// The manual's two logins work as described, and the server's login owns nothing.
func TestManualPostgresRolesAreEnough(t *testing.T) {
	t.Parallel()
	owner := harness.NewDatabase(t)
	u, err := url.Parse(owner)
	require.NoError(t, err)
	name := strings.TrimPrefix(u.Path, "/")
	// The same as in the manual, with unique names: roles belong to the cluster.
	harness.Exec(t, owner, `CREATE ROLE `+name+`_owner LOGIN CREATEROLE PASSWORD 'x'`)
	harness.Exec(t, owner, `ALTER DATABASE `+name+` OWNER TO `+name+`_owner`)
	t.Cleanup(func() {
		harness.Exec(t, owner, `REASSIGN OWNED BY `+name+`_owner TO CURRENT_USER`)
		harness.Exec(t, owner, `DROP OWNED BY `+name+`_owner, `+name+`_server`)
		harness.Exec(t, owner, `DROP ROLE `+name+`_owner, `+name+`_server`)
	})
	login := func(role string) string {
		as := *u
		as.User = url.UserPassword(role, "x")
		return as.String()
	}
	s := newSettings(t).With(settings{"WEIR_DATABASE_URL": login(name + "_server"), "WEIR_MIGRATE_DATABASE_URL": login(name + "_owner")})
	_, stderr, code := runServer(t, s, "migrate", "up")
	require.Zero(t, code, stderr)
	harness.Exec(t, owner, `CREATE ROLE `+name+`_server LOGIN NOINHERIT PASSWORD 'x' IN ROLE weir_app, weir_system`)

	i := start(t, s.With(settings{"WEIR_MIGRATE": "false", "WEIR_ALLOW_SUPERUSER": "false"})).AwaitReady()
	tenant := newTenant(t, s, i)
	tenant.putRule("api", `{"resource":"api","limit":1,"window":"1h"}`, i)
	tenant.do(http.MethodPost, i.URL()+"/check", `{"subject":"user_42","resource":"api"}`, http.StatusOK)
	require.Zero(t, i.Stop())
}

// A login that row-level security does not restrict could read the rows of all tenants.
func TestSuperuserIsRefused(t *testing.T) {
	t.Parallel()
	s := newSettings(t)
	delete(s, "WEIR_ALLOW_SUPERUSER")
	_, stderr, code := runServer(t, s)
	require.NotZero(t, code)
	require.Contains(t, stderr, "WEIR_ALLOW_SUPERUSER=true")
	require.Contains(t, stderr, "is a superuser or has BYPASSRLS")
}

// docker compose must start with logins of which the server's owns nothing.
func TestComposeLoginsAreEnough(t *testing.T) {
	t.Parallel()
	owner := harness.NewDatabase(t)
	u, err := url.Parse(owner)
	require.NoError(t, err)
	name := strings.TrimPrefix(u.Path, "/")
	script, err := os.ReadFile(filepath.Join(testenv.Root(), "scripts", "compose-postgres.sql"))
	require.NoError(t, err)
	// The cluster of the tests has the two groups, and other tests use the names of the logins.
	text := regexp.MustCompile(`(?m)^CREATE ROLE weir_(app|system) .*$`).ReplaceAllString(string(script), "")
	text = strings.NewReplacer("weir_owner", name+"_owner", "weir_server", name+"_server", "DATABASE weir ", "DATABASE "+name+" ").Replace(text)
	s := newSettings(t)
	_, stderr, code := runServer(t, s, "migrate", "up") // of another database: the groups exist afterwards
	require.Zero(t, code, stderr)
	harness.Exec(t, owner, text)
	t.Cleanup(func() {
		harness.Exec(t, owner, `REASSIGN OWNED BY `+name+`_owner TO CURRENT_USER`)
		harness.Exec(t, owner, `DROP OWNED BY `+name+`_owner, `+name+`_server`)
		harness.Exec(t, owner, `DROP ROLE `+name+`_owner, `+name+`_server`)
	})
	login := func(role string) string {
		as := *u
		as.User = url.UserPassword(role, "weir")
		return as.String()
	}
	i := start(t, s.With(settings{
		"WEIR_DATABASE_URL": login(name + "_server"), "WEIR_MIGRATE_DATABASE_URL": login(name + "_owner"), "WEIR_ALLOW_SUPERUSER": "false",
	})).AwaitReady()
	tenant := newTenant(t, s.With(settings{"WEIR_DATABASE_URL": login(name + "_server")}), i)
	tenant.putRule("api", `{"resource":"api","limit":1,"window":"1h"}`, i)
	tenant.do(http.MethodPost, i.URL()+"/check", `{"subject":"user_42","resource":"api"}`, http.StatusOK)
	require.Zero(t, i.Stop())
}

// A metric that is missing in the manual is not monitored. A documented metric that does not exist
// is worse.
func TestManualListsTheMetrics(t *testing.T) {
	t.Parallel()
	s, _ := secureSettings(t)
	s = s.With(settings{"WEIR_ENCRYPTION_KEY": seal.NewKey(), "WEIR_SNAPSHOT_FILE": filepath.Join(t.TempDir(), "snapshot")})
	i := start(t, s).AwaitReady()
	tenant := newTenant(t, s, i)
	tenant.putRule("api", `{"resource":"api","limit":1,"window":"1h"}`, i)
	tenant.do(http.MethodPost, i.URL()+"/check", `{"subject":"user_42","nonsense":1}`, http.StatusBadRequest)
	exported := names(`(?m)^# TYPE (weir_[a-z_]+) `, i.Metrics())
	documented := names("(?m)^\\| `(weir_[a-z_]+)(?:\\{[a-z_,]+\\})?` \\|", operations(t))
	require.NotEmpty(t, exported)
	for name := range exported {
		require.Contains(t, documented, name, "exported, but not in the manual")
	}
	for name := range documented {
		require.Contains(t, exported, name, "in the manual, but not exported")
	}
}

func names(pattern, text string) map[string]bool {
	found := map[string]bool{}
	for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
		found[match[1]] = true
	}
	return found
}

// The glossary lists the fields of a rule by the names and labels that the product uses.
func TestGlossaryListsRuleFields(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "glossary.md"))
	require.NoError(t, err)
	_, rules, found := strings.Cut(string(content), "**Rules**")
	require.True(t, found)
	rules, _, _ = strings.Cut(rules, "\n**")
	var want, got []string
	for i := range limit.Fields {
		want = append(want, "| `"+limit.Fields[i].Name+"` | "+limit.Fields[i].Label+" |")
	}
	got = regexp.MustCompile("(?m)^\\| `[a-z_]+` \\| [^|]+ \\|").FindAllString(rules, -1)
	require.ElementsMatch(t, want, got)
}
