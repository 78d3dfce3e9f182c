package dashboard

import (
	"context"
	"net/url"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// tierBound is a field of what a tenant in a tier may have, in the form of a plan.
type tierBound struct {
	Field, Label, Hint, Input string
	number                    func(*tenants.Bounds) *int // nil for the longest window, the counters and the records
}

var tierBounds = []tierBound{
	{"bounds.rules", "Rules", "1 to 1000.", "numeric", func(b *tenants.Bounds) *int { return &b.Rules }},
	{"bounds.matching_rules", "Rules matching one check", "1 to 32.", "numeric", func(b *tenants.Bounds) *int { return &b.MatchingRules }},
	{"bounds.longest_window", "Longest window", "Such as 31d; up to 366d.", "text", nil},
	{"bounds.members", "Members", "With invited ones. 1 to 1000.", "numeric", func(b *tenants.Bounds) *int { return &b.Members }},
	{"bounds.counters", "Counters alive", "In Redis at the same time. 1000 or more.", "numeric", nil},
	{"bounds.record_bytes", "Bytes of records alive", "Of answers to keyed checks and of leases. 1,048,576 or more.", "numeric", nil},
	{"bounds.retention_days", "Days to keep usage and audit trail", "2 or more.", "numeric", func(b *tenants.Bounds) *int { return &b.RetentionDays }},
}

func boundFields() (names []string) {
	for _, b := range tierBounds {
		names = append(names, b.Field)
	}
	return names
}

// fillBounds fills in the form of a plan.
func fillBounds(values url.Values, bounds tenants.Bounds) {
	set := func(name string, n int64) {
		if n != 0 {
			values.Set(name, strconv.FormatInt(n, 10))
		}
	}
	for _, b := range tierBounds {
		if b.number != nil {
			set(b.Field, int64(*b.number(&bounds)))
		}
	}
	set("bounds.counters", bounds.Counters)
	set("bounds.record_bytes", bounds.RecordBytes)
	values.Set("bounds.longest_window", bounds.LongestWindow.Written())
}

// readBounds reads the form of a plan. A form without these fields, of a tenant that is not the
// operator's, leaves them unchanged.
func readBounds(f *form, present tenants.Bounds) (bounds tenants.Bounds) {
	if !f.values.Has("bounds.rules") {
		return present
	}
	read := func(name string, bits int) int64 {
		text := strings.ReplaceAll(f.Get(name), ",", "")
		if text == "" {
			return 0
		}
		n, err := strconv.ParseInt(text, 10, bits)
		if err != nil || n < 1 {
			f.wrong(name, limit.Wrong("Enter a number, or leave the field empty for no bound.", "must be a whole number above 0"))
		}
		return n
	}
	for _, b := range tierBounds {
		if b.number != nil {
			*b.number(&bounds) = int(read(b.Field, 32))
		}
	}
	bounds.Counters = read("bounds.counters", 64)
	bounds.RecordBytes = read("bounds.record_bytes", 64)
	if text := f.Get("bounds.longest_window"); text != "" {
		var err error
		if bounds.LongestWindow, err = limit.ParseDuration(text); err != nil {
			f.wrong("bounds.longest_window", limit.ProblemOf(err))
		}
	}
	return bounds
}

// boundsView is what a tenant has of what its tier bounds.
type boundsView struct {
	Tier  string
	Lines []boundLine
}

type boundLine struct {
	Name, Used  string
	Share, Note string // Share is "" without a bound
	Permille    int64  // at most 1000
	Tone        string
	over        string // for a notice: what is above the bound
}

// boundsOf returns the bounds of a tenant's tier, or nil if it has none.
func (d *dashboard) boundsOf(ctx context.Context, tenant uuid.UUID) (*boundsView, error) {
	tier, err := d.Store.TierOf(ctx, tenant)
	if err != nil || tier.Bounds == (tenants.Bounds{}) { // most have none, and no rules to count for them
		return nil, err
	}
	use, err := d.Store.TierUse(ctx, tenant)
	if err != nil || use.Bounds == (tenants.Bounds{}) {
		return nil, err
	}
	b := use.Bounds
	view := &boundsView{Tier: d.tierName(ctx, use.Plan)}
	view.add("Rules", "rules", int64(use.Rules), int64(b.Rules))
	view.add("Rules matching one check", "rules matching one check", int64(use.MatchingRules), int64(b.MatchingRules))
	view.addWindow(use.LongestWindow, b.LongestWindow)
	view.add("Members and invitations", "members", int64(use.Members), int64(b.Members))
	if n, known := d.countersOf(ctx, tenant, b.Counters); known && b.Counters > 0 {
		view.addCounters(n, b.Counters)
	}
	if b.RetentionDays > 0 {
		view.Lines = append(view.Lines, boundLine{Name: "Usage and audit trail", Used: "kept for " + plural(int64(b.RetentionDays), "day", "days")})
	}
	return view, nil
}

// countersOf estimates the counters of a tenant that are alive, unless Redis is unavailable.
func (d *dashboard) countersOf(ctx context.Context, tenant uuid.UUID, bound int64) (n int64, known bool) {
	if d.Alive == nil {
		return 0, false
	}
	n, err := d.Alive(ctx, tenant, bound)
	return n, err == nil
}

// counterBound returns how many counters the tier of a tenant includes, 0 if it has no bound.
func (d *dashboard) counterBound(slug string) int64 {
	if tiers := d.Policies.Loaded(d.Platform); tiers != nil && slug != tenants.PlatformSlug {
		return tiers.TierCounters(slug)
	}
	return 0
}

// addCounters adds the line of the counters. They share counters before the bound is reached,
// which includes the shared ones.
func (v *boundsView) addCounters(used, bound int64) {
	v.add("Counters alive, estimated", "", used, bound)
	line := &v.Lines[len(v.Lines)-1]
	line.over, line.Note = "", ""
	if used >= bound*3/4 {
		line.Tone, line.Note = "warn", "Near the bound, new subjects share counters until others expire. Shared counters can deny early."
	}
}

// add adds a line, if the tier has this bound.
func (v *boundsView) add(name, things string, used, bound int64) {
	if bound == 0 {
		return
	}
	permille := min(used*1000/bound, fullQuota)
	line := boundLine{
		Name: name, Used: grouped(used) + " of " + grouped(bound), Permille: permille, Share: grouped(used*100/bound) + " %",
	}
	switch {
	case used > bound:
		line.Tone, line.Note = "bad", "Above the bound of the tier. What exists stays, and nothing more can be added."
		line.over = grouped(used) + " " + things + " of " + grouped(bound)
	case used == bound:
		line.Tone, line.Note = "warn", "Nothing more can be added."
	case permille >= nearQuota:
		line.Tone = "warn"
	}
	v.Lines = append(v.Lines, line)
}

func (v *boundsView) addWindow(used limit.Window, bound limit.Duration) {
	if bound.MS == 0 {
		return
	}
	line := boundLine{Name: "Longest window", Used: nameOr(used.Written(), "none") + " of " + bound.Written()}
	if used.LongestMS() > bound.MS {
		line.Tone, line.Note, line.Share, line.Permille = "bad", "Above the bound of the tier. The rule stays, and no window can be made longer.", "over", fullQuota
		line.over = "windows up to " + used.Written() + " of " + bound.Written()
	}
	v.Lines = append(v.Lines, line)
}

// notices returns a notice for what is above the tier, which happens if the bound was lowered.
func (v *boundsView) notices() (texts []string) {
	if v == nil {
		return nil
	}
	for _, l := range v.Lines {
		if l.over != "" {
			texts = append(texts, "The tier "+v.Tier+" includes less than this tenant has: "+l.over+". What exists stays, and nothing more can be added.")
		}
	}
	return texts
}

// tierName returns the name of a tier, which is a plan of the operator's tenant.
func (d *dashboard) tierName(ctx context.Context, slug string) string {
	return d.planNames(ctx, tenants.AsSystem(d.Platform, "tier")).Of(slug)
}
