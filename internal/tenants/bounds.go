package tenants

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// Bounds are what a tenant in a tier may have, besides its quotas. Zero values mean no bound of the
// tier; the bounds of the service apply in any case.
type Bounds struct {
	Rules         int            // of the tenant
	MatchingRules int            // that match one check
	LongestWindow limit.Duration // of a rule
	Members       int            // of the tenant, with invited ones
	Counters      int64          // alive at the same time in the counter store
	RecordBytes   int64          // of answers of checks with a key and of leases, alive at the same time in Redis
	RetentionDays int            // of usage and of the audit trail
}

// The ranges of Bounds.
const (
	minCounters      = 1000
	maxCounters      = 1_000_000_000
	minRecordBytes   = 1 << 20
	maxRecordBytes   = 1 << 40
	minRetentionDays = 2 // usage by minute is kept for two days in any case
	maxRetentionDays = 36_500
)

// writtenBounds are Bounds in the database, in documents and in the audit trail.
type writtenBounds struct {
	Rules         int    `json:"rules,omitempty"`
	MatchingRules int    `json:"matching_rules,omitempty"`
	LongestWindow string `json:"longest_window,omitempty"`
	Members       int    `json:"members,omitempty"`
	Counters      int64  `json:"counters,omitempty"`
	RecordBytes   int64  `json:"record_bytes,omitempty"`
	RetentionDays int    `json:"retention_days,omitempty"`
}

func (b Bounds) written() writtenBounds {
	return writtenBounds{b.Rules, b.MatchingRules, b.LongestWindow.Written(), b.Members, b.Counters, b.RecordBytes, b.RetentionDays}
}

func (b Bounds) encode() []byte {
	text, err := json.Marshal(b.written())
	if err != nil { // only texts and numbers: cannot fail
		panic(err)
	}
	return text
}

// words returns the bounds for the changes of a document; nil if there are none.
func (b Bounds) words() any {
	if b == (Bounds{}) {
		return nil
	}
	return b.written()
}

func boundsOf(text []byte) (b Bounds, err error) {
	var w writtenBounds
	if err := json.Unmarshal(text, &w); err != nil {
		return Bounds{}, fmt.Errorf("read the bounds of a tier: %w", err)
	}
	b = Bounds{Rules: w.Rules, MatchingRules: w.MatchingRules, Members: w.Members, Counters: w.Counters, RecordBytes: w.RecordBytes, RetentionDays: w.RetentionDays}
	if w.LongestWindow != "" {
		if b.LongestWindow, err = limit.ParseDuration(w.LongestWindow); err != nil {
			return Bounds{}, fmt.Errorf("read the longest window of a tier: %w", err)
		}
	}
	return b, nil
}

func (b Bounds) validate() (fields []limit.FieldError) {
	for _, f := range []struct {
		name        string
		is          int64
		least, most int64
	}{
		{"rules", int64(b.Rules), 1, limit.MaxRules},
		{"matching_rules", int64(b.MatchingRules), 1, limit.MaxMatchingRules},
		{"members", int64(b.Members), 1, maxMembers},
		{"counters", b.Counters, minCounters, maxCounters},
		{"record_bytes", b.RecordBytes, minRecordBytes, maxRecordBytes},
		{"retention_days", int64(b.RetentionDays), minRetentionDays, maxRetentionDays},
	} {
		if f.is != 0 && (f.is < f.least || f.is > f.most) {
			fields = append(fields, limit.FieldProblem(f.name, limit.MustBe("a whole number from %d to %d, or omitted for no bound", f.least, f.most)))
		}
	}
	if ms := b.LongestWindow.MS; b.LongestWindow != (limit.Duration{}) && (ms < limit.MinWindowMS || ms > limit.MaxWindowMS) {
		fields = append(fields, limit.FieldProblem("longest_window", limit.MustBe("from 1s to 366d, or omitted for no bound")))
	}
	return fields
}

// Tier is the tier of a tenant.
type Tier struct {
	Plan   string // slug of a plan of the operator's tenant; "" for none
	Bounds Bounds
}

// name returns the tier in a sentence.
func (t *Tier) name() string { return fmt.Sprintf("the tier %q", t.Plan) }

const higherTier = ", or ask the operator of the service for a higher tier."

// tierOf returns the tier of the change's tenant. The operator's tenant has none. Plans of the
// operator are not visible to the tenant, so another role of the database reads them, in the same
// transaction.
func (c *change) tierOf(ctx context.Context) (Tier, error) {
	if c.tier != nil {
		return *c.tier, nil
	}
	if _, err := c.tx.Exec(ctx, "SET LOCAL ROLE "+roleSystem); err != nil {
		return Tier{}, err
	}
	tier, err := readTier(ctx, db.New(c.tx), c.tenant)
	if err != nil {
		return Tier{}, err
	}
	if _, err := c.tx.Exec(ctx, "SET LOCAL ROLE "+roleApp); err != nil {
		return Tier{}, err
	}
	c.tier = &tier
	return tier, nil
}

// readTier reads the tier of a tenant as weir_system.
func readTier(ctx context.Context, q *db.Queries, tenant uuid.UUID) (Tier, error) {
	row, err := q.TierOf(ctx, db.TierOfParams{Platform: PlatformSlug, TenantID: tenant})
	if errors.Is(err, pgx.ErrNoRows) {
		return Tier{}, nil
	}
	if err != nil {
		return Tier{}, err
	}
	bounds, err := boundsOf(row.Bounds)
	return Tier{Plan: row.Slug, Bounds: bounds}, err
}

// overTier is the error of an input that the tenant's tier does not allow.
func overTier(field string, p *limit.Problem) error {
	return &InvalidError{Fields: []limit.FieldError{limit.FieldProblem(field, p)}, Tier: true}
}

func (t *Tier) tooManyRules(present, would int) *limit.Problem {
	return limit.Wrong("Delete a rule that is no longer needed"+higherTier,
		"would give the tenant %d rules; %s allows %d, and there are %d", would, t.name(), t.Bounds.Rules, present)
}

func (t *Tier) tooManyMatch(most int, pattern string) *limit.Problem {
	return limit.Wrong("Delete a rule, turn one off, narrow the resource that it matches"+higherTier,
		"would let %d rules match one check (of resource %s); %s allows %d", most, pattern, t.name(), t.Bounds.MatchingRules)
}

func (t *Tier) tooLong(w limit.Window) *limit.Problem {
	return limit.Wrong("Use a shorter window"+higherTier, "is %s; %s allows windows up to %s", w.Written(), t.name(), t.Bounds.LongestWindow.Written())
}

// windowTooLong reports whether the tier does not allow the window, unless the rule had one at
// least as long before. before is the zero Window for a new rule.
func (t *Tier) windowTooLong(before, now limit.Window) bool {
	most := t.Bounds.LongestWindow.MS
	return most > 0 && now.LongestMS() > max(most, before.LongestMS())
}

// checkTierRules refuses a new (old nil) or changed rule that the tier does not allow. others are
// the other rules. What the tenant has above a bound stays.
func (c *change) checkTierRules(ctx context.Context, others []limit.Rule, old *Rule, r limit.Rule) error {
	tier, err := c.tierOf(ctx)
	if err != nil {
		return err
	}
	if b := tier.Bounds.Rules; b > 0 && old == nil && len(others) >= b {
		return overTier("slug", tier.tooManyRules(len(others), len(others)+1))
	}
	if tier.Bounds.MatchingRules == 0 {
		return nil
	}
	before := others
	if old != nil {
		before = append(others[:len(others):len(others)], old.Rule)
	}
	had, _ := limit.MaxMatching(before)
	if most, pattern := limit.MaxMatching(append(others[:len(others):len(others)], r)); most > max(tier.Bounds.MatchingRules, had) {
		return overTier("resource", tier.tooManyMatch(most, pattern))
	}
	return nil
}

// checkWindow refuses a new (old nil) or changed rule with a longer window than the tier allows.
func (c *change) checkWindow(ctx context.Context, old *Rule, r limit.Rule) error {
	tier, err := c.tierOf(ctx)
	if err != nil {
		return err
	}
	var before limit.Window
	if old != nil {
		before = old.Window
	}
	if tier.windowTooLong(before, r.Window) {
		return overTier("window", tier.tooLong(r.Window))
	}
	return nil
}

// checkTierMembers refuses a person who is not a member yet, if the tier does not allow another.
func (c *change) checkTierMembers(ctx context.Context, person uuid.UUID) error {
	tier, err := c.tierOf(ctx)
	if err != nil || tier.Bounds.Members == 0 {
		return err
	}
	is, err := c.IsMember(ctx, db.IsMemberParams{TenantID: c.tenant, PersonID: person})
	if err != nil || is {
		return err
	}
	members, err := c.CountMembers(ctx, c.tenant)
	if err != nil {
		return err
	}
	if members >= int64(tier.Bounds.Members) {
		return overTier("email", limit.Wrong("Remove a member or an invitation"+higherTier,
			"would be member %d; %s allows %d, with invited ones, and there are %d", members+1, tier.name(), tier.Bounds.Members, members))
	}
	return nil
}

// checkTier reports what the tier does not allow of a document.
func (r *revision) checkTier() {
	b := r.tier.Bounds
	wrong := func(field string, p *limit.Problem) {
		r.wrong(field, p)
		r.overTier++
	}
	if had, has := len(r.before.rules), len(r.rules); b.Rules > 0 && has > max(b.Rules, had) {
		wrong("rules", r.tier.tooManyRules(had, has))
	}
	before := make(map[string]limit.Window, len(r.before.rules))
	old := make([]limit.Rule, len(r.before.rules))
	for i, rule := range r.before.rules {
		before[rule.Slug], old[i] = rule.Window, rule.Rule
	}
	for i := range r.Rules {
		if in := &r.Rules[i]; r.tier.windowTooLong(before[in.Slug], in.Window) {
			wrong(fmt.Sprintf("rules.%d.window", i), r.tier.tooLong(in.Window))
		}
	}
	if b.MatchingRules == 0 {
		return
	}
	had, _ := limit.MaxMatching(old)
	most, pattern := limit.MaxMatching(r.sortedRules())
	if most > max(b.MatchingRules, had) && most <= limit.MaxMatchingRules {
		wrong(r.matchedAt(pattern), r.tier.tooManyMatch(most, pattern))
	}
}

// refusal returns the error of a document with problems, or nil.
func (r *revision) refusal() error {
	if len(r.problems) == 0 {
		return nil
	}
	return &InvalidError{Fields: r.problems, Tier: r.overTier == len(r.problems)}
}

// TierUse is what a tenant has of what its tier bounds.
type TierUse struct {
	Tier
	Rules, MatchingRules, Members int
	LongestWindow                 limit.Window // of a rule; zero without rules
}

// TierOf returns the tier of a tenant. Errors: ErrUnavailable.
func (s *Store) TierOf(ctx context.Context, tenant uuid.UUID) (tier Tier, err error) {
	err = s.readAsSystem(ctx, tenant, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		tier, err = readTier(ctx, q, tenant)
		return err
	})
	return tier, err
}

// TierUse returns the tier of a tenant, and what the tenant has of it. Errors: ErrUnavailable.
func (s *Store) TierUse(ctx context.Context, tenant uuid.UUID) (out TierUse, err error) {
	var rows []db.TierRulesRow
	err = s.readAsSystem(ctx, tenant, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		if out.Tier, err = readTier(ctx, q, tenant); err != nil {
			return err
		}
		members, err := q.CountMembers(ctx, tenant)
		if err != nil {
			return err
		}
		out.Members = int(members)
		rows, err = q.TierRules(ctx, tenant)
		return err
	})
	if err != nil {
		return out, err
	}
	return out, out.countRules(rows) // without a connection, because it takes a processor
}

// countRules sets what follows from the rules of the tenant.
func (u *TierUse) countRules(rows []db.TierRulesRow) error {
	rules := make([]limit.Rule, len(rows))
	for i, row := range rows {
		mode, err := limit.ParseMode(row.Mode)
		if err != nil {
			return err
		}
		window, err := limit.ParseWindow(row.WindowText)
		if err != nil {
			return err
		}
		rules[i] = limit.Rule{Resource: row.Resource, Mode: mode}
		if window.LongestMS() > u.LongestWindow.LongestMS() {
			u.LongestWindow = window
		}
	}
	u.Rules = len(rules)
	u.MatchingRules, _ = limit.MaxMatching(rules)
	return nil
}

// Over says what the tenant has more of than the tier includes, which happens after the tier or a
// bound was lowered.
func (u *TierUse) Over() (texts []string) {
	b := u.Bounds
	for _, c := range []struct {
		has, may int
		what     string
	}{{u.Rules, b.Rules, "rules"}, {u.MatchingRules, b.MatchingRules, "rules that match one check"}, {u.Members, b.Members, "members, with invited ones"}} {
		if c.may > 0 && c.has > c.may {
			texts = append(texts, fmt.Sprintf("%d of %d %s", c.has, c.may, c.what))
		}
	}
	if most := b.LongestWindow; most.MS > 0 && u.LongestWindow.LongestMS() > most.MS {
		texts = append(texts, fmt.Sprintf("windows up to %s of %s", u.LongestWindow.Written(), most.Written()))
	}
	return texts
}

// RecordOverTier returns what a tenant has more of than its tier includes, if that was not recorded
// before for this tier. A tenant that fits is forgotten, so the next time is recorded. Errors:
// ErrUnavailable.
func (s *Store) RecordOverTier(ctx context.Context, tenant uuid.UUID) (tier string, over []string, err error) {
	use, err := s.TierUse(ctx, tenant)
	if err != nil {
		return "", nil, err
	}
	over = use.Over()
	err = s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		if len(over) == 0 {
			return q.DeleteTierNotice(ctx, tenant)
		}
		fresh, err := q.InsertTierNotice(ctx, db.InsertTierNoticeParams{TenantID: tenant, Tier: use.Plan, Now: s.instant()})
		if fresh == 0 {
			over = nil
		}
		return err
	})
	return use.Plan, over, err
}

// retention is how long a tier keeps usage and the audit trail of a tenant.
type retention struct {
	tenant uuid.UUID
	days   int
}

// retentions calls do for each tenant whose tier bounds the retention, as purgeRound does, and
// returns the first error.
func (s *Store) retentions(ctx context.Context, do func(retention) error) error {
	const most = 1000
	return purgeRound[db.TierRetentionsRow]{at: &s.turns.tiers, most: most,
		tenant: func(row db.TierRetentionsRow) uuid.UUID { return row.ID },
		behind: func(tenant uuid.UUID) db.TierRetentionsRow { return db.TierRetentionsRow{ID: tenant} },
		read: func(after db.TierRetentionsRow) (rows []db.TierRetentionsRow, err error) {
			err = s.asSystem(ctx, pgx.ReadOnly, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
				rows, err = q.TierRetentions(ctx, db.TierRetentionsParams{Platform: PlatformSlug, After: after.ID, Most: most})
				return err
			})
			if err != nil {
				err = fmt.Errorf("read the retention of tiers: %w", err)
			}
			return rows, err
		},
		do: func(row db.TierRetentionsRow) error { return do(retention{row.ID, int(row.Days)}) },
	}.run(ctx)
}

// PurgeTiers deletes usage and audit rows that exceed the retention of the tenant's tier, and
// returns the number of audit rows. Metered usage stays as long as the service keeps it, because
// invoices depend on it. A tenant that fails does not keep the others. Several servers may call it
// concurrently. Errors: ErrUnavailable, and that of the first tenant that failed.
func (s *Store) PurgeTiers(ctx context.Context) (audit int64, err error) {
	err = s.retentions(ctx, func(r retention) error {
		before := s.instant().AddDate(0, 0, -r.days)
		if err := s.purgeUsageOf(ctx, r.tenant, before); err != nil {
			return fmt.Errorf("delete old usage of %s: %w", r.tenant, err)
		}
		n, err := s.purgeTrail(ctx, r.tenant, before)
		audit += n
		return err
	})
	return audit, err
}

func (s *Store) purgeUsageOf(ctx context.Context, tenant uuid.UUID, before time.Time) error {
	for _, purge := range []func(context.Context, *db.Queries) (int64, error){
		func(ctx context.Context, q *db.Queries) (int64, error) {
			return q.PurgeUsageHoursOf(ctx, db.PurgeUsageHoursOfParams{TenantID: tenant, Before: before, Most: purgeRows})
		},
		func(ctx context.Context, q *db.Queries) (int64, error) {
			return q.PurgeUsageDaysOf(ctx, db.PurgeUsageDaysOfParams{TenantID: tenant, Before: before, Most: purgeRows})
		},
		func(ctx context.Context, q *db.Queries) (int64, error) {
			return q.PurgeUsageSubjectsOf(ctx, db.PurgeUsageSubjectsOfParams{TenantID: tenant, Before: before, Most: purgeRows})
		},
	} {
		for n := int64(purgeRows); n == purgeRows; {
			err := s.asSystem(ctx, pgx.ReadWrite, func(ctx context.Context, _ pgx.Tx, q *db.Queries) (err error) {
				n, err = purge(ctx, q)
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}
