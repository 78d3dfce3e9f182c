package tenants_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

func TestIdempotency(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now})
	a, _ := d.Tenant("tenant-a")
	b, _ := d.Tenant("tenant-b")
	s, ctx := d.Store, t.Context()
	request, other := [32]byte{1}, [32]byte{2}

	first, err := s.BeginIdempotent(ctx, a, "key", request)
	require.NoError(t, err)
	require.False(t, first.Finished)
	_, err = s.BeginIdempotent(ctx, a, "key", request)
	requireConflict(t, err, tenants.CodeInProgress)
	_, err = s.BeginIdempotent(ctx, a, "key", other)
	requireInvalid(t, err, "header:Idempotency-Key")
	theirs, err := s.BeginIdempotent(ctx, b, "key", other)
	require.NoError(t, err, "another tenant's key of that name is another key")
	require.False(t, theirs.Finished)

	header := http.Header{"Location": {"/v1/rules/r"}}
	require.NoError(t, s.FinishIdempotent(ctx, a, "key", first, 201, header, []byte(`{"slug":"r"}`)))
	replay, err := s.BeginIdempotent(ctx, a, "key", request)
	require.NoError(t, err)
	require.Equal(t, tenants.IdempotentState{Finished: true, Status: 201, Header: header, Body: []byte(`{"slug":"r"}`)}, replay)
	_, err = s.BeginIdempotent(ctx, a, "key", other)
	requireInvalid(t, err, "header:Idempotency-Key")
	require.NoError(t, s.AbortIdempotent(ctx, a, "key", first), "what is finished stays")
	now.nowMS += 24*time.Hour.Milliseconds() - 1
	replay, err = s.BeginIdempotent(ctx, a, "key", request)
	require.NoError(t, err)
	require.True(t, replay.Finished)
	now.nowMS++
	replay, err = s.BeginIdempotent(ctx, a, "key", other)
	require.NoError(t, err)
	require.False(t, replay.Finished, "after a day the key is new")

	for _, key := range []string{"", strings.Repeat("x", 256), "a\x00b", "\xff"} {
		_, err := s.BeginIdempotent(ctx, a, key, request)
		requireInvalid(t, err, "header:Idempotency-Key")
	}
}

// A request that failed can be tried again, and one that died holds its key for a minute only.
func TestIdempotencyAbortAndTakeOver(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now})
	a, _ := d.Tenant("tenant-a")
	s, ctx := d.Store, t.Context()
	request := [32]byte{1}
	first, err := s.BeginIdempotent(ctx, a, "key", request)
	require.NoError(t, err)
	require.NoError(t, s.AbortIdempotent(ctx, a, "key", first))
	dead, err := s.BeginIdempotent(ctx, a, "key", request)
	require.NoError(t, err)
	now.nowMS += time.Minute.Milliseconds() + 1
	heir, err := s.BeginIdempotent(ctx, a, "key", request)
	require.NoError(t, err)
	require.False(t, heir.Finished)
	require.NoError(t, s.FinishIdempotent(ctx, a, "key", dead, 500, nil, nil), "late, and of no effect")
	require.NoError(t, s.AbortIdempotent(ctx, a, "key", dead))
	require.NoError(t, s.FinishIdempotent(ctx, a, "key", heir, 201, nil, []byte("{}")))
	replay, err := s.BeginIdempotent(ctx, a, "key", request)
	require.NoError(t, err)
	require.Equal(t, 201, replay.Status)
}

// Of many at once, one runs.
func TestIdempotencyConcurrently(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	var mu sync.Mutex
	began := 0
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			_, err := d.Store.BeginIdempotent(t.Context(), a, "key", [32]byte{1})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				began++
			}
		})
	}
	all.Wait()
	require.Equal(t, 1, began)
}

func TestPurgeIdempotency(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	for _, key := range []string{"old", "young"} {
		_, err := d.Store.BeginIdempotent(t.Context(), a, key, [32]byte{1})
		require.NoError(t, err)
	}
	d.Exec("UPDATE idempotency_keys SET expires_at = now() - interval '1 second' WHERE key = 'old'")
	require.NoError(t, d.Store.Purge(t.Context()))
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		rows, err := conn.Query(ctx, "SELECT key FROM idempotency_keys")
		require.NoError(t, err)
		keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		require.Equal(t, []string{"young"}, keys)
	})
}
