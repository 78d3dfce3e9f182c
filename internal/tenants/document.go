package tenants

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/route"
	"weir/internal/tenants/db"
)

// Document is a tenant's configuration, without its keys and members. Nil fields are not changed
// when a document is applied.
type Document struct {
	TenantName *string
	Rules      []limit.Rule
	Routes     []route.Route
	// Plans: if the Limits of a plan are nil, it keeps its limits. At most one plan is the default.
	Plans []Plan
	// Subjects: if the Overrides of a subject are nil, it keeps its overrides.
	Subjects []Subject
	// Endpoints are those of billing systems, by their ids and without secrets. A document can
	// change them, but neither create nor delete them.
	Endpoints []BillingEndpoint
	Prices    []BillingPrice
	// Portal are the settings of the customer page; nil: they were never changed. EditPortal
	// changes them when a document is applied.
	Portal     *Portal
	EditPortal func(*Portal)
}

// Limits of a document.
const (
	MaxDocumentSubjects = 10_000
	maxDocumentNumbers  = 50_000   // plans, the limits of their versions, and overrides
	maxDocumentLabels   = 16 << 20 // bytes of the labels of stored subjects
	largeSubjects       = "more than 50000 overrides, or labels of more than 16 MiB"

	// DocumentTimeout is the timeout for applying a document.
	DocumentTimeout = 20 * time.Second
)

// Apply has the options for applying a document.
type Apply struct {
	// Match is compared with the version of Store.Document or, if the document has Subjects, with
	// the version of a document with subjects.
	Match Match
	// Prune deletes what sections of the document omit: rules, routes, plans, subjects, and limits
	// of plans and overrides of subjects for which it has such a list.
	Prune  bool
	DryRun bool // only returns what would change
}

// Applied is the result of applying a document.
type Applied struct {
	Changes []DocumentChange // empty: nothing had to change
	Version int64            // as of Store.Document, after the change
}

// Document returns the configuration of the actor's tenant, with lists sorted by name, and its
// version, which increases with every change of its contents. It contains subjects only on request,
// without expired overrides. Errors: *InvalidError for more than MaxDocumentSubjects subjects, or
// for more overrides than a document may have.
func (s *Store) Document(ctx context.Context, a Actor, subjects bool) (d Document, version int64, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		k, err := readConfiguration(ctx, q, a.tenant)
		if err != nil {
			return err
		}
		d = Document{TenantName: &k.tenant.Name, Rules: make([]limit.Rule, len(k.rules)), Routes: make([]route.Route, len(k.routes)), Plans: k.plans, Endpoints: k.endpoints, Prices: k.prices}
		if k.portal.Version > 0 {
			d.Portal = &k.portal
		}
		for i, r := range k.rules {
			d.Rules[i] = r.Rule
		}
		for i, r := range k.routes {
			d.Routes[i] = r.Route
		}
		version = k.version(subjects)
		if !subjects {
			return nil
		}
		if d.Subjects, err = readSubjects(ctx, q, a.tenant, nil); errors.Is(err, errLargeSubjects) {
			return invalid("subjects", limit.Wrong("Read them page by page from /v1/subjects.", "cannot be listed: they have "+largeSubjects))
		} else if err != nil {
			return err
		}
		if len(d.Subjects) > MaxDocumentSubjects {
			return invalid("subjects", limit.Wrong("Read them page by page from /v1/subjects.", "cannot be listed: the tenant has more than %d", MaxDocumentSubjects))
		}
		for i := range d.Subjects {
			d.Subjects[i].Overrides = present(d.Subjects[i].Overrides, s.instant())
		}
		return nil
	})
	return d, version, err
}

// present returns the overrides that have not expired.
func present(overrides []Override, now time.Time) []Override {
	return slices.DeleteFunc(overrides, func(o Override) bool { return o.over(now) })
}

func (o *Override) over(now time.Time) bool { return o.ExpiresAt != nil && !o.ExpiresAt.After(now) }

// ApplyDocument applies a document to the actor's tenant, all of it or nothing, under one version.
// Concurrent calls are serialized. Errors: *InvalidError with all errors, whose fields are paths
// into the document such as "rules.3.limit"; ErrPreconditionFailed, ErrTooManyLogos.
func (s *Store) ApplyDocument(ctx context.Context, a Actor, d Document, how Apply) (out Applied, err error) {
	if err := invalidIf(d.tooLarge()); err != nil {
		return Applied{}, err
	}
	err = s.withLogo(ctx, a, func(logo *preparedLogo) error {
		out, err = s.applyDocument(ctx, a, &d, how, logo)
		return err
	})
	return out, err
}

func (s *Store) applyDocument(ctx context.Context, a Actor, d *Document, how Apply, logo *preparedLogo) (out Applied, err error) {
	err = s.changeWithin(ctx, a, MayEdit, s.document, func(ctx context.Context, c *change) error {
		r, err := c.revise(ctx, d, how, logo)
		if err != nil {
			return err
		}
		out = Applied{Changes: r.changes, Version: r.before.version(d.Subjects != nil)}
		if r.changesBilling() && !c.actor.May(MayManage) || r.newPortal != nil && !c.actor.May(MayConfigure) {
			return ErrForbidden
		}
		if len(r.changes) == 0 || how.DryRun {
			return nil
		}
		return c.writeRevision(ctx, r, &out.Version)
	})
	return out, err
}

// tooLarge returns the errors if the document is too long to validate.
func (d *Document) tooLarge() (fields []limit.FieldError) {
	add := func(field, format string, args ...any) {
		fields = append(fields, limit.FieldProblem(field, limit.Wrong("Split the document.", format, args...)))
	}
	if len(d.Rules) > limit.MaxRules {
		add("rules", "may be at most %d", limit.MaxRules)
	}
	if len(d.Routes) > route.MaxRoutes {
		add("routes", "may be at most %d", route.MaxRoutes)
	}
	numbers := 0
	for i := range d.Plans {
		numbers += 1 + len(d.Plans[i].Limits)
		for _, v := range d.Plans[i].Older {
			numbers += len(v.Limits)
		}
	}
	for i := range d.Subjects {
		numbers += len(d.Subjects[i].Overrides)
	}
	if len(d.Subjects) > MaxDocumentSubjects {
		add("subjects", "may be at most %d in one document", MaxDocumentSubjects)
	}
	if numbers > maxDocumentNumbers {
		add("", "may hold at most %d plans, limits of plans and overrides together", maxDocumentNumbers)
	}
	return fields
}

// validate returns the errors of the document that do not depend on the tenant.
func (d *Document) validate() (fields []limit.FieldError) {
	if d.TenantName != nil {
		checkText(&fields, "tenant.name", *d.TenantName, 200)
	}
	slugs := map[string]bool{}
	once := func(field, name string) {
		if slugs[name] {
			fields = append(fields, limit.FieldProblem(field, limit.Duplicate))
		}
		slugs[name] = true
	}
	for i := range d.Rules {
		at := fmt.Sprintf("rules.%d.", i)
		fields = append(fields, prefixed(at, d.Rules[i].Validate())...)
		once(at+"slug", d.Rules[i].Slug)
	}
	clear(slugs)
	for i := range d.Routes {
		at := fmt.Sprintf("routes.%d.", i)
		fields = append(fields, prefixed(at, d.Routes[i].Validate())...)
		once(at+"slug", d.Routes[i].Slug)
	}
	clear(slugs)
	standard := ""
	for i := range d.Plans {
		p, at := &d.Plans[i], fmt.Sprintf("plans.%d.", i)
		fields = append(fields, prefixed(at, fieldsOf(p.validate()))...)
		once(at+"slug", p.Slug)
		if p.Default && standard != "" {
			fields = append(fields, limit.FieldProblem(at+"default", limit.Wrong("Set it to false for one of the two.", "may be true for one plan only; plan %s has it, too", standard)))
		} else if p.Default {
			standard = p.Slug
		}
	}
	clear(slugs)
	for i := range d.Subjects {
		in, at := &d.Subjects[i], fmt.Sprintf("subjects.%d.", i)
		fields = append(fields, prefixed(at, fieldsOf(in.validate()))...)
		once(at+"subject", in.Subject)
	}
	return fields
}

// fieldsOf returns the fields of an InvalidError.
func fieldsOf(err error) []limit.FieldError {
	var wrong *InvalidError
	if errors.As(err, &wrong) {
		return wrong.Fields
	}
	return nil
}

// configuration is the state with which a document is compared.
type configuration struct {
	tenant db.Tenant
	rules  []Rule  // by slug
	routes []Route // by slug
	plans  []Plan  // by slug

	endpoints []BillingEndpoint // by id
	prices    []BillingPrice    // by price
	portal    Portal
}

func readConfiguration(ctx context.Context, q *db.Queries, tenant uuid.UUID) (k configuration, err error) {
	if k.tenant, err = q.TenantByID(ctx, tenant); err != nil {
		return k, err
	}
	rules, err := q.DocumentRules(ctx, tenant)
	if err != nil {
		return k, err
	}
	k.rules = make([]Rule, len(rules))
	for i, row := range rules {
		if k.rules[i], err = ruleOf(row); err != nil {
			return k, err
		}
	}
	routes, err := q.AllRoutes(ctx, tenant)
	if err != nil {
		return k, err
	}
	for _, row := range routes {
		k.routes = append(k.routes, routeOf(row))
	}
	plans, err := q.DocumentPlans(ctx, tenant)
	if err != nil {
		return k, err
	}
	if k.plans, err = withAllLimits(ctx, q, tenant, plans); err != nil {
		return k, err
	}
	if k.portal, err = readPortal(ctx, q, tenant); err != nil {
		return k, err
	}
	k.endpoints, k.prices, err = readBilling(ctx, q, tenant)
	// Sorted here, because the order of the database depends on its locale.
	slices.SortFunc(k.rules, func(a, b Rule) int { return strings.Compare(a.Slug, b.Slug) })
	slices.SortFunc(k.routes, func(a, b Route) int { return strings.Compare(a.Slug, b.Slug) })
	slices.SortFunc(k.plans, func(a, b Plan) int { return strings.Compare(a.Slug, b.Slug) })
	return k, err
}

// version returns the version of a document with or without subjects. No two changes have the same
// version, so the two kinds are never confused.
func (k *configuration) version(subjects bool) int64 {
	version := max(k.tenant.Version, k.tenant.PolicyVersion)
	if subjects {
		version = max(version, k.tenant.SubjectsVersion)
	}
	return version
}

// errLargeSubjects is the error of subjects that have more overrides or labels than a document may
// have.
var errLargeSubjects = errors.New("tenants: too many overrides or labels for a document")

// readSubjects returns subjects with their overrides: the named ones, or all if names is nil,
// sorted by name. It stops at one more than a document may have. Error: errLargeSubjects.
func readSubjects(ctx context.Context, q *db.Queries, tenant uuid.UUID, names []string) ([]Subject, error) {
	var found []db.SubjectByNameRow
	var err error
	if names == nil {
		err = eachRow(q.DocumentSubjects(ctx, db.DocumentSubjectsParams{TenantID: tenant, Most: MaxDocumentSubjects + 1}))(
			func(row db.DocumentSubjectsRow) { found = append(found, db.SubjectByNameRow(row)) })
	} else {
		err = eachRow(q.SubjectsByName(ctx, db.SubjectsByNameParams{TenantID: tenant, Subjects: names}))(
			func(row db.SubjectsByNameRow) { found = append(found, db.SubjectByNameRow(row)) })
	}
	if err != nil {
		return nil, err
	}
	if len(found) > MaxDocumentSubjects { // the document is refused
		return withoutOverrides(found)
	}
	labels := 0
	for i := range found {
		for name, value := range found[i].Labels {
			labels += len(name) + len(value)
		}
	}
	if labels > maxDocumentLabels {
		return nil, errLargeSubjects
	}
	// All overrides are in memory at once, and those of changed subjects again for the trail.
	n, err := q.CountOverridesTo(ctx, db.CountOverridesToParams{TenantID: tenant, Subjects: namesOf(found), Most: maxDocumentNumbers + 1})
	if err != nil {
		return nil, err
	}
	if n > maxDocumentNumbers {
		return nil, errLargeSubjects
	}
	return withOverrides(ctx, q, tenant, found)
}
