package tenants

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

const (
	idempotencyLife = 24 * time.Hour
	// abandonedAfter is when a request that a server of an older release began is taken for dead,
	// far beyond the longest that one may take.
	abandonedAfter = time.Minute
)

// Answer is what a request was answered, without any secret.
type Answer struct {
	Status int // 200 to 599
	Header http.Header
	Body   []byte
}

// Idempotent serves a request that carries an Idempotency-Key. The first request of the actor with
// a key runs: serve is called, and all that it changes through the store, with the context that it
// is given, is committed together with the answer that it returns. So a server that dies has done
// either both or nothing, and whoever repeats the request gets the answer, for 24 hours, as replay,
// which is nil for the first. An answer from 400 undoes the changes; one from 500 is not kept
// either, nor one that denies the right (401 and 403), so that a repetition tries again.
//
// What one API key was answered no other is, as it may have fewer rights, or more. An API key and
// those that it was rotated to are one, so that who repeats a request amid a rotation does not do
// it twice.
//
// requestHash stands for method, path and body. Errors: those of serve; *InvalidError where the
// key is bad or was used for another request; *ConflictError with CodeInProgress where the first
// has not ended within two seconds; ErrUnavailable, after which nobody knows whether it happened
// but who repeats.
func (s *Store) Idempotent(ctx context.Context, a Actor, key string, requestHash [32]byte,
	serve func(ctx context.Context) (Answer, error),
) (replay *Answer, err error) {
	if key == "" || len(key) > 255 || !plain(key) {
		return nil, invalid("header:Idempotency-Key", limit.MustBe("1 to 255 bytes without control characters"))
	}
	p := &post{store: s, actor: a, key: key, requestHash: requestHash, attempt: newID()}
	defer p.rollback()
	// Told before serve sees the request: what was valid yesterday may not be today.
	if err := p.lookUp(ctx); err != nil || p.replay != nil {
		return p.replay, err
	}
	answer, err := serve(context.WithValue(ctx, postKey{}, p))
	switch {
	case p.lost != nil:
		return p.replay, p.lostError()
	case err != nil || !kept(answer.Status):
		return nil, err
	case answer.Status >= http.StatusBadRequest:
		p.rollback()
	}
	// The client may be gone; what was done is kept all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), operationTimeout)
	defer cancel()
	if err := p.begin(ctx); err != nil {
		if p.lost != nil {
			return p.replay, p.lostError()
		}
		return nil, translate(err)
	}
	return nil, translate(p.finish(ctx, answer))
}

// kept reports whether an answer is the same the next time.
func kept(status int) bool {
	return status < http.StatusInternalServerError && status != http.StatusUnauthorized && status != http.StatusForbidden
}

// post is a request with an Idempotency-Key while it is served, with the transaction in which it
// is, from its first write on.
type post struct {
	store       *Store
	actor       Actor
	key         string // from lookUp on as in the table
	requestHash [32]byte
	attempt     uuid.UUID

	conn   *pgxpool.Conn // nil: no transaction yet
	tx     pgx.Tx
	lost   error   // why this request may not run: another one did
	replay *Answer // what that was answered
}

// postKey finds the post in a context.
type postKey struct{}

// ErrAnswered: another request with the key was answered while this one began.
var ErrAnswered = errors.New("the request was answered before")

func (p *post) lostError() error {
	if errors.Is(p.lost, ErrAnswered) {
		return nil
	}
	return p.lost
}

// lookUp reads the answer that there may be already.
func (p *post) lookUp(ctx context.Context) error {
	return p.store.read(ctx, p.actor, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		if err := p.scope(ctx, q); err != nil {
			return err
		}
		row, err := q.IdempotentByKey(ctx, db.IdempotentByKeyParams{TenantID: p.actor.tenant, Key: p.key})
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		if !row.ExpiresAt.After(p.store.instant()) {
			return nil
		}
		if err := p.judge(row); !errors.Is(err, ErrAnswered) && !inProgress(err) {
			return err
		}
		return nil // what is in progress, begin decides about
	})
}

// scope makes of the Idempotency-Key what stands for it in the table: one name for each API key
// that sends it, counting those that it was rotated to as itself.
func (p *post) scope(ctx context.Context, q *db.Queries) error {
	if p.actor.kind != KeyActor {
		return nil
	}
	first, err := q.FirstKey(ctx, db.FirstKeyParams{TenantID: p.actor.tenant, ID: p.actor.id})
	if err != nil {
		return fmt.Errorf("find what an API key was rotated from: %w", err)
	}
	name := sha256.Sum256(append(first[:], p.key...))
	p.key = hex.EncodeToString(name[:])
	return nil
}

func inProgress(err error) bool {
	var conflict *ConflictError
	return errors.As(err, &conflict) && conflict.Code == CodeInProgress
}

// judge says what a key that is taken means for this request.
func (p *post) judge(row db.IdempotencyKey) error {
	if !bytes.Equal(row.RequestHash, p.requestHash[:]) {
		return invalid("header:Idempotency-Key", limit.Wrong("Use a new key for each request.", "was used for another request"))
	}
	if row.Status == nil {
		return errInProgress()
	}
	replay := &Answer{Status: int(*row.Status), Body: row.Body}
	if err := json.Unmarshal(row.Header, &replay.Header); err != nil {
		return fmt.Errorf("read a stored answer's header: %w", err)
	}
	p.replay = replay
	return ErrAnswered
}

func errInProgress() error {
	return &ConflictError{CodeInProgress, "the first request with this Idempotency-Key has not ended: try again"}
}

// run runs fn in the request's transaction, which stays open. Where fn fails, what it wrote is
// undone.
func (p *post) run(ctx context.Context, role string, timeout time.Duration, fn txFunc) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := p.begin(ctx); err != nil {
		return translate(err)
	}
	return translate(pgx.BeginFunc(ctx, p.tx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET LOCAL ROLE "+role); err != nil {
			return err
		}
		return fn(ctx, tx, db.New(tx))
	}))
}

// begin opens the transaction, if it is not, and takes the key. A request that was first is waited
// for.
func (p *post) begin(ctx context.Context) (err error) {
	if p.tx != nil || p.lost != nil {
		return p.lost
	}
	if p.conn, err = p.store.app.Acquire(ctx); err != nil {
		return err
	}
	if p.tx, err = p.conn.Begin(ctx); err != nil {
		p.rollback()
		return err
	}
	if err := p.take(ctx); err != nil {
		p.rollback()
		return err
	}
	return nil
}

func (p *post) take(ctx context.Context) error {
	q := db.New(p.tx)
	if err := q.SetTenant(ctx, p.actor.tenant.String()); err != nil {
		return err
	}
	now := p.store.instant()
	taken, err := q.BeginIdempotent(ctx, db.BeginIdempotentParams{
		TenantID: p.actor.tenant, Key: p.key, RequestHash: p.requestHash[:], Attempt: p.attempt, Now: now,
		ExpiresAt: now.Add(idempotencyLife), AbandonedBefore: now.Add(-abandonedAfter),
	})
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &pgErr) && pgErr.Code == "55P03": // waited too long for a lock
		p.lost = errInProgress()
		return p.lost
	case err != nil || taken == 1:
		return err
	}
	row, err := q.IdempotentByKey(ctx, db.IdempotentByKeyParams{TenantID: p.actor.tenant, Key: p.key})
	if err != nil {
		return err
	}
	p.lost = p.judge(row)
	return p.lost
}

// finish writes the answer down and commits.
func (p *post) finish(ctx context.Context, answer Answer) error {
	if answer.Header == nil {
		answer.Header = http.Header{}
	}
	header, err := json.Marshal(answer.Header)
	if err != nil {
		return fmt.Errorf("store an answer's header: %w", err)
	}
	if _, err := p.tx.Exec(ctx, "SET LOCAL ROLE "+roleApp); err != nil {
		return err
	}
	q := db.New(p.tx)
	if err := q.SetTenant(ctx, p.actor.tenant.String()); err != nil {
		return err
	}
	status := int32(answer.Status) // the database takes 200 to 599
	kept, err := q.FinishIdempotent(ctx, db.FinishIdempotentParams{
		TenantID: p.actor.tenant, Key: p.key, Attempt: p.attempt, Status: &status, Header: header, Body: answer.Body,
	})
	if err != nil {
		return err
	}
	if kept != 1 {
		return errors.New("an Idempotency-Key was lost while it was held")
	}
	return p.tx.Commit(ctx)
}

// rollback ends the transaction, if there is one. After a commit it only gives the connection back.
func (p *post) rollback() {
	if p.tx != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = p.tx.Rollback(ctx) // a connection that cannot do it is closed
	}
	if p.conn != nil {
		p.conn.Release()
	}
	p.conn, p.tx = nil, nil
}

// inTenant runs fn in the actor's tenant, for writes that are no configuration and get no version.
func (s *Store) inTenant(ctx context.Context, a Actor, fn func(ctx context.Context, q *db.Queries) error) error {
	return s.write(ctx, roleApp, operationTimeout, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		if err := q.SetTenant(ctx, a.tenant.String()); err != nil {
			return err
		}
		return fn(ctx, q)
	})
}

// Purge removes what is kept only for a time: answers to idempotent requests, the traces of
// deleted subjects, sessions and links that are over. Call it every hour or so; several servers may
// at once.
func (s *Store) Purge(ctx context.Context) error {
	err := s.asSystem(ctx, loadTimeout, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		if _, err := q.PurgeIdempotent(ctx); err != nil {
			return err
		}
		if err := q.RaiseSubjectsHistory(ctx); err != nil {
			return err
		}
		if _, err := q.PurgeTombstones(ctx); err != nil {
			return err
		}
		now := s.instant()
		if _, err := q.PurgeSessions(ctx, db.PurgeSessionsParams{Oldest: now.Add(-SessionLife), IdleSince: now.Add(-SessionIdle)}); err != nil {
			return err
		}
		return q.PurgeAccountLinks(ctx, now)
	})
	if err != nil {
		return fmt.Errorf("purge what is out of date: %w", err)
	}
	return nil
}
