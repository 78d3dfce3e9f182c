package dashboard

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/route"
)

const (
	maxTestHeaders = 100
	maxTestTarget  = 16 << 10
)

// triedRequest is the request in the route tester.
type triedRequest struct {
	method, target string
	headers        [][2]string
	address        netip.Addr
}

// routeAnswer is the result of a request.
type routeAnswer struct {
	Sentence string
	Facts    []fact
	Headline string // of a decision without the rules; "": the rules decide
	Tone     string
	Why      string
	Verdict  *testerVerdict // results of the rules; nil: not evaluated
}

// testRoute decides a request by the route, and as a dry run by the tenant's rules and counters.
// The request is sent in a form and not in the address, because its headers may contain secrets.
func (d *dashboard) testRoute(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	stored, err := d.Store.RouteBySlug(r.Context(), v.actor(), chi.URLParam(r, "slug"))
	if err != nil {
		return err
	}
	showsSecret(w)
	view := routePageView{Form: &form{}, Test: f}
	tried := f.triedRequest()
	if f.invalid() {
		return d.showRoute(w, r, v, &stored, &view, http.StatusUnprocessableEntity)
	}
	if view.Answer, err = d.tryRequest(r, v, &stored.Route, &tried); err != nil {
		return err
	}
	return d.showRoute(w, r, v, &stored, &view, http.StatusOK)
}

func (d *dashboard) tryRequest(r *http.Request, v *visit, on *route.Route, tried *triedRequest) (*routeAnswer, error) {
	var in route.Input
	decision, err := tried.decide(on, &in)
	if err != nil {
		return nil, err
	}
	answer := answerOf(on, &decision)
	switch decision.Verdict {
	case route.Refuse:
		answer.Headline, answer.Tone = "Denied", "bad"
		answer.Why = tried.whyRefused(on, decision.Code) + " The gateway gets " + itoa(int64(on.DeniedStatus)) + " (" + string(decision.Code) + "). Nothing is counted."
		return answer, nil
	case route.Allow:
		answer.Headline, answer.Tone = "Allowed", "good"
		answer.Why = "No source of the subject is present, and the route allows such requests. Nothing is counted."
		return answer, nil
	case route.Check:
	}
	policy, err := d.Policies.Get(r.Context(), v.actor().TenantID())
	if err != nil {
		return nil, err
	}
	question := check.Request{Subject: string(decision.Subject), Resource: decision.Resource, Cost: decision.Cost, DryRun: true, Explain: true}
	for _, a := range decision.Attributes {
		question.Attributes = append(question.Attributes, check.Attribute{Name: a.Name, Value: string(a.Value)})
	}
	decisions, err := d.Checker.Check(r.Context(), policy, []check.Request{question})
	if err != nil {
		return nil, err
	}
	answer.Verdict = verdictOf(&decisions[0], d.planNames(r.Context(), v.actor()))
	return answer, nil
}

// decide evaluates a route. The decision is valid until in is used again.
func (t *triedRequest) decide(on *route.Route, in *route.Input) (route.Decision, error) {
	compiled, err := route.Compile(*on)
	if err != nil {
		return route.Decision{}, err
	}
	in.Reset()
	in.Method, in.Target, in.Address = []byte(t.method), []byte(t.target), t.address
	for _, h := range t.headers {
		compiled.Take(in, []byte(h[0]), []byte(h[1]))
	}
	return compiled.Decide(in), nil
}

// answerOf describes the check of a request.
func answerOf(on *route.Route, d *route.Decision) *routeAnswer {
	a := &routeAnswer{}
	if d.Verdict == route.Check {
		a.Sentence = "This request is a check of the subject “" + string(d.Subject) + "” for the resource “" + d.Resource + "” at a cost of " + grouped(d.Cost) + "."
		source := d.Source
		if on.Hashes(d.Source) {
			source += ", hashed"
		}
		a.Facts = append(a.Facts, fact{"Subject", string(d.Subject), true}, fact{"Source", source, true})
	} else {
		a.Sentence = "This request is not checked against the rules."
	}
	a.Facts = append(a.Facts, fact{"Resource", d.Resource, true}, fact{"Cost", grouped(d.Cost), false})
	if d.Verdict != route.Check {
		return a
	}
	for _, name := range slices.Sorted(maps.Keys(on.Attributes)) {
		value, mono := "not present", false
		for _, found := range d.Attributes {
			if found.Name == name {
				value, mono = string(found.Value), true
			}
		}
		a.Facts = append(a.Facts, fact{"Attribute " + name, value, mono})
	}
	return a
}

// whyRefused explains the code of a denial. It finds the invalid source by evaluating a route with
// each source alone.
func (t *triedRequest) whyRefused(on *route.Route, code route.Code) string {
	const valid = " is invalid. A value must be UTF-8 of up to 256 bytes without control characters, and may appear only once."
	alone := func(source string) route.Code {
		single := route.New(on.Slug)
		single.Subject, single.Hash = []string{source}, on.Hash
		var in route.Input
		decision, err := t.decide(&single, &in)
		if err != nil {
			return ""
		}
		return decision.Code
	}
	switch code {
	case route.SubjectMissing:
		return "No source of the subject is present: " + strings.Join(on.Subject, ", ") + "."
	case route.SubjectInvalid:
		for _, source := range on.Subject {
			if alone(source) == route.SubjectInvalid {
				return "The value of " + source + valid
			}
		}
	case route.AttributeInvalid:
		for _, name := range slices.Sorted(maps.Keys(on.Attributes)) {
			if source := on.Attributes[name]; alone(source) == route.SubjectInvalid {
				return "The value of " + source + " for the attribute " + name + valid
			}
		}
	case route.ResourceInvalid:
		return "The URI is invalid or can be read in more than one way, so its template is unknown. Examples: dot segments, malformed percent-encoding, headers that name different URIs."
	}
	return "A value" + valid
}

var (
	methodPattern = regexp.MustCompile(`^[A-Za-z-]{1,32}$`)
	targetPattern = regexp.MustCompile(`^(?:(?:/|https?://)[^\s\x00-\x1f\x7f]*|\*)$`)
	headerPattern = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
)

// triedRequest reads the request from the form.
func (f *form) triedRequest() (t triedRequest) {
	if t.method = f.Get("method"); !methodPattern.MatchString(t.method) {
		f.wrong("method", limit.MustBe("a method such as GET"))
	}
	t.target = f.Get("path")
	switch {
	case t.target == "": // the URI is in headers, or missing
	case len(t.target) > maxTestTarget:
		f.wrong("path", limit.MustBe("at most %s bytes", grouped(maxTestTarget)))
	case !targetPattern.MatchString(t.target):
		f.wrong("path", limit.Wrong("Correct the path.", "must begin with / and have no blanks, such as /orders/7?page=2"))
	}
	for _, line := range f.lines("headers", maxTestHeaders) {
		name, value, found := strings.Cut(line.Text, ":")
		switch {
		case !found || !headerPattern.MatchString(name):
			f.wrong("headers", limit.Wrong("Correct the line.", "line %d must be NAME: VALUE, such as X-User: user_42", line.Number))
		case len(t.headers) == maxTestHeaders:
			f.wrong("headers", limit.MustBe("at most %d lines", maxTestHeaders))
		default:
			t.headers = append(t.headers, [2]string{name, strings.Trim(value, " \t")})
		}
	}
	if text := f.Get("address"); text != "" {
		var err error
		if t.address, err = netip.ParseAddr(text); err != nil {
			f.wrong("address", limit.MustBe("an IP address, such as 192.0.2.1"))
		}
	}
	return t
}

var parameterPattern = regexp.MustCompile(`\{[^}]*\}`)

// sampleRequest returns an example of a request that becomes a check.
func sampleRequest(r *route.Route) *form {
	const subject = "user_42"
	method, path, headers := http.MethodGet, "/", ""
	for _, t := range r.Resources {
		if strings.HasPrefix(t.Match, "?") {
			continue
		}
		if before, after, spaced := strings.Cut(t.Match, " "); spaced {
			method, path = before, after
		} else {
			path = t.Match
		}
		path = (&url.URL{Path: parameterPattern.ReplaceAllString(path, "7")}).EscapedPath()
		break
	}
	where, name, _ := strings.Cut(r.Subject[0], ":")
	switch where {
	case "header":
		headers = name + ": " + subject
	case "cookie":
		headers = "Cookie: " + name + "=" + subject
	case "jwt":
		if claims, err := json.Marshal(map[string]string{name: subject}); err == nil {
			headers = "Authorization: Bearer e30." + base64.RawURLEncoding.EncodeToString(claims) + ".c2ln"
		}
	}
	return &form{values: url.Values{"method": {method}, "path": {path}, "headers": {headers}, "address": {"192.0.2.1"}}}
}
