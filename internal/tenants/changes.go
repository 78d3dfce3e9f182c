package tenants

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

// Change says that parts of a tenant's configuration are, or may be, at other versions than was
// told before.
type Change struct {
	Tenant          uuid.UUID
	PolicyVersion   int64
	SubjectsVersion int64
	KeysVersion     int64
	Gone            bool // the tenant was deleted; the versions are void
	// Reload: the database went back or was replaced (a restored backup), so what was loaded
	// before may be of another history, even at an equal version.
	Reload bool
}

const (
	compareEvery = 500 * time.Millisecond
	// compareGap bounds how often notifications make us read: anyone who can connect to the
	// database can send them.
	compareGap   = 20 * time.Millisecond
	maxBackOff   = time.Second
	notifyPeriod = 10 * time.Second // how long a listener may hear nothing before its connection is tried
)

// Watcher learns of changes: at once by notification, and where one was lost by comparing the
// one version number every 500 ms. The comparison has nothing to do with the listener's health.
type Watcher struct {
	store   *Store
	listen  *pgx.ConnConfig
	every   time.Duration
	wake    chan struct{}
	full    atomic.Bool // the next comparison looks at all tenants
	success atomic.Int64
	ready   chan struct{}
	once    sync.Once

	// listening is told the back end's process id whenever a listener has begun; for tests.
	listening func(pid uint32)

	// What was told last. Only the comparing goroutine touches it.
	epoch   uuid.UUID
	version int64
	known   map[uuid.UUID]told
	round   uint32 // of full comparisons
}

// told is what was told last of a tenant. There is one for each that there is, loaded or not.
type told struct {
	policy, subjects, keys int64
	round                  uint32 // in which full comparison it was last there
}

func (c Change) told() told {
	return told{policy: c.PolicyVersion, subjects: c.SubjectsVersion, keys: c.KeysVersion}
}

func newWatcher(s *Store, listen *pgx.ConnConfig) *Watcher {
	return &Watcher{
		store: s, listen: listen, every: compareEvery, wake: make(chan struct{}, 1), ready: make(chan struct{}),
		listening: func(uint32) {}, known: map[uuid.UUID]told{},
	}
}

// Watcher returns the store's watcher, which Watch runs.
func (s *Store) Watcher() *Watcher { return s.watcher }

// Watch calls notify for each tenant that was changed, one at a time, until ctx ends, and returns
// nil then. The first comparison tells every tenant, and so does the first after the database
// went back. It bears outages of Postgres. notify must not block for long: the next change waits
// for it. Call Watch once.
func (s *Store) Watch(ctx context.Context, notify func(Change)) error {
	var all sync.WaitGroup
	all.Go(func() { s.watcher.listenForever(ctx) })
	s.watcher.compareForever(ctx, notify)
	all.Wait()
	return nil
}

// Versions returns at which versions a tenant's configuration is now, as a Change that says so. It
// fails with ErrNotFound and ErrUnavailable.
func (s *Store) Versions(ctx context.Context, tenant uuid.UUID) (c Change, err error) {
	err = s.asSystem(ctx, lookupTimeout, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		head, err := q.TenantByID(ctx, tenant)
		c = Change{
			Tenant: tenant, PolicyVersion: head.PolicyVersion, SubjectsVersion: head.SubjectsVersion, KeysVersion: head.KeysVersion,
		}
		return err
	})
	return c, err
}

// Age returns how long ago the configuration was last found to be what was told, or -1 where it
// never was.
func (w *Watcher) Age() time.Duration {
	last := w.success.Load()
	if last == 0 {
		return -1
	}
	return time.Since(processStart) - time.Duration(last)
}

// Ready is closed when the first comparison has succeeded.
func (w *Watcher) Ready() <-chan struct{} { return w.ready }

// processStart makes Age a matter of the monotonic clock: a jump of the machine's time must not
// make the configuration look stale.
var processStart = time.Now()

func (w *Watcher) listenForever(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; failures++ {
		heard, err := w.listenOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if heard {
			failures = 0
		}
		w.store.log.WarnContext(ctx, "listener for changes lost its connection", "error", err)
		pause(ctx, backOff(failures))
	}
}

// backOff returns 50 ms, 100 ms, ... up to maxBackOff, less up to a half by chance.
func backOff(failures int) time.Duration {
	d := min(50*time.Millisecond<<min(failures, 10), maxBackOff)
	return d/2 + rand.N(d/2+1) // spreads reconnections, hides nothing
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// listenOnce listens on one connection until it breaks. heard tells whether it got so far.
func (w *Watcher) listenOnce(ctx context.Context) (heard bool, err error) {
	config := w.listen.Copy()
	config.RuntimeParams["application_name"] = "weir_listener"
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return false, err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTimeout)
		defer cancel()
		_ = conn.Close(closing) // broken or not, it is of no more use
	}()
	if _, err := conn.Exec(ctx, "LISTEN weir_changes"); err != nil {
		return false, err
	}
	w.listening(conn.PgConn().PID())
	// What changed while nobody listened was not told.
	w.full.Store(true)
	w.poke()
	for {
		waiting, cancel := context.WithTimeout(ctx, notifyPeriod)
		_, err := conn.WaitForNotification(waiting)
		timedOut := waiting.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err == nil:
			// The payload is only a hint: whatever it says, the tables are read.
			w.poke()
		case timedOut && !conn.IsClosed():
			alive, cancel := context.WithTimeout(ctx, connectTimeout)
			err := conn.Ping(alive)
			cancel()
			if err != nil {
				return true, err
			}
		default:
			return true, err
		}
	}
}

// poke asks for a comparison now.
func (w *Watcher) poke() {
	select {
	case w.wake <- struct{}{}:
	default: // one is asked for already
	}
}

func (w *Watcher) compareForever(ctx context.Context, notify func(Change)) {
	ticker := time.NewTicker(w.every)
	defer ticker.Stop()
	failing := false
	for {
		err := w.compare(ctx, notify)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			w.success.Store(int64(time.Since(processStart)))
			w.once.Do(func() { close(w.ready) })
		case !failing:
			w.store.log.WarnContext(ctx, "cannot compare the configuration's version", "error", err)
		}
		failing = err != nil
		pause(ctx, compareGap)
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-ticker.C:
		}
	}
}

// compare reads the version, and where it is another than was told, which tenants that concerns.
func (w *Watcher) compare(ctx context.Context, notify func(Change)) error {
	full := w.full.Swap(false)
	changes, commit, err := w.read(ctx, full)
	if err != nil {
		if full {
			w.full.Store(true)
		}
		return err
	}
	commit()
	for _, change := range changes {
		notify(change)
	}
	return nil
}

// read returns what has changed, and what to call before that is told.
func (w *Watcher) read(ctx context.Context, full bool) (changes []Change, commit func(), err error) {
	commit = func() {}
	err = w.store.asSystem(ctx, operationTimeout, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		now, err := q.ConfigVersion(ctx)
		if err != nil {
			return err
		}
		first := w.epoch == uuid.Nil
		back := !first && (now.Epoch != w.epoch || now.Version < w.version)
		if now.Version == w.version && !back && !full {
			return nil
		}
		full = full || first || back
		since := w.version
		if full {
			since = 0
		}
		rows, err := q.TenantVersions(ctx, since)
		if err != nil {
			return err
		}
		w.round++
		for _, r := range rows {
			change := Change{Tenant: r.ID, PolicyVersion: r.PolicyVersion, SubjectsVersion: r.SubjectsVersion, KeysVersion: r.KeysVersion, Reload: back}
			now := change.told()
			before, known := w.known[r.ID]
			now.round = before.round
			if !known || before != now || back {
				changes = append(changes, change)
			}
			if known {
				before.round = w.round
				w.known[r.ID] = before
			}
		}
		gone, err := w.gone(ctx, q, since, full)
		if err != nil {
			return err
		}
		changes = append(changes, gone...)
		commit = func() { w.remember(now.Epoch, now.Version, changes, back) }
		return nil
	})
	return changes, commit, err
}

// gone returns the tenants that are no more: in a full comparison those that are missing, else
// those that were deleted since.
func (w *Watcher) gone(ctx context.Context, q *db.Queries, since int64, full bool) ([]Change, error) {
	var changes []Change
	if full {
		for id, last := range w.known {
			if last.round != w.round {
				changes = append(changes, Change{Tenant: id, Gone: true})
			}
		}
		return changes, nil
	}
	deleted, err := q.DeletedTenants(ctx, since)
	for _, id := range deleted {
		changes = append(changes, Change{Tenant: id, Gone: true})
	}
	return changes, err
}

func (w *Watcher) remember(epoch uuid.UUID, version int64, changes []Change, back bool) {
	w.epoch, w.version = epoch, version
	if back {
		// Before anyone is told, so that whoever reads from here on knows its reading for newer.
		w.store.history.Add(1)
	}
	for _, change := range changes {
		if change.Gone {
			delete(w.known, change.Tenant)
			w.store.loaded.forget(change.Tenant)
			continue
		}
		w.known[change.Tenant] = change.told()
	}
}
