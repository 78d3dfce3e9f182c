package api

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// LimitsQuery has a subject, and the other values that rules may count by.
type LimitsQuery struct {
	SubjectPath
	Resource   string   `query:"resource" doc:"The resource whose counter to show, for rules that count by resource"`
	Attributes []string `query:"attribute,explode" doc:"NAME:VALUE, for rules that count by an attribute; may be repeated"`
}

// LimitsAnswer is the answer of GET /v1/subjects/{subject}/limits. The type is only for the OpenAPI
// document; the answer is encoded by hand, like that of a check.
type LimitsAnswer struct {
	Subject  string       `json:"subject"`
	State    string       `json:"state" enum:"active,blocked,exempt"`
	Plan     *string      `json:"plan" doc:"The plan whose limits apply; null if the tenant has none"`
	Rules    []CheckRule  `json:"rules" doc:"Every rule that counts by the subject; allowed and retry_after_ms describe a check of cost 1 against this rule alone"`
	Skipped  []HiddenRule `json:"skipped" doc:"All other rules"`
	Degraded bool         `json:"degraded" doc:"Redis is unavailable: the numbers are those that this instance uses in the meantime"`
}

// HiddenRule is a rule that has no counter for the given values.
type HiddenRule struct {
	Rule    string   `json:"rule"`
	Reason  string   `json:"reason" enum:"mode_off,resource_mismatch,not_by_subject,missing_values"`
	Missing []string `json:"missing" doc:"With missing_values: the required values, as in the rule's by"`
}

// ResetInput is the body of POST /v1/subjects/{subject}/reset.
type ResetInput struct {
	Rule       string            `json:"rule,omitempty" minLength:"1" doc:"Slug of the rule whose counter to reset; default: all rules"`
	Reason     string            `json:"reason" minLength:"1" maxLength:"500" doc:"Shown in the audit log"`
	Resource   string            `json:"resource,omitempty" minLength:"1" maxLength:"256" doc:"For rules that count by resource"`
	Attributes map[string]string `json:"attributes,omitempty" maxProperties:"16" doc:"For rules that count by attributes"`
}

// ResetAnswer is the answer of POST /v1/subjects/{subject}/reset.
type ResetAnswer struct {
	Reset   []string     `json:"reset" doc:"Slugs of the rules whose counters were reset"`
	Skipped []HiddenRule `json:"skipped" doc:"If no rule was named: the rules that have no counter for the given values"`
}

// getLimits answers GET /v1/subjects/{subject}/limits. The subject need not be registered.
func (a *admin) getLimits(ctx context.Context, in *LimitsQuery) (*huma.StreamResponse, error) {
	values, errs := in.values()
	if len(errs) > 0 {
		return nil, invalid(errs...)
	}
	policy, err := a.policies.Get(ctx, actorFrom(ctx).TenantID())
	if err != nil {
		return nil, err
	}
	limits, err := a.checker.InspectInTurns(ctx, policy, values, func() (func(), error) { return shortTurn(ctx) })
	if err != nil {
		return nil, err
	}
	if policy.Rules() > fewListed { // their lines in JSON
		if err := turnUntilAnswer(ctx); err != nil {
			return nil, err
		}
	}
	return jsonAnswer(appendLimits(nil, &limits)), nil
}

// fewListed is how many rules are encoded without a turn, in some hundredths of a millisecond. If
// all are skipped, Redis is not asked, and the work has no pause.
const fewListed = 4

// values parses the query.
func (in *LimitsQuery) values() (check.Request, []ProblemField) {
	var errs []ProblemField
	attributes := make(map[string]string, len(in.Attributes))
	for _, text := range in.Attributes {
		name, value, ok := strings.Cut(text, ":")
		if _, twice := attributes[name]; !ok || twice {
			return check.Request{}, []ProblemField{wrongField("query:attribute", limit.Wrong("Write it as NAME:VALUE, once for each NAME.", "must be NAME:VALUE, each NAME once"))}
		}
		attributes[name] = value
	}
	values := check.Request{Subject: in.Subject, Resource: in.Resource}
	if in.Resource != "" {
		if problem := limit.ValidName(in.Resource); problem != nil {
			errs = append(errs, wrongField("query:resource", problem))
		}
	}
	var wrong []ProblemField
	if values.Attributes, wrong = attributesOf(attributes); len(wrong) > 0 {
		errs = append(errs, ProblemField{Pointer: "query:attribute", Message: wrong[0].Message, Fix: wrong[0].Fix})
	}
	return values, errs
}

// attributesOf converts the attributes of a body, or returns their errors.
func attributesOf(in map[string]string) ([]check.Attribute, []ProblemField) {
	if len(in) > limit.MaxAttributes {
		return nil, []ProblemField{wrongField("/attributes", tooManyAttributes)}
	}
	var out []check.Attribute
	var errs []ProblemField
	for _, name := range slices.Sorted(maps.Keys(in)) {
		problem := limit.ValidName(in[name])
		if !limit.ValidAttributeName(name) {
			problem = badAttributeName
		}
		if problem != nil {
			errs = append(errs, wrongField("/attributes/"+escapePointer(name), problem))
		}
		out = append(out, check.Attribute{Name: name, Value: in[name]})
	}
	return out, errs
}

func appendLimits(b []byte, l *check.SubjectLimits) []byte {
	b = append(b, `{"subject":`...)
	b = appendString(b, l.Subject)
	b = append(b, `,"state":"`...)
	b = append(b, l.State.String()...)
	b = append(b, `","plan":`...)
	if l.Plan == "" {
		b = append(b, "null"...)
	} else {
		b = appendString(b, l.Plan)
	}
	b = append(b, `,"rules":[`...)
	for i := range l.Rules {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendRule(b, &l.Rules[i], true)
	}
	b = append(b, `],"skipped":[`...)
	for i, h := range hiddenRules(l.Hidden) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"rule":`...)
		b = appendString(b, h.Rule)
		b = append(b, `,"reason":`...)
		b = appendString(b, h.Reason)
		b = append(b, `,"missing":[`...)
		for j, name := range h.Missing {
			if j > 0 {
				b = append(b, ',')
			}
			b = appendString(b, name)
		}
		b = append(b, "]}"...)
	}
	b = append(b, `],"degraded":`...)
	if l.Degraded {
		return append(b, "true}\n"...)
	}
	return append(b, "false}\n"...)
}

func hiddenRules(hidden []check.HiddenRule) []HiddenRule {
	out := make([]HiddenRule, len(hidden))
	for i, h := range hidden {
		out[i] = HiddenRule{Rule: h.Rule.Slug, Reason: string(h.Reason), Missing: append([]string{}, h.Missing...)}
	}
	return out
}

// resetSubject answers POST /v1/subjects/{subject}/reset.
func (a *admin) resetSubject(ctx context.Context, in *struct {
	SubjectPath
	Body ResetInput
}) (*answerOf[ResetAnswer], error) {
	values := check.Request{Subject: in.Subject, Resource: in.Body.Resource}
	var errs []ProblemField
	if values.Attributes, errs = attributesOf(in.Body.Attributes); values.Resource != "" {
		if problem := limit.ValidName(values.Resource); problem != nil {
			errs = append(errs, wrongField("/resource", problem))
		}
	}
	if strings.TrimSpace(in.Body.Reason) == "" {
		errs = append(errs, wrongField("/reason", limit.Wrong("Say why: the audit trail shows it.", "must not be blank")))
	} else {
		var wrong limit.FieldErrors
		limit.ValidateText(&wrong, "reason", in.Body.Reason, 500)
		errs = append(errs, problemFields(wrong)...)
	}
	if len(errs) > 0 {
		return nil, invalid(errs...)
	}
	policy, err := a.policies.Get(ctx, actorFrom(ctx).TenantID())
	if err != nil {
		return nil, err
	}
	var rules, slugs []string
	var hidden []check.HiddenRule
	if in.Body.Rule != "" {
		rules = []string{in.Body.Rule}
	}
	why := tenants.Reset{Subject: in.Subject, Resource: values.Resource, Attributes: in.Body.Attributes, Reason: in.Body.Reason}
	err = a.store.RecordReset(ctx, actorFrom(ctx), why, func(ctx context.Context) ([]string, error) {
		var err error
		if slugs, hidden, err = a.checker.Reset(ctx, policy, rules, values); err != nil {
			return slugs, resetProblem(err)
		}
		return slugs, nil
	})
	if err != nil {
		return nil, err
	}
	return &answerOf[ResetAnswer]{Body: ResetAnswer{Reset: slugs, Skipped: hiddenRules(hidden)}}, nil
}

// resetProblem returns why a reset was not possible and, if it helps, which values to add.
func resetProblem(err error) error {
	if errors.Is(err, check.ErrCountersUnavailable) {
		p := newProblem(http.StatusServiceUnavailable, codeCountersUnavailable,
			"The counters are unavailable. Some may have been reset. Try again.").withRetryAfter(1)
		p.cause = err
		return p
	}
	var uncounted *check.UncountedError
	if !errors.As(err, &uncounted) {
		return err
	}
	switch {
	case uncounted.Unknown:
		return invalid(wrongField("/rule", noSuchRule))
	case uncounted.Reason == check.NotBySubject:
		return invalid(wrongField("/rule", limit.Wrong("Name a rule that counts by subject.", "must count by subject: this rule counts other subjects, too")))
	case uncounted.Reason == check.ResourceMismatch:
		return invalid(wrongField("/resource", limit.Wrong("Send a resource that the rule matches.", "must be one that the rule matches")))
	}
	var errs []ProblemField
	for _, by := range uncounted.Missing {
		pointer := "/" + by
		if name, isAttribute := limit.AttributeOf(by); isAttribute {
			pointer = "/attributes/" + name
		}
		errs = append(errs, wrongField(pointer, limit.Wrong(isRequired.Fix, "is required: the rule counts by it")))
	}
	return invalid(errs...)
}

// answerOf is an answer without a version.
type answerOf[T any] struct{ Body T }

// jsonAnswer is an answer that was encoded by hand.
func jsonAnswer(body []byte) *huma.StreamResponse {
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		ctx.SetHeader("Content-Type", jsonType)
		ctx.SetHeader("Content-Length", itoa(int64(len(body))))
		ctx.SetStatus(http.StatusOK)
		_, _ = ctx.BodyWriter().Write(body) // if this fails, the client has disconnected
	}}
}

// watch registers a GET of live data, which has no entity tag. The answer is a T, encoded by hand.
func watch[T, I any](a *admin, path, id, summary string, h func(context.Context, *I) (*huma.StreamResponse, error), opts ...option) {
	op := a.operation(http.MethodGet, path, id, summary, opts)
	op.Responses["200"] = jsonResponse[T](a.api, "OK")
	register(a, op, h)
}

// show registers a GET of something that has no version.
func show[I, T any](a *admin, path, id, summary string, h func(context.Context, *I) (*answerOf[T], error), opts ...option) {
	register(a, a.operation(http.MethodGet, path, id, summary, opts), h)
}

// ask registers a POST that changes nothing, and therefore needs only the scope read. The answer is
// a T, encoded by hand.
func ask[T, I any](a *admin, path, id, summary string, h func(context.Context, *I) (*huma.StreamResponse, error), opts ...option) {
	op := a.operation(http.MethodGet, path, id, summary, opts)
	op.Method = http.MethodPost
	op.Metadata[metaReadOnly] = true
	op.Errors = append(op.Errors, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	op.Responses["200"] = jsonResponse[T](a.api, "OK")
	register(a, op, h)
}

// act registers a POST that executes an action and creates nothing.
func act[I, T any](a *admin, path, id, summary string, h func(context.Context, *I) (*answerOf[T], error), opts ...option) {
	op := a.operation(http.MethodPost, path, id, summary, opts)
	op.DefaultStatus = http.StatusOK
	op.Parameters = append(op.Parameters, idempotencyParam())
	register(a, op, h)
}
