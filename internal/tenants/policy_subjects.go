package tenants

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// Both read subjects with their overrides, one row per override, sorted by subject. Only the first
// row of a subject has its credits: when each row had them, 5000 grants of a subject with 1000
// overrides took half a minute. The slugs of the rules are read once, because a join with the rules
// of a tenant that Postgres believes to be small compares each grant with each rule. The overrides
// are looked up for each subject: a join may read those of all subjects of the tenant for a page.
const (
	ruleSlugs      = "(SELECT jsonb_object_agg(r.id, r.slug) FROM rules r WHERE r.tenant_id = $1)"
	subjectColumns = `
SELECT s.subject, coalesce(p.slug, ''), s.plan_version, s.state, s.cycle_anchor, s.multiplier,
    CASE WHEN s.has_credits AND row_number() OVER (PARTITION BY s.subject) = 1 THEN (
        SELECT json_agg(json_build_array(` + ruleSlugs + ` ->> g.rule_id::text, g.id, g.units, coalesce((extract(epoch FROM g.expires_at) * 1000)::bigint, 0)) ORDER BY g.expires_at NULLS LAST, g.id)
        FROM credit_grants g
        WHERE g.tenant_id = $1 AND g.subject = s.subject AND g.revoked_at IS NULL AND g.spent_at IS NULL AND g.spent < g.units AND (g.expires_at IS NULL OR g.expires_at > now())) END,
    CASE WHEN o.rule_id IS NOT NULL THEN ` + ruleSlugs + ` ->> o.rule_id::text END, o.limit_units, o.burst_units, o.unlimited, o.starts_at, o.expires_at
FROM (SELECT subject, plan_id, plan_version, state, cycle_anchor, multiplier, has_credits FROM subjects WHERE tenant_id = $1 AND `
	subjectJoins = `) s
LEFT JOIN plans p ON p.tenant_id = $1 AND p.id = s.plan_id
LEFT JOIN LATERAL (
    SELECT rule_id, limit_units, burst_units, unlimited, starts_at, expires_at FROM overrides
    WHERE tenant_id = $1 AND subject = s.subject OFFSET 0) o ON true
ORDER BY s.subject`
	subjectPageSQL   = subjectColumns + "subject > $2 AND subject <= $3 ORDER BY subject LIMIT $4" + subjectJoins
	namedSubjectsSQL = subjectColumns + "subject = ANY($2)" + subjectJoins

	// Postgres plans statements once for all tenants and assumes that each is small. For each page
	// of a large tenant it would read and sort all subjects: hence the setting.
	subjectPageHeadSQL = "SELECT state, subjects_version, set_config('enable_sort', 'off', true) FROM tenants WHERE id = $1"
	// overridesEndSQL returns the subject of the override with which a page is full.
	overridesEndSQL = "SELECT subject FROM overrides WHERE tenant_id = $1 AND subject > $2 ORDER BY subject OFFSET $3 LIMIT 1"
)

// The names of changed subjects, for a page. If few have changed, they are found by their versions.
// Otherwise the page is of all subjects of the tenant: to sort those of a million changes for each
// page would take longer than to pass those that did not change.
const (
	fewChangesSQL  = "SELECT count(*) FROM (SELECT FROM subjects WHERE tenant_id = $1 AND version > $2 LIMIT $3) changes"
	fewChangedSQL  = "SELECT subject, true AS changed FROM (SELECT subject FROM subjects WHERE tenant_id = $1 AND version > $2 ORDER BY version LIMIT $6) few WHERE subject > $3 ORDER BY subject LIMIT $4"
	manyChangedSQL = "SELECT subject, version > $2 AS changed FROM subjects WHERE tenant_id = $1 AND subject > $3 ORDER BY subject LIMIT $4"
	// changedPageSQL returns the changed subjects of a part, its last subject and its size, and the
	// subject of the override with which a page is full.
	changedPageSQL = `) SELECT array(SELECT subject FROM part WHERE changed), (SELECT max(subject) FROM part), (SELECT count(*) FROM part), (
    SELECT part.subject FROM part CROSS JOIN LATERAL (SELECT FROM overrides o WHERE o.tenant_id = $1 AND o.subject = part.subject OFFSET 0) o
    WHERE part.changed OFFSET $5 LIMIT 1)`
	fewChangedPageSQL  = "WITH part AS MATERIALIZED (" + fewChangedSQL + changedPageSQL
	manyChangedPageSQL = "WITH part AS MATERIALIZED (" + manyChangedSQL + changedPageSQL
)

// loadedPages bound what instances read of a tenant's subjects at once: about a tenth of a second,
// so that no timeout is exceeded and no other reader waits long for the connection.
type loadedPages struct {
	subjects  int
	overrides int // a page ends after the subject with which it has so many
	few       int // so many changed subjects are sorted for each page of them
}

var defaultPages = loadedPages{subjects: 10_000, overrides: 20_000, few: 50_000}

// lastName is not below any name of a subject: none has more bytes.
var lastName = strings.Repeat("\U0010FFFF", limit.MaxNameBytes/4)

// ListSubjects calls each for a page of subjects of the tenant, sorted by bytes, beginning after
// the name after: up to 10 000 of them, or those with 20 000 overrides. more reports whether others
// may follow, and version is that of the tenant's subjects at the instant of the read. After an
// error, each was called for only a part of the page. It fails with check.ErrUnknownTenant and with
// ErrUnavailable.
func (s *Store) ListSubjects(ctx context.Context, tenant limit.TenantID, after string, each func(check.SubjectData)) (version int64, more bool, err error) {
	history := s.history.Load()
	err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, _ *db.Queries) error {
		var state, setting string
		err := tx.QueryRow(ctx, subjectPageHeadSQL, tenant).Scan(&state, &version, &setting)
		if errors.Is(err, pgx.ErrNoRows) || err == nil && state != TenantActive {
			return check.ErrUnknownTenant
		}
		if err != nil {
			return err
		}
		end := lastName
		err = tx.QueryRow(ctx, overridesEndSQL, tenant, after, s.pages.overrides-1).Scan(&end)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		read := 0
		err = eachSubject(ctx, tx, func(d check.SubjectData) { read++; each(d) }, subjectPageSQL, tenant, after, end, s.pages.subjects)
		more = read == s.pages.subjects || end != lastName
		return err
	})
	if err != nil {
		return 0, false, fmt.Errorf("list subjects of tenant %s: %w", tenant, err)
	}
	if after == "" {
		s.loaded.set(tenant, history)
	}
	return version, more, nil
}

// ChangedSubjects calls each for a page of the subjects that were registered or changed after
// version since, sorted by bytes, beginning after the name after, and in the first page for all
// that were deleted. A page is at most as large as one of ListSubjects. next is where the next one
// begins, empty after the last one, and version is that of the tenant's subjects at the instant of
// the read. The order is by name, so that a subject that changes again is still in its page.
// After an error, each was called for only a part. It fails with check.ErrHistoryGone if deletions
// since then were purged or the database has gone back, with check.ErrUnknownTenant, and with
// ErrUnavailable.
func (s *Store) ChangedSubjects(ctx context.Context, tenant limit.TenantID, since int64, after string, each func(check.SubjectData)) (version int64, next string, err error) {
	history := s.history.Load()
	err = s.asSystemWithin(ctx, loadTimeout, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		if err := longStatements(ctx, tx); err != nil {
			return err
		}
		head, err := activeTenant(ctx, q, tenant)
		if err != nil {
			return err
		}
		version = head.SubjectsVersion
		if since < head.SubjectsHistoryFrom || since > version || !s.loaded.same(tenant, history) {
			return check.ErrHistoryGone
		}
		if after == "" {
			if err := eachDeleted(ctx, tx, tenant, since, each); err != nil {
				return err
			}
		}
		var names []string
		if names, next, err = s.changedPage(ctx, tx, tenant, since, after); err != nil || len(names) == 0 {
			return err
		}
		return eachSubject(ctx, tx, each, namedSubjectsSQL, tenant, names)
	})
	if err != nil {
		return 0, "", fmt.Errorf("load changed subjects of tenant %s: %w", tenant, err)
	}
	return version, next, nil
}

// changedPage returns the subjects of a page of ChangedSubjects, and where the next page begins.
func (s *Store) changedPage(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, since int64, after string) (names []string, next string, err error) {
	var changes, size int
	if err := tx.QueryRow(ctx, fewChangesSQL, tenant, since, s.pages.few+1).Scan(&changes); err != nil {
		return nil, "", err
	}
	sql, args := fewChangedPageSQL, []any{tenant, since, after, s.pages.subjects, s.pages.overrides - 1, s.pages.few}
	if changes > s.pages.few {
		sql, args = manyChangedPageSQL, args[:5]
		if err := setSort(ctx, tx, "off"); err != nil { // as for subjectPageHeadSQL
			return nil, "", err
		}
	}
	var last, full *string
	if err := tx.QueryRow(ctx, sql, args...).Scan(&names, &last, &size, &full); err != nil {
		return nil, "", err
	}
	if changes > s.pages.few {
		if err := setSort(ctx, tx, "on"); err != nil {
			return nil, "", err
		}
	}
	switch {
	case full != nil:
		i, _ := slices.BinarySearch(names, *full)
		return names[:i+1], *full, nil
	case size == s.pages.subjects:
		return names, *last, nil
	}
	return names, "", nil
}

// setSort allows or avoids sorts in the plans of the transaction's next statements.
func setSort(ctx context.Context, tx pgx.Tx, to string) error {
	_, err := tx.Exec(ctx, "SET LOCAL enable_sort = "+to)
	return err
}
