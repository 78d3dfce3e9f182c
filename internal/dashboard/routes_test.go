package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/route"
	"weir/internal/tenants"
)

// routeForm is a filled-in form for a route of tenant A; pairs of names and values replace fields.
func (s *stack) routeForm(pairs ...string) url.Values {
	form := url.Values{
		"tenant": {s.a.TenantID().String()}, "slug": {"shop"}, "name": {"Shop"}, "description": {"Orders"},
		"subject": {"header:X-User\r\nip\r\n"}, "hash": {"secrets"}, "no_subject": {"deny"},
		"resources":        {"GET /orders/{id}\r\n\r\nPOST /orders -> orders:create cost=5\r\n/free cost=0"},
		"default_resource": {"other"}, "cost": {"2"}, "attributes": {"country = header:X-Country\r\nip=ip"}, "denied_status": {"403"}, "fail": {"open"},
	}
	for i := 0; i < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
	}
	return form
}

func (s *stack) routeBySlug(slug string) tenants.Route {
	s.t.Helper()
	r, err := s.store.RouteBySlug(s.t.Context(), s.a, slug)
	require.NoError(s.t, err)
	return r
}

// The lines of the form become the route's lists, and a form saved unchanged changes nothing.
func TestCreateAndEditRoute(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	require.Contains(t, b.get("/routes").body, "No routes yet")
	require.Contains(t, b.get("/routes/new?slug=edge&subject=ip").body, `value="edge"`)
	five, none := int64(5), int64(0)
	want := route.Route{
		Name: "Shop", Description: "Orders", Subject: []string{"header:X-User", "ip"}, Hash: route.HashSecrets, NoSubject: route.DenyNoSubject,
		Resources:       []route.Template{{Match: "GET /orders/{id}"}, {Match: "POST /orders", Resource: "orders:create", Cost: &five}, {Match: "/free", Cost: &none}},
		DefaultResource: "other", Cost: 2, Attributes: map[string]string{"country": "header:X-Country", "ip": "ip"}, DeniedStatus: 403, Fail: route.FailOpen,
	}
	for _, slug := range []string{"shop", "new"} {
		got := b.post("/routes", s.routeForm("slug", slug))
		require.Equal(t, http.StatusSeeOther, got.status, got.body)
		require.Equal(t, routeURL(slug), got.header.Get("Location"))
		got = b.get(got.header.Get("Location"))
		require.Equal(t, http.StatusOK, got.status)
		checkHeaders(t, got, "/routes/"+slug)
		for _, words := range []string{"Route “Shop” created.", "/v1/authorize/" + slug, "header:X-User, ip", "orders:create", "country = header:X-Country", "Fail open (204)", "X-User: user_42", `value="/orders/7"`} {
			require.Contains(t, got.body, words)
		}
		stored := s.routeBySlug(slug)
		want.Slug = slug
		require.Equal(t, want, stored.Route)

		got = b.get("/routes/" + slug + "/edit")
		require.Equal(t, http.StatusOK, got.status)
		checkHeaders(t, got, "/routes/"+slug+"/edit")
		form := routeValues(&stored.Route)
		form.Set("version", itoa(stored.Version))
		require.Equal(t, http.StatusSeeOther, b.write("/routes/"+slug+"/edit", form).status)
		require.Equal(t, stored, s.routeBySlug(slug))
	}
	require.Contains(t, b.get("/routes").body, "3 templates")
	require.Contains(t, b.get("/routes/new").body, "New route")
	require.Contains(t, b.get("/search?q=sho").body, `href="/routes/shop"`)
	require.Contains(t, b.get("/audit?kind=route").body, "created the route")

	stale := itoa(s.routeBySlug("shop").Version)
	require.Equal(t, http.StatusSeeOther, b.post("/routes/shop/edit", s.routeForm("version", stale, "cost", "", "default_resource", "", "name", "")).status)
	edited := s.routeBySlug("shop")
	require.Equal(t, []any{"shop", int64(1), "default"}, []any{edited.Name, edited.Cost, edited.DefaultResource}, "fields that are empty have their defaults")
	for _, path := range []string{"/routes/shop/edit", "/routes/shop/delete"} {
		got := b.post(path, s.routeForm("version", stale))
		require.Equal(t, http.StatusPreconditionFailed, got.status, path)
		require.Contains(t, got.body, "Somebody else changed this")
	}
	require.Contains(t, b.post("/routes/shop/edit", s.routeForm("version", stale)).body, `name="version" value="`+itoa(edited.Version)+`"`)
	require.Equal(t, edited, s.routeBySlug("shop"))

	require.Equal(t, http.StatusSeeOther, b.post("/routes/shop/delete", s.routeForm("version", itoa(edited.Version))).status)
	require.Contains(t, b.get("/routes").body, "Route “shop” deleted.")
	require.Equal(t, http.StatusNotFound, b.get("/routes/shop").status)
}

// Ambiguous lines keep their meaning in the route.
func TestRouteLinesKeepTheirMeaning(t *testing.T) {
	odd := route.New("odd")
	odd.Subject = []string{"header:X-User"}
	odd.Resources = []route.Template{{Match: "/x", Resource: "y cost=3"}, {Match: "?user=vip replaces base", Resource: "a -> b"}}
	require.Empty(t, odd.Validate())
	f := &form{values: routeValues(&odd)}
	got := routeOf(f, "odd", &odd)
	require.False(t, f.invalid())
	require.Equal(t, odd.Resources, got.Resources)
	require.NotEqual(t, odd.Resources, f.templates(&route.Route{}), "without the route they would read differently")
}

// An invalid line is named at its field, and the input stays in the form.
func TestRouteFormRefused(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	b := s.as("ann@example.com")
	for words, fields := range map[string][]string{
		"Must be 1 to 63 of a-z, 0-9 and -":                             {"slug", "Not A Slug"},
		"Must have 1 to 8 sources":                                      {"subject", ""},
		"Line 3, “body:user”, must be header:NAME":                      {"subject", "ip\n\nbody:user"},
		"Line 2, “ip”, is a duplicate":                                  {"subject", "ip\nip"},
		"Line 2, “orders”, must be a path such as /orders/{id}":         {"resources", "/x\norders"},
		"Line 1, “/x -&gt; a*”, has a resource that must not contain *": {"resources", "/x -> a*"},
		"has a cost that must be a whole number from 0":                 {"resources", "/x cost=-1"},
		"must have a whole number as its cost":                          {"resources", "/x cost=many"},
		"Line 1, “x”, must be NAME = SOURCE":                            {"attributes", "x"},
		"is a duplicate: x has a source already":                        {"attributes", "x = ip\nx=header:A"},
		"Y must be header:NAME":                                         {"attributes", "y = z"},
		"Must be 429 or 403":                                            {"denied_status", "500"},
		"Must be one of secrets, all, none":                             {"hash", "some"},
		"Must be one of deny, allow, ip":                                {"no_subject", "x"},
		"Must be one of closed, open":                                   {"fail", ""},
		"Must be a whole number, such as 100":                           {"cost", "lots"},
		"Must not contain *":                                            {"default_resource", "*"},
		"There is a route with this slug already":                       {"slug", "edge"},
	} {
		got := b.post("/routes", s.routeForm(append([]string{"name", "What I wrote"}, fields...)...))
		want := http.StatusUnprocessableEntity
		if fields[1] == "edge" {
			want = http.StatusConflict
		}
		require.Equal(t, want, got.status, words)
		require.Contains(t, got.body, words)
		require.Contains(t, got.body, `value="What I wrote"`, words)
		checkHeaders(t, got, words)
	}
	require.Equal(t, http.StatusUnprocessableEntity, b.post("/routes/edge/edit", s.routeForm("subject", "x")).status)
	routes, _, err := s.store.Routes(t.Context(), s.a, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, routes, 1)
}

// The tester shows the result of a request, and consumes nothing.
func TestRouteTester(t *testing.T) {
	s := newStack(t)
	_, err := s.store.CreateRule(t.Context(), s.a, limit.Rule{
		Slug: "orders", Name: "Order limit", Resource: "orders:create", Algorithm: limit.SlidingWindowLog, Limit: 5, Window: window(t, "1h"), By: []string{"subject"},
	})
	require.NoError(t, err)
	b := s.as("ann@example.com")
	require.Equal(t, http.StatusSeeOther, b.post("/routes", s.routeForm("subject", "header:X-Api-Key\nheader:X-User\njwt:sub")).status)
	try := func(pairs ...string) page {
		form := url.Values{"method": {"POST"}, "path": {"/orders?draft=1"}, "headers": {"X-User: ada"}, "address": {"192.0.2.9"}}
		for i := 0; i < len(pairs); i += 2 {
			form.Set(pairs[i], pairs[i+1])
		}
		return b.write("/routes/shop", form)
	}
	for range 3 { // a dry run uses no units: each real check would use all
		got := try()
		require.Equal(t, http.StatusOK, got.status, got.body)
		for _, words := range []string{
			"This request is a check of the subject “ada” for the resource “orders:create” at a cost of 5.", "header:X-User", `<h2 id="verdict">Allowed</h2>`, "Order limit", "0 of 5 remaining",
			"Attribute ip", "192.0.2.9", "not present", `value="/orders?draft=1"`, "X-User: ada",
		} {
			require.Contains(t, got.body, words)
		}
		require.Contains(t, got.header.Get("Cache-Control"), noTransform, "headers may contain secrets")
	}
	policy, err := s.policies.Get(t.Context(), s.a.TenantID())
	require.NoError(t, err)
	decisions, err := s.checker.Check(t.Context(), policy, []check.Request{{Subject: "ada", Resource: "orders:create", Cost: 1}})
	require.NoError(t, err)
	require.True(t, decisions[0].Allowed)
	got := try()
	require.Contains(t, got.body, `<h2 id="verdict">Denied</h2>`)
	require.Contains(t, got.body, "Order limit denies the check")

	got = try("headers", "X-Api-Key: k-1\nX-Country: NL", "path", "/orders/7", "method", "GET")
	require.Contains(t, got.body, "sha256:")
	require.Contains(t, got.body, "header:X-Api-Key, hashed")
	require.Contains(t, got.body, "“GET /orders/{id}” at a cost of 2.")
	require.Contains(t, got.body, ">NL<")
	require.Contains(t, try("path", "", "headers", "X-User: ada\nX-Forwarded-Uri: /free").body, "“/free” at a cost of 0.")

	for words, pairs := range map[string][]string{
		"No source of the subject is present: header:X-Api-Key, header:X-User, jwt:sub. The gateway gets 403 (SUBJECT_MISSING).": {"headers", ""},
		"The value of header:X-User is invalid.":                              {"headers", "X-User: ada\nX-User: bob"},
		"The URI is invalid or can be read in more than one way":              {"path", "/orders/../free"},
		"The value of header:X-Country for the attribute country is invalid.": {"headers", "X-User: ada\nX-Country: a\nX-Country: b"},
	} {
		got := try(pairs...)
		require.Equal(t, http.StatusOK, got.status)
		require.Contains(t, got.body, words)
		require.Contains(t, got.body, "This request is not checked against the rules.")
		require.Contains(t, got.body, "Nothing is counted.")
	}
	require.Equal(t, http.StatusSeeOther, b.post("/routes/shop/edit", s.routeForm("no_subject", "allow", "subject", "header:X-User")).status)
	require.Contains(t, try("headers", "").body, "the route allows such requests")

	for words, pairs := range map[string][]string{
		"Must be a method such as GET":  {"method", "G T"},
		"Must begin with /":             {"path", "orders"},
		"Line 2 must be NAME: VALUE":    {"headers", "X-User: ada\nsecret-key"},
		"Must be at most 100 lines":     {"headers", strings.Repeat("A: b\n", 101)},
		"Must be an IP address":         {"address", "localhost"},
		"Must be at most 16,384 bytes":  {"path", "/" + strings.Repeat("a", 16<<10)},
		"Request not tested. Fix the h": {"method", ""},
	} {
		got := try(pairs...)
		require.Equal(t, http.StatusUnprocessableEntity, got.status, words)
		require.Contains(t, got.body, words)
	}
}

// The tester of a new route starts with a request that becomes a check.
func TestSampleRequest(t *testing.T) {
	for _, source := range []string{"header:X-User", "header:Authorization", "cookie:sid", "jwt:sub", "jwt:https://example.com/id", "ip"} {
		for match, want := range map[string]string{"GET /orders/{id}/items": "GET /orders/{id}/items", "/a b/{rest...}": "", "/café": "/café", "?user={}": "default"} {
			r := route.New("shop")
			r.Subject, r.Resources = []string{source}, []route.Template{{Match: match}}
			if want == "" {
				r.Resources[0].Match, want = "/files/{rest...}", "/files/{rest...}"
			}
			f := sampleRequest(&r)
			tried := f.triedRequest()
			require.False(t, f.invalid(), "%s %s: %v", source, match, f.errors)
			var in route.Input
			d, err := tried.decide(&r, &in)
			require.NoError(t, err)
			require.Equal(t, route.Check, d.Verdict, "%s %s", source, match)
			require.Equal(t, want, d.Resource)
		}
	}
}

// Roles are enforced, whatever the page shows, and a form is valid only for its own tenant.
func TestRouteRights(t *testing.T) {
	s := newStack(t)
	s.members()
	s.fill(s.a, "mark")
	for email, may := range map[string]bool{
		"ann@example.com": true, "admin@example.com": true, "editor@example.com": true, "support@example.com": false, "viewer@example.com": false,
	} {
		b := s.as(email)
		refused := func(status int) int {
			if may {
				return status
			}
			return http.StatusForbidden
		}
		name, _, _ := strings.Cut(email, "@")
		require.Equal(t, refused(http.StatusOK), b.get("/routes/new").status, email)
		require.Equal(t, refused(http.StatusOK), b.get("/routes/edge/edit").status, email)
		require.Equal(t, refused(http.StatusSeeOther), b.post("/routes", s.routeForm("slug", "of-"+name)).status, email)
		require.Equal(t, refused(http.StatusSeeOther), b.post("/routes/edge/edit", s.routeForm("name", "By "+name)).status, email)
		if may {
			require.Equal(t, http.StatusSeeOther, b.post("/routes/of-"+name+"/delete", s.routeForm()).status, email)
		} else {
			require.Equal(t, http.StatusForbidden, b.post("/routes/edge/delete", s.routeForm()).status, email)
		}
		require.Equal(t, http.StatusOK, b.write("/routes/edge", url.Values{"method": {"GET"}}).status, "%s may test", email)
		require.Equal(t, may, strings.Contains(b.get("/routes/edge").body, "/routes/edge/edit"), email)
		require.Equal(t, may, strings.Contains(b.get("/routes").body, "/routes/new"), email)
	}
	bob := s.as("bob@example.com")
	own := s.routeForm("tenant", s.b.TenantID().String(), "method", "GET")
	for _, path := range []string{"/routes/edge", "/routes/edge/edit", "/routes/edge/delete"} {
		require.Equal(t, http.StatusConflict, bob.post(path, s.routeForm()).status, "%s: the form is for tenant A", path)
		require.Equal(t, http.StatusNotFound, bob.post(path, own).status, path)
	}
	require.Equal(t, http.StatusNotFound, bob.get("/routes/edge").status)
	require.Equal(t, http.StatusNotFound, bob.get("/routes/edge/edit").status)
	require.NotContains(t, bob.get("/routes").body, "mark")
	require.NotContains(t, bob.get("/search?q=edge").body, "/routes/edge")
}

// A font may draw the arrow of a template as one character, which users copy.
func TestArrowsOfTemplates(t *testing.T) {
	for _, arrow := range []string{"->", "→"} {
		match, resource, cost := splitTemplate("POST /orders " + arrow + " orders:create cost=5")
		require.Equal(t, []string{"POST /orders", "orders:create", "5"}, []string{match, resource, cost})
	}
}

// The list of routes reads how many templates each has, not the templates, which can be a hundred
// KB: some that cannot be decoded do not matter.
func TestRoutesAreListedWithoutTemplates(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	require.Equal(t, http.StatusSeeOther, b.post("/routes", s.routeForm()).status)
	s.db.Exec("UPDATE routes SET resources = '[1, 2, 3, 4]'")
	got := b.get("/routes")
	require.Equal(t, http.StatusOK, got.status)
	for _, words := range []string{"Shop", "header:X-User, ip", "4 templates", "Fail open (204)"} {
		require.Contains(t, got.body, words)
	}
}
