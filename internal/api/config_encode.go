package api

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"

	"weir/internal/limit"
	"weir/internal/route"
	"weir/internal/tenants"
)

// The encoding of a document. It has the members of ConfigDocument in a readable order, and omits
// empty ones. Applying it changes nothing. The same configuration always has the same encoding:
// lists and the keys of objects are sorted by name.

type writtenConfig struct {
	Format   int              `json:"format"`
	Tenant   writtenTenant    `json:"tenant"`
	Rules    []writtenRule    `json:"rules"`
	Routes   []writtenRoute   `json:"routes"`
	Plans    []writtenPlan    `json:"plans"`
	Subjects []writtenSubject `json:"subjects,omitzero"`

	BillingEndpoints []writtenEndpoint `json:"billing_endpoints,omitempty"`
	BillingPrices    []writtenPrice    `json:"billing_prices,omitempty"`
	Portal           *writtenPortal    `json:"portal,omitempty"`
}

// writtenPortal are the settings of the customer page.
type writtenPortal struct {
	Brand              string   `json:"brand,omitempty"`
	Accent             string   `json:"accent,omitempty"`
	Logo               []byte   `json:"logo,omitempty"` // in base64
	FrameOrigins       []string `json:"frame_origins"`
	OfferedPlans       []string `json:"offered_plans"`
	Requests           bool     `json:"requests"`
	AutoApprovePercent int      `json:"auto_approve_percent"`
	AutoApproveFor     string   `json:"auto_approve_for"`
	AutoApproveEvery   string   `json:"auto_approve_every"`
}

// writtenEndpoint is a billing endpoint without its secrets.
type writtenEndpoint struct {
	ID           string `json:"id"`
	Provider     string `json:"provider"`
	Name         string `json:"name,omitempty"`
	SubjectFrom  string `json:"subject_from"`
	GraceDays    int    `json:"grace_days"`
	FallbackPlan string `json:"fallback_plan,omitempty"`
}

type writtenPrice struct {
	ID       string          `json:"id"`
	Endpoint string          `json:"endpoint"`
	Plan     string          `json:"plan,omitempty"`
	Credits  *writtenCredits `json:"credits,omitempty"`
	Multiply bool            `json:"multiply,omitempty"`
	Priority int             `json:"priority,omitempty"`
}

type writtenCredits struct {
	Rule        string `json:"rule"`
	Units       int64  `json:"units"`
	ExpiresDays int    `json:"expires_after_days,omitempty"`
}

type writtenTenant struct {
	Name string `json:"name"`
}

// writtenRule is a rule in a document. It omits empty fields.
type writtenRule struct{ *limit.Rule }

// MarshalJSON writes the fields of the rule.
func (r writtenRule) MarshalJSON() ([]byte, error) {
	var o jsonObject
	for i := range limit.Fields {
		if f := &limit.Fields[i]; !f.Omitted(r.Rule) {
			o.add(f.Name, f.Get(r.Rule))
		}
	}
	return o.bytes(), nil
}

type writtenRoute struct {
	Slug            string            `json:"slug"`
	Name            string            `json:"name"`
	Description     string            `json:"description,omitempty"`
	Subject         []string          `json:"subject"`
	Hash            string            `json:"hash"`
	NoSubject       string            `json:"no_subject"`
	Resources       []route.Template  `json:"resources,omitempty"`
	DefaultResource string            `json:"default_resource"`
	Cost            int64             `json:"cost"`
	Attributes      map[string]string `json:"attributes,omitempty"`
	DeniedStatus    int               `json:"denied_status"`
	Fail            string            `json:"fail"`
}

type writtenLimit struct {
	Limit     int64    `json:"limit,omitempty"`
	Burst     int64    `json:"burst,omitempty"`
	Unlimited bool     `json:"unlimited,omitempty"`
	WarnAt    *float64 `json:"warn_at,omitempty"` // only of a plan, like the next ones
	Overage   string   `json:"overage,omitempty"`
	Metering  string   `json:"metering,omitempty"`
}

type writtenPlan struct {
	Slug        string                  `json:"slug"`
	Name        string                  `json:"name"`
	Description string                  `json:"description,omitempty"`
	Default     bool                    `json:"default,omitempty"`
	OnChange    string                  `json:"on_change,omitempty"`
	Fail        string                  `json:"fail,omitempty"`
	Bounds      *writtenBounds          `json:"bounds,omitempty"`
	Limits      map[string]writtenLimit `json:"limits"`

	NewestVersion int                                `json:"newest_version,omitempty"` // 0: the plan has one version
	OlderVersions map[string]map[string]writtenLimit `json:"older_versions,omitempty"`
}

// writtenBounds are the bounds of a tier in a document. It omits those that are not set.
type writtenBounds struct {
	Rules         int    `json:"rules,omitempty"`
	MatchingRules int    `json:"matching_rules,omitempty"`
	LongestWindow string `json:"longest_window,omitempty"`
	Members       int    `json:"members,omitempty"`
	Counters      int64  `json:"counters,omitempty"`
	RecordBytes   int64  `json:"record_bytes,omitempty"`
	RetentionDays int    `json:"retention_days,omitempty"`
}

func writeBounds(b tenants.Bounds) *writtenBounds {
	return &writtenBounds{b.Rules, b.MatchingRules, b.LongestWindow.Written(), b.Members, b.Counters, b.RecordBytes, b.RetentionDays}
}

type writtenSubject struct {
	Subject     string                     `json:"subject"`
	Plan        string                     `json:"plan,omitempty"`
	PlanVersion int                        `json:"plan_version,omitempty"`
	State       string                     `json:"state"`
	Labels      map[string]string          `json:"labels,omitempty"`
	BillingRef  string                     `json:"billing_ref,omitempty"`
	CycleAnchor *time.Time                 `json:"cycle_anchor,omitempty"`
	Multiplier  int                        `json:"multiplier,omitempty"`
	Overrides   map[string]writtenOverride `json:"overrides"`
}

type writtenOverride struct {
	writtenLimit
	Reason    string     `json:"reason,omitempty"`
	StartsAt  *time.Time `json:"starts_at,omitempty"`
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

func writeLimit(l limit.Limit) writtenLimit {
	return writtenLimit{Limit: l.Limit, Burst: l.Burst, Unlimited: l.Unlimited, WarnAt: l.WarnAt.Value(), Overage: l.Overage.String(), Metering: l.Metering.String()}
}

func writeLimits(limits map[string]limit.Limit) map[string]writtenLimit {
	out := make(map[string]writtenLimit, len(limits))
	for rule, l := range limits {
		out[rule] = writeLimit(l)
	}
	return out
}

// encodeConfig encodes a document in JSON, indented, because documents are stored in files and
// compared.
func encodeConfig(d *tenants.Document) ([]byte, error) {
	out := writtenConfig{
		Format: configFormat, Rules: make([]writtenRule, len(d.Rules)), Routes: make([]writtenRoute, len(d.Routes)), Plans: make([]writtenPlan, len(d.Plans)),
	}
	if d.TenantName != nil {
		out.Tenant.Name = *d.TenantName
	}
	for i := range d.Rules {
		out.Rules[i] = writtenRule{&d.Rules[i]}
	}
	for i := range d.Routes {
		out.Routes[i] = writeRoute(d.Routes[i])
	}
	versioned := map[string]bool{} // plans with several versions
	for i := range d.Plans {
		p := &d.Plans[i]
		out.Plans[i] = writtenPlan{
			Slug: p.Slug, Name: p.Name, Description: p.Description, Default: p.Default, Limits: writeLimits(p.Limits),
		}
		if p.OnChange != tenants.OnChangeCarry { // the default
			out.Plans[i].OnChange = p.OnChange
		}
		if p.Fail != tenants.FailClosed { // the default
			out.Plans[i].Fail = p.Fail
		}
		if p.Bounds != (tenants.Bounds{}) {
			out.Plans[i].Bounds = writeBounds(p.Bounds)
		}
		if p.NewestVersion > 1 {
			out.Plans[i].NewestVersion = p.NewestVersion
			versioned[p.Slug] = true
		}
		for _, v := range p.Older {
			if out.Plans[i].OlderVersions == nil {
				out.Plans[i].OlderVersions = map[string]map[string]writtenLimit{}
			}
			out.Plans[i].OlderVersions[strconv.Itoa(v.Number)] = writeLimits(v.Limits)
		}
	}
	if d.Subjects != nil {
		out.Subjects = make([]writtenSubject, len(d.Subjects))
	}
	for i := range d.Subjects {
		out.Subjects[i] = writeSubject(&d.Subjects[i])
		if s := &d.Subjects[i]; versioned[s.Plan] {
			out.Subjects[i].PlanVersion = s.PlanVersion
		}
	}
	for _, e := range d.Endpoints {
		out.BillingEndpoints = append(out.BillingEndpoints, writtenEndpoint{
			ID: e.ID.String(), Provider: e.Provider, Name: e.Name, SubjectFrom: e.SubjectFrom, GraceDays: e.GraceDays, FallbackPlan: e.FallbackPlan,
		})
	}
	for _, p := range d.Prices {
		written := writtenPrice{ID: p.Price, Endpoint: p.Endpoint.String(), Plan: p.Plan, Multiply: p.Multiply, Priority: p.Priority}
		if c := p.Credits; c != nil {
			written.Credits = &writtenCredits{Rule: c.Rule, Units: c.Units, ExpiresDays: c.ExpiresDays}
		}
		out.BillingPrices = append(out.BillingPrices, written)
	}
	if p := d.Portal; p != nil {
		out.Portal = &writtenPortal{
			Brand: p.Brand, Accent: p.Accent, Logo: p.Logo, FrameOrigins: p.FrameOrigins, OfferedPlans: p.OfferedPlans, Requests: p.Requests,
			AutoApprovePercent: p.AutoPercent, AutoApproveFor: p.AutoFor.Text, AutoApproveEvery: p.AutoEvery.Text,
		}
	}
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(out)
	return buf.Bytes(), err
}

func writeRoute(r route.Route) writtenRoute {
	return writtenRoute{
		Slug: r.Slug, Name: r.Name, Description: r.Description, Subject: r.Subject, Hash: string(r.Hash), NoSubject: string(r.NoSubject),
		Resources: r.Resources, DefaultResource: r.DefaultResource, Cost: r.Cost, Attributes: r.Attributes,
		DeniedStatus: r.DeniedStatus, Fail: string(r.Fail),
	}
}

func writeSubject(s *tenants.Subject) writtenSubject {
	out := writtenSubject{
		Subject: s.Subject, Plan: s.Plan, State: s.State.String(), Labels: s.Labels, BillingRef: s.BillingRef, CycleAnchor: s.CycleAnchor,
		Overrides: make(map[string]writtenOverride, len(s.Overrides)),
	}
	if s.Multiplier > 1 {
		out.Multiplier = s.Multiplier
	}
	for _, o := range s.Overrides {
		out.Overrides[o.Rule] = writtenOverride{
			writtenLimit: writeLimit(o.Limit), Reason: o.Reason, StartsAt: o.StartsAt, ExpiresAt: o.ExpiresAt,
		}
	}
	return out
}
