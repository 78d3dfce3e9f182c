package tenants

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// OverrideFilter selects the overrides of a tenant that meet all of its conditions.
type OverrideFilter struct {
	Rule         string     // slug; "": any
	Prefix       string     // the subject begins with these bytes
	EndingBefore *time.Time // it has not expired, and expires before this time; nil: any
	Active       *bool      // whether it is active now: it has started and has not expired; nil: any
}

// SubjectOverride is an override with its subject.
type SubjectOverride struct {
	Subject string
	Override
	Active bool // it is active now
}

// overridesListSQL selects overrides by a filter ($1 to $6); $7 is now, $8 to $10 are the end of
// the previous page. The order is appended.
const overridesListSQL = `
SELECT o.subject, o.rule_id, r.slug AS rule, o.limit_units, o.burst_units, o.unlimited, o.reason, o.created_by, o.starts_at,
    o.expires_at, o.created_at, o.version,
    (o.starts_at IS NULL OR o.starts_at <= $7) AND (o.expires_at IS NULL OR o.expires_at > $7) AS active
FROM overrides o JOIN rules r ON r.tenant_id = o.tenant_id AND r.id = o.rule_id
WHERE o.tenant_id = $1 AND ($2 = '' OR r.slug = $2)
    AND o.subject >= $3 AND ($3 = '' OR starts_with(o.subject, $3))
    AND ($4::timestamptz IS NULL OR o.expires_at > $7 AND o.expires_at < $4)
    AND ($5::boolean IS NULL OR $5 = ((o.starts_at IS NULL OR o.starts_at <= $7) AND (o.expires_at IS NULL OR o.expires_at > $7)))`

// The orders of the list, each from the end of the previous page.
const (
	overridesBySubjectSQL = ` AND ($6::timestamptz IS NULL) AND (o.subject, o.rule_id) > ($8::text, $9::uuid)
ORDER BY o.subject, o.rule_id LIMIT $10`
	overridesByEndSQL = ` AND ($6::timestamptz IS NULL OR (o.expires_at, o.subject, o.rule_id) > ($6, $8::text, $9::uuid))
ORDER BY o.expires_at, o.subject, o.rule_id LIMIT $10`
)

type overrideRow struct {
	Subject    string
	RuleID     uuid.UUID
	Rule       string
	LimitUnits *int64
	BurstUnits *int64
	Unlimited  bool
	Reason     string
	CreatedBy  string
	StartsAt   *time.Time
	ExpiresAt  *time.Time
	CreatedAt  time.Time
	Version    int64
	Active     bool
}

// Overrides lists the overrides of all subjects, including expired ones, and returns where the next
// page begins. They are sorted by subject or, with EndingBefore, by expiry.
func (s *Store) Overrides(ctx context.Context, a Actor, f OverrideFilter, p Page) (out []SubjectOverride, next string, err error) {
	after, err := overridePlaceOf(p.After)
	if err != nil {
		return nil, "", err
	}
	if err := f.validate(); err != nil {
		return nil, "", err
	}
	query := overridesListSQL + overridesBySubjectSQL
	if f.EndingBefore != nil {
		query = overridesListSQL + overridesByEndSQL
	}
	now := s.instant()
	err = s.read(ctx, a, func(ctx context.Context, tx pgx.Tx, _ *db.Queries) error {
		rows, err := tx.Query(ctx, query, a.tenant, f.Rule, f.Prefix, f.EndingBefore, f.Active, after.end, now,
			after.subject, after.rule, p.most())
		if err != nil {
			return err
		}
		found, err := pgx.CollectRows(rows, pgx.RowToStructByName[overrideRow])
		if err != nil {
			return err
		}
		if size := int(p.most()) - 1; len(found) > size {
			found = found[:size]
			next = placeOf(found[size-1], f.EndingBefore != nil).String()
		}
		out = make([]SubjectOverride, len(found))
		for i, row := range found {
			out[i] = row.override()
		}
		return nil
	})
	return out, next, err
}

func (r *overrideRow) override() SubjectOverride {
	return SubjectOverride{
		Subject: r.Subject, Active: r.Active,
		Override: Override{
			Rule: r.Rule, Limit: limitOf(r.LimitUnits, r.BurstUnits, r.Unlimited), Reason: r.Reason, CreatedBy: r.CreatedBy,
			StartsAt: r.StartsAt, ExpiresAt: r.ExpiresAt, Version: r.Version, CreatedAt: r.CreatedAt,
		},
	}
}

func (f OverrideFilter) validate() error {
	var fields []limit.FieldError
	for _, c := range []struct{ field, text string }{{"rule", f.Rule}, {"prefix", f.Prefix}} {
		if len(c.text) > 2*limit.MaxNameBytes || !plain(c.text) {
			fields = append(fields, limit.FieldProblem(c.field, plainUpTo(2*limit.MaxNameBytes)))
		}
	}
	if f.EndingBefore != nil && (f.EndingBefore.Year() > maxYear || f.EndingBefore.Year() < 1) {
		fields = append(fields, limit.FieldProblem("ending_before", notAnyYear))
	}
	return invalidIf(fields)
}

// overridePlace is the end of a page of overrides.
type overridePlace struct {
	end     *time.Time // nil: from the start, or sorted by subject
	rule    uuid.UUID
	subject string
}

func placeOf(r overrideRow, byEnd bool) overridePlace {
	p := overridePlace{rule: r.RuleID, subject: r.Subject}
	if byEnd {
		p.end = r.ExpiresAt
	}
	return p
}

// String writes the subject last, because it can contain any character.
func (p overridePlace) String() string {
	end := ""
	if p.end != nil {
		end = strconv.FormatInt(p.end.UnixMicro(), 10)
	}
	return end + "/" + p.rule.String() + "/" + p.subject
}

func overridePlaceOf(text string) (p overridePlace, err error) {
	if text == "" {
		return p, nil
	}
	parts := strings.SplitN(text, "/", 3)
	if len(parts) != 3 {
		return p, invalid("cursor", notAnyCursor)
	}
	if parts[0] != "" {
		micros, err := strconv.ParseInt(parts[0], 10, 64)
		if err != nil {
			return p, invalid("cursor", notAnyCursor)
		}
		end := time.UnixMicro(micros).UTC()
		p.end = &end
	}
	if p.rule, err = uuid.Parse(parts[1]); err != nil {
		return p, invalid("cursor", notAnyCursor)
	}
	p.subject = parts[2]
	return p, nil
}
