package tenants

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// LimitTrailQuery selects a period of a subject's limit under one rule.
type LimitTrailQuery struct {
	Subject, Rule string // slug of the rule
	Plan          string // the subject's own plan now; "": none
	From, To      time.Time
	Most          int // of the rows of each object
}

// LimitTrail says what decided a subject's limit under a rule in a period, newest change first.
type LimitTrail struct {
	Overrides []LimitChange
	Plans     []LimitChange // of the subject's own plan: objects with the field plan
	// DefaultNow and Defaults are the tenant's default plan, in the form of Plan and Plans, if the
	// subject had no plan of its own at some time.
	DefaultNow string
	Defaults   []LimitChange
	Limits     map[string]PlanLimitTrail // of the plans that the subject had
}

// PlanLimitTrail is the limit of a plan for a rule.
type PlanLimitTrail struct {
	Now     *limit.Limit // nil: none
	Changes []LimitChange
}

// LimitChange is what a row of the trail says about one limit: an object with the fields that
// differ; nil or null: there was, or is, none.
type LimitChange struct {
	At            time.Time
	Before, After json.RawMessage
}

// LimitTrail reads the rows of the subject and of the plans that it had. A row can have all limits
// of all versions of a plan, so only the part about the one rule is read from it.
func (s *Store) LimitTrail(ctx context.Context, a Actor, query LimitTrailQuery) (*LimitTrail, error) {
	out := &LimitTrail{Limits: map[string]PlanLimitTrail{}}
	err := s.read(ctx, a, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		r := limitTrailReader{tx, q, a.tenant, &query, out}
		if err := r.subject(ctx); err != nil {
			return err
		}
		slugs, unplanned := r.plans()
		if unplanned {
			if err := r.defaults(ctx); err != nil {
				return err
			}
			slugs = append(slugs, plansNamedIn(out.Defaults)...)
		}
		return r.limits(ctx, slugs, unplanned)
	})
	return out, err
}

type limitTrailReader struct {
	tx     pgx.Tx
	q      *db.Queries
	tenant uuid.UUID
	query  *LimitTrailQuery
	out    *LimitTrail
}

// subject reads the changes of the subject's override and plan. An object without the field plan
// did not change it.
func (r *limitTrailReader) subject(ctx context.Context) error {
	rows, err := r.tx.Query(ctx, `
SELECT at, before->'overrides'->$5::text, after->'overrides'->$5::text,
    CASE WHEN before->'plan' IS NOT NULL THEN json_build_object('plan', before->'plan') END,
    CASE WHEN after->'plan' IS NOT NULL THEN json_build_object('plan', after->'plan') END
FROM audit WHERE tenant_id = $1 AND kind = 'subject' AND target = $2 AND at >= $3 AND at < $4
ORDER BY sequence DESC LIMIT $6`, r.tenant, r.query.Subject, r.query.From, r.query.To, r.query.Rule, r.query.Most)
	if err != nil {
		return err
	}
	for rows.Next() {
		var at time.Time
		var o, p LimitChange
		if err := rows.Scan(&at, &o.Before, &o.After, &p.Before, &p.After); err != nil {
			return err
		}
		o.At, p.At = at, at
		if o.Before != nil || o.After != nil {
			r.out.Overrides = append(r.out.Overrides, o)
		}
		if p.Before != nil || p.After != nil {
			r.out.Plans = append(r.out.Plans, p)
		}
	}
	return rows.Err()
}

// plans returns which plans of its own the subject had, and whether it had none at some time.
func (r *limitTrailReader) plans() (slugs []string, unplanned bool) {
	slugs = plansNamedIn(r.out.Plans)
	if r.query.Plan != "" {
		slugs = append(slugs, r.query.Plan)
	}
	unplanned = r.query.Plan == "" || slices.ContainsFunc(r.out.Plans, func(c LimitChange) bool {
		return planOfChange(c.Before) == "" || planOfChange(c.After) == ""
	})
	return slugs, unplanned
}

// plansNamedIn returns the plans that objects with the field plan name.
func plansNamedIn(changes []LimitChange) (slugs []string) {
	for _, c := range changes {
		for _, object := range []json.RawMessage{c.Before, c.After} {
			if slug := planOfChange(object); slug != "" {
				slugs = append(slugs, slug)
			}
		}
	}
	return slugs
}

func planOfChange(object json.RawMessage) string {
	var of struct{ Plan string }
	_ = json.Unmarshal(object, &of) // as the trail writes it; an absent one names none
	return of.Plan
}

// defaultsSQL reads which plans became or ceased to be the default. All rows of plans have to be
// looked at, so it looks at the newest only, and at no object of more than 16 kB as it is stored.
const defaultsSQL = `
SELECT at, target, was, is_now FROM (
    SELECT sequence, at, target,
        CASE WHEN pg_column_size(before) <= 16384 THEN coalesce(before->>'default' = 'true', false) ELSE false END AS was,
        CASE WHEN pg_column_size(after) <= 16384 THEN coalesce(after->>'default' = 'true', false) ELSE false END AS is_now
    FROM (SELECT sequence, at, target, before, after FROM audit
        WHERE tenant_id = $1 AND kind = 'plan' AND at >= $2 AND at < $3 ORDER BY sequence DESC LIMIT 4 * $4::int) AS newest
) AS plans WHERE was <> is_now ORDER BY sequence DESC LIMIT 2 * $4::int`

// defaults reads the changes of the default plan. The plan that was the default, and the one that
// is, have a row each, of the same time.
func (r *limitTrailReader) defaults(ctx context.Context) error {
	rows, err := r.tx.Query(ctx, defaultsSQL, r.tenant, r.query.From, r.query.To, r.query.Most)
	if err != nil {
		return err
	}
	var at time.Time
	var target string
	var was, is bool
	_, err = pgx.ForEachRow(rows, []any{&at, &target, &was, &is}, func() error {
		list := r.out.Defaults
		if len(list) == 0 || !list[len(list)-1].At.Equal(at) {
			none := json.RawMessage(`{"plan": null}`)
			list = append(list, LimitChange{At: at, Before: none, After: none})
		}
		named := json.RawMessage(`{"plan": "` + target + `"}`) // a slug
		if was {
			list[len(list)-1].Before = named
		} else {
			list[len(list)-1].After = named
		}
		r.out.Defaults = list
		return nil
	})
	return err
}

// limits reads the limits of plans, and of the default plan if it matters.
func (r *limitTrailReader) limits(ctx context.Context, slugs []string, withDefault bool) error {
	rows, err := r.tx.Query(ctx, "SELECT id, slug, is_default FROM plans WHERE tenant_id = $1 AND (slug = ANY($2) OR is_default AND $3)",
		r.tenant, slugs, withDefault)
	if err != nil {
		return err
	}
	var plan db.Plan
	ids := map[uuid.UUID]string{}
	_, err = pgx.ForEachRow(rows, []any{&plan.ID, &plan.Slug, &plan.IsDefault}, func() error {
		ids[plan.ID] = plan.Slug
		slugs = append(slugs, plan.Slug)
		if plan.IsDefault && withDefault {
			r.out.DefaultNow = plan.Slug
		}
		return nil
	})
	if err != nil {
		return err
	}
	params := db.PlanLimitsParams{TenantID: r.tenant, Rules: []string{r.query.Rule}}
	for id := range ids {
		params.PlanIds = append(params.PlanIds, id)
	}
	limits, err := r.q.PlanLimits(ctx, params)
	if err != nil {
		return err
	}
	for _, slug := range slugs {
		r.out.Limits[slug] = PlanLimitTrail{}
	}
	for _, l := range limits {
		now := planLimitOf(l.LimitUnits, l.BurstUnits, l.Unlimited, l.WarnAt, l.Overage, l.Metering)
		r.out.Limits[ids[l.PlanID]] = PlanLimitTrail{Now: &now}
	}
	return r.limitChanges(ctx)
}

// limitChanges reads the changes of the limits of the plans.
func (r *limitTrailReader) limitChanges(ctx context.Context) error {
	var slugs []string
	for slug := range r.out.Limits {
		slugs = append(slugs, slug)
	}
	rows, err := r.tx.Query(ctx, `
SELECT plan.slug, trail.at, trail.before, trail.after FROM unnest($2::text[]) AS plan (slug), LATERAL (
    SELECT sequence, at, before->'limits'->$5::text AS before, after->'limits'->$5::text AS after
    FROM audit WHERE tenant_id = $1 AND kind = 'plan' AND target = plan.slug AND at >= $3 AND at < $4
    ORDER BY sequence DESC LIMIT $6) AS trail
WHERE trail.before IS NOT NULL OR trail.after IS NOT NULL ORDER BY trail.sequence DESC`,
		r.tenant, slugs, r.query.From, r.query.To, r.query.Rule, r.query.Most)
	if err != nil {
		return err
	}
	for rows.Next() {
		var slug string
		var c LimitChange
		if err := rows.Scan(&slug, &c.At, &c.Before, &c.After); err != nil {
			return err
		}
		of := r.out.Limits[slug]
		of.Changes = append(of.Changes, c)
		r.out.Limits[slug] = of
	}
	return rows.Err()
}
