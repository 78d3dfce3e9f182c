package tenants

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/route"
	"weir/internal/tenants/db"
)

// LoadPolicy reads a tenant's rules, plans, plan limits and routes, all of one instant, for
// check.Policies. It fails with check.ErrUnknownTenant if there is no such active tenant, and with
// ErrUnavailable.
func (s *Store) LoadPolicy(ctx context.Context, tenant limit.TenantID) (data check.PolicyData, err error) {
	data, err = s.loadPolicy(ctx, tenant, smallPlans)
	if errors.Is(err, errLargePlans) {
		data, err = s.loadLargePolicy(ctx, tenant)
	}
	if err != nil {
		return check.PolicyData{}, fmt.Errorf("load policy of tenant %s: %w", tenant, err)
	}
	return data, nil
}

// loadLargePolicy is LoadPolicy for one tenant at a time. Others wait without a connection.
func (s *Store) loadLargePolicy(ctx context.Context, tenant limit.TenantID) (check.PolicyData, error) {
	select {
	case s.largePlans <- struct{}{}:
		defer func() { <-s.largePlans }()
		return s.loadPolicy(ctx, tenant, math.MaxInt)
	case <-ctx.Done():
		return check.PolicyData{}, ctx.Err()
	}
}

// loadPolicy is LoadPolicy for up to so many limits of plans: for more, it fails with
// errLargePlans.
func (s *Store) loadPolicy(ctx context.Context, tenant limit.TenantID, most int) (data check.PolicyData, err error) {
	err = s.asSystemWithin(ctx, loadTimeout, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		head, err := activeTenant(ctx, q, tenant)
		if err != nil {
			return err
		}
		data, err = policyData(ctx, tx, q, tenant, head, most)
		if !s.instant().Before(check.PartitionsSettled(&data)) {
			data.PartitionsBefore = 0
		}
		return err
	})
	return data, err
}

// policyData reads what a policy consists of.
func policyData(
	ctx context.Context, tx pgx.Tx, q *db.Queries, tenant uuid.UUID, head db.PolicyVersionRow, most int,
) (data check.PolicyData, err error) {
	data = check.PolicyData{
		Slug: head.Slug, Version: head.PolicyVersion, Partitions: int(head.Partitions), PartitionsBefore: int(head.PartitionsBefore),
	}
	if head.PartitionsChangedAt != nil {
		data.PartitionsChanged = *head.PartitionsChangedAt
	}
	rules, err := q.PolicyRules(ctx, tenant)
	if err != nil {
		return data, err
	}
	data.Rules = make([]limit.Rule, len(rules))
	slugs := make(map[uuid.UUID]string, len(rules))
	for i, row := range rules {
		slugs[row.ID] = row.Slug
		r, err := ruleOf(row)
		if err != nil {
			return data, err
		}
		data.Rules[i] = r.Rule
	}
	if data.Plans, err = loadPlans(ctx, tx, q, tenant, slugs, most); err != nil {
		return data, err
	}
	routes, err := q.AllRoutes(ctx, tenant)
	data.Routes = make([]route.Route, len(routes))
	for i, row := range routes {
		data.Routes[i] = routeOf(row).Route
	}
	return data, err
}

// TenantsByUse returns all active tenants with the versions of their configuration, those whose
// keys were used last first. Errors: ErrUnavailable.
func (s *Store) TenantsByUse(ctx context.Context) (list []Change, err error) {
	err = s.asSystemWithin(ctx, loadTimeout, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, _ *db.Queries) error {
		if err := longStatements(ctx, tx); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT t.id, t.policy_version, t.subjects_version, t.keys_version FROM tenants t
			LEFT JOIN (SELECT tenant_id, max(last_used_at) AS at FROM api_keys GROUP BY tenant_id) used ON used.tenant_id = t.id
			WHERE t.state = $1 ORDER BY used.at DESC NULLS LAST, t.id DESC`, TenantActive)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Change, err error) {
			return c, row.Scan(&c.Tenant, &c.PolicyVersion, &c.SubjectsVersion, &c.KeysVersion)
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list tenants by use: %w", err)
	}
	return list, nil
}

func activeTenant(ctx context.Context, q *db.Queries, tenant uuid.UUID) (db.PolicyVersionRow, error) {
	head, err := q.PolicyVersion(ctx, tenant)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && head.State != TenantActive {
		return head, check.ErrUnknownTenant
	}
	return head, err
}

// loadedHistories stores in which history each tenant's subjects were last read, because changes
// can be read only within one.
type loadedHistories struct {
	mu        sync.Mutex
	histories map[uuid.UUID]int64
}

func (l *loadedHistories) same(tenant uuid.UUID, history int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.histories[tenant] == history
}

func (l *loadedHistories) set(tenant uuid.UUID, history int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if history == 0 { // a missing entry is of the first history, so that a tenant needs no entry until the database goes back
		delete(l.histories, tenant)
		return
	}
	if l.histories == nil {
		l.histories = map[uuid.UUID]int64{}
	}
	l.histories[tenant] = history
}

func (l *loadedHistories) forget(tenant uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.histories, tenant)
}

// Both read subjects with their overrides, one row per override, sorted by subject. Only the first
// row of a subject has its credits: when each row had them, 5000 grants of a subject with 1000
// overrides took half a minute. The slugs of the rules are read once, because a join with the rules
// of a tenant that Postgres believes to be small compares each grant with each rule.
const (
	ruleSlugs      = "(SELECT jsonb_object_agg(r.id, r.slug) FROM rules r WHERE r.tenant_id = $1)"
	subjectColumns = `
SELECT s.subject, coalesce(p.slug, ''), s.plan_version, s.state, s.cycle_anchor, s.multiplier,
    CASE WHEN s.has_credits AND row_number() OVER (PARTITION BY s.subject) = 1 THEN (
        SELECT json_agg(json_build_array(` + ruleSlugs + ` ->> g.rule_id::text, g.id, g.units, coalesce((extract(epoch FROM g.expires_at) * 1000)::bigint, 0)) ORDER BY g.expires_at NULLS LAST, g.id)
        FROM credit_grants g
        WHERE g.tenant_id = $1 AND g.subject = s.subject AND g.revoked_at IS NULL AND g.spent_at IS NULL AND g.spent < g.units AND (g.expires_at IS NULL OR g.expires_at > now())) END,
    CASE WHEN o.rule_id IS NOT NULL THEN ` + ruleSlugs + ` ->> o.rule_id::text END, o.limit_units, o.burst_units, o.unlimited, o.starts_at, o.expires_at
FROM `
	subjectJoins = ` s
LEFT JOIN plans p ON p.tenant_id = $1 AND p.id = s.plan_id
LEFT JOIN overrides o ON o.tenant_id = $1 AND o.subject = s.subject
ORDER BY s.subject`
	changedSubjectsSQL = subjectColumns + "(SELECT subject, plan_id, plan_version, state, cycle_anchor, multiplier, has_credits FROM subjects WHERE tenant_id = $1 AND version > $2)" + subjectJoins
	// Postgres plans this once for all tenants and assumes that each is small. For each page of a
	// large tenant it would read and sort all subjects: hence the setting.
	subjectPageHeadSQL = "SELECT state, subjects_version, set_config('enable_sort', 'off', true) FROM tenants WHERE id = $1"
	subjectPageSQL     = subjectColumns + "(SELECT subject, plan_id, plan_version, state, cycle_anchor, multiplier, has_credits FROM subjects WHERE tenant_id = $1 AND subject > $2 ORDER BY subject LIMIT $3)" + subjectJoins
)

// subjectPage is how many subjects are read at once: about a tenth of a second, so that no timeout
// is exceeded and no other reader waits long for the connection.
const subjectPage = 10_000

// ListSubjects calls each for up to 10 000 subjects of the tenant, sorted by bytes, beginning after
// the name after. more reports whether others follow, and version is that of the tenant's subjects
// at the instant of the read. After an error, each was called for only a part of the page. It fails
// with check.ErrUnknownTenant and with ErrUnavailable.
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
		read := 0
		err = eachSubject(ctx, tx, func(d check.SubjectData) { read++; each(d) }, subjectPageSQL, tenant, after, subjectPage)
		more = read == subjectPage
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

// LoadSubjects calls each for every subject of the tenant that was registered, changed or deleted
// after version since, or for all subjects if since is 0, and returns the version that it read.
// After an error, each was called for only a part. It fails with check.ErrHistoryGone if deletions
// since then were purged or the database has gone back, with check.ErrUnknownTenant, and with
// ErrUnavailable.
func (s *Store) LoadSubjects(ctx context.Context, tenant limit.TenantID, since int64, each func(check.SubjectData)) (upTo int64, err error) {
	history := s.history.Load()
	err = s.asSystemWithin(ctx, loadTimeout, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		if err := longStatements(ctx, tx); err != nil {
			return err
		}
		head, err := activeTenant(ctx, q, tenant)
		if err != nil {
			return err
		}
		upTo = head.SubjectsVersion
		if since > 0 {
			if since < head.SubjectsHistoryFrom || since > upTo || !s.loaded.same(tenant, history) {
				return check.ErrHistoryGone
			}
			if err := eachDeleted(ctx, tx, tenant, since, each); err != nil {
				return err
			}
		}
		return eachSubject(ctx, tx, each, changedSubjectsSQL, tenant, since)
	})
	if err != nil {
		return 0, fmt.Errorf("load subjects of tenant %s: %w", tenant, err)
	}
	s.loaded.set(tenant, history)
	return upTo, nil
}

func eachDeleted(ctx context.Context, tx pgx.Tx, tenant uuid.UUID, since int64, each func(check.SubjectData)) error {
	rows, err := tx.Query(ctx, "SELECT subject FROM subject_tombstones WHERE tenant_id = $1 AND version > $2", tenant, since)
	if err != nil {
		return err
	}
	var subject string
	_, err = pgx.ForEachRow(rows, []any{&subject}, func() error {
		each(check.SubjectData{Subject: subject, Deleted: true})
		return nil
	})
	return err
}

func eachSubject(ctx context.Context, tx pgx.Tx, each func(check.SubjectData), sql string, args ...any) error {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	var (
		current              check.SubjectData // collects its overrides until the next subject begins
		subject, plan, state string
		planVersion          int
		multiplier           int64
		rule                 *string
		lim, burst           *int64
		unlimited            *bool
		startsAt, expiresAt  *time.Time
		anchor               *time.Time
		grants               []byte
	)
	_, err = pgx.ForEachRow(rows, []any{&subject, &plan, &planVersion, &state, &anchor, &multiplier, &grants, &rule, &lim, &burst, &unlimited, &startsAt, &expiresAt}, func() error {
		if subject != current.Subject {
			if current.Subject != "" {
				each(current)
			}
			parsed, err := check.ParseSubjectState(state)
			if err != nil {
				return fmt.Errorf("read a subject's state: %w", err)
			}
			current = check.SubjectData{Subject: subject, Plan: plan, State: parsed, CycleAnchor: anchor}
			if plan != "" {
				current.PlanVersion = planVersion
			}
			if multiplier > 1 {
				current.Multiplier = multiplier
			}
			if grants != nil {
				if current.Grants, err = grantsOf(grants); err != nil {
					return err
				}
			}
		}
		if rule != nil {
			current.Overrides = append(current.Overrides, check.OverrideData{
				Rule: *rule, Limit: limitOf(lim, burst, *unlimited), StartsAt: orNever(startsAt), ExpiresAt: orNever(expiresAt),
			})
		}
		return nil
	})
	if err == nil && current.Subject != "" {
		each(current)
	}
	return err
}

// grantsOf parses the grants of a subject: for each the rule, the id, the units and the expiry.
func grantsOf(list []byte) (grants []check.GrantData, err error) {
	var rows [][4]json.RawMessage
	if err := json.Unmarshal(list, &rows); err != nil {
		return nil, fmt.Errorf("read a subject's credits: %w", err)
	}
	grants = make([]check.GrantData, len(rows))
	for i := range rows {
		g, row, id := &grants[i], &rows[i], uuid.UUID{}
		err := errors.Join(json.Unmarshal(row[0], &g.Rule), json.Unmarshal(row[1], &id), json.Unmarshal(row[2], &g.Units), json.Unmarshal(row[3], &g.ExpiresMS))
		if err != nil {
			return nil, fmt.Errorf("read a subject's credits: %w", err)
		}
		g.ID = limit.GrantID(id)
	}
	return grants, nil
}

func orNever(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}
