package tenants_test

import (
	"context"
	"crypto/rand"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// TestMain fails if a test leaves a goroutine behind, as a server that opens and closes stores
// would.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		// testenv's servers stay until the process ends
		if err := goleak.Find(goleak.IgnoreAnyFunction("os/exec.(*Cmd).Start.func2")); err != nil {
			println(err.Error())
			code = 1
		}
	}
	os.Exit(code)
}

// two returns a database with two tenants.
func two(t *testing.T) (d *tenantstest.Database, a, b tenants.Actor) {
	t.Helper()
	d = tenantstest.New(t)
	a, _ = d.Tenant("tenant-a")
	b, _ = d.Tenant("tenant-b")
	return d, a, b
}

func rule(slug string) limit.Rule {
	window, _ := limit.ParseWindow("1m")
	return limit.Rule{Slug: slug, Resource: "*", Algorithm: limit.TokenBucket, Limit: 100, Window: window, By: []string{"subject"}}
}

func window(t *testing.T, text string) limit.Window {
	t.Helper()
	w, err := limit.ParseWindow(text)
	require.NoError(t, err)
	return w
}

func duration(t *testing.T, text string) limit.Duration {
	t.Helper()
	d, err := limit.ParseDuration(text)
	require.NoError(t, err)
	return d
}

func mustRule(t *testing.T, s *tenants.Store, a tenants.Actor, r limit.Rule) tenants.Rule {
	t.Helper()
	out, err := s.CreateRule(t.Context(), a, r)
	require.NoError(t, err)
	return out
}

func mustPlan(t *testing.T, s *tenants.Store, a tenants.Actor, slug string) tenants.Plan {
	t.Helper()
	out, err := s.CreatePlan(t.Context(), a, tenants.Plan{Slug: slug})
	require.NoError(t, err)
	return out
}

func mustSubject(t *testing.T, s *tenants.Store, a tenants.Actor, in tenants.Subject) tenants.Subject {
	t.Helper()
	out, _, err := s.PutSubject(t.Context(), a, in, tenants.Match{})
	require.NoError(t, err)
	return out
}

// requireInvalid requires an InvalidError with exactly these fields.
func requireInvalid(t *testing.T, err error, fields ...string) {
	t.Helper()
	var invalid *tenants.InvalidError
	require.ErrorAs(t, err, &invalid)
	var got []string
	for _, f := range invalid.Fields {
		require.NotEmpty(t, f.Message)
		got = append(got, f.Field)
	}
	require.ElementsMatch(t, fields, got, "%v", err)
}

func requireConflict(t *testing.T, err error, code string) {
	t.Helper()
	var conflict *tenants.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, code, conflict.Code)
	require.NotEmpty(t, conflict.Detail)
}

// versions are a tenant's, and the deployment's.
type versions struct{ policy, subjects, keys, itself, config int64 }

func versionsOf(t *testing.T, d *tenantstest.Database, a tenants.Actor) (v versions) {
	t.Helper()
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		err := conn.QueryRow(ctx, `SELECT policy_version, subjects_version, keys_version, tenants.version, config_version.version
			FROM tenants, config_version WHERE id = $1`, a.TenantID()).Scan(&v.policy, &v.subjects, &v.keys, &v.itself, &v.config)
		require.NoError(t, err)
	})
	return v
}

func at(version int64) tenants.Match { return tenants.Match{Versions: []int64{version}} }

var existing = tenants.Match{Any: true}

func ptr[T any](v T) *T { return &v }

// clock is a time that only the test moves.
type clock struct{ nowMS int64 }

func (c *clock) now() time.Time { return time.UnixMilli(c.nowMS).UTC() }

// system returns the store as a source of policies.
func policyOf(t *testing.T, s *tenants.Store, tenant uuid.UUID) check.PolicyData {
	t.Helper()
	data, err := s.LoadPolicy(t.Context(), tenant)
	require.NoError(t, err)
	return data
}

// loginURL returns the URL of a login that is a member of the server's two roles and nothing else.
func loginURL(t *testing.T, d *tenantstest.Database) string {
	t.Helper()
	name := "login_" + strings.ToLower(rand.Text())
	d.Exec("CREATE ROLE " + name + " LOGIN PASSWORD 'plain' IN ROLE weir_app, weir_system")
	t.Cleanup(func() { d.Exec("DROP ROLE " + name) })
	u, err := url.Parse(d.URL)
	require.NoError(t, err)
	u.User = url.UserPassword(name, "plain")
	return u.String()
}

// lookupsOf returns a counter of the lookups that auth does from now on.
func lookupsOf(auth *tenants.Authenticator) func() int64 {
	before := auth.Lookups()
	return func() int64 { return auth.Lookups() - before }
}

// heldFill makes auth read a key, and returns a function that stores it.
func heldFill(t *testing.T, auth *tenants.Authenticator, key tenants.Key) (keep func()) {
	t.Helper()
	keep, err := auth.ReadKey(t.Context(), key)
	require.NoError(t, err)
	return keep
}

// proxy is between a store and Postgres, and can be disconnected.
type proxy struct {
	t      *testing.T
	url    string
	target string

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
	running  sync.WaitGroup
	asked    atomic.Int64 // bytes that went to Postgres
}

func newProxy(t *testing.T, databaseURL string) *proxy {
	t.Helper()
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	p := &proxy{t: t, target: u.Host}
	p.listen("127.0.0.1:0")
	u.Host = p.listener.Addr().String()
	p.url = u.String()
	t.Cleanup(func() {
		p.cut()
		p.running.Wait()
	})
	return p
}

func (p *proxy) listen(address string) {
	p.t.Helper()
	l, err := net.Listen("tcp", address)
	require.NoError(p.t, err)
	p.listener, p.conns = l, map[net.Conn]bool{}
	p.running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", p.target)
			if err != nil {
				_ = client.Close()
				continue
			}
			p.mu.Lock()
			p.conns[client], p.conns[server] = true, true
			p.mu.Unlock()
			for _, pair := range []struct {
				to   net.Conn
				from io.Reader
			}{{client, server}, {server, counted{client, &p.asked}}} {
				p.running.Go(func() {
					_, _ = io.Copy(pair.to, pair.from)
					_, _ = client.Close(), server.Close()
				})
			}
		}
	})
}

// counted adds the number of read bytes to n.
type counted struct {
	io.Reader
	n *atomic.Int64
}

func (c counted) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// cut closes all connections, and refuses new ones.
func (p *proxy) cut() {
	_ = p.listener.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		_ = c.Close()
	}
}

// restore accepts connections again, at the same address.
func (p *proxy) restore() {
	p.t.Helper()
	p.listen(p.listener.Addr().String())
}

func loginName(t *testing.T, databaseURL string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	return u.User.Username()
}
