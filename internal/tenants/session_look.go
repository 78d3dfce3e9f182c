package tenants

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

// SessionLook is a session with a tenant that its person views.
type SessionLook struct{ Session, Tenant uuid.UUID }

// SessionsThatHold returns the looks whose session has not ended and whose person is still a member
// of an active tenant. It does not count as use of the session. Error: ErrUnavailable.
func (s *Store) SessionsThatHold(ctx context.Context, looks []SessionLook) (map[SessionLook]bool, error) {
	now := s.instant()
	params := db.SessionsThatHoldParams{Oldest: now.Add(-SessionLife), IdleSince: now.Add(-SessionIdle), Now: now}
	for _, look := range looks {
		params.Sessions = append(params.Sessions, look.Session)
		params.Tenants = append(params.Tenants, look.Tenant)
	}
	holding := map[SessionLook]bool{}
	err := s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.SessionsThatHold(ctx, params)
		for _, row := range rows {
			holding[SessionLook{Session: row.ID, Tenant: row.TenantID}] = true
		}
		return err
	})
	return holding, err
}
