package tenants

import (
	"context"
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

// Change says that parts of a tenant's configuration have, or may have, new versions.
type Change struct {
	Tenant          uuid.UUID
	PolicyVersion   int64
	SubjectsVersion int64
	KeysVersion     int64
	Gone            bool // the tenant was deleted; the versions are undefined
	// Reload: the database went back or was replaced (a restored backup, a failover), so loaded
	// data may be of another history, even with an equal version.
	Reload bool
}

const (
	compareEvery = 500 * time.Millisecond
	// compareGap limits how often notifications cause a read, because every database client can
	// send them.
	compareGap   = 20 * time.Millisecond
	maxBackOff   = time.Second
	notifyPeriod = 10 * time.Second // how long a listener may receive nothing before its connection is tested
)

// Watcher detects changes: immediately by notification, and if one was lost, by comparing one
// version number every 500 ms. The comparison does not depend on the listener.
type Watcher struct {
	store       *Store
	listen      *pgx.ConnConfig
	credentials func() (user, password string)
	every       time.Duration
	wake        chan struct{}
	full        atomic.Bool // the next comparison includes all tenants
	success     atomic.Int64
	ready       chan struct{}
	once        sync.Once

	// listening is called with the backend's process id whenever a listener has started; for tests.
	listening func(pid uint32)

	// The last reported state. Only the comparing goroutine uses it.
	last  databaseState
	known map[uuid.UUID]reported
	round uint8 // number of full comparisons
	seed  maphash.Seed

	timelineSQL string // timelineSQL, except in tests
	blind       bool   // the timeline cannot be read, until the listener has another connection
	warned      bool   // of that
}

// reported is the last reported state of a tenant. There is one for each tenant, loaded or not, so
// it is small: 56 bits of a hash of the versions, and in the lowest byte the round of the last full
// comparison that contained the tenant. The round may wrap: a tenant that one full comparison did
// not contain is forgotten in that one.
type reported uint64

func (w *Watcher) reported(c Change) reported {
	versions := [...]int64{c.PolicyVersion, c.SubjectsVersion, c.KeysVersion}
	return reported(maphash.Comparable(w.seed, versions)).in(w.round)
}

// in returns the same state, contained in a full comparison.
func (r reported) in(round uint8) reported { return r&^0xff | reported(round) }

func newWatcher(s *Store, listen *pgx.ConnConfig) *Watcher {
	return &Watcher{
		store: s, listen: listen, every: compareEvery, wake: make(chan struct{}, 1), ready: make(chan struct{}),
		listening: func(uint32) {}, known: map[uuid.UUID]reported{}, seed: maphash.MakeSeed(),
		timelineSQL: timelineSQL,
	}
}

// Watcher returns the store's watcher, which Watch runs.
func (s *Store) Watcher() *Watcher { return s.watcher }

// Watch calls notify for each changed tenant, one at a time, until ctx ends, and then returns nil.
// The first comparison reports every tenant, and so does the first one after the database went
// back. It continues after outages of Postgres. notify must not block for long, because the next
// change waits for it. Call Watch once.
func (s *Store) Watch(ctx context.Context, notify func(Change)) error {
	var all sync.WaitGroup
	all.Go(func() { s.watcher.listenForever(ctx) })
	s.watcher.compareForever(ctx, notify)
	all.Wait()
	return nil
}

// Versions returns the current versions of a tenant's configuration, as a Change. It fails with
// ErrNotFound and ErrUnavailable.
func (s *Store) Versions(ctx context.Context, tenant uuid.UUID) (c Change, err error) {
	err = s.asSystemWithin(ctx, lookupTimeout, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		head, err := q.TenantByID(ctx, tenant)
		c = Change{
			Tenant: tenant, PolicyVersion: head.PolicyVersion, SubjectsVersion: head.SubjectsVersion, KeysVersion: head.KeysVersion,
		}
		return err
	})
	return c, err
}

// Age returns the time since the configuration was last verified to be current, or -1 before the
// first verification.
func (w *Watcher) Age() time.Duration {
	last := w.success.Load()
	if last == 0 {
		return -1
	}
	return time.Since(processStart) - time.Duration(last)
}

// Ready is closed when the first comparison has succeeded.
func (w *Watcher) Ready() <-chan struct{} { return w.ready }

// processStart makes Age independent of the wall clock: if the machine's time jumps, the
// configuration must not look stale.
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

// backOff returns 50 ms, 100 ms, ... up to maxBackOff, minus a random part of up to a half.
func backOff(failures int) time.Duration {
	d := min(50*time.Millisecond<<min(failures, 10), maxBackOff)
	return d/2 + rand.N(d/2+1) // distributes reconnections
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// listenOnce listens on one connection until it fails. heard reports whether it got that far.
func (w *Watcher) listenOnce(ctx context.Context) (heard bool, err error) {
	config := w.listen.Copy()
	config.RuntimeParams["application_name"] = "weir_listener"
	setCredentials(config, w.credentials)
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return false, err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectTimeout)
		defer cancel()
		_ = conn.Close(closing) // the connection is no longer needed
	}()
	if _, err := conn.Exec(ctx, "LISTEN weir_changes"); err != nil {
		return false, err
	}
	w.listening(conn.PgConn().PID())
	// Changes between two listeners were not notified.
	w.full.Store(true)
	w.poke()
	for {
		waiting, cancel := context.WithTimeout(ctx, notifyPeriod)
		_, err := conn.WaitForNotification(waiting)
		timedOut := waiting.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case err == nil:
			// The payload is only a hint: the tables are read in any case.
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

// poke requests a comparison.
func (w *Watcher) poke() {
	select {
	case w.wake <- struct{}{}:
	default: // a comparison is requested already
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

// compare reads the version and, if it has changed, the tenants that changed.
func (w *Watcher) compare(ctx context.Context, notify func(Change)) error {
	full := w.full.Swap(false)
	if full {
		w.blind = false // it may be another server
	}
	changes, commit, err := w.read(ctx, full)
	if w.goesBlind(ctx, err) {
		changes, commit, err = w.read(ctx, full)
	}
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

// read returns the changes, and a function to call before they are reported.
func (w *Watcher) read(ctx context.Context, full bool) (changes []Change, commit func(), err error) {
	commit = func() {}
	err = w.store.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		now, err := w.state(ctx, tx, q)
		if err != nil {
			return err
		}
		first := w.last.epoch == uuid.Nil
		back := !first && !now.follows(w.last)
		if now.version == w.last.version && !back && !full {
			return nil
		}
		full = full || first || back
		since := w.last.version
		if full {
			since = 0
		}
		rows, err := q.TenantVersions(ctx, since)
		if err != nil {
			return err
		}
		if full {
			w.round++
		}
		for _, r := range rows {
			change := Change{Tenant: r.ID, PolicyVersion: r.PolicyVersion, SubjectsVersion: r.SubjectsVersion, KeysVersion: r.KeysVersion, Reload: back}
			before, known := w.known[r.ID]
			if !known || before.in(w.round) != w.reported(change) || back {
				changes = append(changes, change)
			}
			if known {
				w.known[r.ID] = before.in(w.round)
			}
		}
		gone, err := w.gone(ctx, q, since, full)
		if err != nil {
			return err
		}
		changes = append(changes, gone...)
		commit = func() { w.remember(now, changes, back) }
		return nil
	})
	return changes, commit, err
}

// gone returns the deleted tenants: in a full comparison those that are missing, otherwise those
// that were deleted since the last one.
func (w *Watcher) gone(ctx context.Context, q *db.Queries, since int64, full bool) ([]Change, error) {
	var changes []Change
	if full {
		for id, last := range w.known {
			if last.in(w.round) != last {
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

func (w *Watcher) remember(now databaseState, changes []Change, back bool) {
	w.last = now
	if back {
		// Before changes are reported, so that a read from now on counts as newer.
		w.store.history.Add(1)
	}
	for _, change := range changes {
		if change.Gone {
			delete(w.known, change.Tenant)
			w.store.loaded.forget(change.Tenant)
			continue
		}
		w.known[change.Tenant] = w.reported(change)
	}
}
