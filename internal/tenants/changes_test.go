package tenants_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// watched runs a watcher and stores its notifications.
type watched struct {
	t        *testing.T
	store    *tenants.Store
	mu       sync.Mutex
	latest   map[uuid.UUID]tenants.Change
	all      []tenants.Change
	reported chan struct{} // something was reported
	listens  chan uint32   // a listener has begun, as this back end
	stop     func()        // and wait for the end
}

func watch(t *testing.T, s *tenants.Store) *watched {
	t.Helper()
	w := &watched{t: t, store: s, latest: map[uuid.UUID]tenants.Change{}, reported: make(chan struct{}, 1), listens: make(chan uint32, 100)}
	s.Watcher().OnListening(func(pid uint32) { w.listens <- pid })
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() {
		ended <- s.Watch(ctx, func(c tenants.Change) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.latest[c.Tenant] = c
			w.all = append(w.all, c)
			select {
			case w.reported <- struct{}{}:
			default:
			}
		})
	}()
	w.stop = sync.OnceFunc(func() {
		stop()
		require.NoError(t, <-ended)
	})
	t.Cleanup(w.stop)
	return w
}

// until waits for a change of the tenant that satisfies ok.
func (w *watched) until(tenant uuid.UUID, ok func(tenants.Change) bool) {
	w.t.Helper()
	deadline := time.After(time.Minute)
	for {
		w.mu.Lock()
		c, known := w.latest[tenant]
		w.mu.Unlock()
		if known && ok(c) {
			return
		}
		select {
		case <-w.reported:
		case <-deadline:
			require.Fail(w.t, "the change was never reported", "last: %+v", c)
		}
	}
}

func (w *watched) listening() uint32 {
	w.t.Helper()
	select {
	case pid := <-w.listens:
		return pid
	case <-time.After(time.Minute):
		require.Fail(w.t, "no listener began")
		return 0
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	require.Negative(t, d.Store.Watcher().Age())
	w := watch(t, d.Store)
	select {
	case <-d.Store.Watcher().Ready():
	case <-time.After(time.Minute):
		require.Fail(t, "not ready")
	}
	w.until(b.TenantID(), func(tenants.Change) bool { return true })
	require.Less(t, d.Store.Watcher().Age(), 20*time.Second)
	w.listening()
	was := versionsOf(t, d, b)
	r := mustRule(t, d.Store, a, rule("r"))
	w.until(a.TenantID(), func(c tenants.Change) bool { return c.PolicyVersion == r.Version })
	subject := mustSubject(t, d.Store, a, tenants.Subject{Subject: "alice"})
	w.until(a.TenantID(), func(c tenants.Change) bool {
		return c.SubjectsVersion == subject.Version && c.PolicyVersion == r.Version
	})
	key, _, err := d.Store.CreateKey(t.Context(), a, tenants.NewAPIKey{Scopes: tenants.AllScopes})
	require.NoError(t, err)
	w.until(a.TenantID(), func(c tenants.Change) bool { return c.KeysVersion == key.Version })
	fresh, _ := d.Tenant("tenant-c")
	w.until(fresh.TenantID(), func(c tenants.Change) bool { return !c.Gone })
	require.NoError(t, d.Store.DeleteTenant(t.Context(), operator, "tenant-a", tenants.Match{}))
	w.until(a.TenantID(), func(c tenants.Change) bool { return c.Gone })
	w.until(b.TenantID(), func(c tenants.Change) bool {
		return c == tenants.Change{Tenant: b.TenantID(), PolicyVersion: was.policy, SubjectsVersion: was.subjects, KeysVersion: was.keys}
	})
}

// If every notification is lost, a change is still detected within a second.
func TestWatchWithoutNotifications(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	other := tenantstest.New(t) // no notifications arrive there
	s := d.Open(tenants.Config{ListenURL: other.URL})
	w := watch(t, s)
	w.listening()
	w.until(a.TenantID(), func(tenants.Change) bool { return true })
	for i := range 3 {
		changed, _, err := d.Store.PutRule(t.Context(), a, limited(rule("r"), int64(i+1)), tenants.Match{})
		require.NoError(t, err)
		w.until(a.TenantID(), func(c tenants.Change) bool { return c.PolicyVersion == changed.Version })
	}
}

func limited(r limit.Rule, lim int64) limit.Rule {
	r.Limit = lim
	return r
}

// The listener's connection may be terminated at any time.
func TestWatchListenerKilled(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	w := watch(t, d.Store)
	for i := range 3 {
		pid := w.listening()
		d.Exec("SELECT pg_terminate_backend($1)", pid)
		changed, _, err := d.Store.PutRule(t.Context(), a, limited(rule("r"), int64(i+1)), tenants.Match{})
		require.NoError(t, err)
		w.until(a.TenantID(), func(c tenants.Change) bool { return c.PolicyVersion == changed.Version })
	}
	w.listening()
}

// While Postgres is unavailable, the age grows. When it is available again, all changes are
// reported.
func TestWatchOutage(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	p := newProxy(t, d.URL)
	s := d.Open(tenants.Config{DatabaseURL: p.url})
	w := watch(t, s)
	w.listening()
	w.until(a.TenantID(), func(tenants.Change) bool { return true })
	w.until(b.TenantID(), func(tenants.Change) bool { return true })
	p.cut()
	changed := mustRule(t, d.Store, a, rule("r"))
	require.NoError(t, d.Store.DeleteTenant(t.Context(), operator, "tenant-b", tenants.Match{}))
	require.Eventually(t, func() bool { return s.Watcher().Age() > time.Second }, time.Minute, 10*time.Millisecond)
	p.restore()
	w.until(a.TenantID(), func(c tenants.Change) bool { return c.PolicyVersion == changed.Version })
	w.until(b.TenantID(), func(c tenants.Change) bool { return c.Gone })
	require.Eventually(t, func() bool { return s.Watcher().Age() < time.Second }, time.Minute, 10*time.Millisecond)
}

// After the restore of a backup, instances follow the database, even if its versions are equal to
// those that they know.
func TestWatchRestore(t *testing.T) {
	t.Parallel()
	for name, restore := range map[string]string{
		"version goes back": "UPDATE config_version SET version = version - 1",
		"another epoch":     "UPDATE config_version SET epoch = gen_random_uuid()",
	} {
		d, a, b := two(t)
		mustSubject(t, d.Store, a, tenants.Subject{Subject: "alice"})
		nothing := func(check.SubjectData) {}
		upTo, err := d.Store.LoadSubjects(t.Context(), a.TenantID(), 0, nothing)
		require.NoError(t, err)
		_, err = d.Store.LoadSubjects(t.Context(), a.TenantID(), upTo, nothing)
		require.NoError(t, err)
		w := watch(t, d.Store)
		w.listening()
		w.until(a.TenantID(), func(c tenants.Change) bool { return !c.Reload })
		w.until(b.TenantID(), func(c tenants.Change) bool { return !c.Reload })
		d.Exec(restore)
		w.until(a.TenantID(), func(c tenants.Change) bool { return c.Reload })
		w.until(b.TenantID(), func(c tenants.Change) bool { return c.Reload })
		_, err = d.Store.LoadSubjects(t.Context(), a.TenantID(), upTo, nothing)
		require.ErrorIs(t, err, check.ErrHistoryGone, name)
		_, err = d.Store.LoadSubjects(t.Context(), a.TenantID(), 0, nothing)
		require.NoError(t, err)
		_, err = d.Store.LoadSubjects(t.Context(), a.TenantID(), upTo, nothing)
		require.NoError(t, err)
	}
}

// After a restore, a key works or not as in the restored database, whatever the instance had read,
// and also if it had looked up the key.
func TestRestoreBringsKeyBack(t *testing.T) {
	t.Parallel()
	for _, most := range []int{10, 0} {
		t.Run(fmt.Sprintf("keys of %d tenants are read", most), func(t *testing.T) { restoreBringsKeyBack(t, most) })
	}
}

func restoreBringsKeyBack(t *testing.T, most int) {
	t.Parallel()
	d := tenantstest.New(t)
	a, key := d.Tenant("tenant-a")
	auth := tenants.NewAuthenticator(d.Store)
	auth.ReadAtMost(most)
	require.NoError(t, auth.Load(t.Context()))
	list, _, err := d.Store.Keys(t.Context(), a, tenants.Page{})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- d.Store.Watch(ctx, func(c tenants.Change) { auth.Apply(ctx, c) }) }()
	answers := func(want error) {
		t.Helper()
		require.Eventually(t, func() bool {
			_, err := auth.Authenticate(t.Context(), key.Secret())
			return err == want // nil, or exactly this one
		}, time.Minute, 5*time.Millisecond)
	}
	answers(nil)
	before := versionsOf(t, d, a)
	require.NoError(t, d.Store.RevokeKey(t.Context(), a, list[0].ID, tenants.Match{}))
	answers(tenants.ErrKeyRevoked)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		_, err := conn.Exec(ctx, "UPDATE api_keys SET revoked_at = NULL, version = 1")
		require.NoError(t, err)
		_, err = conn.Exec(ctx, "UPDATE tenants SET keys_version = $1", before.keys)
		require.NoError(t, err)
		_, err = conn.Exec(ctx, "UPDATE config_version SET version = $1", before.config)
		require.NoError(t, err)
	})
	answers(nil)
	stop()
	require.NoError(t, <-ended)
}

// Changes become visible in the order of their versions: a reader that has seen one has seen all
// before it, with any number of concurrent writers.
func TestVersionsBecomeVisibleInOrder(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	ctx, stop := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for i, actor := range []tenants.Actor{a, b, a, b} {
		writers.Go(func() {
			for n := 0; n < 25; n++ {
				name := string(rune('a'+i)) + string(rune('a'+n))
				_, _, err := d.Store.PutSubject(t.Context(), actor, tenants.Subject{Subject: name}, tenants.Match{})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	go func() {
		writers.Wait()
		stop()
	}()
	seen := map[int64]bool{} // versions of subjects that a reader has seen
	d.Conn(func(background context.Context, conn *pgx.Conn) {
		for done := false; !done; {
			done = ctx.Err() != nil // read once more after the last write
			var last int64
			rows, err := conn.Query(background, "SELECT version FROM subjects UNION ALL SELECT -version FROM config_version")
			require.NoError(t, err)
			found, err := pgx.CollectRows(rows, pgx.RowTo[int64])
			require.NoError(t, err)
			now := map[int64]bool{}
			for _, v := range found {
				if v < 0 {
					last = -v
				} else {
					now[v] = true
				}
			}
			for v := range now {
				require.LessOrEqual(t, v, last)
				for between := v; between <= last; between++ {
					require.True(t, now[between], "version %d of %d was not visible yet", between, last)
				}
			}
			seen = now
		}
	})
	require.Len(t, seen, 100)
}
