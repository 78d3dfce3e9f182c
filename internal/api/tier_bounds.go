package api

import (
	"context"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// TierBounds are the bounds of a tier, as the API shows them.
type TierBounds struct {
	Rules         *int64  `json:"rules" doc:"Rules of the tenant"`
	MatchingRules *int64  `json:"matching_rules" doc:"Rules that match one check"`
	LongestWindow *string `json:"longest_window" doc:"Longest window of a rule"`
	Members       *int64  `json:"members" doc:"Members of the tenant, with invited ones"`
	Counters      *int64  `json:"counters" doc:"Counters alive in Redis at the same time; beyond it, new subjects share counters"`
	RecordBytes   *int64  `json:"record_bytes" doc:"Bytes alive in Redis of answers of checks with an Idempotency-Key and of leases; beyond it, they are refused with TENANT_RECORDS_EXCEEDED"`
	RetentionDays *int64  `json:"retention_days" doc:"Days to keep usage and the audit trail"`
}

// TierBoundsInput are the bounds of a tier in a body.
type TierBoundsInput struct {
	Rules         Optional[int64]  `json:"rules,omitempty" doc:"Rules of the tenant, 1 to 1000"`
	MatchingRules Optional[int64]  `json:"matching_rules,omitempty" doc:"Rules that match one check, 1 to 32"`
	LongestWindow Optional[string] `json:"longest_window,omitempty" doc:"Longest window of a rule, 1s to 366d; a calendar month counts as 31d, a year as 366d"`
	Members       Optional[int64]  `json:"members,omitempty" doc:"Members of the tenant, with invited ones, 1 to 1000"`
	Counters      Optional[int64]  `json:"counters,omitempty" doc:"Counters alive in Redis at the same time, 1000 to 10^9; beyond it, new subjects share counters. Default: WEIR_TENANT_COUNTERS"`
	RecordBytes   Optional[int64]  `json:"record_bytes,omitempty" doc:"Bytes alive in Redis of answers of checks with an Idempotency-Key and of leases, 1048576 (1 MiB) to 1099511627776 (1 TiB); beyond it, they are refused with TENANT_RECORDS_EXCEEDED. Default: WEIR_TENANT_RECORDS"`
	RetentionDays Optional[int64]  `json:"retention_days,omitempty" doc:"Days to keep usage and the audit trail, 2 to 36500; what the service keeps for a shorter time stays so"`
}

func boundsAnswer(b tenants.Bounds) TierBounds {
	return TierBounds{
		Rules: optionalInt(int64(b.Rules)), MatchingRules: optionalInt(int64(b.MatchingRules)), LongestWindow: optionalText(b.LongestWindow.Written()),
		Members: optionalInt(int64(b.Members)), Counters: optionalInt(b.Counters), RecordBytes: optionalInt(b.RecordBytes), RetentionDays: optionalInt(int64(b.RetentionDays)),
	}
}

// patchBounds returns the bounds after a merge patch. An explicit 0 is refused here, because 0
// means "no bound" in tenants.Bounds.
func patchBounds(present tenants.Bounds, patch Optional[TierBoundsInput], errs *[]ProblemField) tenants.Bounds {
	if !patch.Set {
		return present
	}
	if patch.Null {
		return tenants.Bounds{}
	}
	in, out := patch.Value, present
	number := func(name string, n Optional[int64], present int64) int64 {
		if n.given() && n.Value <= 0 {
			*errs = append(*errs, wrongField("/bounds/"+name, limit.Wrong("Omit it, or set it to null, for no bound.", "must be a whole number above 0")))
		}
		return n.patch(present, 0)
	}
	out.Rules = int(number("rules", in.Rules, int64(present.Rules)))
	out.MatchingRules = int(number("matching_rules", in.MatchingRules, int64(present.MatchingRules)))
	out.Members = int(number("members", in.Members, int64(present.Members)))
	out.Counters = number("counters", in.Counters, present.Counters)
	out.RecordBytes = number("record_bytes", in.RecordBytes, present.RecordBytes)
	out.RetentionDays = int(number("retention_days", in.RetentionDays, int64(present.RetentionDays)))
	switch {
	case in.LongestWindow.Null:
		out.LongestWindow = limit.Duration{}
	case in.LongestWindow.Set:
		window, err := limit.ParseDuration(in.LongestWindow.Value)
		if err != nil {
			*errs = append(*errs, wrongField("/bounds/longest_window", limit.ProblemOf(err)))
		}
		out.LongestWindow = window
	}
	return out
}

// TenantTier is the tier of a tenant, and what the tenant has of it.
type TenantTier struct {
	Plan   string     `json:"plan" doc:"Slug of the tier, which is a plan of the operator's tenant; empty if there is none"`
	Bounds TierBounds `json:"bounds"`
	Use    TierUse    `json:"use"`
}

// TierUse is what a tenant has of what its tier bounds.
type TierUse struct {
	Rules         int64  `json:"rules"`
	MatchingRules int64  `json:"matching_rules" doc:"The most rules that match one check"`
	LongestWindow string `json:"longest_window" doc:"Empty without rules"`
	Members       int64  `json:"members" doc:"With invited ones"`
	Counters      *int64 `json:"counters" doc:"Estimate of the counters alive in Redis, up to ten seconds old; null while Redis is unavailable"`
}

// TenantDetail is a tenant with its tier.
type TenantDetail struct {
	Tenant
	Tier TenantTier `json:"tier" doc:"What the tenant may have, and what it has. What exceeds a bound that was lowered stays; more is refused with TIER_EXCEEDED"`
}

func (a *admin) tenantDetail(ctx context.Context, t tenants.Tenant) (TenantDetail, error) {
	use, err := a.store.TierUse(ctx, t.ID)
	if err != nil {
		return TenantDetail{}, err
	}
	answer := TenantDetail{Tenant: tenantAnswer(t), Tier: TenantTier{Plan: use.Plan, Bounds: boundsAnswer(use.Bounds), Use: TierUse{
		Rules: int64(use.Rules), MatchingRules: int64(use.MatchingRules), LongestWindow: use.LongestWindow.Written(), Members: int64(use.Members),
	}}}
	if a.counters != nil {
		if n, err := a.counters(ctx, t.ID, use.Bounds.Counters); err == nil { // otherwise Redis is unavailable
			answer.Tier.Use.Counters = &n
		}
	}
	return answer, nil
}
