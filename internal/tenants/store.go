package tenants

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	pgxuuid "github.com/vgarvardt/pgx-google-uuid/v5"

	"weir/internal/check"
	"weir/internal/places"
	"weir/internal/seal"
	"weir/internal/tenants/db"
	"weir/internal/throttle"
)

// Timeouts of a request for Postgres.
const (
	connectTimeout   = time.Second
	acquireTimeout   = time.Second     // for a connection of the pool, unless Config has another value
	operationTimeout = 5 * time.Second // for one operation in total, unless Config has another value
	loadTimeout      = time.Minute     // for reading a whole tenant, outside of requests
)

// Config has the settings of a Store.
type Config struct {
	// DatabaseURL is for a login that is a member of weir_app and weir_system. A pooler in front of
	// Postgres must preserve sessions, because role and timeouts are set once per connection.
	DatabaseURL string
	ListenURL   string           // for LISTEN, if DatabaseURL has a pooler; "" for DatabaseURL
	MaxConns    int32            // of each of the two roles; 0: 8
	Acquire     time.Duration    // how long an operation waits for a connection; 0: a second
	Operation   time.Duration    // for one operation in total; 0: five seconds
	Document    time.Duration    // for applying a document; 0: DocumentTimeout
	WriteRates  WriteRates       // of each tenant; the zero value: no limit
	Volume      BillingVolume    // of each tenant and day
	AuditDay    int64            // bytes that a tenant's changes may add to its trail in a day; 0: DefaultAuditDay
	Now         func() time.Time // nil: time.Now
	Seal        *seal.Ring       // encrypts the secrets of billing endpoints; nil: they cannot be stored
	Passwords   PasswordCost     // the zero value: DefaultPasswordCost; tests use a lower one
	Logger      *slog.Logger     // nil: none
	SignupTier  string           // the plan of the operator's tenant of tenants of sign-ups; "": the default one
	// Credentials returns user and password for each new connection to DatabaseURL; "" for those of
	// the URL. nil: those of the URL always.
	Credentials func() (user, password string)
}

// Store has the configuration of all tenants, in Postgres. Its methods are safe for concurrent use.
// Each answers within about five seconds, with ErrUnavailable if Postgres does not answer.
type Store struct {
	app     *pool // as weir_app
	system  *pool // as weir_system
	now     func() time.Time
	clock   databaseClock
	hasher  hasher
	log     *slog.Logger
	watcher *Watcher
	writes  *writeRates
	// invitations limits them.
	invitations atomic.Pointer[throttle.Throttle]
	volume      BillingVolume
	// auditDay is how many bytes a tenant's changes may add to its trail in a day.
	auditDay int64
	seal     *seal.Ring
	// operation is the timeout of one operation, and document that for applying a document.
	operation, document time.Duration
	// history counts how often the database went back or changed to another history. Versions are
	// comparable only within one history.
	history atomic.Int64
	loaded  loadedHistories
	// largePlans is held while a policy with large plans is read.
	largePlans chan struct{}

	busyDays dayLists // for BusySubjects
	looks    sync.Map // of LookAtBilling: a startedLook for the ID of each endpoint with an unfinished one
	exports  *ExportPlaces
	long     atomic.Pointer[places.Turns[uuid.UUID]] // those of the instance for long work
	logoWait time.Duration                           // of a logo for one of them
	lineWait time.Duration                           // of lines of an import for one of them
	short    atomic.Pointer[places.Turns[uuid.UUID]] // those for short work
	listWait time.Duration                           // of reports of usage for a turn
	// turns are where the loops over tenants continue.
	turns   struct{ events, subscriptions, reconciles, looks, plans, counters, migrations, pushes, deliveries, trails, tiers, invitations, keys turn }
	metered meteredRows
	// late are the tenants that these loops have left because they were locked.
	late struct{ plans, migrations lateTenants }
	// turnTime is that of a tenant in a step of a loop of plans.
	turnTime time.Duration

	signupTier  string
	deletedPage int64 // rows of a deleted tenant that one statement deletes
	pages       loadedPages

	writers func() (alive []uuid.UUID, certain bool) // of usage; nil: nobody knows
}

// Open returns a store. It does not wait for Postgres: while Postgres is unavailable, methods fail
// with ErrUnavailable. Open fails if the URL is invalid.
func Open(ctx context.Context, config Config) (*Store, error) {
	follows := config.Now == nil
	if follows {
		config.Now = time.Now
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	listenCredentials := func() (user, password string) { return "", "" }
	if config.Credentials == nil {
		config.Credentials = listenCredentials
	}
	if config.ListenURL == "" {
		config.ListenURL, listenCredentials = config.DatabaseURL, config.Credentials
	}
	if config.MaxConns == 0 {
		config.MaxConns = 8
	}
	if config.Operation == 0 {
		config.Operation = operationTimeout
	}
	if config.Document == 0 {
		config.Document = DocumentTimeout
	}
	if config.Acquire == 0 {
		config.Acquire = acquireTimeout
	}
	if config.Passwords == (PasswordCost{}) {
		config.Passwords = DefaultPasswordCost
	}
	listen, err := connConfig(config.ListenURL, roleSystem, config.Operation)
	if err != nil {
		return nil, err
	}
	app, err := newPool(ctx, config, roleApp)
	if err != nil {
		return nil, err
	}
	system, err := newPool(ctx, config, roleSystem)
	if err != nil {
		app.Close()
		return nil, err
	}
	s := &Store{app: app, system: system, now: config.Now, hasher: hasher{config.Passwords, hashing}, log: config.Logger, writes: newWriteRates(config.WriteRates, config.Now), seal: config.Seal, operation: config.Operation, document: config.Document,
		volume: config.Volume.withDefaults(), auditDay: cmp.Or(config.AuditDay, DefaultAuditDay),
		exports: newExports(int(config.MaxConns), config.Now), logoWait: logoWait, lineWait: lineWait, listWait: listWait, turnTime: turnTime, largePlans: make(chan struct{}, 1),
		deletedPage: deletedPage, pages: defaultPages, signupTier: config.SignupTier, metered: meteredRows{most: maxMeteredRows, rows: map[meteredHour]int64{}}}
	s.clock.follows = follows
	s.TakeTurns(places.NewProcessors(runtime.GOMAXPROCS(0)))
	s.LimitInvitations(throttle.Memory(config.Now), check.NewKeys([16]byte{}).Private)
	s.watcher = newWatcher(s, listen)
	s.watcher.credentials = listenCredentials
	return s, nil
}

// Close closes all connections, after the operations that use them.
func (s *Store) Close() {
	s.app.Close()
	s.system.Close()
}

// Ping reports whether Postgres answers; if not, with ErrUnavailable.
func (s *Store) Ping(ctx context.Context) error {
	return s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		_, err := q.ConfigVersion(ctx)
		return err
	})
}

// The group roles of migrations/000001_roles.up.sql.
const (
	roleApp    = "weir_app"
	roleSystem = "weir_system"
)

func connConfig(databaseURL, role string, operation time.Duration) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return nil, fmt.Errorf("read the database URL: %w", err)
	}
	prepareConn(config, role, operation)
	return config, nil
}

// prepareConn sets the settings of each connection at its start, so that no statement runs without
// them: the role, and the timeouts for statements, locks and idle transactions, which follow from
// that of an operation.
func prepareConn(config *pgx.ConnConfig, role string, operation time.Duration) {
	milliseconds := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	config.ConnectTimeout = connectTimeout
	for name, value := range map[string]string{
		"role":                                role,
		"application_name":                    role,
		"timezone":                            "UTC",
		"statement_timeout":                   milliseconds(operation),
		"lock_timeout":                        milliseconds(operation * 2 / 5),
		"idle_in_transaction_session_timeout": milliseconds(2 * operation),
	} {
		config.RuntimeParams[name] = value
	}
}

// longStatements gives the statements of a transaction a minute, for those that read or write as
// much as a tenant has: on a busy database they take longer than prepareConn allows.
func longStatements(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "SET LOCAL statement_timeout = '60s'")
	return err
}

func newPool(ctx context.Context, config Config, role string) (*pool, error) {
	c, err := pgxpool.ParseConfig(config.DatabaseURL)
	if err != nil {
		return nil, fmt.Errorf("read the database URL: %w", err)
	}
	prepareConn(c.ConnConfig, role, config.Operation)
	c.ConnConfig.ConnectTimeout = max(connectTimeout, config.Acquire) // a longer wait for a connection includes the wait for a new one
	c.MaxConns = config.MaxConns
	c.MaxConnLifetime = 30 * time.Minute
	c.MaxConnLifetimeJitter = 5 * time.Minute
	c.HealthCheckPeriod = 15 * time.Second
	c.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		conn.TypeMap().RegisterType(&pgtype.Type{
			Name: "timestamptz", OID: pgtype.TimestamptzOID, Codec: &pgtype.TimestamptzCodec{ScanLocation: time.UTC},
		})
		pgxuuid.Register(conn.TypeMap()) // otherwise an id takes ten allocations, as text
		return nil
	}
	c.BeforeConnect = func(_ context.Context, conn *pgx.ConnConfig) error {
		setCredentials(conn, config.Credentials)
		return nil
	}
	p, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("open a pool of connections: %w", err)
	}
	return &pool{Pool: p, acquire: config.Acquire, turns: connectionTurns(int(config.MaxConns))}, nil
}

// connectionTurns shares the connections of a pool among the operations of tenants. Changes of a
// tenant wait for each other in Postgres, each with its connection, and a report may take seconds.
// Without a limit, a tenant that sends many of them at once would leave no connection for the
// others.
//
// A tenant uses at most half of the connections, and a quarter is only for tenants that use none.
// One is not shared, because an operation may need a second one for a moment. Further operations
// wait without a connection.
func connectionTurns(connections int) *places.Turns[uuid.UUID] {
	return places.NewTurns[uuid.UUID](connections-1, connections/2, max(1, connections/4))
}

// setCredentials sets the current user and password, unless they are those of the URL.
func setCredentials(conn *pgx.ConnConfig, credentials func() (user, password string)) {
	if user, password := credentials(); user != "" {
		conn.User, conn.Password = user, password
	}
}

// pool has connections of one role. No operation waits longer than acquire for a connection.
type pool struct {
	*pgxpool.Pool
	acquire time.Duration
	turns   *places.Turns[uuid.UUID]
}

// acquireFor takes a connection for an operation of one tenant, which gets at most half of them;
// uuid.Nil: of none or all. The caller must call release.
func (p *pool) acquireFor(ctx context.Context, tenant uuid.UUID) (conn *pgxpool.Conn, release func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, p.acquire)
	defer cancel()
	leave := func() {}
	if tenant != uuid.Nil {
		if leave, err = p.turns.Take(ctx, tenant); err != nil {
			return nil, nil, err
		}
	}
	if conn, err = p.Pool.Acquire(ctx); err != nil {
		leave()
		return nil, nil, err
	}
	return conn, func() { conn.Release(); leave() }, nil
}

// oneInstant is for transactions that only read, all of one instant.
var oneInstant = pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}

type txFunc func(ctx context.Context, tx pgx.Tx, q *db.Queries) error

// inTx runs fn for a tenant in one transaction, and releases its connection; uuid.Nil: for none or
// all. The end of ctx ends the wait for a connection and those of fn, and otherwise takes effect
// between statements.
func inTx(ctx context.Context, from *pool, tenant uuid.UUID, timeout time.Duration, options pgx.TxOptions, fn txFunc) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, release, err := from.acquireFor(ctx, tenant)
	if err != nil {
		return translate(err)
	}
	defer release()
	statements, stop := unbroken(ctx)
	defer stop()
	err = pgx.BeginTxFunc(statements, conn, options, func(tx pgx.Tx) error { return inUnbroken(ctx, statements, tx, fn) })
	return translate(err)
}

// asSystem runs fn with access to all tenants.
func (s *Store) asSystem(ctx context.Context, access pgx.TxAccessMode, fn txFunc) error {
	return s.asSystemWithin(ctx, s.operation, access, fn)
}

func (s *Store) asSystemWithin(ctx context.Context, timeout time.Duration, access pgx.TxAccessMode, fn txFunc) error {
	if access != pgx.ReadOnly {
		return s.write(ctx, roleSystem, uuid.Nil, timeout, fn)
	}
	return inTx(ctx, s.system, uuid.Nil, timeout, oneInstant, fn)
}

// readAsSystem runs fn with read access to all tenants for one of them, of whose connections it
// takes one.
func (s *Store) readAsSystem(ctx context.Context, tenant uuid.UUID, fn txFunc) error {
	return inTx(ctx, s.system, tenant, s.operation, oneInstant, fn)
}

// write runs fn for a tenant as one of the roles, in a new transaction or in that of the idempotent
// request to which it belongs; uuid.Nil: for none or all tenants.
func (s *Store) write(ctx context.Context, role string, tenant uuid.UUID, timeout time.Duration, fn txFunc) error {
	if p, ok := ctx.Value(postKey{}).(*post); ok {
		return p.run(ctx, role, timeout, fn)
	}
	pool := s.app
	if role == roleSystem {
		pool = s.system
	}
	return inTx(ctx, pool, tenant, timeout, pgx.TxOptions{}, fn)
}

// read runs fn with read access to the actor's tenant. All reads are of one instant.
func (s *Store) read(ctx context.Context, a Actor, fn txFunc) error {
	return s.readWithin(ctx, a, s.operation, fn)
}

func (s *Store) readWithin(ctx context.Context, a Actor, timeout time.Duration, fn txFunc) error {
	turn := a.tenant
	if p, ok := ctx.Value(postKey{}).(*post); ok && p.tx != nil {
		turn = uuid.Nil // its request has one already, and would wait for itself
	}
	return inTx(ctx, s.app, turn, timeout, oneInstant, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		if err := q.SetTenant(ctx, a.tenant.String()); err != nil {
			return err
		}
		return fn(ctx, tx, q)
	})
}

// Now returns the time by which scheduled changes are due.
func (s *Store) Now() time.Time { return s.instant() }

// instant returns the time in the precision of Postgres.
func (s *Store) instant() time.Time { return s.clock.now(s.now()).UTC().Truncate(time.Microsecond) }

// newID returns a new id. Ids are in the order of their creation, and so are lists.
func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

// firstID returns an id before those of objects that were created at an instant or later.
func firstID(at time.Time) (id uuid.UUID) {
	binary.BigEndian.PutUint64(id[:], uint64(at.UnixMilli())<<16) // positive
	return id
}

// Secrets are shared by all instances of a deployment.
type Secrets struct {
	CounterKey [16]byte // key of the hash for the names of counters
	CursorKey  [32]byte // signs the cursors of lists
}

// History counts how often the database went back or was replaced while this process ran. Versions
// are comparable only within one history.
func (s *Store) History() int64 { return s.history.Load() }

// Secrets returns the deployment's secrets, which the migration created.
func (s *Store) Secrets(ctx context.Context) (secrets Secrets, err error) {
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := q.Secrets(ctx)
		if err != nil {
			return err
		}
		copy(secrets.CounterKey[:], row.CounterKey)
		copy(secrets.CursorKey[:], row.CursorKey)
		return nil
	})
	if err != nil {
		return Secrets{}, fmt.Errorf("read the deployment's secrets: %w", err)
	}
	return secrets, nil
}

// Unrestricted reports whether row-level security does not restrict the login of the server: it is
// a superuser or has BYPASSRLS. Errors: ErrUnavailable.
func (s *Store) Unrestricted(ctx context.Context) (login string, unrestricted bool, err error) {
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, _ *db.Queries) error {
		const query = "SELECT rolname, rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = session_user"
		return tx.QueryRow(ctx, query).Scan(&login, &unrestricted)
	})
	return login, unrestricted, err
}

var _ check.PolicySource = (*Store)(nil)
