// Package tenantstest gives each test its own database: migrated, empty, and deleted at the end of
// the test.
package tenantstest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"weir/internal/seal"
	"weir/internal/tenants"
	"weir/internal/testenv"
	"weir/migrations"
)

// passwords is the lowest cost of hashing a password. Tests sign in often, and with the default
// cost that took half of the CPU time of the dashboard's tests.
var passwords = tenants.PasswordCost{Memory: 8, Passes: 1}

// EncryptionKey is the key of all test databases.
var EncryptionKey = seal.NewKey()

// encryption encrypts the secrets of tests.
var encryption = func() *seal.Ring {
	ring, err := seal.Parse(EncryptionKey)
	if err != nil {
		panic(err)
	}
	return ring
}()

// Database is the database of one test.
type Database struct {
	URL   string // of the owner, who may use both roles
	Store *tenants.Store

	tb testing.TB
}

// New returns a new, migrated, empty database with a store. Both end with the test.
func New(tb testing.TB) *Database {
	tb.Helper()
	return NewWith(tb, tenants.Config{})
}

// NewWith is New with a configuration of the store, without its URL.
func NewWith(tb testing.TB, config tenants.Config) *Database {
	tb.Helper()
	d := &Database{URL: create(tb), tb: tb}
	config.DatabaseURL = d.URL
	d.Store = d.Open(config)
	return d
}

// Open opens another store until the test ends, as another server would. Without a URL in config it
// uses this database.
func (d *Database) Open(config tenants.Config) *tenants.Store {
	d.tb.Helper()
	if config.DatabaseURL == "" {
		config.DatabaseURL = d.URL
	}
	if config.MaxConns == 0 {
		config.MaxConns = 4
	}
	if config.Seal == nil {
		config.Seal = encryption
	}
	if config.Acquire == 0 {
		config.Acquire = 20 * time.Second // for machines that stall at times
	}
	if config.Operation == 0 {
		config.Operation = 30 * time.Second
	}
	if config.Document == 0 {
		config.Document = 5 * time.Minute
	}
	if config.Passwords == (tenants.PasswordCost{}) {
		config.Passwords = passwords
	}
	if config.Logger == nil {
		config.Logger = testenv.Logger(d.tb)
	}
	store, err := tenants.Open(context.WithoutCancel(d.tb.Context()), config)
	require.NoError(d.tb, err)
	d.tb.Cleanup(store.Close)
	return store
}

// Tenant creates a tenant and returns the system as an actor in it, the actor of its first key, and
// that key.
func (d *Database) Tenant(slug string) (system tenants.Actor, key tenants.Key) {
	d.tb.Helper()
	tenant, _, key, err := d.Store.CreateTenant(d.tb.Context(), tenants.AsOperator("test"), tenants.NewTenant{Slug: slug})
	require.NoError(d.tb, err)
	return tenants.AsSystem(tenant.ID, "test"), key
}

// Actor returns the actor of a key.
func (d *Database) Actor(key tenants.Key) tenants.Actor {
	d.tb.Helper()
	actor, err := tenants.NewAuthenticator(d.Store).Authenticate(d.tb.Context(), key.Secret())
	require.NoError(d.tb, err)
	return actor
}

// Exec runs statements as the owner.
func (d *Database) Exec(statement string, args ...any) {
	d.tb.Helper()
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		_, err := conn.Exec(ctx, statement, args...)
		require.NoError(d.tb, err)
	})
}

// Conn runs fn with a connection of the owner's.
func (d *Database) Conn(fn func(ctx context.Context, conn *pgx.Conn)) {
	d.tb.Helper()
	ctx := context.WithoutCancel(d.tb.Context())
	conn, err := pgx.Connect(ctx, d.URL)
	require.NoError(d.tb, err)
	defer conn.Close(ctx)
	fn(ctx, conn)
}

// create clones the template into a new database and returns its URL.
func create(tb testing.TB) string {
	tb.Helper()
	server := testenv.DatabaseURL(tb)
	template, err := template(server)
	require.NoError(tb, err, "prepare the template of test databases")
	name := "weir_test_" + strings.ToLower(rand.Text())
	require.NoError(tb, admin(server, cloneSQL(name, template)))
	tb.Cleanup(func() {
		require.NoError(tb, admin(server, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"))
	})
	return withDatabase(server, name)
}

// cloneSQL clones by copying files, which takes a third of the CPU time of the default, which also
// writes each page to the log.
func cloneSQL(name, template string) string {
	return fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s STRATEGY file_copy", name, template)
}

// template returns the name of a migrated database to clone. The name contains a hash of the
// schema, so that it is created once for each schema, by the first test process.
var template = func() func(server string) (string, error) {
	var mu sync.Mutex
	done := map[string]string{}
	return func(server string) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if name, ok := done[server]; ok {
			return name, nil
		}
		name, err := ensureTemplate(server)
		if err == nil {
			done[server] = name
		}
		return name, err
	}
}()

// templateLock is an advisory lock that is held while a template is created.
const templateLock = 7_305_417

func ensureTemplate(server string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	name, err := templateName()
	if err != nil {
		return "", err
	}
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx) // releases the lock, too
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", templateLock); err != nil {
		return "", err
	}
	var ready bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&ready); err != nil || ready {
		return name, err
	}
	// The database has another name until it is complete, because other processes use it once it
	// exists.
	making := name + "_making"
	if _, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+making+" WITH (FORCE)"); err != nil {
		return "", err
	}
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+making); err != nil {
		return "", err
	}
	if err := migrations.Up(ctx, withDatabase(server, making)); err != nil {
		return "", err
	}
	_, err = conn.Exec(ctx, "ALTER DATABASE "+making+" RENAME TO "+name)
	return name, err
}

func templateName() (string, error) {
	hash := sha256.New()
	err := fs.WalkDir(migrations.FS, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(migrations.FS, path)
		fmt.Fprintf(hash, "%s %d ", path, len(content))
		hash.Write(content)
		return err
	})
	return "weir_template_" + hex.EncodeToString(hash.Sum(nil)[:8]), err
}

// patience is the timeout of creating and deleting a database, also of waiting for others that do.
const patience = 5 * time.Minute

// admin runs a statement on the server's own database. A clone fails while another one reads the
// template (55006, object in use), so it is retried.
func admin(server, statement string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for {
		_, err := conn.Exec(ctx, statement)
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Code != "55006" {
			return err
		}
		if _, err := conn.Exec(ctx, "SELECT pg_sleep(0.01)"); err != nil {
			return err
		}
	}
}

func withDatabase(server, name string) string {
	u, err := url.Parse(server)
	if err != nil {
		panic(fmt.Sprintf("tenantstest: the server's URL: %v", err))
	}
	u.Path = "/" + name
	return u.String()
}
