package tenants

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// SecuritySettings are a tenant's settings for the sessions of its members and for its security
// events.
type SecuritySettings struct {
	SessionIdle limit.Duration // a session ends this long after its last request
	SessionLife limit.Duration // and this long after its sign-in
	MaxSessions int            // of each member; a further sign-in ends the least recently used one
	// ConfirmAfter is how long after the last entry of the password a member may change keys,
	// members, billing and these settings. After it, the password is required again.
	ConfirmAfter   limit.Duration
	EventRetention limit.Duration // how long security events are kept

	Version   int64 // 0: the settings were never changed
	UpdatedAt time.Time
}

// The ranges of the settings. A tenant can only shorten SessionIdle and SessionLife.
const (
	minSessionIdle       = 5 * time.Minute
	minSessionLife       = time.Hour
	MaxSessions          = 100
	minConfirmAfter      = time.Minute
	maxConfirmAfter      = SessionIdle
	defaultConfirmAfter  = 15 * time.Minute
	minEventRetention    = 30 * 24 * time.Hour
	maxEventRetention    = 3650 * 24 * time.Hour
	defaultEventsKeptFor = 365 * 24 * time.Hour
)

// DefaultSecuritySettings returns the settings of a tenant that has not changed them.
func DefaultSecuritySettings() SecuritySettings {
	return SecuritySettings{
		SessionIdle: limit.Duration{Text: "12h", MS: SessionIdle.Milliseconds()}, SessionLife: limit.Duration{Text: "7d", MS: SessionLife.Milliseconds()},
		MaxSessions: MaxSessions, ConfirmAfter: limit.Duration{Text: "15m", MS: defaultConfirmAfter.Milliseconds()},
		EventRetention: limit.Duration{Text: "365d", MS: defaultEventsKeptFor.Milliseconds()},
	}
}

// clean parses the texts of the durations and returns the errors of all settings.
func (s *SecuritySettings) clean() (fields []limit.FieldError) {
	for _, d := range []struct {
		field string
		value *limit.Duration
		least time.Duration
		most  time.Duration
		words string
	}{
		{"session_idle", &s.SessionIdle, minSessionIdle, SessionIdle, "5m to 12h"},
		{"session_life", &s.SessionLife, minSessionLife, SessionLife, "1h to 7d"},
		{"confirm_after", &s.ConfirmAfter, minConfirmAfter, maxConfirmAfter, "1m to 12h"},
		{"event_retention", &s.EventRetention, minEventRetention, maxEventRetention, "30d to 3650d"},
	} {
		parsed, err := limit.ParseDuration(d.value.Text)
		if err != nil || parsed.MS < d.least.Milliseconds() || parsed.MS > d.most.Milliseconds() {
			fields = append(fields, limit.FieldProblem(d.field, limit.MustBe("a duration from %s", d.words)))
			continue
		}
		*d.value = parsed
	}
	if s.MaxSessions < 1 || s.MaxSessions > MaxSessions {
		fields = append(fields, limit.FieldProblem("max_sessions", limit.MustBe("from 1 to %d", MaxSessions)))
	}
	return fields
}

func (s *SecuritySettings) same(o *SecuritySettings) bool {
	return s.SessionIdle == o.SessionIdle && s.SessionLife == o.SessionLife && s.MaxSessions == o.MaxSessions &&
		s.ConfirmAfter == o.ConfirmAfter && s.EventRetention == o.EventRetention
}

// SecuritySettings returns the settings of the actor's tenant.
func (s *Store) SecuritySettings(ctx context.Context, a Actor) (out SecuritySettings, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		out, err = readSecuritySettings(ctx, q, a.tenant)
		return err
	})
	return out, err
}

func readSecuritySettings(ctx context.Context, q *db.Queries, tenant uuid.UUID) (SecuritySettings, error) {
	row, err := q.SecuritySettings(ctx, tenant)
	if errors.Is(err, pgx.ErrNoRows) {
		return DefaultSecuritySettings(), nil
	}
	if err != nil {
		return SecuritySettings{}, err
	}
	return securitySettingsOf(row), nil
}

func securitySettingsOf(row db.SecuritySetting) SecuritySettings {
	return SecuritySettings{
		SessionIdle:    limit.Duration{Text: row.SessionIdleText, MS: row.SessionIdleMs},
		SessionLife:    limit.Duration{Text: row.SessionLifeText, MS: row.SessionLifeMs},
		MaxSessions:    int(row.MaxSessions),
		ConfirmAfter:   limit.Duration{Text: row.ConfirmAfterText, MS: row.ConfirmAfterMs},
		EventRetention: limit.Duration{Text: row.EventRetentionText, MS: row.EventRetentionMs},
		Version:        row.Version, UpdatedAt: row.UpdatedAt,
	}
}

// EditSecuritySettings calls edit to change the settings; an error of edit is returned unchanged
// and nothing changes. Errors: ErrPreconditionFailed, *InvalidError.
func (s *Store) EditSecuritySettings(ctx context.Context, a Actor, m Match, edit func(*SecuritySettings) error) (out SecuritySettings, err error) {
	err = s.change(ctx, a, MayManage, func(ctx context.Context, c *change) error {
		old, err := readSecuritySettings(ctx, c.Queries, c.tenant)
		if err != nil {
			return err
		}
		if err := m.check(old.Version); err != nil {
			return err
		}
		now := old
		if err := edit(&now); err != nil {
			return err
		}
		if err := invalidIf(now.clean()); err != nil {
			return err
		}
		if now.same(&old) {
			out = old
			return nil
		}
		version, err := c.next(ctx, parts{itself: true})
		if err != nil {
			return err
		}
		row, err := c.UpsertSecuritySettings(ctx, db.UpsertSecuritySettingsParams{
			TenantID: c.tenant, SessionIdleText: now.SessionIdle.Text, SessionIdleMs: now.SessionIdle.MS,
			SessionLifeText: now.SessionLife.Text, SessionLifeMs: now.SessionLife.MS, MaxSessions: int32(now.MaxSessions),
			ConfirmAfterText: now.ConfirmAfter.Text, ConfirmAfterMs: now.ConfirmAfter.MS,
			EventRetentionText: now.EventRetention.Text, EventRetentionMs: now.EventRetention.MS, Version: version,
		})
		out = securitySettingsOf(row)
		return err
	})
	return out, err
}
