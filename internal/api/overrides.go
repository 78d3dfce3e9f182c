package api

import (
	"context"
	"strings"
	"time"

	"weir/internal/tenants"
)

// SubjectOverride is an override in the list of all overrides.
type SubjectOverride struct {
	Subject string `json:"subject"`
	Rule    string `json:"rule" doc:"Slug"`
	Active  bool   `json:"active" doc:"It has started and has not expired"`
	Override
}

// OverridesQuery selects overrides.
type OverridesQuery struct {
	PageParams
	Rule         string `query:"rule" doc:"Only overrides of the rule with this slug"`
	Prefix       string `query:"prefix" doc:"Only overrides of subjects that begin with this text"`
	EndingBefore string `query:"ending_before" format:"date-time" doc:"Only overrides that have not expired, and expire before this time, RFC 3339. The earliest expiry comes first"`
	Active       string `query:"active" enum:"true,false" doc:"true: only overrides in force; false: only the others"`
}

func (a *admin) listOverrides(ctx context.Context, in *OverridesQuery) (*page[SubjectOverride], error) {
	filter := tenants.OverrideFilter{Rule: in.Rule, Prefix: in.Prefix}
	if in.Active != "" {
		filter.Active = ptr(in.Active == "true")
	}
	if in.EndingBefore != "" {
		t, err := time.Parse(time.RFC3339, in.EndingBefore)
		if err != nil {
			return nil, invalid(wrongField("query:ending_before", notRFC3339))
		}
		filter.EndingBefore = &t
	}
	list := strings.Join([]string{
		"overrides", "rule=" + in.Rule, "prefix=" + in.Prefix, "ending_before=" + in.EndingBefore, "active=" + in.Active,
	}, "\x00") // no query value contains NUL, so no two filters have the same text
	if err := a.store.CheckRuleFilter(ctx, actorFrom(ctx), in.Rule); err != nil {
		return nil, queryErrors(err)
	}
	return listPage(ctx, a, list, in.PageParams, subjectOverrideAnswer, func(p tenants.Page) ([]tenants.SubjectOverride, string, error) {
		items, next, err := a.store.Overrides(ctx, actorFrom(ctx), filter, p)
		return items, next, queryErrors(err)
	})
}

// getOverride returns an override, including one that has not started or has expired. It has its
// own entity tag, as for a write.
func (a *admin) getOverride(ctx context.Context, in *OverridePath) (*object[Override], error) {
	o, err := a.store.Override(ctx, actorFrom(ctx), in.Subject, in.Rule)
	if err != nil {
		return nil, err
	}
	return found(overrideAnswer(o), o.Version), nil
}

func subjectOverrideAnswer(o tenants.SubjectOverride) SubjectOverride {
	return SubjectOverride{Subject: o.Subject, Rule: o.Rule, Active: o.Active, Override: overrideAnswer(o.Override)}
}
