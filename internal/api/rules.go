package api

import (
	"context"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// Rule is a rule, as the API shows it, with the fields of limit.Fields.
type Rule struct {
	ID        string    `json:"id" format:"uuid"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	Version   int64     `json:"version"`
	Warned
	rule limit.Rule
}

// TransformSchema adds the fields of the rule.
func (Rule) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return describeShownRule(s)
}

// MarshalJSON writes the fields of the rule after its id.
func (r Rule) MarshalJSON() ([]byte, error) {
	var o jsonObject
	o.add("id", r.ID)
	addFields(&o, &r.rule)
	o.add("created_at", r.CreatedAt)
	o.add("updated_at", r.UpdatedAt)
	o.add("version", r.Version)
	if len(r.Warnings) > 0 {
		o.add("warnings", r.Warnings)
	}
	return o.bytes(), nil
}

// RuleCreate is the body of POST /v1/rules, and a rule in a document or a simulation.
type RuleCreate struct{ ruleBody }

// TransformSchema adds the fields of the rule.
func (RuleCreate) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return describeRule(s, "", "slug", "limit", "window")
}

// RulePut is the body of PUT /v1/rules/{rule}: the path names the rule.
type RulePut struct{ ruleBody }

// TransformSchema adds the fields of the rule.
func (RulePut) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return describeRule(s, "If sent, must equal the path", "limit", "window")
}

// RulePatch is the merge patch of PATCH /v1/rules/{rule}.
type RulePatch struct{ ruleBody }

// TransformSchema adds the fields of the rule.
func (RulePatch) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	return describeRule(s, "Cannot be changed")
}

// RulePath names a rule.
type RulePath struct {
	Rule string `path:"rule" doc:"Slug of the rule"`
}

func ruleLocation(slug string) string { return "/v1/rules/" + slug }

func ruleAnswer(r tenants.Rule) Rule {
	return Rule{ID: r.ID.String(), CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, Version: r.Version, rule: r.Rule}
}

// ruleErrors returns nil if errs is empty. Otherwise it returns the 422 with errs and all other
// errors of the rule, so that a client can fix everything at once.
func ruleErrors(r *limit.Rule, errs []ProblemField) error {
	if len(errs) == 0 {
		return nil
	}
	return invalid(allRuleErrors(r, errs)...)
}

// allRuleErrors returns errs and all other errors of the rule.
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

// mismatch returns the 422 of a body with a name that differs from its path.
func mismatch(o Optional[string], pointer, path string) []ProblemField {
	if !o.Set || o.Value == path && !o.Null {
		return nil
	}
	return []ProblemField{wrongField(pointer, notThePath)}
}

// RulesQuery selects rules.
type RulesQuery struct {
	PageParams
	Q         string `query:"q" maxLength:"200" doc:"Only rules whose slug or name begins with this text"`
	Resource  string `query:"resource" maxLength:"256" doc:"Only rules with exactly this resource pattern"`
	Algorithm string `query:"algorithm" enum:"sliding_window_counter,sliding_window_log,sliding_window_buckets,fixed_window,fixed_window_first_hit,token_bucket,leaky_bucket,leaky_bucket_queue" doc:"Only rules with this algorithm"`
	Mode      string `query:"mode" enum:"enforce,shadow,off" doc:"Only rules in this mode"`
}

func (a *admin) listRules(ctx context.Context, in *RulesQuery) (*page[Rule], error) {
	filter := tenants.RuleFilter{Resource: in.Resource, Prefix: in.Q}
	// The names are valid according to the schema, which lists them.
	filter.Algorithm, _ = limit.ParseAlgorithm(in.Algorithm)
	if in.Mode != "" {
		mode, _ := limit.ParseMode(in.Mode)
		filter.Mode = &mode
	}
	list := strings.Join([]string{
		"rules", "q=" + in.Q, "resource=" + in.Resource, "algorithm=" + in.Algorithm, "mode=" + in.Mode,
	}, "\x00") // no query value contains NUL, so no two filters have the same text
	return listPage(ctx, a, list, in.PageParams, ruleAnswer, func(p tenants.Page) ([]tenants.Rule, string, error) {
		items, next, err := a.store.Rules(ctx, actorFrom(ctx), filter, p)
		return items, next, queryErrors(err)
	})
}

// ruleWritten returns the answer to a write.
func (a *admin) ruleWritten(r tenants.Rule) Rule {
	answer := ruleAnswer(r)
	answer.Warned = a.ruleWarnings(&r.Rule)
	return answer
}

func (a *admin) createRule(ctx context.Context, in *struct{ Body RuleCreate }) (*object[Rule], error) {
	r, errs := in.Body.newRule(in.Body.slug())
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
	r, errs := in.Body.newRule(in.Rule)
	errs = append(in.Body.sameSlug(in.Rule), errs...)
	if err := ruleErrors(&r, errs); err != nil {
		if !in.Body.given("slug") {
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
	r, err := a.store.EditRule(ctx, actorFrom(ctx), in.Rule, conditionsFrom(ctx).match, func(r *limit.Rule) error {
		return ruleErrors(r, append(in.Body.sameSlug(in.Rule), in.Body.apply(r)...))
	})
	if err != nil {
		return nil, err
	}
	return found(a.ruleWritten(r), r.Version), nil
}

func (a *admin) deleteRule(ctx context.Context, in *RulePath) error {
	return a.store.DeleteRule(ctx, actorFrom(ctx), in.Rule, conditionsFrom(ctx).match)
}
