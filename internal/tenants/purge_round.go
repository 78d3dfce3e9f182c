package tenants

import (
	"bytes"
	"context"
	"errors"

	"github.com/google/uuid"
)

// purgeRound deletes rows of tenants, one after the other in the order of their ids. A tenant that
// fails does not keep the others, unless ten fail one after the other. The next round of the server
// continues behind the last of them and ends with it, so that the same ten never keep the rest.
type purgeRound[T any] struct {
	at     *turn
	most   int // rows that read returns if there may be more
	read   func(after T) ([]T, error)
	tenant func(T) uuid.UUID
	behind func(tenant uuid.UUID) T // follows all rows of the tenant
	do     func(T) error
}

// run returns the first error.
func (r purgeRound[T]) run(ctx context.Context) error {
	first := r.at.after()
	after, second := r.behind(first), first == uuid.Nil // in the second part, up to the first tenant
	var failed failedTenants
	for {
		rows, err := r.read(after)
		if err != nil {
			return errors.Join(err, failed.first)
		}
		for _, row := range rows {
			tenant := r.tenant(row)
			if second && first != uuid.Nil && bytes.Compare(tenant[:], first[:]) > 0 {
				r.at.passed(uuid.Nil)
				return failed.first
			}
			after = row
			if !failed.has(tenant) && failed.note(tenant, r.do(row)) {
				r.at.passed(tenant)
				return failed.first
			}
		}
		switch {
		case ctx.Err() != nil:
			return failed.first
		case len(rows) == r.most:
		case second:
			r.at.passed(uuid.Nil)
			return failed.first
		default:
			after, second = r.behind(uuid.Nil), true
		}
	}
}
