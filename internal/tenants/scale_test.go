package tenants_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

func newPolicies(s *tenants.Store) *check.Policies {
	return check.NewPolicies(s, check.NewKeys([16]byte{1}), slog.New(slog.DiscardHandler), check.NewMetrics(prometheus.NewRegistry()))
}

// manyTenants adds tenants without traffic, with a rule and a key each.
func manyTenants(d *tenantstest.Database, count int) {
	d.Exec(`INSERT INTO tenants (id, slug, version, policy_version, subjects_version, keys_version)
		SELECT md5('t' || n)::uuid, 'many-' || n, 1, 1, 1, 1 FROM generate_series(1, $1::int) n`, count)
	d.Exec(`INSERT INTO api_keys (tenant_id, id, kind, scopes, hash, last4, version)
		SELECT md5('t' || n)::uuid, md5('k' || n)::uuid, 'key', '{check}', sha256(('k' || n)::bytea), 'last', 1 FROM generate_series(1, $1::int) n`, count)
}

// follow runs what the server runs to follow changes, and returns when it has started.
func follow(t *testing.T, s *tenants.Store, policies *check.Policies) *tenants.Authenticator {
	t.Helper()
	auth := tenants.NewAuthenticator(s)
	require.NoError(t, auth.Load(t.Context()))
	listening := make(chan uint32, 100)
	s.Watcher().OnListening(func(pid uint32) { listening <- pid })
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() {
		ended <- s.Watch(ctx, func(c tenants.Change) {
			auth.Apply(ctx, c)
			switch {
			case c.Gone:
				policies.Gone(c.Tenant)
			case c.Reload:
				policies.Reload(c.Tenant)
			default:
				policies.Changed(c.Tenant, c.PolicyVersion, c.SubjectsVersion)
			}
		})
	}()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	<-s.Watcher().Ready()
	<-listening
	return auth
}

func limitIs(t *testing.T, policies *check.Policies, a tenants.Actor, limit int64) func() bool {
	return func() bool {
		policy, err := policies.Get(t.Context(), a.TenantID())
		require.NoError(t, err)
		for r := range policy.EachRule() {
			return r.Limit == limit
		}
		return false
	}
}

// onceEach reports whether there were queries, and each of them was sent once.
func onceEach(asked map[string]int) bool {
	for _, n := range asked {
		if n != 1 {
			return false
		}
	}
	return len(asked) > 0
}

// A change causes the same queries for any number of tenants, and none about a tenant that is not
// in memory except for its versions.
func TestAChangeCostsTheSameAmongManyTenants(t *testing.T) {
	t.Parallel()
	var asked []map[string]int
	for _, others := range []int{0, 3000} {
		d, a, b := two(t)
		mustRule(t, d.Store, a, limited(rule("api"), 1))
		mustRule(t, d.Store, b, limited(rule("api"), 1))
		manyTenants(d, others)
		counting := newCounting(t, d.URL)
		s := d.Open(tenants.Config{DatabaseURL: counting.url})
		policies := newPolicies(s)
		follow(t, s, policies)
		for limit := range int64(2) { // until the comparison of all tenants, with which a listener begins, has ended
			_, _, err := d.Store.PutRule(t.Context(), a, limited(rule("api"), 10+limit), tenants.Match{})
			require.NoError(t, err)
			require.Eventually(t, limitIs(t, policies, a, 10+limit), time.Minute, time.Millisecond)
		}
		require.NoError(t, policies.Settle(t.Context(), a.TenantID())) // no other read of them is running
		// Twice a second the versions are compared without a change, too, maybe just then.
		changed := map[string]int{}
		for limit := int64(100); limit < 120 && !onceEach(changed); limit++ {
			counting.take()
			_, _, err := d.Store.PutRule(t.Context(), a, limited(rule("api"), limit), tenants.Match{})
			require.NoError(t, err)
			require.Eventually(t, limitIs(t, policies, a, limit), time.Minute, time.Millisecond)
			changed = counting.take()
			require.Equal(t, 1, changed["FROM rules"], "%v", changed)
		}
		require.True(t, onceEach(changed), "%v", changed)

		heard := versionsOf(t, d, b).config
		_, _, err := d.Store.PutRule(t.Context(), b, limited(rule("api"), 2), tenants.Match{})
		require.NoError(t, err)
		// It is seen when the next change of a is, because changes are in order.
		_, _, err = d.Store.PutRule(t.Context(), a, limited(rule("api"), 3), tenants.Match{})
		require.NoError(t, err)
		require.Eventually(t, limitIs(t, policies, a, 3), time.Minute, time.Millisecond)
		require.Greater(t, versionsOf(t, d, b).config, heard)
		other := counting.take()
		require.Equal(t, 1, other["FROM rules"], "the rules of b are not read: %v", other)
		asked = append(asked, changed)
	}
	require.Equal(t, asked[0], asked[1])
}

// Tenants that do not fit are evicted, and are loaded again with their changes.
func TestPoliciesPageInFromPostgres(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	actors := make([]tenants.Actor, 12)
	for i := range actors {
		actors[i], _ = d.Tenant(fmt.Sprintf("tenant-%d", i))
		mustRule(t, d.Store, actors[i], limited(rule("api"), 1))
		d.Exec(`INSERT INTO subjects (tenant_id, subject, id, state, version)
			SELECT $1, 'customer' || lpad(n::text, 8, '0'), gen_random_uuid(), 'blocked', 1 FROM generate_series(1, 3000) n`, actors[i].TenantID())
	}
	policies := newPolicies(d.Store)
	policies.Limit(400_000) // space for four of them
	follow(t, d.Store, policies)
	for _, a := range actors {
		require.True(t, limitIs(t, policies, a, 1)())
	}
	loaded := 0
	for _, a := range actors {
		if policies.Loaded(a.TenantID()) != nil {
			loaded++
		}
	}
	require.Less(t, loaded, len(actors), "some are evicted")
	_, _, err := d.Store.PutRule(t.Context(), actors[0], limited(rule("api"), 2), tenants.Match{})
	require.NoError(t, err)
	require.NoError(t, d.Store.DeleteSubject(t.Context(), actors[0], "customer00000001", tenants.Match{}))
	_, _, err = d.Store.PutSubject(t.Context(), actors[0], tenants.Subject{Subject: "customer00000002", State: check.Exempt}, tenants.Match{})
	require.NoError(t, err)
	// At its first check, if it was evicted as it should be. On a slow machine it may be in memory
	// again, and then follows soon.
	require.Eventually(t, limitIs(t, policies, actors[0], 2), time.Minute, time.Millisecond)
	require.Eventually(t, func() bool {
		policy, err := policies.Get(t.Context(), actors[0].TenantID())
		require.NoError(t, err)
		_, deleted := policy.Subject("customer00000001")
		changed, registered := policy.Subject("customer00000002")
		_, last := policy.Subject("customer00003000")
		return !deleted && registered && changed.State == check.Exempt && last
	}, time.Minute, time.Millisecond)

	// and its changes are applied again
	_, _, err = d.Store.PutRule(t.Context(), actors[0], limited(rule("api"), 3), tenants.Match{})
	require.NoError(t, err)
	require.Eventually(t, limitIs(t, policies, actors[0], 3), time.Minute, time.Millisecond)
}

// While Postgres is unavailable, tenants in memory are served, with all keys. Other tenants get an
// error, and are served afterwards.
func TestManyTenantsWhilePostgresIsUnavailable(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	a, keyA := d.Tenant("tenant-a")
	b, keyB := d.Tenant("tenant-b")
	mustRule(t, d.Store, a, limited(rule("api"), 1))
	mustRule(t, d.Store, b, limited(rule("api"), 1))
	p := newProxy(t, d.URL)
	s := d.Open(tenants.Config{DatabaseURL: p.url})
	policies := newPolicies(s)
	auth := follow(t, s, policies)
	require.True(t, limitIs(t, policies, a, 1)())
	p.cut()
	for _, key := range []tenants.Key{keyA, keyB} {
		_, err := auth.Authenticate(t.Context(), key.Secret())
		require.NoError(t, err)
	}
	require.True(t, limitIs(t, policies, a, 1)())
	_, err := policies.Get(t.Context(), b.TenantID())
	require.ErrorIs(t, err, tenants.ErrUnavailable)
	p.restore()
	require.Eventually(t, func() bool {
		_, err := policies.Get(t.Context(), b.TenantID())
		return err == nil
	}, time.Minute, 10*time.Millisecond)
}

// After a restore all keys are read at once, not tenant by tenant, which would take minutes with
// many tenants.
func TestRestoreReadsAllKeysAtOnce(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	_, key := d.Tenant("tenant-c")
	manyTenants(d, 500)
	counting := newCounting(t, d.URL)
	s := d.Open(tenants.Config{DatabaseURL: counting.url})
	auth := follow(t, s, newPolicies(s))
	require.Equal(t, 1, counting.take()["FROM tenants t LEFT JOIN api_keys"])
	d.Exec("UPDATE api_keys SET revoked_at = now() WHERE tenant_id <> $1", a.TenantID())
	d.Exec("UPDATE config_version SET epoch = gen_random_uuid()")
	require.Eventually(t, func() bool {
		_, err := auth.Authenticate(t.Context(), key.Secret())
		return err == tenants.ErrKeyRevoked // exactly this one
	}, time.Minute, 5*time.Millisecond)
	asked := counting.take()
	require.Equal(t, 1, asked["FROM tenants t LEFT JOIN api_keys"], "%v", asked)
	require.Zero(t, asked["WHERE k.tenant_id"], "%v", asked)
}

// Tenants whose keys were used last come first.
func TestTenantsByUse(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	c, _ := d.Tenant("tenant-c")
	gone, _ := d.Tenant("tenant-d")
	d.Exec("UPDATE tenants SET state = 'suspended' WHERE id = $1", gone.TenantID())
	d.Exec("UPDATE api_keys SET last_used_at = now() - interval '1 hour' WHERE tenant_id = $1", c.TenantID())
	d.Exec("UPDATE api_keys SET last_used_at = now() WHERE tenant_id IN ($1, $2)", a.TenantID(), gone.TenantID())
	list, err := d.Store.TenantsByUse(t.Context())
	require.NoError(t, err)
	var ids []uuid.UUID
	for _, change := range list {
		ids = append(ids, change.Tenant)
		now, err := d.Store.Versions(t.Context(), change.Tenant)
		require.NoError(t, err)
		require.Equal(t, now, change)
	}
	require.Equal(t, []uuid.UUID{a.TenantID(), c.TenantID(), b.TenantID()}, ids)
}

// counting is a connection to Postgres that counts statements.
type counting struct {
	url   string
	mu    sync.Mutex
	asked map[string]int // by a part of the statement
}

// countedParts identify statements. Those of the comparison every half second are not counted.
var countedParts = []string{
	"changed_version", "deleted_tenants", "FROM rules", "FROM plans", "FROM plan_limits", "FROM subjects", "FROM subject_tombstones",
	"FROM tenants t LEFT JOIN api_keys", "WHERE k.tenant_id", "policy_version, subjects_version, subjects_history_from",
}

func newCounting(t *testing.T, databaseURL string) *counting {
	t.Helper()
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	c := &counting{asked: map[string]int{}}
	to := u.Host
	u.Host = listener.Addr().String()
	c.url = u.String()
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				_ = client.Close()
				continue
			}
			go func() { _, _ = io.Copy(client, server); _ = client.Close() }()
			go func() { c.read(client, server); _ = server.Close() }()
		}
	}()
	return c
}

// read forwards the messages of a client, and counts the executions of statements.
func (c *counting) read(client io.Reader, server io.Writer) {
	statements, bound := map[string]string{}, ""
	head := make([]byte, 5)
	first := true // the first message has no type
	for {
		from := head
		if first {
			from = head[1:]
		}
		if _, err := io.ReadFull(client, from); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(client, body); err != nil {
			return
		}
		parts := strings.Split(string(body), "\x00")
		switch kind := head[0]; {
		case first:
		case kind == 'P':
			statements[parts[0]] = parts[1]
		case kind == 'B':
			bound = statements[parts[1]]
		case kind == 'E':
			c.count(bound)
		case kind == 'Q':
			c.count(parts[0])
		}
		if _, err := server.Write(bytes.Join([][]byte{from, body}, nil)); err != nil {
			return
		}
		first = false
	}
}

func (c *counting) count(statement string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	statement = strings.Join(strings.Fields(statement), " ")
	for _, part := range countedParts {
		if strings.Contains(statement, part) {
			c.asked[part]++
		}
	}
}

// take returns the counts since the last call.
func (c *counting) take() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	asked := c.asked
	c.asked = map[string]int{}
	return asked
}
