package tenants_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/usage"
)

// commitEater is a proxy to Postgres that can close the connection after a COMMIT: the data is
// written, but the client does not get the response.
type commitEater struct {
	url     string
	armed   atomic.Bool
	eaten   atomic.Int64
	running sync.WaitGroup
}

func newCommitEater(t *testing.T, databaseURL string) *commitEater {
	t.Helper()
	u, err := url.Parse(databaseURL)
	require.NoError(t, err)
	target := u.Host
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	u.Host = l.Addr().String()
	p := &commitEater{url: u.String()}
	t.Cleanup(func() { _ = l.Close(); p.running.Wait() })
	p.running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				continue
			}
			p.running.Go(func() { _, _ = io.Copy(server, client); _ = server.Close() })
			p.running.Go(func() { p.answer(client, server); _ = client.Close(); _ = server.Close() })
		}
	})
	return p
}

func (p *commitEater) answer(client, server net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		if bytes.Contains(buf[:n], []byte("COMMIT\x00")) && p.armed.CompareAndSwap(true, false) {
			p.eaten.Add(1)
			return
		}
		if _, werr := client.Write(buf[:n]); err != nil || werr != nil {
			return
		}
	}
}

// If the answer to a commit is lost, the server does not know the outcome; the counts must still be
// exact.
func TestUsageLostCommitAnswer(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	p := newCommitEater(t, d.URL)
	s := d.Open(tenants.Config{DatabaseURL: p.url})
	batch := usageBatch(uuid.New(), usageRow(a, usageStart(), "", "", "r", everyCount))
	p.armed.Store(true)
	require.ErrorIs(t, s.WriteUsage(t.Context(), batch), tenants.ErrUnavailable)
	require.EqualValues(t, 1, p.eaten.Load())
	require.Equal(t, everyCount, total(t, d.Store, a, usage.Hour), "it was written")
	require.NoError(t, s.WriteUsage(t.Context(), batch))
	require.Equal(t, everyCount, total(t, d.Store, a, usage.Hour), "and is not written again")
	s.Close()
}

// A server that crashes during a write leaves no part of it.
func TestUsageCutOffWrite(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	p := newProxy(t, d.URL)
	s := d.Open(tenants.Config{DatabaseURL: p.url})
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		_, err = tx.Exec(ctx, "LOCK TABLE usage_days IN EXCLUSIVE MODE")
		require.NoError(t, err)
		batch := usageBatch(uuid.New(), usageRow(a, usageStart(), "", "", "r", everyCount))
		failed := make(chan error, 1)
		go func() { failed <- s.WriteUsage(ctx, batch) }()
		require.Eventually(t, func() bool { // minutes and hours are written, days wait
			var waits bool
			require.NoError(t, tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'usage_days'::regclass AND NOT granted)").Scan(&waits))
			return waits
		}, time.Minute, time.Millisecond)
		p.cut()
		require.ErrorIs(t, <-failed, tenants.ErrUnavailable)
		require.NoError(t, tx.Rollback(ctx))
		p.restore()
		require.Eventually(t, func() bool { return s.WriteUsage(ctx, batch) == nil }, time.Minute, 10*time.Millisecond)
	})
	for _, grain := range usage.Grains {
		require.Equal(t, everyCount, total(t, d.Store, a, grain), grain)
	}
	s.Close()
}
