package tenants

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
	"weir/internal/usage"
)

// PlanVersion is one version of a plan. Subjects keep their version until they are migrated.
// Subjects without their own plan have the newest version of the default plan.
type PlanVersion struct {
	Number      int
	Newest      bool
	Limits      map[string]limit.Limit // by slug of the rule
	Subjects    int64                  // registered subjects that have it; at most MostCounted + 1
	PublishedAt time.Time
}

// MaxOlderVersions is the maximum number of older versions of a plan.
const MaxOlderVersions = 50

// NewestPlanVersion stands for the newest version in Subject.GivePlanVersion.
const NewestPlanVersion = -1

var noSuchVersion = limit.NotListed("GET /v1/plans/{plan}/versions", "Use one %s, or omit it.", "names no version of this plan")

// PublishPlan publishes a new version of a plan: its subjects keep the current limits as an older
// version, and subjects that get the plan from now on have the new limits. Nil limits repeat the
// current ones. Errors: ErrNotFound, ErrPreconditionFailed, *InvalidError, *ConflictError with
// CodeTooManyVersions.
func (s *Store) PublishPlan(ctx context.Context, a Actor, slug string, limits map[string]limit.Limit, m Match) (out Plan, err error) {
	err = s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) error {
		old, err := c.plan(ctx, slug)
		if err != nil {
			return err
		}
		if err := m.check(old.Version); err != nil {
			return err
		}
		if len(old.Older) >= MaxOlderVersions {
			return &ConflictError{CodeTooManyVersions, "a plan has at most 50 older versions: delete versions that no subject has"}
		}
		if limits == nil {
			limits = old.Limits
		}
		rules, err := c.checkLimits(ctx, old.Limits, limits)
		if err != nil {
			return err
		}
		// The present limits stay, as those of an older version.
		if err := c.checkRoomForLimits(ctx, "limits", len(limits)); err != nil {
			return err
		}
		version, err := c.nextAtEnd(ctx, parts{policy: true})
		if err != nil {
			return err
		}
		if err := c.publish(ctx, &old, old.NewestVersion+1, version); err != nil {
			return err
		}
		if err := c.writeLimits(ctx, old, limits, rules, version); err != nil {
			return err
		}
		out, err = c.plan(ctx, slug)
		return err
	})
	return out, err
}

// publish stores the current limits of a plan as an older version and gives the plan the next
// number.
func (c *change) publish(ctx context.Context, p *Plan, number int, version int64) error {
	kept := int32(p.NewestVersion) // a number of the database
	if err := c.KeepPlanVersion(ctx, db.KeepPlanVersionParams{TenantID: c.tenant, PlanID: p.ID, Number: kept}); err != nil {
		return err
	}
	if err := c.KeepPlanLimits(ctx, db.KeepPlanLimitsParams{TenantID: c.tenant, PlanID: p.ID}); err != nil {
		return err
	}
	return c.PublishPlan(ctx, db.PublishPlanParams{
		TenantID: c.tenant, ID: p.ID, NewestVersion: int32(number), PublishedAt: &c.now, Version: version, // at most MaxInt32
	})
}

// PlanVersions lists the versions of a plan, newest first, and returns where the next page begins.
// Errors: ErrNotFound.
func (s *Store) PlanVersions(ctx context.Context, a Actor, slug string, page Page) (out []PlanVersion, next string, err error) {
	after := math.MaxInt
	if page.After != "" {
		if after, err = strconv.Atoi(page.After); err != nil {
			return nil, "", fmt.Errorf("read a cursor: %w", err) // we wrote it
		}
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		row, err := planRow(ctx, q, a.tenant, slug)
		if err != nil {
			return err
		}
		heads, err := planHeads(ctx, q, a.tenant, []db.Plan{row})
		if err != nil {
			return err
		}
		newest := PlanVersion{Number: int(row.NewestVersion), Newest: true, Limits: heads[0].Limits, PublishedAt: row.CreatedAt}
		if row.PublishedAt != nil {
			newest.PublishedAt = *row.PublishedAt
		}
		out = append([]PlanVersion{newest}, heads[0].Older...)
		out = slices.DeleteFunc(out, func(v PlanVersion) bool { return v.Number >= after })
		if size := int(page.most()) - 1; len(out) > size {
			out, next = out[:size], strconv.Itoa(out[size-1].Number)
		}
		if len(out) > 0 && out[0].Newest {
			if err := readLimits(ctx, q, a.tenant, heads, nil); err != nil {
				return err
			}
		}
		if err := readOlderLimits(ctx, q, a.tenant, row.ID, out); err != nil {
			return err
		}
		for i := range out {
			out[i].Subjects, err = q.CountPlanVersion(ctx, db.CountPlanVersionParams{
				TenantID: a.tenant, PlanID: &row.ID, Number: int32(out[i].Number), Most: MostCounted + 1, // a number of the database
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return out, next, err
}

// readOlderLimits reads the limits of the older ones of some versions of a plan.
func readOlderLimits(ctx context.Context, q *db.Queries, tenant, plan uuid.UUID, versions []PlanVersion) error {
	byNumber := make(map[int32]*PlanVersion, len(versions))
	for i := range versions {
		byNumber[int32(versions[i].Number)] = &versions[i] // a number of the database
	}
	limits, err := q.LimitsOfPlanVersions(ctx, db.LimitsOfPlanVersionsParams{TenantID: tenant, PlanID: plan, Numbers: slices.Collect(maps.Keys(byNumber))})
	for _, l := range limits {
		byNumber[l.Number].Limits[l.Slug] = planLimitOf(l.LimitUnits, l.BurstUnits, l.Unlimited, l.WarnAt, l.Overage, l.Metering)
	}
	return err
}

// CheckPlanLimits validates limits for a plan. Errors: *InvalidError.
func (s *Store) CheckPlanLimits(ctx context.Context, a Actor, limits map[string]limit.Limit) error {
	return s.read(ctx, a, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		_, err := s.newChange(q, tx, a, a.tenant, s.instant()).checkLimits(ctx, nil, limits)
		return err
	})
}

// PlanSubjects returns how many registered subjects have the newest version of a plan, counted as
// in PlanReach, and the names of up to most of them. For the default plan, these include other
// subjects that sent checks recently. Errors: ErrNotFound.
func (s *Store) PlanSubjects(ctx context.Context, a Actor, slug string, most int) (total int64, names []string, err error) {
	reach, err := s.PlanReach(ctx, a, slug, "")
	if err != nil {
		return 0, nil, err
	}
	isDefault := false
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		p, err := planRow(ctx, q, a.tenant, slug)
		if err != nil {
			return err
		}
		isDefault = p.IsDefault
		names, err = q.PlanSubjects(ctx, db.PlanSubjectsParams{
			TenantID: a.tenant, PlanID: &p.ID, NewestVersion: p.NewestVersion, IsDefault: p.IsDefault, Most: int32(most), // a number of code
		})
		return err
	})
	if err != nil || !isDefault {
		return reach.Subjects, names, err
	}
	now := s.instant()
	report, err := s.Usage(ctx, a, UsageQuery{Grain: usage.Hour, From: now.Add(-24 * time.Hour), To: now, BySubject: true})
	if err != nil {
		return 0, nil, err
	}
	seen := map[string]bool{}
	for _, name := range names {
		seen[name] = true
	}
	var others []string
	for _, item := range report.Items {
		if !seen[item.Subject] {
			seen[item.Subject] = true
			others = append(others, item.Subject)
		}
	}
	others, err = s.unregistered(ctx, a, others)
	return reach.Subjects, append(names, others...), err
}

// unregistered returns those subjects that are not registered, and therefore have the default plan.
func (s *Store) unregistered(ctx context.Context, a Actor, names []string) (out []string, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.SubjectsByName(ctx, db.SubjectsByNameParams{TenantID: a.tenant, Subjects: names})
		registered := map[string]bool{}
		for _, row := range rows {
			registered[row.Subject] = true
		}
		out = slices.DeleteFunc(names, func(name string) bool { return registered[name] })
		return err
	})
	return out, err
}

// DeletePlanVersion deletes an older version without subjects. Errors: ErrNotFound,
// ErrPreconditionFailed (m is compared with the plan's version), *ConflictError with CodePlanInUse,
// also for the newest version.
func (s *Store) DeletePlanVersion(ctx context.Context, a Actor, slug string, number int, m Match) error {
	return s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) error {
		p, err := planHead(ctx, c.Queries, c.tenant, slug)
		if err != nil {
			return err
		}
		if err := m.check(p.Version); err != nil {
			return err
		}
		switch {
		case number == p.NewestVersion:
			return &ConflictError{CodePlanInUse, "this is the newest version, which subjects get: publish another one first, or delete the plan"}
		case p.older(number) == nil:
			return ErrNotFound
		}
		used, err := c.PlanVersionHasSubjects(ctx, db.PlanVersionHasSubjectsParams{TenantID: c.tenant, PlanID: &p.ID, Number: int32(number)}) // one of the database
		if err != nil {
			return err
		}
		if used {
			return &ConflictError{CodePlanInUse, "subjects have this version: migrate them first"}
		}
		version, err := c.nextAtEnd(ctx, parts{policy: true})
		if err != nil {
			return err
		}
		if err := c.DeletePlanVersion(ctx, db.DeletePlanVersionParams{TenantID: c.tenant, PlanID: p.ID, Number: int32(number)}); err != nil { // as above
			return err
		}
		_, err = c.updatePlan(ctx, p.ID, p, version)
		return err
	})
}

// older returns an older version of a plan, or nil if it does not exist.
func (p *Plan) older(number int) *PlanVersion {
	i := slices.IndexFunc(p.Older, func(v PlanVersion) bool { return v.Number == number })
	if i < 0 {
		return nil
	}
	return &p.Older[i]
}

// chooseVersion sets the version of in, a subject that is written instead of old (nil for a new
// one): the requested one, else the one that it has of the same plan, else the newest.
func (p *Plan) chooseVersion(in, old *Subject) *limit.Problem {
	switch ask := in.GivePlanVersion; {
	case ask > 0 && ask != p.NewestVersion && p.older(ask) == nil:
		return noSuchVersion
	case ask > 0:
		in.PlanVersion = ask
	case ask == 0 && old != nil && old.Plan == in.Plan:
		in.PlanVersion = old.PlanVersion
	default:
		in.PlanVersion = p.NewestVersion
	}
	return nil
}

// choosePlan returns the id of in's plan, or nil, and sets the version of in.
func (c *change) choosePlan(ctx context.Context, in, old *Subject) (*uuid.UUID, error) {
	if in.Plan == "" {
		in.PlanVersion = 0
		return nil, nil
	}
	plan, err := c.planNamed(ctx, in.Plan)
	if err != nil {
		return nil, err
	}
	if p := plan.chooseVersion(in, old); p != nil {
		return nil, invalid("plan_version", p)
	}
	return &plan.ID, nil
}

// putOlder writes older versions of a plan from a document. Other versions are kept.
func (c *change) putOlder(ctx context.Context, plan uuid.UUID, before, after []PlanVersion, rules map[string]Rule) error {
	was := Plan{Older: before}
	for _, v := range after {
		old := was.older(v.Number)
		if old != nil && maps.Equal(old.Limits, v.Limits) {
			continue
		}
		number := int32(v.Number) // at most MaxPlanVersion
		if old == nil {
			if err := c.PutPlanVersion(ctx, db.PutPlanVersionParams{TenantID: c.tenant, PlanID: plan, Number: number}); err != nil {
				return err
			}
		} else if err := c.ClearPlanVersionLimits(ctx, db.ClearPlanVersionLimitsParams{TenantID: c.tenant, PlanID: plan, Number: number}); err != nil {
			return err
		}
		if len(v.Limits) == 0 {
			continue
		}
		var put limitColumns
		for _, slug := range slices.Sorted(maps.Keys(v.Limits)) {
			put.add(rules[slug].ID, v.Limits[slug])
		}
		err := c.PutPlanVersionLimits(ctx, db.PutPlanVersionLimitsParams{
			TenantID: c.tenant, PlanID: plan, Number: number, RuleIds: put.rules, Limits: put.limits, Bursts: put.bursts,
			Unlimiteds: put.unlimiteds, WarnAts: put.warnAts, Overages: put.overages, Meterings: put.meterings,
		})
		if err != nil {
			return err
		}
	}
	return nil
}
