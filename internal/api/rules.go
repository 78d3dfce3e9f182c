package api

import (
	"context"
	"strings"
	"time"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// Rule is what is limited and how, as the API shows it.
type Rule struct {
	ID            string    `json:"id" format:"uuid"`
	Slug          string    `json:"slug" doc:"Cannot be changed"`
	Name          string    `json:"name"`
	Description   string    `json:"description"`
	Resource      string    `json:"resource" doc:"Resource pattern: exact (orders:create), prefix (orders:*) or all (*)"`
	Algorithm     string    `json:"algorithm" enum:"sliding_window_counter,sliding_window_log,sliding_window_buckets,fixed_window,fixed_window_first_hit,token_bucket,leaky_bucket,leaky_bucket_queue"`
	Limit         int64     `json:"limit" doc:"Units of cost per window"`
	Window        string    `json:"window" doc:"In the notation of the request: 60s stays 60s"`
	Burst         *int64    `json:"burst" doc:"Capacity of a bucket; null: the same as limit"`
	Precision     *string   `json:"precision" doc:"Length of a part of sliding_window_buckets; null for other algorithms"`
	By            []string  `json:"by" doc:"The values that identify a counter; empty: one counter for the tenant"`
	Mode          string    `json:"mode" enum:"enforce,shadow,off"`
	OnUnavailable string    `json:"on_unavailable" enum:"allow,deny,local"`
	Penalty       *string   `json:"penalty" doc:"How long the rule continues to deny after a denial; null: no penalty"`
	Consistency   string    `json:"consistency" enum:"strict,leased"`
	CreatedAt     time.Time `json:"created_at"`
	UpdatedAt     time.Time `json:"updated_at"`
	Version       int64     `json:"version"`
	Warned
}

// RuleFields are the fields of a rule that may be left out of a POST or PUT and cleared by a PATCH.
type RuleFields struct {
	Name          Optional[string]   `json:"name,omitempty" doc:"Up to 200 characters; default: the slug"`
	Description   Optional[string]   `json:"description,omitempty" doc:"Up to 2000 characters"`
	Resource      Optional[string]   `json:"resource,omitempty" doc:"Resource pattern: exact (orders:create), prefix (orders:*) or all (*); default *"`
	Algorithm     Optional[string]   `json:"algorithm,omitempty" enum:"sliding_window_counter,sliding_window_log,sliding_window_buckets,fixed_window,fixed_window_first_hit,token_bucket,leaky_bucket,leaky_bucket_queue" doc:"Default sliding_window_counter"`
	Burst         Optional[int64]    `json:"burst,omitempty" doc:"Capacity of token_bucket, leaky_bucket and leaky_bucket_queue, 1 to 10^9; default: the limit"`
	Precision     Optional[string]   `json:"precision,omitempty" doc:"Length of a part of the window; required for sliding_window_buckets, invalid for others; divides the window into at most 120 parts"`
	By            Optional[[]string] `json:"by,omitempty" doc:"Any of subject, resource and attributes.NAME; default [subject]; empty: one counter for the tenant"`
	Mode          Optional[string]   `json:"mode,omitempty" enum:"enforce,shadow,off" doc:"Default enforce; shadow is evaluated and reported, and never denies"`
	OnUnavailable Optional[string]   `json:"on_unavailable,omitempty" enum:"allow,deny,local" doc:"What to do if Redis is unavailable; default local"`
	Penalty       Optional[string]   `json:"penalty,omitempty" doc:"How long the rule continues to deny after a denial, up to 30d; default none"`
	Consistency   Optional[string]   `json:"consistency,omitempty" enum:"strict,leased" doc:"strict: each check goes to Redis. leased: instances prefetch units of busy counters and grant them from memory; not with sliding_window_log, leaky_bucket_queue or a penalty. Default strict"`
}

// RuleCreate is the body of POST /v1/rules.
type RuleCreate struct {
	Slug   string `json:"slug" doc:"1 to 63 of a-z, 0-9 and -; cannot be changed later"`
	Limit  int64  `json:"limit" doc:"Units of cost per window: 1 to 10^9; in the fixed windows to 10^15; in sliding_window_log to 10 000"`
	Window string `json:"window" doc:"A duration from 1s to 366d, or for fixed_window also day, week or month"`
	RuleFields
}

// RulePut is the body of PUT /v1/rules/{rule}: the path names the rule.
type RulePut struct {
	Slug   Optional[string] `json:"slug,omitempty" doc:"If sent, must equal the path"`
	Limit  int64            `json:"limit" doc:"As for POST"`
	Window string           `json:"window" doc:"As for POST"`
	RuleFields
}

// RulePatch is the merge patch of PATCH /v1/rules/{rule}.
type RulePatch struct {
	Slug   Optional[string] `json:"slug,omitempty" doc:"Cannot be changed"`
	Limit  Optional[int64]  `json:"limit,omitempty" doc:"As for POST"`
	Window Optional[string] `json:"window,omitempty" doc:"As for POST"`
	RuleFields
}

// RulePath names a rule.
type RulePath struct {
	Rule string `path:"rule" doc:"Slug of the rule"`
}

func ruleLocation(slug string) string { return "/v1/rules/" + slug }

func ruleAnswer(r tenants.Rule) Rule {
	by := r.By
	if by == nil {
		by = []string{}
	}
	return Rule{
		ID: r.ID.String(), Slug: r.Slug, Name: r.Name, Description: r.Description, Resource: r.Resource,
		Algorithm: r.Algorithm.String(), Limit: r.Limit, Window: r.Window.Text, Burst: optionalInt(r.Burst),
		Precision: optionalText(r.Precision.Text), By: by, Mode: r.Mode.String(),
		OnUnavailable: r.OnUnavailable.String(), Penalty: optionalText(r.Penalty.Text), Consistency: r.Consistency.String(),
		CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, Version: r.Version,
	}
}

// newRule is a rule with all defaults.
func newRule(slug string) limit.Rule {
	return limit.Rule{
		Slug: slug, Name: slug, Resource: "*", Algorithm: limit.SlidingWindowCounter,
		By: []string{"subject"}, Mode: limit.Enforce, OnUnavailable: limit.Local,
	}
}

// apply puts the fields of a body into r; a field that is null gets its default again. It returns
// a field error for each text that is no duration.
func (f *RuleFields) apply(r *limit.Rule) []ProblemField {
	def := newRule(r.Slug)
	r.Name = f.Name.patch(r.Name, def.Name)
	r.Description = f.Description.patch(r.Description, "")
	r.Resource = f.Resource.patch(r.Resource, def.Resource)
	r.Burst = f.Burst.patch(r.Burst, 0)
	r.By = f.By.patch(r.By, def.By)
	// The names have been validated against the schema, which lists them.
	r.Algorithm, _ = limit.ParseAlgorithm(f.Algorithm.patch(r.Algorithm.String(), def.Algorithm.String()))
	r.Mode, _ = limit.ParseMode(f.Mode.patch(r.Mode.String(), def.Mode.String()))
	r.OnUnavailable, _ = limit.ParseOnUnavailable(f.OnUnavailable.patch(r.OnUnavailable.String(), def.OnUnavailable.String()))
	r.Consistency, _ = limit.ParseConsistency(f.Consistency.patch(r.Consistency.String(), def.Consistency.String()))

	var errs []ProblemField
	setDuration(&r.Precision, f.Precision, "/precision", &errs)
	setDuration(&r.Penalty, f.Penalty, "/penalty", &errs)
	if f.Burst.Set && !f.Burst.Null && f.Burst.Value == 0 { // the store takes 0 for "not given"
		errs = append(errs, ProblemField{Pointer: "/burst", Message: "must be a whole number from 1 to 1000000000"})
	}
	return errs
}

func setDuration(d *limit.Duration, o Optional[string], pointer string, errs *[]ProblemField) {
	if !o.Set {
		return
	}
	*d = limit.Duration{}
	if o.Null {
		return
	}
	parsed, err := limit.ParseDuration(o.Value)
	if err != nil {
		*errs = append(*errs, ProblemField{Pointer: pointer, Message: err.Error()})
		return
	}
	*d = parsed
}

func setWindow(w *limit.Window, text string, errs *[]ProblemField) {
	parsed, err := limit.ParseWindow(text)
	if err != nil {
		*errs = append(*errs, ProblemField{Pointer: "/window", Message: err.Error()})
	}
	*w = parsed
}

// ruleErrors is nil if errs is empty. Otherwise it is the 422 with errs and with whatever else is
// wrong with the rule, so that a client can mend everything at once.
func ruleErrors(r *limit.Rule, errs []ProblemField) error {
	if len(errs) == 0 {
		return nil
	}
	return invalid(allRuleErrors(r, errs)...)
}

// allRuleErrors is errs and whatever else is wrong with the rule.
func allRuleErrors(r *limit.Rule, errs []ProblemField) []ProblemField {
	named := map[string]bool{}
	for _, e := range errs {
		named[e.Pointer] = true
	}
	for _, e := range problemFields(r.Validate()) {
		if !named[e.Pointer] {
			errs = append(errs, e)
		}
	}
	return errs
}

// mismatch is the 422 of a body that names another object than its path.
func mismatch(o Optional[string], pointer, path string) []ProblemField {
	if !o.Set || o.Value == path && !o.Null {
		return nil
	}
	return []ProblemField{{Pointer: pointer, Message: "must be the same as in the path; it cannot be changed"}}
}

// RulesQuery says which rules to list.
type RulesQuery struct {
	PageParams
	Q         string `query:"q" maxLength:"200" doc:"Only rules whose slug or name begins with this text"`
	Resource  string `query:"resource" maxLength:"256" doc:"Only rules with exactly this resource pattern"`
	Algorithm string `query:"algorithm" enum:"sliding_window_counter,sliding_window_log,sliding_window_buckets,fixed_window,fixed_window_first_hit,token_bucket,leaky_bucket,leaky_bucket_queue" doc:"Only rules with this algorithm"`
	Mode      string `query:"mode" enum:"enforce,shadow,off" doc:"Only rules in this mode"`
}

func (a *admin) listRules(ctx context.Context, in *RulesQuery) (*page[Rule], error) {
	filter := tenants.RuleFilter{Resource: in.Resource, Prefix: in.Q}
	// The names have been validated against the schema, which lists them.
	filter.Algorithm, _ = limit.ParseAlgorithm(in.Algorithm)
	if in.Mode != "" {
		mode, _ := limit.ParseMode(in.Mode)
		filter.Mode = &mode
	}
	list := strings.Join([]string{
		"rules", "q=" + in.Q, "resource=" + in.Resource, "algorithm=" + in.Algorithm, "mode=" + in.Mode,
	}, "\x00") // no query value holds NUL, so no two filters read the same
	return listPage(ctx, a, list, in.PageParams, ruleAnswer, func(p tenants.Page) ([]tenants.Rule, string, error) {
		items, next, err := a.store.Rules(ctx, actorFrom(ctx), filter, p)
		return items, next, queryErrors(err)
	})
}

// ruleWritten is the answer to a write.
func (a *admin) ruleWritten(r tenants.Rule) Rule {
	answer := ruleAnswer(r)
	answer.Warned = a.ruleWarnings(&r.Rule)
	return answer
}

func (a *admin) createRule(ctx context.Context, in *struct{ Body RuleCreate }) (*object[Rule], error) {
	r := newRule(in.Body.Slug)
	r.Limit = in.Body.Limit
	errs := in.Body.apply(&r)
	setWindow(&r.Window, in.Body.Window, &errs)
	if err := ruleErrors(&r, errs); err != nil {
		return nil, err
	}
	made, err := a.store.CreateRule(ctx, actorFrom(ctx), r)
	if err != nil {
		return nil, err
	}
	return stored(a.ruleWritten(made), made.Version, true, ruleLocation(made.Slug)), nil
}

func (a *admin) getRule(ctx context.Context, in *RulePath) (*object[Rule], error) {
	r, err := a.store.RuleBySlug(ctx, actorFrom(ctx), in.Rule)
	if err != nil {
		return nil, err
	}
	return found(ruleAnswer(r), r.Version), nil
}

func (a *admin) putRule(ctx context.Context, in *struct {
	RulePath
	Body RulePut
}) (*object[Rule], error) {
	r := newRule(in.Rule)
	r.Limit = in.Body.Limit
	errs := append(mismatch(in.Body.Slug, "/slug", in.Rule), in.Body.apply(&r)...)
	setWindow(&r.Window, in.Body.Window, &errs)
	if err := ruleErrors(&r, errs); err != nil {
		if !in.Body.Slug.Set {
			err = pathField(err, "/slug", "rule")
		}
		return nil, err
	}
	put, created, err := a.store.PutRule(ctx, actorFrom(ctx), r, conditionsFrom(ctx).match)
	if err != nil {
		return nil, pathField(err, "/slug", "rule")
	}
	return stored(a.ruleWritten(put), put.Version, created, ruleLocation(put.Slug)), nil
}

func (a *admin) patchRule(ctx context.Context, in *struct {
	RulePath
	Body RulePatch
}) (*object[Rule], error) {
	b := &in.Body
	r, err := a.store.EditRule(ctx, actorFrom(ctx), in.Rule, conditionsFrom(ctx).match, func(r *limit.Rule) error {
		errs := append(mismatch(b.Slug, "/slug", in.Rule), b.apply(r)...)
		b.Limit.refuseNull(&errs, "/limit")
		b.Window.refuseNull(&errs, "/window")
		r.Limit = b.Limit.patch(r.Limit, r.Limit)
		if b.Window.Set && !b.Window.Null {
			setWindow(&r.Window, b.Window.Value, &errs)
		}
		return ruleErrors(r, errs)
	})
	if err != nil {
		return nil, err
	}
	return found(a.ruleWritten(r), r.Version), nil
}

func (a *admin) deleteRule(ctx context.Context, in *RulePath) error {
	return a.store.DeleteRule(ctx, actorFrom(ctx), in.Rule, conditionsFrom(ctx).match)
}
