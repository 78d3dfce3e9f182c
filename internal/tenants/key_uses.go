package tenants

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

type touch struct {
	tenant, key uuid.UUID
	at          time.Time
}

// touch records the use of a key, once in touchEvery, and never waits.
func (a *Authenticator) touch(k *knownKey, now time.Time) {
	last := k.lastTouch.Load()
	if at := now.UnixMilli(); at-last >= touchEvery.Milliseconds() && k.lastTouch.CompareAndSwap(last, at) {
		select {
		case a.touches <- touch{k.actor.tenant, k.actor.id, now}:
		default: // there are so many keys that this one may look unused for a minute more
			k.lastTouch.Store(last)
		}
	}
}

// writeTouches stores what is queued, in batches. If it fails, the batch is lost, and the next use
// of the key a minute later is stored.
func (a *Authenticator) writeTouches(ctx context.Context) {
	for len(a.touches) > 0 {
		batch := make([]db.TouchKeysParams, 0, min(len(a.touches), touchBatch))
		for len(batch) < cap(batch) {
			t := <-a.touches // only this goroutine receives, so there is one
			batch = append(batch, db.TouchKeysParams{TenantID: t.tenant, ID: t.key, At: t.at})
		}
		// In the same order on all servers, so that two of them never wait for each other.
		slices.SortFunc(batch, func(x, y db.TouchKeysParams) int { return bytes.Compare(x.ID[:], y.ID[:]) })
		err := a.store.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
			q.TouchKeys(ctx, batch).Exec(func(_ int, e error) { err = errors.Join(err, e) })
			return err
		})
		if err != nil {
			a.log.WarnContext(ctx, "last use of API keys not stored", "keys", len(batch), "error", err)
			return
		}
	}
}
