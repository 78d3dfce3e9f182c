package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

// databaseVariable names a PostgreSQL in which this run may create its own database. scripts/dev.sh
// --test sets it.
const databaseVariable = "WEIR_TEST_DATABASE_URL"

// server is a process that answers checks, and its addresses.
type server struct {
	*process
	http, https string    // addresses
	grpc        string    // address; "" for none
	metrics     string    // URL with the number of its allocations; "" for none
	store       *store    // the store of its counters
	more        []*server // other instances, used in turn with this one
}

// all returns the server and the other instances.
func (sv *server) all() []*server { return append([]*server{sv}, sv.more...) }

// stage has all that a run starts, on loopback and with its data in its own directory.
type stage struct {
	root       string // of the checkout
	dir        string // holds all files of the run; deleted with the stage
	database   string // name
	owner      *pgx.ConnConfig
	cert       *certificate
	store      *store
	redis      *redis.Client      // of the store
	servers    map[string]*server // by name: weir, bare and those of the peers
	operator   string             // the operator key
	timeout    time.Duration      // of Weir, for Redis
	peers      bool               // whether other rate limiters are measured too
	contention bool               // whether Weir's instances profile locks and waiting
	undo       []func()
}

// Names of servers in the tables.
const (
	weirName = "weir"
	bareName = "bare"
)

// newStage builds and starts everything except Weir itself. The caller closes the stage, even after
// an error.
func newStage(ctx context.Context, o options) (*stage, error) {
	s := &stage{servers: map[string]*server{}, timeout: o.timeout, peers: o.peers, contention: o.profile != ""}
	steps := []func(context.Context) error{s.makeFolder, s.build, s.createDatabase, s.startRedis, s.migrate, s.startBare}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return s, err
		}
	}
	return s, nil
}

// close undoes all steps in reverse order.
func (s *stage) close() {
	for i := len(s.undo) - 1; i >= 0; i-- {
		s.undo[i]()
	}
	s.undo = nil
}

func (s *stage) makeFolder(context.Context) (err error) {
	if s.root, err = checkout(); err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "weir-bench-"); err != nil {
		return err
	}
	s.undo = append(s.undo, func() { _ = os.RemoveAll(s.dir) })
	s.cert, err = newCertificate(s.dir)
	return err
}

// checkout returns the root of the checkout above the working directory.
func checkout() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "cmd", "server")); err == nil {
			return dir, nil
		}
	}
	return "", errors.New("run it inside the checkout")
}

// build compiles the servers with the flags of a release.
func (s *stage) build(ctx context.Context) error {
	if err := s.compile(ctx, s.root, "./cmd/server", weirName); err != nil {
		return err
	}
	return s.compile(ctx, filepath.Join(s.root, "bench"), "./bare", bareName)
}

func (s *stage) compile(ctx context.Context, dir, pkg, binary string, flags ...string) error {
	args := append([]string{"build", "-trimpath", "-o", s.binary(binary)}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return nil
}

func (s *stage) binary(name string) string { return filepath.Join(s.dir, name) }

// findPostgres reads the URL of PostgreSQL.
func (s *stage) findPostgres() (err error) {
	url := os.Getenv(databaseVariable)
	if url == "" {
		return fmt.Errorf("%s is not set: start bench with bench/run.sh", databaseVariable)
	}
	if s.owner, err = pgx.ParseConfig(url); err != nil {
		return fmt.Errorf("%s: %w", databaseVariable, err)
	}
	return nil
}

func (s *stage) createDatabase(ctx context.Context) error {
	if err := s.findPostgres(); err != nil {
		return err
	}
	s.database = fmt.Sprintf("weir_bench_%d", os.Getpid())
	return s.newDatabase(ctx, s.database)
}

// newDatabase creates an empty database that is dropped with the stage.
func (s *stage) newDatabase(ctx context.Context, name string) error {
	drop := "DROP DATABASE IF EXISTS " + name + " WITH (FORCE)"
	if err := s.execute(ctx, drop, "CREATE DATABASE "+name); err != nil {
		return fmt.Errorf("create a database: %w", err)
	}
	s.undo = append(s.undo, func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTime)
		defer cancel()
		if err := s.execute(ctx, drop); err != nil {
			fmt.Fprintln(os.Stderr, "bench: the database was not dropped:", err)
		}
	})
	return nil
}

// execute runs statements as the owner, in another database than the run's.
func (s *stage) execute(ctx context.Context, statements ...string) error {
	conn, err := s.connect(ctx, s.owner.Database)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// connect connects to a database as its owner. The caller closes the connection.
func (s *stage) connect(ctx context.Context, database string) (*pgx.Conn, error) {
	config := s.owner.Copy()
	config.Database = database
	return pgx.ConnectConfig(ctx, config)
}

// write changes the stage's own database directly.
func (s *stage) write(ctx context.Context, statement string, args ...any) error {
	conn, err := s.connect(ctx, s.database)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, statement, args...)
	return err
}

func (s *stage) databaseURL() string { return s.urlOf(s.database) }

func (s *stage) urlOf(database string) string {
	return fmt.Sprintf("postgres://%s:%s@%s:%d/%s?sslmode=disable", s.owner.User, s.owner.Password, s.owner.Host, s.owner.Port, database)
}

// migrate creates the schema and the operator key.
func (s *stage) migrate(ctx context.Context) error {
	if _, err := s.command(ctx, s.database, "migrate", "up"); err != nil {
		return err
	}
	key, err := s.command(ctx, s.database, "operator-key", "create", "bench")
	s.operator = strings.TrimSpace(key)
	return err
}

// command runs the server's binary on a database and returns its output.
func (s *stage) command(ctx context.Context, database string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, s.binary(weirName), args...)
	cmd.Env = environment("WEIR_DATABASE_URL="+s.urlOf(database), "WEIR_REDIS_URL="+s.store.url, "WEIR_LOG_LEVEL=warn")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("server %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out), nil
}

// addresses returns n free addresses.
func addresses(n int) ([]string, error) {
	var addrs []string
	for range n {
		addr, err := freeAddr()
		if err != nil {
			return nil, err
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// startWeir starts the real server, and returns when it is ready. The server is stopped with the
// stage, or by restartWeir.
func (s *stage) startWeir(ctx context.Context) error {
	sv, err := s.startInstance(ctx, weirName, s.databaseURL(), s.store)
	if err != nil {
		return err
	}
	s.undo = append(s.undo, sv.stop)
	s.servers[weirName] = sv
	return nil
}

// startInstance starts a real server, with additional variables, and returns when it is ready. The
// caller stops it.
func (s *stage) startInstance(ctx context.Context, name, databaseURL string, in *store, variables ...string) (*server, error) {
	return s.startBinary(ctx, weirName, name, databaseURL, in, variables...)
}

// startBinary is startInstance with the server of another checkout.
func (s *stage) startBinary(ctx context.Context, binary, name, databaseURL string, in *store, variables ...string) (*server, error) {
	addrs, err := addresses(4)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(s.binary(binary))
	cmd.Env = environment(append([]string{
		"WEIR_DATABASE_URL=" + databaseURL, "WEIR_REDIS_URL=" + in.url,
		"WEIR_HTTP_ADDR=" + addrs[0], "WEIR_HTTPS_ADDR=" + addrs[1], "WEIR_INTERNAL_ADDR=" + addrs[2], "WEIR_GRPC_ADDR=" + addrs[3],
		"WEIR_TLS_CERT=" + s.cert.certFile, "WEIR_TLS_KEY=" + s.cert.keyFile,
		"WEIR_REDIS_TIMEOUT=" + s.timeout.String(), "WEIR_DRAIN=0s", "WEIR_LOG_LEVEL=warn",
		"WEIR_ENCRYPTION_KEY=" + encryptionKey,
	}, variables...)...)
	if s.contention {
		cmd.Env = append(cmd.Env, "WEIR_PROFILE_CONTENTION=true")
	}
	p, err := start(ctx, s.dir, name, cmd, ready(addrs[0]))
	if err != nil {
		return nil, err
	}
	return &server{process: p, http: addrs[0], https: addrs[1], grpc: addrs[3], metrics: "http://" + addrs[2] + "/metrics", store: in}, nil
}

// restartWeir replaces the server by a new process.
func (s *stage) restartWeir(ctx context.Context) error {
	if running := s.servers[weirName]; running != nil {
		running.stop()
	}
	return s.startWeir(ctx)
}

func ready(addr string) func() error {
	client := &http.Client{Timeout: time.Second}
	return func() error {
		response, err := client.Get("http://" + addr + "/readyz")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("/readyz says %s", response.Status)
		}
		return nil
	}
}

func (s *stage) startBare(ctx context.Context) error {
	addr, err := freeAddr()
	if err != nil {
		return err
	}
	if err := s.startMinimal(ctx, bareName, bareName, nil, "-grpc", addr); err != nil {
		return err
	}
	s.servers[bareName].grpc = addr
	return nil
}

func (s *stage) startMinimal(ctx context.Context, name, binary string, variables []string, args ...string) error {
	addrs, err := addresses(2)
	if err != nil {
		return err
	}
	args = append(args, "-http", addrs[0], "-https", addrs[1], "-cert", s.cert.certFile, "-key", s.cert.keyFile)
	cmd := exec.Command(s.binary(binary), args...)
	cmd.Env = environment(variables...)
	p, err := start(ctx, s.dir, name, cmd, listening(addrs[1]))
	if err != nil {
		return err
	}
	s.undo = append(s.undo, p.stop)
	s.servers[name] = &server{process: p, http: addrs[0], https: addrs[1], metrics: "http://" + addrs[0] + "/metrics", store: s.store}
	return nil
}
