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
