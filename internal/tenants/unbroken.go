package tenants

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"weir/internal/tenants/db"
)

// goneTimeout is how long a statement at least continues after its client has gone.
const goneTimeout = operationTimeout

// unbroken returns a context for the statements of an operation, with the values and the deadline
// of ctx. It does not end with ctx: pgx closes a connection whose context ends during a statement,
// and a new one is a process of Postgres, a login and statements to prepare. Clients that send
// requests and leave would keep Postgres from all others. The caller must call cancel.
func unbroken(ctx context.Context) (statements context.Context, cancel context.CancelFunc) {
	deadline, _ := ctx.Deadline() // each operation has one
	statements, end := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	if time.Until(deadline) <= goneTimeout {
		return statements, end
	}
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(goneTimeout, end) })
	return statements, func() { stop(); end() }
}

// inUnbroken runs fn in a transaction whose statements are not interrupted. If ctx ends, the next
// statement fails and the transaction is rolled back; so is one that would be committed.
func inUnbroken(ctx, statements context.Context, tx pgx.Tx, fn txFunc) error {
	own := &unbrokenTx{tx, statements}
	err := fn(ctx, own, db.New(own))
	if gone := ctx.Err(); gone != nil && (err == nil || errors.Is(err, pgx.ErrTxClosed)) {
		return gone
	}
	return err
}

// unbrokenTx sends statements with a context from unbroken. It does so for the kinds of statements
// that this package sends.
type unbrokenTx struct {
	pgx.Tx
	statements context.Context
}

// unlessGone returns the context for a statement. If the operation has ended, it rolls the
// transaction back, and pgx refuses the statement without the connection.
func (t *unbrokenTx) unlessGone(ctx context.Context) context.Context {
	if ctx.Err() != nil {
		_ = t.Tx.Rollback(t.statements) // a connection that fails here is closed
	}
	return t.statements
}

func (t *unbrokenTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	return t.Tx.Exec(t.unlessGone(ctx), sql, args...)
}

func (t *unbrokenTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return t.Tx.Query(t.unlessGone(ctx), sql, args...)
}

func (t *unbrokenTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return t.Tx.QueryRow(t.unlessGone(ctx), sql, args...)
}

func (t *unbrokenTx) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	return t.Tx.SendBatch(t.unlessGone(ctx), batch)
}
