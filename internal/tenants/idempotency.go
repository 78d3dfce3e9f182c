package tenants

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

const (
	idempotencyLife = 24 * time.Hour
	// abandonedAfter is when a request that never finished is taken for dead, far beyond the
	// longest that one may take.
	abandonedAfter = time.Minute
)

// IdempotentState says what became of an Idempotency-Key: either the request was answered before,
// or the caller is the first, holds the key and must end with FinishIdempotent or AbortIdempotent.
type IdempotentState struct {
	Finished bool // the rest is the answer to be given again; it holds no secret
	Status   int
	Header   http.Header
	Body     []byte

	attempt uuid.UUID
}

// BeginIdempotent takes an Idempotency-Key of the actor's tenant for a request of which
// requestHash stands for method, path and body. Errors: *InvalidError where the key is bad or was
// used for another request; *ConflictError with CodeInProgress while the first has not ended.
func (s *Store) BeginIdempotent(ctx context.Context, a Actor, key string, requestHash [32]byte) (state IdempotentState, err error) {
	if key == "" || len(key) > 255 || !plain(key) {
		return IdempotentState{}, invalid("header:Idempotency-Key", "must be 1 to 255 bytes without control characters")
	}
	now := s.instant()
	attempt := newID()
	err = s.inTenant(ctx, a, func(ctx context.Context, q *db.Queries) error {
		taken, err := q.BeginIdempotent(ctx, db.BeginIdempotentParams{
			TenantID: a.tenant, Key: key, RequestHash: requestHash[:], Attempt: attempt, Now: now,
			ExpiresAt: now.Add(idempotencyLife), AbandonedBefore: now.Add(-abandonedAfter),
		})
		if err != nil {
			return err
		}
		if taken == 1 {
			state.attempt = attempt
			return nil
		}
		row, err := q.IdempotentByKey(ctx, db.IdempotentByKeyParams{TenantID: a.tenant, Key: key})
		if err != nil {
			return err
		}
		if !bytes.Equal(row.RequestHash, requestHash[:]) {
			return invalid("header:Idempotency-Key", "was used for another request: take a new one")
		}
		if row.Status == nil {
			return &ConflictError{CodeInProgress, "the first request with this Idempotency-Key has not ended: try again"}
		}
		state = IdempotentState{Finished: true, Status: int(*row.Status), Body: row.Body}
		if err := json.Unmarshal(row.Header, &state.Header); err != nil {
			return fmt.Errorf("read a stored answer's header: %w", err)
		}
		return nil
	})
	return state, err
}

// FinishIdempotent keeps the answer, status 200 to 599, for 24 hours from the request's beginning.
// Whoever calls it leaves secrets out. Where another request has taken over meanwhile, because
// this one took so long, that one's answer counts.
func (s *Store) FinishIdempotent(ctx context.Context, a Actor, key string, state IdempotentState,
	status int, header http.Header, body []byte,
) error {
	if header == nil {
		header = http.Header{}
	}
	encoded, err := json.Marshal(header)
	if err != nil {
		return fmt.Errorf("store an answer's header: %w", err)
	}
	kept := int32(status) //nolint:gosec // the database takes 200 to 599
	return s.inTenant(ctx, a, func(ctx context.Context, q *db.Queries) error {
		_, err := q.FinishIdempotent(ctx, db.FinishIdempotentParams{
			TenantID: a.tenant, Key: key, Attempt: state.attempt, Status: &kept, Header: encoded, Body: body,
		})
		return err
	})
}

// AbortIdempotent gives the key back after a request that changed nothing, so that it can be
// tried again.
func (s *Store) AbortIdempotent(ctx context.Context, a Actor, key string, state IdempotentState) error {
	return s.inTenant(ctx, a, func(ctx context.Context, q *db.Queries) error {
		return q.AbortIdempotent(ctx, db.AbortIdempotentParams{TenantID: a.tenant, Key: key, Attempt: state.attempt})
	})
}

// inTenant runs fn in the actor's tenant, for writes that are no configuration and get no version.
func (s *Store) inTenant(ctx context.Context, a Actor, fn func(ctx context.Context, q *db.Queries) error) error {
	return inTx(ctx, s.app, operationTimeout, pgx.TxOptions{}, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		if err := q.SetTenant(ctx, a.tenant.String()); err != nil {
			return err
		}
		return fn(ctx, q)
	})
}

// Purge removes what is kept only for a day: answers to idempotent requests and the traces of
// deleted subjects. Call it every hour or so; several servers may at once.
func (s *Store) Purge(ctx context.Context) error {
	err := s.asSystem(ctx, loadTimeout, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		if _, err := q.PurgeIdempotent(ctx); err != nil {
			return err
		}
		if err := q.RaiseSubjectsHistory(ctx); err != nil {
			return err
		}
		_, err := q.PurgeTombstones(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("purge what is out of date: %w", err)
	}
	return nil
}
