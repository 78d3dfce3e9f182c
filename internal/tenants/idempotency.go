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

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

const (
	idempotencyLife = 24 * time.Hour
	// abandonedAfter is when a request of a server of an older release counts as crashed, far
	// beyond the longest possible request.
	abandonedAfter = time.Minute
	// freeAnswer is the size up to which an answer to a request that changed nothing is not
	// counted, so that it does not wait for those that change the trail.
	freeAnswer = 1 << 10
)

// Answer is the answer to a request, without any secret.
type Answer struct {
	Status int // 200 to 599
	Header http.Header
	Body   []byte
}

// Idempotent serves a request with an Idempotency-Key. The first request of the actor with a key
// runs: it calls serve, and everything that serve changes through the store, with the given
// context, is committed together with the returned answer. If a server crashes, either both are
// stored or nothing. For 24 hours, a repeat of the request gets the answer as replay, which is nil
// for the first. An answer with status 400 or more undoes the changes. An answer with 500 or more,
// 400, 401, 403, 422 or 429 is not stored, so that a repeat tries again. The bytes of an answer
// count as those of the trail do; beyond those of a day, a long answer to a request that changed
// nothing is not stored.
//
// The answer for one API key is never returned to another one, which may have other permissions. An
// API key and those that it was rotated to count as one, so that a repeat during a rotation is not
// executed twice.
//
// requestHash identifies method, path and body. Errors: those of serve; *InvalidError if the key is
// malformed or was used for another request; *ConflictError with CodeInProgress if the first
// request has not ended within two seconds; ErrUnavailable, after which only a repeat can find out
// whether the request was executed.
func (s *Store) Idempotent(ctx context.Context, a Actor, key string, requestHash [32]byte,
	serve func(ctx context.Context) (Answer, error),
) (replay *Answer, err error) {
	if key == "" || len(key) > 255 || !plain(key) {
		return nil, invalid("header:Idempotency-Key", limit.MustBe("1 to 255 bytes without control characters"))
	}
	p := &post{store: s, actor: a, key: key, requestHash: requestHash, attempt: newID()}
	defer p.rollback()
	// The stored answer is returned before serve sees the request, because validation may have
	// changed since.
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
	wrote := p.tx != nil
	// The client may have disconnected, but the changes are still committed.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.operation)
	defer cancel()
	if err := p.begin(ctx); err != nil {
		if p.lost != nil {
			return p.replay, p.lostError()
		}
		return nil, translate(err)
	}
	return nil, translate(p.finish(ctx, answer, wrote))
}

// kept reports whether an answer is stored. The list of what is invalid in a request can be long,
// and costs its sender nothing: no row of the audit trail counts it.
func kept(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests:
		return false
	}
	return status < http.StatusInternalServerError
}

// post is a request with an Idempotency-Key while it is served, with its transaction from the first
// write on.
type post struct {
	store       *Store
	actor       Actor
	key         string // after lookUp in the form of the table
	requestHash [32]byte
	attempt     uuid.UUID

	release func() // of the connection; nil: no transaction yet
	tx      pgx.Tx
	lost    error   // why this request must not run: another one did
	replay  *Answer // the answer of that request
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

// lookUp reads the stored answer, if there is one.
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
		return nil // begin handles a request in progress
	})
}

// scope converts the Idempotency-Key to its form in the table: a separate name for each API key
// that sends it. An API key and those that it was rotated to have the same name.
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

// judge returns the effect of a used key on this request.
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

// run runs fn in the request's transaction, which stays open. If fn fails, its writes are undone.
func (p *post) run(ctx context.Context, role string, timeout time.Duration, fn txFunc) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := p.begin(ctx); err != nil {
		return translate(err)
	}
	statements, stop := unbroken(ctx)
	defer stop()
	return translate(pgx.BeginFunc(statements, p.tx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(statements, "SET LOCAL ROLE "+role); err != nil {
			return err
		}
		return inUnbroken(ctx, statements, tx, fn)
	}))
}

// begin opens the transaction if necessary, and claims the key. It waits for an earlier request.
func (p *post) begin(ctx context.Context) (err error) {
	if p.tx != nil || p.lost != nil {
		return p.lost
	}
	conn, release, err := p.store.app.acquireFor(ctx, p.actor.tenant)
	if err != nil {
		return err
	}
	p.release = release
	ctx, stop := unbroken(ctx)
	defer stop()
	if p.tx, err = conn.Begin(ctx); err != nil {
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
	case errors.As(err, &pgErr) && pgErr.Code == lockNotAvailable:
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

// finish stores the answer and commits, unless the request wrote nothing and its answer is not
// kept.
func (p *post) finish(ctx context.Context, answer Answer, wrote bool) error {
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
	if size := len(header) + len(answer.Body); wrote || size > freeAnswer {
		if fits, err := p.count(ctx, q, size); err != nil || !fits && !wrote {
			return err
		}
	}
	status := int32(answer.Status) // the database accepts 200 to 599
	kept, err := q.FinishIdempotent(ctx, db.FinishIdempotentParams{
		TenantID: p.actor.tenant, Key: p.key, Attempt: p.attempt, Status: &status, Header: header, Body: answer.Body,
	})
	if err != nil {
		return err
	}
	if kept != 1 {
		return errors.New("an Idempotency-Key was lost while it was claimed")
	}
	return p.tx.Commit(ctx)
}

// count counts an answer among the bytes that the tenant may write on a day, and reports whether it
// is one of them. A tenant that has used these up can make no changes with answers to be kept.
func (p *post) count(ctx context.Context, q *db.Queries, size int) (fits bool, err error) {
	head, err := q.LockAuditHead(ctx, db.LockAuditHeadParams{TenantID: p.actor.tenant, Genesis: genesis[:]})
	if err != nil {
		return false, err
	}
	day := auditDayOf(&head, p.store.auditDay, p.store.instant())
	fits = day.bytes < day.most
	return fits, q.MoveAuditHead(ctx, db.MoveAuditHeadParams{
		TenantID: p.actor.tenant, Sequence: head.Sequence, Hash: head.Hash, Day: head.Day, DayBytes: day.bytes + int64(size),
	})
}

// rollback ends the transaction, if there is one. After a commit it only releases the connection.
func (p *post) rollback() {
	if p.tx != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = p.tx.Rollback(ctx) // a connection that fails here is closed
	}
	if p.release != nil {
		p.release()
	}
	p.release, p.tx = nil, nil
}

// inTenant runs fn in the actor's tenant, for writes that are not configuration and get no version.
func (s *Store) inTenant(ctx context.Context, a Actor, fn func(ctx context.Context, q *db.Queries) error) error {
	return s.write(ctx, roleApp, a.tenant, s.operation, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		if err := q.SetTenant(ctx, a.tenant.String()); err != nil {
			return err
		}
		return fn(ctx, q)
	})
}
