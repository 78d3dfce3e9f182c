package tenants_test

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

type serving = func(context.Context) (tenants.Answer, error)

// answers returns a request that changes something and answers with that status.
func answers(status int, do func(ctx context.Context) error) serving {
	return func(ctx context.Context) (tenants.Answer, error) {
		if do != nil {
			if err := do(ctx); err != nil {
				return tenants.Answer{}, err
			}
		}
		return tenants.Answer{Status: status, Header: http.Header{"Location": {"/x"}}, Body: []byte(strconv.Itoa(status))}, nil
	}
}

// never returns a request that must not run.
func never(t *testing.T) serving {
	return func(context.Context) (tenants.Answer, error) {
		t.Error("the request ran")
		return tenants.Answer{}, errors.New("ran")
	}
}

func TestIdempotency(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now})
	a, _ := d.Tenant("tenant-a")
	b, _ := d.Tenant("tenant-b")
	s, ctx := d.Store, t.Context()
	request, other := [32]byte{1}, [32]byte{2}
	makeRule := func(ctx context.Context) error { return second(s.CreateRule(ctx, a, rule("r"))) }

	replay, err := s.Idempotent(ctx, a, "key", request, answers(201, makeRule))
	require.NoError(t, err)
	require.Nil(t, replay)
	replay, err = s.Idempotent(ctx, a, "key", request, never(t))
	require.NoError(t, err)
	require.Equal(t, &tenants.Answer{Status: 201, Header: http.Header{"Location": {"/x"}}, Body: []byte("201")}, replay)
	_, err = s.Idempotent(ctx, a, "key", other, never(t))
	requireInvalid(t, err, "header:Idempotency-Key")
	replay, err = s.Idempotent(ctx, b, "key", other, answers(200, nil))
	require.NoError(t, err, "the same key of another tenant is a different key")
	require.Nil(t, replay)

	now.nowMS += 24*time.Hour.Milliseconds() - 1
	replay, err = s.Idempotent(ctx, a, "key", request, never(t))
	require.NoError(t, err)
	require.NotNil(t, replay)
	now.nowMS++
	replay, err = s.Idempotent(ctx, a, "key", other, answers(200, nil))
	require.NoError(t, err)
	require.Nil(t, replay, "after a day the key is new")

	for _, status := range []int{400, 401, 403, 422, 429, 500} {
		for range 2 {
			replay, err = s.Idempotent(ctx, a, "refused", request, answers(status, nil))
			require.NoError(t, err)
			require.Nil(t, replay, "%d is not stored", status)
		}
	}
	_, err = s.Idempotent(ctx, a, "refused", other, answers(409, nil))
	require.NoError(t, err, "a corrected request may have the same key")
	replay, err = s.Idempotent(ctx, a, "refused", other, never(t))
	require.NoError(t, err)
	require.Equal(t, 409, replay.Status)

	for _, key := range []string{"", strings.Repeat("x", 256), "a\x00b", "\xff"} {
		_, err := s.Idempotent(ctx, a, key, request, never(t))
		requireInvalid(t, err, "header:Idempotency-Key")
	}
}

// The answer for a key with more permissions must not be returned to one with fewer, nor the
// reverse. A key that was rotated during a request is still the same sender.
func TestIdempotencyOfEachKey(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	a, secret := d.Tenant("tenant-a")
	s, ctx := d.Store, t.Context()
	strong, request := d.Actor(secret), [32]byte{1}
	_, weakSecret, err := s.CreateKey(ctx, strong, tenants.NewAPIKey{Name: "w", Scopes: []tenants.Scope{tenants.ScopeWrite}})
	require.NoError(t, err)
	weak := d.Actor(weakSecret)
	serve := func(by tenants.Actor, status int) *tenants.Answer {
		t.Helper()
		replay, err := s.Idempotent(ctx, by, "key", request, answers(status, nil))
		require.NoError(t, err)
		return replay
	}
	require.Nil(t, serve(weak, 403))
	require.Nil(t, serve(weak, 401))
	require.Nil(t, serve(strong, 201), "the refusal was of another key")
	require.Nil(t, serve(weak, 403), "the answer to a stronger key is not for this one")
	require.Nil(t, serve(weak, 201), "a refusal is not stored, because rights can change")
	require.Equal(t, 201, serve(weak, 403).Status)

	for range 3 {
		_, next, err := s.RotateKey(ctx, a, strong.KeyID(), time.Hour)
		require.NoError(t, err)
		before := strong
		strong = d.Actor(next)
		require.NotEqual(t, before.KeyID(), strong.KeyID())
		require.Equal(t, 201, serve(strong, 500).Status)
		require.Equal(t, 201, serve(before, 500).Status)
	}
	_, err = s.Idempotent(ctx, strong, "key", [32]byte{2}, never(t))
	requireInvalid(t, err, "header:Idempotency-Key")
}

// The change and the stored answer are committed together, whatever the answer.
func TestIdempotencyIsOneTransaction(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, ctx := d.Store, t.Context()
	there := func(slug string) bool {
		_, err := s.RuleBySlug(ctx, a, slug)
		return err == nil
	}
	during := func(slug string) func(context.Context) error {
		return func(ctx context.Context) error {
			require.NoError(t, second(s.CreateRule(ctx, a, rule(slug))))
			require.ErrorAs(t, second(s.CreateRule(ctx, a, rule(slug))), new(*tenants.ConflictError), "it sees its own writes")
			require.NoError(t, second(s.CreatePlan(ctx, a, tenants.Plan{Slug: slug})), "and continues after a refusal")
			require.False(t, there(slug), "others see nothing before the answer is stored")
			return nil
		}
	}
	before := versionsOf(t, d, a)
	failed := errors.New("failed")
	_, err := s.Idempotent(ctx, a, "error", [32]byte{}, func(ctx context.Context) (tenants.Answer, error) {
		return tenants.Answer{}, errors.Join(failed, during("error")(ctx))
	})
	require.ErrorIs(t, err, failed)
	for key, status := range map[string]int{"refused": 409, "broken": 500} {
		replay, err := s.Idempotent(ctx, a, key, [32]byte{}, answers(status, during(key)))
		require.NoError(t, err)
		require.Nil(t, replay)
		require.False(t, there(key), key)
	}
	require.Equal(t, before, versionsOf(t, d, a))
	replay, err := s.Idempotent(ctx, a, "refused", [32]byte{}, never(t))
	require.NoError(t, err)
	require.Equal(t, 409, replay.Status)
	replay, err = s.Idempotent(ctx, a, "broken", [32]byte{}, answers(201, during("broken")))
	require.NoError(t, err, "a failed request can be retried")
	require.Nil(t, replay)
	require.True(t, there("broken"))
	require.Panics(t, func() {
		_, _ = s.Idempotent(ctx, a, "panic", [32]byte{}, answers(201, func(ctx context.Context) error {
			require.NoError(t, during("panic")(ctx))
			panic("handler")
		}))
	})
	require.False(t, there("panic"))
	require.True(t, trailIsIntact(t, s, a).Valid)
}

// An operator's request writes as both roles, into two tenants, and is one transaction, too.
func TestIdempotencyOfTheOperator(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	s, ctx := d.Store, t.Context()
	_, key, err := s.CreateOperatorKey(ctx, "tests")
	require.NoError(t, err)
	a := d.Actor(key)
	makeTenant := func(ctx context.Context) error {
		_, _, _, err := s.CreateTenant(ctx, a, tenants.NewTenant{Slug: "made"})
		return err
	}
	_, err = s.Idempotent(ctx, a, "k", [32]byte{}, answers(500, makeTenant))
	require.NoError(t, err)
	_, err = s.TenantBySlugOrID(ctx, a, "made")
	require.ErrorIs(t, err, tenants.ErrNotFound)
	_, err = s.Idempotent(ctx, a, "k", [32]byte{}, answers(201, makeTenant))
	require.NoError(t, err)
	replay, err := s.Idempotent(ctx, a, "k", [32]byte{}, never(t))
	require.NoError(t, err)
	require.Equal(t, 201, replay.Status)
	require.NoError(t, second(s.TenantBySlugOrID(ctx, a, "made")))
}

// A request that a server of the previous release had begun when it crashed holds its key for a
// minute.
func TestIdempotencyTakeOver(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now})
	a, _ := d.Tenant("tenant-a")
	hash := [32]byte{1}
	d.Exec(`INSERT INTO idempotency_keys (tenant_id, key, request_hash, state, attempt, started_at, expires_at)
		VALUES ($1, 'key', $2, 'in_progress', gen_random_uuid(), $3, $4)`,
		a.TenantID(), hash[:], time.UnixMilli(now.nowMS), time.UnixMilli(now.nowMS).Add(24*time.Hour))
	write := answers(201, func(ctx context.Context) error { return second(d.Store.CreateRule(ctx, a, rule("r"))) })
	_, err := d.Store.Idempotent(t.Context(), a, "key", hash, write)
	requireConflict(t, err, tenants.CodeInProgress)
	now.nowMS += time.Minute.Milliseconds() + 1
	replay, err := d.Store.Idempotent(t.Context(), a, "key", hash, write)
	require.NoError(t, err)
	require.Nil(t, replay)
}

// Of concurrent requests, one runs, and the others wait for its answer.
func TestIdempotencyConcurrently(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	var all sync.WaitGroup
	replays := make(chan *tenants.Answer, 4) // as many as there are connections
	for range cap(replays) {
		all.Go(func() {
			replay, err := d.Store.Idempotent(t.Context(), a, "key", [32]byte{1}, answers(201, func(ctx context.Context) error {
				_, _, err := d.Store.CreateKey(ctx, a, tenants.NewAPIKey{Scopes: []tenants.Scope{tenants.ScopeRead}})
				return err
			}))
			if err != nil {
				t.Error(err)
			}
			replays <- replay
		})
	}
	all.Wait()
	first := 0
	for range cap(replays) {
		if replay := <-replays; replay == nil {
			first++
		} else if replay.Status != 201 {
			t.Error(replay.Status)
		}
	}
	require.Equal(t, 1, first)
	keys, _, err := d.Store.Keys(t.Context(), a, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, keys, 2, "with the tenant's first")
}

// The others do not wait for a request that takes too long.
func TestIdempotencyInProgress(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		tx, err := conn.Begin(ctx)
		require.NoError(t, err)
		_, err = tx.Exec(ctx, `INSERT INTO idempotency_keys (tenant_id, key, request_hash, state, attempt, started_at, expires_at)
			VALUES ($1, 'key', $2, 'in_progress', gen_random_uuid(), now(), now() + interval '1 day')`, a.TenantID(), make([]byte, 32))
		require.NoError(t, err)
		_, err = d.Store.Idempotent(ctx, a, "key", [32]byte{}, answers(201, func(ctx context.Context) error {
			return second(d.Store.CreateRule(ctx, a, rule("r")))
		}))
		requireConflict(t, err, tenants.CodeInProgress)
		require.NoError(t, tx.Rollback(ctx))
	})
}

func TestPurgeIdempotency(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	for _, key := range []string{"old", "young"} {
		_, err := d.Store.Idempotent(t.Context(), a, key, [32]byte{1}, answers(201, nil))
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
