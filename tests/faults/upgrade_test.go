package faults

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
	"weir/tests/harness"
)

// migrationsBack is how many migrations the older program of an upgrade does not know.
const migrationsBack = 3

// git runs git in the checkout.
func git(args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = testenv.Root()
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// newestMigration returns the number of the newest migration in the checkout.
func newestMigration(m *measurement) int {
	m.Helper()
	names, err := filepath.Glob(filepath.Join(testenv.Root(), "migrations", "*.up.sql"))
	require.NoError(m.T, err)
	newest, err := newestOf(names)
	require.NoError(m.T, err)
	return newest
}

// newestOf returns the highest number of these files of migrations.
func newestOf(names []string) (newest int, err error) {
	for _, name := range names {
		if number, _, found := strings.Cut(filepath.Base(name), "_"); found && strings.HasSuffix(name, ".up.sql") {
			n, err := strconv.Atoi(number)
			if err != nil {
				return 0, err
			}
			newest = max(newest, n)
		}
	}
	return newest, nil
}

// schemaOf returns the number of the newest migration in a commit.
func schemaOf(commit string) (int, error) {
	names, err := git("ls-tree", "--name-only", commit, "migrations/")
	if err != nil {
		return 0, err
	}
	return newestOf(strings.Fields(names))
}

// olderServer builds the server of the newest commit that knows fewer migrations than the checkout,
// by this many or more. It returns "" if the history does not reach back to one, as in a shallow
// clone.
func olderServer(m *measurement, back int) (program, commit string, schema int) {
	m.Helper()
	latest := newestMigration(m)
	commits, err := git("rev-list", "--first-parent", "HEAD", "--", "migrations")
	if err != nil {
		return "", "", 0
	}
	for commit := range strings.FieldsSeq(commits) {
		before, err := git("rev-parse", "--verify", "--quiet", commit+"^")
		if err != nil {
			return "", "", 0
		}
		if schema, err = schemaOf(before); err != nil || schema > latest-back {
			continue
		}
		folder := m.TempDir()
		archive := exec.Command("git", "archive", before)
		archive.Dir = testenv.Root()
		tree, err := archive.Output()
		require.NoError(m.T, err)
		unpack := exec.Command("tar", "-x", "-C", folder)
		unpack.Stdin = bytes.NewReader(tree)
		require.NoError(m.T, unpack.Run())
		program = filepath.Join(folder, "older")
		build := exec.Command("go", "build", "-o", program, "./cmd/server") // as harness.Program does
		build.Dir = folder
		out, err := build.CombinedOutput()
		require.NoError(m.T, err, "%s", out)
		return program, before[:8], schema
	}
	return "", "", 0
}

// upgraded replaces a program by a newer one, with an older schema, while the older program serves.
func upgraded(m *measurement) {
	program, from, schema := olderServer(m, migrationsBack)
	previous, justBefore, previousSchema := olderServer(m, 1)
	if program == "" || previous == "" {
		m.add("the history has an older schema", "no", "yes", false)
		return
	}
	m.note("The older server is that of commit %s, with schema %d. The newer one has schema %d. The one before the newest migration is that of commit %s, with schema %d.",
		from, schema, newestMigration(m), justBefore, previousSchema)
	r := newRig(m.T, with(harness.Settings{"WEIR_DRAIN": "2s"}), func(r *rig) {
		r.program = program
		r.direct["WEIR_DATABASE_URL"] = harness.NewDatabase(r.t) // the older program creates its schema
	})
	require.Equal(m.T, schema, r.schema())
	b := r.balancer()
	streams := r.probing()
	for i := range streams {
		streams[i].dead = b.dead
	}
	l := r.load(streams...)
	writer := r.writeUntilStopped(m, streams[len(streams)-2].from, b)
	l.steady(3)
	before := l.now()

	newer := r.newNodeOf(harness.Server(m.T)) // it migrates, and serves no load
	newer.AwaitReady()
	migrated := l.now()
	latest := newestMigration(m)
	require.Equal(m.T, latest, r.schema())
	l.seconds(4) // the older instances, with the newer schema
	starts := r.startsOlder(program)
	m.add("a further instance of the older server starts with the newer schema", starts, "yes", starts == "yes")
	m.holds("one of the server before the newest migration starts", r.startsOlder(previous) == "yes")
	r.program = harness.Server(m.T)
	for i, n := range r.nodes {
		n.Signal(syscall.SIGTERM)
		require.Zero(m.T, n.Exit())
		r.restart(n)
		l.until("the balancer sends requests again", func() bool { return !b.dead(i) })
		l.seconds(1)
	}
	replaced := l.now()
	writes, failures := writer()
	l.seconds(1)
	h := l.stop()
	m.decided(h)
	m.none(fmt.Sprintf("admin requests that failed, of %d", writes), len(failures))
	for _, failure := range failures {
		m.Log(failure)
	}
	m.limitHeld("", h.exactWindows())
	m.usageIsExact(r, h, len(streams)-1)
	stdout, _, code := harness.Run(m.T, r.direct, "audit", "verify", "--tenant", "probe")
	m.holds("the audit trail is intact", code == 0 && strings.Contains(stdout, "probe: intact"))
	m.note("%d migrations, %s from the start of the newer instance until it was ready. Both programs served for %s.",
		latest-schema, round(migrated-before), round(replaced-migrated))
}

// startsOlder reports whether a further instance of the older program becomes ready.
func (r *rig) startsOlder(program string) string {
	r.t.Helper()
	n := r.newNodeOf(program)
	defer n.Kill()
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); r.pause(100 * time.Millisecond) {
		if harness.Status(n.url()+"/readyz") == http.StatusOK {
			return "yes"
		}
	}
	return "no"
}

// schema returns the version of the schema of the rig's database.
func (r *rig) schema() int {
	r.t.Helper()
	conn, err := pgx.Connect(r.t.Context(), r.direct["WEIR_DATABASE_URL"])
	require.NoError(r.t, err)
	defer conn.Close(context.Background())
	var version int
	var dirty bool
	require.NoError(r.t, conn.QueryRow(r.t.Context(), "SELECT version, dirty FROM schema_migrations").Scan(&version, &dirty))
	require.False(r.t, dirty)
	return version
}

// writeUntilStopped writes and reads through the admin API of ready instances in turn. The result
// ends it, and returns how many requests there were, and those that failed.
func (r *rig) writeUntilStopped(m *measurement, c *caller, b *balancer) (stop func() (requests int, failures []string)) {
	m.Helper()
	done := make(chan struct{})
	var requests int
	var failures []string
	var writer sync.WaitGroup
	writer.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			default:
			}
			at := n % instances
			for turn := 0; b.dead(at) && turn < instances; turn++ {
				at = (at + 1) % instances
			}
			method, path, body := http.MethodGet, "/v1/rules", ""
			switch n % 4 {
			case 0:
				method, path, body = http.MethodPatch, "/v1/rules/requests", fmt.Sprintf(`{"limit":%d}`, 100_000+n)
			case 1:
				method, path, body = http.MethodPut, fmt.Sprintf("/v1/subjects/s%d", n), `{"plan":null}`
			}
			status, answer, err := c.try(method, r.nodes[at].url()+path, body)
			if requests++; err != nil || status >= 300 {
				failures = append(failures, fmt.Sprintf("%s %s at instance %d: %d %v %.300s", method, path, at, status, err, answer))
			}
			r.pause(100 * time.Millisecond)
		}
	})
	end := sync.OnceFunc(func() { close(done); writer.Wait() })
	m.Cleanup(end)
	return func() (int, []string) { end(); return requests, slices.Clone(failures) }
}
