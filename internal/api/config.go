package api

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/negotiation"
	"github.com/google/uuid"

	"weir/internal/limit"
	"weir/internal/route"
	"weir/internal/tenants"
)

const (
	configFormat  = 1       // of the document
	maxConfigBody = 4 << 20 // bytes
)

// ConfigDocument is a tenant's configuration as one document. Omitted fields are unchanged.
type ConfigDocument struct {
	Format   Optional[int64]           `json:"format,omitempty" minimum:"1" maximum:"1" doc:"Version of the format of this document; default 1"`
	Tenant   Optional[ConfigTenant]    `json:"tenant,omitempty"`
	Rules    Optional[[]RuleCreate]    `json:"rules,omitempty" maxItems:"1000"`
	Routes   Optional[[]RouteCreate]   `json:"routes,omitempty" maxItems:"200"`
	Plans    Optional[[]ConfigPlan]    `json:"plans,omitempty" doc:"A plan without the field limits keeps its limits"`
	Subjects Optional[[]ConfigSubject] `json:"subjects,omitempty" maxItems:"10000" doc:"Registered subjects"`

	BillingEndpoints Optional[[]ConfigBillingEndpoint] `json:"billing_endpoints,omitempty" maxItems:"100" doc:"Billing endpoints without their secrets: a document changes existing ones, and neither creates nor deletes any"`
	BillingPrices    Optional[[]ConfigBillingPrice]    `json:"billing_prices,omitempty" maxItems:"2000" doc:"The plans and credits of prices. Changes of billing require the scope manage"`
	Portal           Optional[PortalFields]            `json:"portal,omitempty" doc:"Settings of the customer page; omitted fields are unchanged"`
}

// ConfigTenant has the fields of the tenant itself.
type ConfigTenant struct {
	Name Optional[string] `json:"name,omitempty" doc:"Up to 200 characters"`
}

// ConfigPlan is a plan in a document.
type ConfigPlan struct {
	PlanCreate
	NewestVersion Optional[int64]                                `json:"newest_version,omitempty" minimum:"1" maximum:"1000000000" doc:"Number of the newest version, which has the limits; a greater one than now publishes a new version; default: the present one"`
	OlderVersions Optional[map[string]map[string]PlanLimitInput] `json:"older_versions,omitempty" maxProperties:"50" doc:"The limits of older versions, by number and slug of the rule; versions that are omitted stay"`
}

// ConfigSubject is a registered subject in a document.
type ConfigSubject struct {
	Subject     string                              `json:"subject" doc:"1 to 256 bytes of UTF-8 without control characters"`
	Plan        Optional[string]                    `json:"plan,omitempty" doc:"Slug of a plan; default: the tenant's default plan"`
	PlanVersion Optional[int64]                     `json:"plan_version,omitempty" minimum:"1" maximum:"1000000000" doc:"Version of the plan; default: the present version of the same plan, and the newest of another one"`
	State       Optional[string]                    `json:"state,omitempty" enum:"active,blocked,exempt" doc:"Default active"`
	Labels      Optional[map[string]string]         `json:"labels,omitempty" doc:"At most 32; default none"`
	BillingRef  Optional[string]                    `json:"billing_ref,omitempty" doc:"Name in your billing system; up to 256 bytes"`
	CycleAnchor Optional[time.Time]                 `json:"cycle_anchor,omitempty" doc:"RFC 3339: where the windows of rules with the anchor subject begin; default: by the calendar"`
	Multiplier  Optional[int64]                     `json:"multiplier,omitempty" minimum:"1" maximum:"1000000" doc:"Multiplies the limits that the plan gives; default 1"`
	Overrides   Optional[map[string]ConfigOverride] `json:"overrides,omitempty" doc:"By the slug of the rule; if omitted, the subject keeps its overrides"`
}

// ConfigOverride is the limit of one subject for a rule in a document.
type ConfigOverride struct {
	LimitInput
	Reason    Optional[string]    `json:"reason,omitempty" doc:"Up to 500 characters"`
	StartsAt  Optional[time.Time] `json:"starts_at,omitempty" doc:"RFC 3339; default: immediately"`
	ExpiresAt Optional[time.Time] `json:"expires_at,omitempty" doc:"RFC 3339, in the future; default: never. Expired overrides are not listed"`
}

// ConfigChanges are the changes of a document.
type ConfigChanges struct {
	Changes []ConfigChange `json:"changes" nullable:"false" doc:"Empty if nothing changes"`
}

// ConfigChange is one change of a document.
type ConfigChange struct {
	Action string       `json:"action" enum:"create,update,delete"`
	Kind   string       `json:"kind" enum:"tenant,rule,route,plan,plan_limit,plan_version,subject,override,endpoint,price,portal"`
	Name   string       `json:"name" doc:"The slug or subject; PLAN/RULE of a plan_limit, PLAN/NUMBER of a plan_version, SUBJECT/RULE of an override"`
	Text   string       `json:"text" doc:"The change as text"`
	Before ConfigFields `json:"before" doc:"The changed fields before, or all fields of a deleted object; null for a created object"`
	After  ConfigFields `json:"after" doc:"The changed fields after, or all fields of a created object; null for a deleted object"`
}

// ConfigFields are fields of an object by their names, or null.
type ConfigFields map[string]any

// Schema allows any fields.
func (ConfigFields) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, Nullable: true, AdditionalProperties: true}
}

// ConfigQuery selects what to export.
type ConfigQuery struct {
	Subjects bool   `query:"subjects" doc:"Include the registered subjects, up to 10 000"`
	Format   string `query:"format" enum:"json,yaml" doc:"Overrides the header Accept"`
}

// ApplyQuery has the options for applying a document.
type ApplyQuery struct {
	DryRun bool `query:"dry_run" doc:"Answer what would change, and change nothing"`
	Prune  bool `query:"prune" doc:"Delete objects that the sections and lists of the document omit"`
}

// configRoutes adds both operations, which also support YAML.
func (a *admin) configRoutes() {
	get := a.operation(http.MethodGet, "/v1/config", "get-config", "Export the configuration as one document", []option{inTurns, keepsProcessor})
	get.Parameters = append(get.Parameters, headerParam("If-None-Match", "Answer 304 where nothing in the document has changed"))
	ok := jsonResponse[ConfigDocument](a.api, "OK")
	ok.Content[yamlType] = ok.Content[jsonType]
	ok.Headers = etagHeader()
	get.Responses["200"] = ok
	get.Responses["304"] = &huma.Response{Description: "Not modified", Headers: etagHeader()}
	register(a, get, a.getConfig)

	put := a.operation(http.MethodPut, "/v1/config", "put-config", "Apply a configuration, or see what that would change", nil)
	put.Parameters = append(put.Parameters, ifMatchParam())
	put.Metadata[metaMaxBody] = maxConfigBody
	document := &huma.MediaType{Schema: schemaOf[ConfigDocument](a.api)}
	put.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{jsonType: document, yamlType: document}}
	put.SkipValidateBody = true // readConfig does
	put.Metadata[metaReader] = bodyReader(func(r *http.Request, _ string) (context.Context, []byte, *Problem) { return a.readConfig(r, &put) })
	register(a, put, a.putConfig)
}

func (a *admin) getConfig(ctx context.Context, in *ConfigQuery) (*huma.StreamResponse, error) {
	if in.Subjects {
		if _, err := until(ctx, a.answers.documents); err != nil {
			return nil, err
		}
	}
	d, version, err := a.store.Document(ctx, actorFrom(ctx), in.Subjects)
	var wrong *tenants.InvalidError
	if errors.As(err, &wrong) {
		return nil, invalid(ProblemField{Pointer: "query:subjects", Message: wrong.Fields[0].Message, Fix: wrong.Fields[0].Fix})
	}
	if err != nil {
		return nil, err
	}
	cond := conditionsFrom(ctx)
	same, problem := noneMatch(cond.noneMatch, etagOf(version))
	if problem != nil {
		return nil, problem
	}
	var body []byte
	contentType := jsonType
	if !same {
		inYAML := in.wantsYAML(cond.accept)
		if inYAML {
			contentType = yamlType
		}
		if body, err = encodeDocument(ctx, &d, inYAML); err != nil {
			return nil, err
		}
	}
	return &huma.StreamResponse{Body: func(hctx huma.Context) {
		hctx.SetHeader("ETag", etagOf(version))
		hctx.SetHeader("Vary", "Accept")
		if same {
			hctx.SetStatus(http.StatusNotModified)
			return
		}
		hctx.SetHeader("Content-Type", contentType)
		_, _ = hctx.BodyWriter().Write(body) // if it fails, the client has disconnected
	}}, nil
}

func (in *ConfigQuery) wantsYAML(accept string) bool {
	if in.Format != "" {
		return in.Format == "yaml"
	}
	return negotiation.SelectQValueFast(accept, []string{jsonType, yamlType}) == yamlType
}

func (a *admin) putConfig(ctx context.Context, in *ApplyQuery) (*object[ConfigChanges], error) {
	body, _ := ctx.Value(configKey{}).(*configBody)
	// A large document takes longer than other answers. If the deadline cannot be changed, the
	// client is disconnected although the document is applied.
	_ = http.NewResponseController(requestFrom(ctx).ResponseWriter).SetWriteDeadline(time.Now().Add(tenants.DocumentTimeout + writeTimeout))
	d, meant := body.document.document()
	errs := append(body.wrong, besides(body.wrong, meant)...)
	how := tenants.Apply{Match: conditionsFrom(ctx).match, Prune: in.Prune, DryRun: in.DryRun || len(errs) > 0}
	applied, err := a.store.ApplyDocument(ctx, actorFrom(ctx), d, how)
	var wrong *tenants.InvalidError
	if errors.As(err, &wrong) && len(errs) > 0 {
		err = nil
		errs = append(errs, besides(errs, problemFields(wrong.Fields))...)
	}
	if err != nil {
		return nil, err
	}
	if len(errs) > 0 {
		return nil, invalid(errs...)
	}
	answer := ConfigChanges{Changes: make([]ConfigChange, len(applied.Changes))}
	for i, c := range applied.Changes {
		answer.Changes[i] = ConfigChange{
			Action: c.Action, Kind: c.Kind, Name: c.Name, Text: c.Text, Before: c.Before, After: c.After,
		}
	}
	return found(answer, applied.Version), nil
}

// olderVersions reads the older versions of a plan, in the order of their numbers.
func olderVersions(in map[string]map[string]PlanLimitInput) (out []tenants.PlanVersion, errs []ProblemField) {
	for _, text := range slices.Sorted(maps.Keys(in)) {
		at := "/older_versions/" + escapePointer(text)
		number, err := strconv.ParseInt(text, 10, 32)
		if err != nil || strconv.FormatInt(number, 10) != text {
			errs = append(errs, wrongField(at, limit.MustBe("named by the number of a version, such as 1")))
			continue
		}
		limits, wrong := limitsOf(Optional[map[string]PlanLimitInput]{Set: true, Value: in[text]})
		for _, e := range wrong { // which are of the field limits
			e.Pointer = at + strings.TrimPrefix(e.Pointer, "/limits")
			errs = append(errs, e)
		}
		out = append(out, tenants.PlanVersion{Number: int(number), Limits: limits})
	}
	return out, errs
}

// document converts the body for the store, with the errors that the store cannot detect.
func (in *ConfigDocument) document() (d tenants.Document, errs []ProblemField) {
	if name := in.Tenant.Value.Name; name.Set && !name.Null {
		d.TenantName = &name.Value
	}
	if in.Rules.given() {
		d.Rules = make([]limit.Rule, len(in.Rules.Value))
	}
	for i := range in.Rules.Value {
		body, r := &in.Rules.Value[i], &d.Rules[i]
		var wrong []ProblemField
		*r, wrong = body.newRule(body.slug())
		errs = append(errs, below("/rules/"+strconv.Itoa(i), wrong)...)
	}
	if in.Routes.given() {
		d.Routes = make([]route.Route, len(in.Routes.Value))
	}
	for i := range in.Routes.Value {
		d.Routes[i] = in.Routes.Value[i].route()
	}
	if in.Plans.given() {
		d.Plans = make([]tenants.Plan, len(in.Plans.Value))
	}
	for i := range in.Plans.Value {
		body := &in.Plans.Value[i]
		var wrong []ProblemField
		d.Plans[i], wrong = newPlan(body.Slug, body.PlanFields)
		errs = append(errs, below("/plans/"+strconv.Itoa(i), wrong)...)
		d.Plans[i].NewestVersion = int(body.NewestVersion.or(0))
		d.Plans[i].Older, wrong = olderVersions(body.OlderVersions.or(nil))
		errs = append(errs, below("/plans/"+strconv.Itoa(i), wrong)...)
		if body.Limits.given() {
			var wrong []ProblemField
			d.Plans[i].Limits, wrong = limitsOf(body.Limits)
			errs = append(errs, below("/plans/"+strconv.Itoa(i), wrong)...)
		}
	}
	if in.Subjects.given() {
		d.Subjects = make([]tenants.Subject, len(in.Subjects.Value))
	}
	for i := range in.Subjects.Value {
		var wrong []ProblemField
		d.Subjects[i], wrong = in.Subjects.Value[i].subject()
		errs = append(errs, below("/subjects/"+strconv.Itoa(i), wrong)...)
	}
	in.billing(&d, &errs)
	if in.Portal.given() {
		fields := &in.Portal.Value
		_, wrong := fields.logo()
		errs = append(errs, below("/portal", wrong)...)
		d.EditPortal = func(p *tenants.Portal) { fields.apply(p) }
	}
	return d, errs
}

// ConfigBillingEndpoint is a billing endpoint in a document.
type ConfigBillingEndpoint struct {
	ID           string           `json:"id" doc:"Id of an existing endpoint"`
	Provider     string           `json:"provider" enum:"stripe,generic" doc:"Cannot be changed"`
	Name         Optional[string] `json:"name,omitempty" doc:"Up to 200 characters"`
	SubjectFrom  Optional[string] `json:"subject_from,omitempty" doc:"customer (default), client_reference_id, or metadata.KEY"`
	GraceDays    Optional[int64]  `json:"grace_days,omitempty" minimum:"0" maximum:"365" doc:"Default 7"`
	FallbackPlan Optional[string] `json:"fallback_plan,omitempty" doc:"Slug of a plan; null (default): the tenant's default plan"`
}

// ConfigBillingPrice is the plan or the credits of a price in a document.
type ConfigBillingPrice struct {
	ID       string                    `json:"id" doc:"Id of a price or product at the provider"`
	Endpoint string                    `json:"endpoint" doc:"Id of the billing endpoint"`
	Plan     Optional[string]          `json:"plan,omitempty" doc:"Slug of a plan; required unless the price stands for credits"`
	Credits  Optional[PriceCreditsPut] `json:"credits,omitempty" doc:"What each purchase grants, instead of a plan"`
	Multiply Optional[bool]            `json:"multiply,omitempty" doc:"Default false"`
	Priority Optional[int64]           `json:"priority,omitempty" minimum:"0" maximum:"1000000" doc:"Default 0"`
}

// billing converts the sections of billing. The store reports ids that do not exist.
func (in *ConfigDocument) billing(d *tenants.Document, errs *[]ProblemField) {
	if in.BillingEndpoints.given() {
		d.Endpoints = make([]tenants.BillingEndpoint, len(in.BillingEndpoints.Value))
	}
	for i := range in.BillingEndpoints.Value {
		body, e := &in.BillingEndpoints.Value[i], &d.Endpoints[i]
		e.ID, _ = uuid.Parse(body.ID)
		e.Provider = body.Provider
		fields := BillingEndpointFields{Name: body.Name, SubjectFrom: body.SubjectFrom, GraceDays: body.GraceDays, FallbackPlan: body.FallbackPlan}
		e.SubjectFrom, e.GraceDays = tenants.FromCustomer, defaultGraceDays
		*errs = append(*errs, below("/billing_endpoints/"+strconv.Itoa(i), fields.apply(e))...)
	}
	if in.BillingPrices.given() {
		d.Prices = make([]tenants.BillingPrice, len(in.BillingPrices.Value))
	}
	for i := range in.BillingPrices.Value {
		body := &in.BillingPrices.Value[i]
		endpoint, _ := uuid.Parse(body.Endpoint)
		d.Prices[i] = tenants.BillingPrice{
			Price: body.ID, Endpoint: endpoint, Plan: body.Plan.or(""), Multiply: body.Multiply.or(false), Priority: int(body.Priority.or(0)),
		}
		if body.Credits.given() {
			d.Prices[i].Credits = body.Credits.Value.credits()
		}
	}
}

// given reports whether the body has the field with a value other than null.
func (o Optional[T]) given() bool { return o.Set && !o.Null }

func (in *ConfigSubject) subject() (tenants.Subject, []ProblemField) {
	s := tenants.Subject{Subject: in.Subject, Labels: in.Labels.or(nil)}
	fields := SubjectFields{Plan: in.Plan, State: in.State, BillingRef: in.BillingRef, CycleAnchor: in.CycleAnchor, Multiplier: in.Multiplier, PlanVersion: in.PlanVersion}
	errs := fields.apply(&s)
	if !in.Overrides.given() {
		return s, errs
	}
	s.Overrides = []tenants.Override{}
	for rule, body := range in.Overrides.Value {
		s.Overrides = append(s.Overrides, tenants.Override{
			Rule: rule, Limit: body.patch(limit.Limit{}, "/overrides/"+escapePointer(rule), &errs), Reason: body.Reason.or(""),
			StartsAt: optionalTime(body.StartsAt), ExpiresAt: optionalTime(body.ExpiresAt),
		})
	}
	return s, errs
}
