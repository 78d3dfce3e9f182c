// Package route converts the requests of a gateway to checks, by the routes that a tenant
// configures. A route defines where the subject is (a source), which resource and cost the request
// has (templates), and what happens if one of them is missing or invalid. The package does not
// depend on HTTP or Postgres: the caller passes the header fields of a request.
//
// For example, a route with the sources jwt:sub and ip, and the template GET /orders/{id}, converts
//
//	X-Forwarded-Method: GET
//	X-Forwarded-Uri: /orders/%37?page=2
//	Authorization: Bearer e30.eyJzdWIiOiJhZGEifQ.c2ln
//
// to a check of the subject ada for the resource "GET /orders/{id}" with the cost 1.
//
// A customer controls much of what a route reads, so the package has two rules. First, any input
// leads to a decision, never to an error. Second, if a request has two readings that would be
// counted differently, it is denied. So no other spelling of a request bypasses a limit.
package route

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"weir/internal/limit"
)

// Limits of a route.
const (
	MaxRoutes     = 200 // per tenant
	MaxSources    = 8   // per subject
	MaxTemplates  = 100 // per route
	MaxMatchBytes = limit.MaxNameBytes
	maxClaimBytes = 128
)

// Hash selects the values that are replaced by their SHA-256.
type Hash string

// The values of Hash.
const (
	HashSecrets Hash = "secrets" // values of sources with secrets: cookies, Authorization, headers such as X-Api-Key
	HashAll     Hash = "all"
	HashNone    Hash = "none"
)

// NoSubject is what happens to a request without any source of the subject.
type NoSubject string

// The values of NoSubject.
const (
	DenyNoSubject  NoSubject = "deny"
	AllowNoSubject NoSubject = "allow" // without counting
	CountByAddress NoSubject = "ip"    // the subject is the address
)

// Fail is the answer to a gateway if nothing is decided.
type Fail string

// The values of Fail.
const (
	FailClosed Fail = "closed"
	FailOpen   Fail = "open"
)

// Route defines how the requests of one gateway become checks.
type Route struct {
	Slug, Name, Description string
	// Subject lists sources: header:NAME, cookie:NAME, jwt:CLAIM or ip. The first one that is
	// present has the subject.
	Subject   []string
	Hash      Hash
	NoSubject NoSubject
	// Resources are matched in order. If none matches, the resource is DefaultResource.
	Resources       []Template
	DefaultResource string
	Cost            int64             // of requests whose template sets no cost
	Attributes      map[string]string // sources by attribute name
	DeniedStatus    int               // 429 or 403
	Fail            Fail
}

// Template sets the resource of requests with matching paths.
type Template struct {
	Match    string `json:"match"`              // such as "GET /orders/{id}"; without a method for any
	Resource string `json:"resource,omitempty"` // the same as Match if empty
	Cost     *int64 `json:"cost,omitempty"`     // the route's if nil
}

// ResourceName returns the resource of the requests that the template matches.
func (t *Template) ResourceName() string {
	if t.Resource == "" {
		return t.Match
	}
	return t.Resource
}

// New returns a route with the defaults.
func New(slug string) Route {
	return Route{
		Slug: slug, Name: slug, Hash: HashSecrets, NoSubject: DenyNoSubject, DefaultResource: "default",
		Cost: 1, DeniedStatus: 429, Fail: FailClosed,
	}
}

// Clone returns a deep copy.
func (r Route) Clone() Route {
	r.Subject = slices.Clone(r.Subject)
	r.Resources = slices.Clone(r.Resources)
	for i := range r.Resources {
		if cost := r.Resources[i].Cost; cost != nil {
			own := *cost
			r.Resources[i].Cost = &own
		}
	}
	r.Attributes = maps.Clone(r.Attributes)
	return r
}

// Validate returns the errors of the route's fields, or nil.
func (r *Route) Validate() []limit.FieldError {
	var errs limit.FieldErrors
	if !limit.ValidSlug(r.Slug) {
		errs.Add("slug", limit.InvalidSlug)
	}
	limit.ValidateText(&errs, "name", r.Name, 200)
	limit.ValidateText(&errs, "description", r.Description, 2000)
	r.validateSources(&errs)
	oneOf(&errs, "hash", r.Hash, HashSecrets, HashAll, HashNone)
	oneOf(&errs, "no_subject", r.NoSubject, DenyNoSubject, AllowNoSubject, CountByAddress)
	oneOf(&errs, "fail", r.Fail, FailClosed, FailOpen)
	if r.DeniedStatus != 429 && r.DeniedStatus != 403 {
		errs.Add("denied_status", limit.MustBe("429 or 403"))
	}
	validateCost(&errs, "cost", r.Cost)
	validateResource(&errs, "default_resource", r.DefaultResource)
	r.validateTemplates(&errs)
	return errs
}

func oneOf[T ~string](errs *limit.FieldErrors, field string, value T, choices ...T) {
	if slices.Contains(choices, value) {
		return
	}
	names := make([]string, len(choices))
	for i, c := range choices {
		names[i] = string(c)
	}
	errs.Add(field, limit.OneOf(strings.Join(names, ", ")))
}

// OutsideCost is the problem of a cost below 0 or above limit.MaxFixedLimit.
var OutsideCost = limit.MustBe("a whole number from 0 to %d", limit.MaxFixedLimit)

func validateCost(errs *limit.FieldErrors, field string, cost int64) {
	if cost < 0 || cost > limit.MaxFixedLimit {
		errs.Add(field, OutsideCost)
	}
}

// validateResource refuses a resource that no check can have, or that no rule can match.
func validateResource(errs *limit.FieldErrors, field, resource string) {
	if problem := limit.ValidName(resource); problem != nil {
		errs.Add(field, problem)
	} else if strings.Contains(resource, "*") {
		errs.Add(field, limit.Wrong("Remove the *.", "must not contain *, which rules use for patterns"))
	}
}

func (r *Route) validateSources(errs *limit.FieldErrors) {
	if len(r.Subject) == 0 || len(r.Subject) > MaxSources {
		errs.Add("subject", limit.Wrong("Send a list of that length.", "must have 1 to %d sources", MaxSources))
	}
	for i, text := range r.Subject[:min(len(r.Subject), MaxSources)] { // the work grows with the square of the length
		field := "subject." + strconv.Itoa(i)
		if _, err := parseSource(text); err != nil {
			errs.Add(field, limit.ProblemOf(err))
		} else if slices.Contains(r.Subject[:i], text) {
			errs.Add(field, limit.Duplicate)
		}
	}
	if len(r.Attributes) > limit.MaxAttributes {
		errs.Add("attributes", limit.Wrong("Send fewer.", "may be at most %d", limit.MaxAttributes))
		return // a problem for each of them would be work, and an answer, without a bound
	}
	for _, name := range slices.Sorted(maps.Keys(r.Attributes)) {
		field := "attributes." + name
		if !limit.ValidAttributeName(name) {
			errs.Add(field, limit.Wrong("Rename the attribute.", "must be named by 1 to 64 of A-Z, a-z, 0-9, _ . and -, and not subject or resource"))
		} else if _, err := parseSource(r.Attributes[name]); err != nil {
			errs.Add(field, limit.ProblemOf(err))
		}
	}
}

func (r *Route) validateTemplates(errs *limit.FieldErrors) {
	if len(r.Resources) > MaxTemplates {
		errs.Add("resources", limit.Wrong("Send fewer.", "may be at most %d", MaxTemplates))
		return
	}
	seen := map[string]bool{}
	for i := range r.Resources {
		t := &r.Resources[i]
		at := "resources." + strconv.Itoa(i) + "."
		p, err := parsePattern(t.Match)
		switch {
		case err != nil:
			errs.Add(at+"match", limit.ProblemOf(err))
		case seen[p.text()]:
			errs.Add(at+"match", limit.Duplicate)
		default:
			seen[p.text()] = true
		}
		if t.Resource != "" {
			validateResource(errs, at+"resource", t.Resource)
		}
		if t.Cost != nil {
			validateCost(errs, at+"cost", *t.Cost)
		}
	}
}
