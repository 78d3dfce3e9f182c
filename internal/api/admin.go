package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-chi/chi/v5"

	"weir/internal/billing"
	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/places"
	"weir/internal/recent"
	"weir/internal/tenants"
)

// admin is the REST API with which programs edit a tenant's configuration, and the operator the
// tenants. Each noun has its own file. The common parts are in guard.go, page.go, etag.go,
// idempotency.go and patch.go.
type admin struct {
	store          *tenants.Store
	policies       *check.Policies
	checker        *check.Checker
	instances      func() int
	cursors        *cursors
	logger         *slog.Logger
	counters       func(ctx context.Context, tenant limit.TenantID, bound int64) (int64, error)
	follow         func(ctx context.Context, tenant limit.TenantID)
	invited        func(tenants.Invitation)
	invitationLink func(tenants.Invitation) string
	billing        *billing.Runner
	publicURL      string
	authenticator  *tenants.Authenticator
	recent         *recent.Log
	stopping       <-chan struct{}
	answers        *answers
	processors     *places.Processors
	api            huma.API
}

// mountAdmin adds the admin API to r, and returns the OpenAPI document.
func mountAdmin(r chi.Router, deps Deps) *huma.OpenAPI {
	a := &admin{
		store: deps.Store, policies: deps.Policies, checker: deps.Checker, instances: deps.Instances,
		cursors: &cursors{key: deps.CursorKey}, logger: deps.Logger, follow: deps.Follow, counters: deps.Counters,
		invited: deps.Invited, invitationLink: deps.InvitationLink, billing: deps.Billing, publicURL: strings.TrimSuffix(deps.PublicURL, "/"),
		authenticator: deps.Authenticator, recent: deps.Recent, stopping: deps.Stopping, answers: newAnswers(runtime.GOMAXPROCS(0), deps.Processors),
		processors: deps.Processors,
	}
	if a.invited == nil {
		a.invited = func(tenants.Invitation) {}
	}
	if a.invitationLink == nil {
		a.invitationLink = func(tenants.Invitation) string { return "" }
	}
	a.api = newDocument(&adapter{router: r, admin: a, authenticate: authenticate(deps.Authenticator)}, deps.Logger)
	a.routes()
	describeChecks(a.api)
	describeWebhooks(a.api)
	describeDevices(a.api)
	describeAnswers(a.api.OpenAPI())
	noteShown(a.api.OpenAPI())
	describeBounds(a.api.OpenAPI())
	return a.api.OpenAPI()
}

// routes registers every operation of the admin API.
func (a *admin) routes() {
	read(a, "/v1/tenant", "get-tenant", "Get the tenant of the key", a.getTenant, inTurns, usesProcessor)
	patch(a, "/v1/tenant", "patch-tenant", "Change the tenant of the key", a.patchTenant)

	list(a, "/v1/keys", "list-keys", "List API keys", a.listKeys, usesProcessor)
	create(a, "/v1/keys", "create-key", "Create an API key", a.createKey, redacts(redactKey))
	read(a, "/v1/keys/{id}", "get-key", "Get an API key", a.getKey)
	patch(a, "/v1/keys/{id}", "patch-key", "Change an API key", a.patchKey)
	remove(a, "/v1/keys/{id}", "revoke-key", "Revoke an API key", a.revokeKey, endsAccess)
	create(a, "/v1/keys/{id}/rotate", "rotate-key", "Replace an API key by a new one", a.rotateKey, redacts(redactKey), endsAccess)

	list(a, "/v1/rules", "list-rules", "List rules", a.listRules, usesProcessor)
	create(a, "/v1/rules", "create-rule", "Create a rule", a.createRule)
	read(a, "/v1/rules/{rule}", "get-rule", "Get a rule", a.getRule)
	put(a, "/v1/rules/{rule}", "put-rule", "Create or replace a rule", a.putRule)
	patch(a, "/v1/rules/{rule}", "patch-rule", "Change a rule", a.patchRule)
	remove(a, "/v1/rules/{rule}", "delete-rule", "Delete a rule, its limits and overrides", a.deleteRule)

	list(a, "/v1/routes", "list-routes", "List routes", a.listRoutes, usesProcessor)
	create(a, "/v1/routes", "create-route", "Create a route", a.createRoute)
	read(a, "/v1/routes/{route}", "get-route", "Get a route", a.getRoute, inTurns, usesProcessor)
	put(a, "/v1/routes/{route}", "put-route", "Create or replace a route", a.putRoute)
	patch(a, "/v1/routes/{route}", "patch-route", "Change a route", a.patchRoute)
	remove(a, "/v1/routes/{route}", "delete-route", "Delete a route", a.deleteRoute)

	list(a, "/v1/plans", "list-plans", "List plans", a.listPlans, usesProcessor)
	create(a, "/v1/plans", "create-plan", "Create a plan", a.createPlan)
	read(a, "/v1/plans/{plan}", "get-plan", "Get a plan", a.getPlan, inTurns, usesProcessor)
	put(a, "/v1/plans/{plan}", "put-plan", "Create or replace a plan", a.putPlan)
	patch(a, "/v1/plans/{plan}", "patch-plan", "Change a plan", a.patchPlan)
	remove(a, "/v1/plans/{plan}", "delete-plan", "Delete a plan", a.deletePlan)
	read(a, "/v1/plans/{plan}/limits/{rule}", "get-plan-limit", "Get a plan limit", a.getPlanLimit, inTurns, usesProcessor)
	put(a, "/v1/plans/{plan}/limits/{rule}", "put-plan-limit", "Set a plan limit", a.putPlanLimit)
	remove(a, "/v1/plans/{plan}/limits/{rule}", "delete-plan-limit", "Delete a plan limit", a.deletePlanLimit)
	list(a, "/v1/plans/{plan}/versions", "list-plan-versions", "List the versions of a plan", a.listPlanVersions, usesProcessor, about(
		"plans", "Newest first. Subjects keep the version that they have until they are migrated."))
	create(a, "/v1/plans/{plan}/versions", "publish-plan", "Publish a new version of a plan", a.publishPlan, about(
		"plans", "Subjects that have the plan keep its present limits; subjects that get it from now on, and those without a plan if it is the default, get the new ones."))
	remove(a, "/v1/plans/{plan}/versions/{version}", "delete-plan-version", "Delete an older version of a plan", a.deletePlanVersion)
	ask[PlanPreview](a, "/v1/plans/{plan}/preview", "preview-plan", "Compare changed limits of a plan with the present counters", a.previewPlan)
	list(a, "/v1/plans/{plan}/migrations", "list-plan-migrations", "List the migrations of a plan", a.listPlanMigrations)
	create(a, "/v1/plans/{plan}/migrations", "create-plan-migration", "Migrate the subjects of a plan", a.createPlanMigration, about(
		"plans", "Gives subjects of the plan the newest version of it, or another plan. It runs in the background; the migration shows its progress. A plan has one migration at a time."), dryRuns[PlanMigration](a))
	show(a, "/v1/plans/{plan}/migrations/{id}", "get-plan-migration", "Get a migration and its progress", a.getPlanMigration)
	act(a, "/v1/plans/{plan}/migrations/{id}/cancel", "cancel-plan-migration", "Cancel a migration", a.cancelPlanMigration, about(
		"plans", "Subjects that were moved stay where they are. Changes that the migration scheduled are canceled."))

	list(a, "/v1/subjects", "list-subjects", "List registered subjects", a.listSubjects, usesProcessor, about(
		"subjects", "Newest first, or with prefix by name. A page ends after the subject with which the overrides take 4 MiB, also with fewer subjects than limit: follow next_cursor until it is null."))
	list(a, "/v1/plan-changes", "list-plan-changes", "List scheduled plan changes", a.listPlanChanges, about(
		"plans", "The next change comes first. To schedule, move or cancel one, change next_plan and next_plan_at of the subject. A change with a billing_event comes from an event with a later time: dismiss the event to cancel it."))
	read(a, "/v1/subjects/{subject}", "get-subject", "Get a registered subject", a.getSubject, inTurns, usesProcessor)
	put(a, "/v1/subjects/{subject}", "put-subject", "Register or replace a subject", a.putSubject)
	patch(a, "/v1/subjects/{subject}", "patch-subject", "Change a registered subject", a.patchSubject)
	remove(a, "/v1/subjects/{subject}", "delete-subject", "Delete a subject and its overrides", a.deleteSubject)
	read(a, "/v1/subjects/{subject}/overrides/{rule}", "get-override", "Get an override", a.getOverride)
	put(a, "/v1/subjects/{subject}/overrides/{rule}", "put-override", "Set an override", a.putOverride)
	remove(a, "/v1/subjects/{subject}/overrides/{rule}", "delete-override", "Delete an override", a.deleteOverride)
	watch[LimitsAnswer](a, "/v1/subjects/{subject}/limits", "get-limits", "Get the live limits of a subject", a.getLimits)
	a.bulkRoutes()
	list(a, "/v1/overrides", "list-overrides", "List the overrides of all subjects", a.listOverrides, usesProcessor, about(
		"subjects", "Sorted by subject; with ending_before, by expiry."))
	act(a, "/v1/subjects/{subject}/reset", "reset-subject", "Reset the counters of a subject", a.resetSubject, resets)

	list(a, "/v1/members", "list-members", "List members", a.listMembers)
	create(a, "/v1/members", "create-member", "Invite a member", a.createMember, about(
		"members", "The person receives a single-use link, valid for 7 days. If mail is not configured, the answer has the link, for you to pass on. "+
			"A key can invite an owner only until an owner has joined."), redacts(redactMember))
	read(a, "/v1/members/{id}", "get-member", "Get a member", a.getMember)
	patch(a, "/v1/members/{id}", "patch-member", "Change a member's role", a.patchMember)
	remove(a, "/v1/members/{id}", "delete-member", "Remove a member", a.deleteMember, endsAccess)

	a.billingRoutes()
	a.portalRoutes()
	a.notificationRoutes()
	a.securityRoutes()
	a.creditsRoutes()
	a.configRoutes()

	ask[SimulateAnswer](a, "/v1/simulate", "simulate", "Simulate rules", newSimulator(a.processors).simulate, about(
		"simulate", "Subjects have no credits in a simulation: a request that does not fit in the window is denied."))

	a.decisionRoutes()

	tabulate[UsageAnswer](a, "/v1/usage", "get-usage", "Get the usage", a.getUsage)
	a.meterRoutes()

	a.trail("/v1/audit", "list-audit", "List the audit trail")
	watch[AuditVerifyAnswer](a, "/v1/audit/verify", "verify-audit", "Verify the audit trail", a.verifyAudit, keepsProcessor)

	list(a, "/v1/tenants", "list-tenants", "List tenants", a.listTenants, operatorOnly)
	create(a, "/v1/tenants", "create-tenant", "Create a tenant and its first key", a.createTenant, operatorOnly, redacts(redactTenant))
	read(a, "/v1/tenants/{tenant}", "get-tenant-by-ref", "Get a tenant by slug or id", a.getTenantByRef, operatorOnly)
	patch(a, "/v1/tenants/{tenant}", "patch-tenant-by-ref", "Change a tenant", a.patchTenantByRef, operatorOnly)
	remove(a, "/v1/tenants/{tenant}", "delete-tenant", "Delete a tenant and all its data", a.deleteTenant, operatorOnly)
}

// object is an answer with one object.
type object[T any] struct {
	Status   int
	ETag     string `header:"ETag" doc:"Version of the object, for If-Match and If-None-Match"`
	Location string `header:"Location" doc:"Path of a created object"`
	Body     T
}

// found answers with an object that exists or was changed.
func found[T any](body T, version int64) *object[T] {
	return &object[T]{Status: http.StatusOK, ETag: etagOf(version), Body: body}
}

// stored answers a PUT or a POST.
func stored[T any](body T, version int64, isNew bool, location string) *object[T] {
	o := found(body, version)
	if isNew {
		o.Status, o.Location = http.StatusCreated, location
	}
	return o
}

// page is an answer with a page of a list.
type page[T any] struct{ Body List[T] }

// option changes an operation before it is registered.
type option func(*huma.Operation)

// Keys of huma.Operation.Metadata.
const (
	metaOperator = "operator" // true: operator keys only
	metaReadOnly = "readOnly" // true: changes nothing, although it is a POST
	metaMaxBody  = "maxBody"  // int: maximum bytes of a body, if it is not maxAdminBody
	metaReader   = "reader"   // bodyReader: reads the body, if the guard does not
	metaSlots    = "slots"    // *slots: limits how many of the requests run at once
	metaShown    = "shown"    // map[string]bool: the fields of answers about the same object
	metaReset    = "reset"    // true: resets counters
	metaEnds     = "ends"     // true: ends access
	metaInTurns  = "inTurns"  // true: its answer may be long, and is created in turns
	metaLarge    = "large"    // true: creating its answer can take a processor for long
	metaKeeps    = "keeps"    // true: that is so while it reads, too
	metaRedact   = "redact"   // func([]byte) ([]byte, error): the answer without its secret
)

// dryRuns says that an answer to a dry run is 200 and has the shape of a T, too.
func dryRuns[T any](a *admin) option {
	return func(op *huma.Operation) { op.Responses["200"] = jsonResponse[T](a.api, "What would happen") }
}

func resets(op *huma.Operation) { op.Metadata[metaReset] = true }

func endsAccess(op *huma.Operation) { op.Metadata[metaEnds] = true }

func operatorOnly(op *huma.Operation) { op.Metadata[metaOperator] = true }

// about puts an operation under the tag of another noun, and adds a description.
func about(tag, description string) option {
	return func(op *huma.Operation) { op.Tags, op.Description = []string{tag}, description }
}

// redacts sets how the secret is removed from an answer that is stored for replays.
func redacts(without func(answer []byte) ([]byte, error)) option {
	return func(op *huma.Operation) { op.Metadata[metaRedact] = without }
}

func read[I, T any](a *admin, path, id, summary string, h func(context.Context, *I) (*object[T], error), opts ...option) {
	op := a.operation(http.MethodGet, path, id, summary, opts)
	op.Parameters = append(op.Parameters, headerParam("If-None-Match", "Answer 304 if the object still has this entity tag"))
	op.Responses["304"] = &huma.Response{Description: "Not modified", Headers: etagHeader()}
	register(a, op, func(ctx context.Context, in *I) (*object[T], error) {
		out, err := h(ctx, in)
		if err != nil {
			return nil, err
		}
		same, problem := noneMatch(conditionsFrom(ctx).noneMatch, out.ETag)
		if problem != nil {
			return nil, problem
		}
		if same {
			out.Status = http.StatusNotModified
		}
		return out, nil
	})
}

func list[I, T any](a *admin, path, id, summary string, h func(context.Context, *I) (*page[T], error), opts ...option) {
	register(a, a.operation(http.MethodGet, path, id, summary, append(opts, inTurns)), h)
}

func create[I, T any](a *admin, path, id, summary string, h func(context.Context, *I) (*object[T], error), opts ...option) {
	op := a.operation(http.MethodPost, path, id, summary, opts)
	op.DefaultStatus = http.StatusCreated
	op.Parameters = append(op.Parameters, idempotencyParam())
	register(a, op, h)
}

func put[I, T any](a *admin, path, id, summary string, h func(context.Context, *I) (*object[T], error), opts ...option) {
	op := a.operation(http.MethodPut, path, id, summary, opts)
	op.Parameters = append(op.Parameters, ifMatchParam())
	op.Responses["201"] = &huma.Response{
		Description: "Created",
		Headers:     etagHeader(),
		Content:     map[string]*huma.MediaType{"application/json": {Schema: schemaOf[T](a.api)}},
	}
	register(a, op, h)
}

func patch[I, T any](a *admin, path, id, summary string, h func(context.Context, *I) (*object[T], error), opts ...option) {
	op := a.operation(http.MethodPatch, path, id, summary, opts)
	op.Parameters = append(op.Parameters, ifMatchParam())
	op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{}}
	register(a, op, h)
}

func remove[I any](a *admin, path, id, summary string, h func(context.Context, *I) error, opts ...option) {
	op := a.operation(http.MethodDelete, path, id, summary, opts)
	op.Parameters = append(op.Parameters, ifMatchParam())
	register(a, op, func(ctx context.Context, in *I) (*struct{}, error) { return nil, h(ctx, in) })
}

// register adds an operation. Its errors are converted to problem documents.
func register[I, O any](a *admin, op huma.Operation, h func(context.Context, *I) (*O, error)) {
	huma.Register(a.api, op, func(ctx context.Context, in *I) (*O, error) {
		requestFrom(ctx).endTurn() // the body is decoded and valid
		out, err := h(ctx, in)
		if err == nil {
			err = requestFrom(ctx).resumeList(ctx)
		}
		if err != nil {
			return nil, a.problem(ctx, err)
		}
		return out, nil
	})
	if op.Method == http.MethodPatch {
		allowMergePatch(op.RequestBody)
	}
}

// problem returns the problem document for err. Internal errors are logged.
func (a *admin) problem(ctx context.Context, err error) *Problem {
	p := problemOf(err)
	// A write that repeats another one is cancelled, and the stored answer is sent again.
	// An instance that refuses requests has more to do than to log each.
	if p.Status >= http.StatusInternalServerError && p.Code != codeOverloaded && !errors.Is(err, tenants.ErrAnswered) {
		a.logger.Log(ctx, errorLevel(ctx), "admin request failed", "request_id", requestID(ctx), "code", p.Code, "error", err)
	}
	return p
}

// operation returns an operation with the fields that all operations share.
func (a *admin) operation(method, path, id, summary string, opts []option) huma.Operation {
	op := huma.Operation{
		Method: method, Path: path, OperationID: id, Summary: summary,
		Tags:         []string{tagOf(path)},
		Security:     []map[string][]string{{"key": {}}},
		Metadata:     map[string]any{},
		Responses:    map[string]*huma.Response{},
		MaxBodyBytes: -1, // the guard limits and reads it
		// Nor does the body need a deadline. One that passes while the handler runs would cancel
		// the context of the connection, and with it all later requests on it.
		BodyReadTimeout: -1,
		Errors: []int{
			http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests,
			http.StatusServiceUnavailable,
		},
	}
	if method != http.MethodGet || hasParameter(path) {
		op.Errors = append(op.Errors, http.StatusNotFound)
	}
	if method != http.MethodGet {
		op.Errors = append(op.Errors, http.StatusConflict)
	}
	switch method {
	case http.MethodPost, http.MethodPut, http.MethodPatch:
		op.Errors = append(op.Errors, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	}
	switch method {
	case http.MethodPut, http.MethodPatch, http.MethodDelete:
		op.Errors = append(op.Errors, http.StatusPreconditionFailed)
	case http.MethodGet:
		op.Errors = append(op.Errors, http.StatusUnprocessableEntity)
	}
	for _, opt := range opts {
		opt(&op)
	}
	if op.Metadata[metaOperator] == true {
		op.Description = "Only for the operator."
	}
	return op
}

// scopeOf returns the scope that an operation requires.
func scopeOf(op *huma.Operation) tenants.Scope {
	if op.Method == http.MethodGet || op.Metadata[metaReadOnly] == true {
		return tenants.ScopeRead
	}
	if slices.Contains(managed, op.Tags[0]) {
		return tenants.ScopeManage
	}
	return tenants.ScopeWrite
}

// managed are the tags of the operations that require the scope manage instead of write.
var managed = []string{"keys", "members", "billing", "notifications", "security"}

func ptr[T any](v T) *T { return &v }

// optionalInt returns nil for 0, which means "not given" in limits.
func optionalInt(n int64) *int64 {
	if n == 0 {
		return nil
	}
	return &n
}

// optionalText returns nil for "".
func optionalText(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}
