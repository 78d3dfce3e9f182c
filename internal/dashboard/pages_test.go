package dashboard

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/testenv"
)

// pagePaths returns the pages of a tenant that fill has filled with mark.
func pagePaths(mark string) []string {
	return []string{
		"/", "/rules", "/rules/requests", "/plans", "/routes", "/routes/edge", "/subjects", "/subjects?q=ada", subjectURL("ada " + mark),
		subjectURL("ada "+mark) + "?attributes.ip=192.0.2.1", "/subjects/unknown", "/keys", "/members", "/sessions", "/device", "/tester", "/billing", "/billing/events",
		"/settings", "/settings/security", "/settings/security?kind=sign_in.succeeded", "/settings/customer-page", "/settings/notifications", "/requests", "/requests?show=all",
		"/tester?subject=" + url.QueryEscape("ada "+mark),
		"/?period=30d", "/usage", "/metered", "/usage?by=subject", "/usage?by=rule&period=7d&rule=requests", "/decisions", "/decisions?show=all&subject=ada", "/audit",
		"/audit?kind=rule&verify=1", "/audit?target=" + url.QueryEscape("ada "+mark),
	}
}

// ownScripts matches the tags that load our scripts. No page has any other script.
var ownScripts = regexp.MustCompile(`<script defer src="/assets/[a-zA-Z0-9/._-]+\.js"></script>`)

// checkHeaders requires the headers of every answer.
func checkHeaders(t *testing.T, got page, path string) {
	t.Helper()
	for name, want := range map[string]string{
		"Content-Security-Policy": contentPolicy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin",
		"Cache-Control": "no-store", "Cross-Origin-Opener-Policy": "same-origin",
	} {
		require.Equal(t, want, got.header.Get(name), "%s: %s", path, name)
	}
	require.NotContains(t, got.header.Get("Content-Security-Policy"), "unsafe")
	require.Contains(t, got.header.Get("Content-Security-Policy"), "frame-ancestors 'none'")
	require.NotRegexp(t, `(?i)<script|\son[a-z]+=|\sstyle=|<style`, ownScripts.ReplaceAllString(got.body, ""), path)
	for _, link := range regexp.MustCompile(`(?:href|src|action)="([^"]*)"`).FindAllStringSubmatch(got.body, -1) {
		require.Regexp(t, `^(/|#)`, link[1], "%s asks another host", path)
	}
}

// Every role can read every page, whether it has contents or not.
func TestPages(t *testing.T) {
	s := newStack(t)
	for _, role := range tenants.Roles {
		if role != tenants.Owner {
			s.member(s.a, string(role)+"@example.com", role)
		}
	}
	viewer := s.as("viewer@example.com")
	for _, path := range []string{"/", "/rules", "/plans", "/routes", "/subjects", "/subjects?q=x", "/subjects/anybody", "/keys", "/members", "/sessions", "/usage", "/decisions", "/audit?actor=nobody"} {
		got := viewer.get(path)
		require.Equal(t, http.StatusOK, got.status, path)
		checkHeaders(t, got, path)
	}
	require.Contains(t, viewer.get("/rules").body, "No rules yet")
	require.Contains(t, viewer.get("/").body, "Send first check")
	require.Contains(t, viewer.get("/plans").body, "No plans yet")
	require.Contains(t, viewer.get("/routes").body, "No routes yet")
	require.Contains(t, viewer.get("/subjects").body, "curl -X PUT")

	s.fill(s.a, "mark")
	s.serve(s.store, testenv.RedisURL(t)) // which reads the policy again
	for _, email := range []string{"ann@example.com", "admin@example.com", "editor@example.com", "support@example.com", "viewer@example.com"} {
		b := s.as(email)
		for _, path := range pagePaths("mark") {
			got := b.get(path)
			require.Equal(t, http.StatusOK, got.status, "%s: %s", email, path)
			checkHeaders(t, got, path)
		}
	}
	for path, words := range map[string][]string{
		"/":                       {"Overrides expiring this week", "2 days", "Because mark"},
		"/rules":                  {"Rule mark", "Each subject can use 10 units in any minute on all resources. Requests over the limit are denied."},
		"/rules/requests":         {"About mark", "Plan mark", "20 per minute", "Sliding window log"},
		"/plans":                  {"Plan mark", `<td class="own" data-plan="Plan mark"><a class="cell"`, ">20 per minute", `<td class="muted" data-plan="Plan mark"><a class="cell"`, ">10 per minute", "default"},
		"/subjects":               {"ada mark", "Label mark"},
		"/routes":                 {"Route mark", "jwt:mark, ip", "1 template"},
		"/routes/edge":            {"In front mark", "orders mark", "/v1/authorize/edge", "Route tester"},
		"/keys":                   {"Key mark", "check, read, write, manage", "never"},
		"/members":                {"ann@example.com", "(you)", "owner"},
		subjectURL("ada mark"):    {"ref mark", "30 per minute", "from an override", "0 of 30 used", "is also counted per ip", "active"},
		"/subjects/unknown":       {"<dt>Registered</dt><dd>No</dd>", "20 per minute", "from plan Plan mark"},
		"/subjects/a%2Fb%3Fc%25d": {"<h1 class=\"mono\">a/b?c%d</h1>"},
	} {
		got := s.as("ann@example.com").get(path)
		for _, word := range words {
			require.Contains(t, got.body, word, path)
		}
	}
}

// The page says why a subject is denied now, and until when.
func TestLiveLimits(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	policy, err := s.policies.Get(t.Context(), s.a.TenantID())
	require.NoError(t, err)
	for range 20 {
		_, err := s.checker.Check(t.Context(), policy, []check.Request{{Subject: "user_1", Resource: "default", Cost: 1}})
		require.NoError(t, err)
	}
	got := s.as("ann@example.com").get("/subjects/user_1")
	require.Contains(t, got.body, "20 of 20 used")
	require.Regexp(t, `Denying for (1 min|\d+ s)`, got.body)
	require.Regexp(t, `title="Fully available">in (1 min|\d+ s)<`, got.body)
}

func TestTenantsNeverMeet(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark of A")
	s.fill(s.b, "other")
	bob := s.as("bob@example.com")
	for _, path := range pagePaths("other") {
		got := bob.get(path)
		require.Equal(t, http.StatusOK, got.status, path)
		require.NotContains(t, got.body, "mark of A", path)
		require.NotContains(t, got.body, "ann@example.com", path)
		require.NotContains(t, got.body, s.a.TenantID().String(), path)
	}
	got := bob.get(subjectURL("ada mark of A"))
	require.Contains(t, got.body, "<dt>Registered</dt><dd>No</dd>", "registered elsewhere only")
	require.NotContains(t, got.body, "Because mark of A")

	window, err := limit.ParseWindow("1m")
	require.NoError(t, err)
	_, err = s.store.CreateRule(t.Context(), s.a, limit.Rule{Slug: "only-a", Resource: "*", Algorithm: limit.TokenBucket, Limit: 1, Window: window})
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, s.as("ann@example.com").get("/rules/only-a").status)
	require.Equal(t, http.StatusNotFound, bob.get("/rules/only-a").status)

	_, ruleCursor, err := s.store.Rules(t.Context(), s.a, tenants.RuleFilter{}, tenants.Page{Limit: 1})
	require.NoError(t, err)
	require.NotContains(t, bob.get("/rules?after="+ruleCursor).body, "mark of A", "a cursor of another tenant gives no access")

	// Bob cannot choose a tenant of which he is not a member, nor one to which he was only invited.
	choose := func() page { return bob.post("/tenant", url.Values{"tenant": {s.a.TenantID().String()}}) }
	require.Equal(t, http.StatusNotFound, choose().status)
	member, err := s.store.InviteMember(t.Context(), s.a, "bob@example.com", tenants.Owner)
	require.NoError(t, err)
	require.Equal(t, http.StatusNotFound, choose().status)
	require.NotContains(t, bob.get("/rules").body, "mark of A")
	require.NoError(t, s.store.RemoveMember(t.Context(), s.a, member.ID, tenants.Match{}))
}

func TestSwitchOfTenant(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "first")
	s.fill(s.b, "second")
	s.member(s.b, "ann@example.com", tenants.Viewer)
	b := s.as("ann@example.com")
	got := b.get("/rules")
	require.Contains(t, got.body, "Rule first")
	require.Contains(t, got.body, `<button name="tenant" value="`+s.b.TenantID().String()+`"`)
	require.Equal(t, http.StatusSeeOther, b.post("/tenant", url.Values{"tenant": {s.b.TenantID().String()}}).status)
	got = b.get("/rules")
	require.Contains(t, got.body, "Rule second")
	require.NotContains(t, got.body, "Rule first")
	require.Contains(t, got.body, "</b><span>viewer", "the role is that of this tenant")

	suspend := func(tn *tenants.Tenant) error { tn.State = tenants.TenantSuspended; return nil }
	_, err := s.store.EditTenantByRef(t.Context(), tenants.AsOperator("test"), "tenant-b", tenants.Match{}, suspend)
	require.NoError(t, err)
	got = b.get("/rules")
	require.Contains(t, got.body, "Rule first", "a suspended tenant is not accessible")
	require.NotContains(t, got.body, "Switch to")
}

// Names of customers are untrusted input.
func TestEscaping(t *testing.T) {
	s := newStack(t)
	const script = `"><script>alert(1)</script><img src=x onerror=alert(1)>`
	s.fill(s.a, script)
	b := s.as("ann@example.com")
	for _, path := range append(pagePaths(script), "/rules/requests/edit", "/routes/edge/edit", "/rules/requests/history", "/plans/free/edit", "/plans/free/limits/requests", "/rules/new?name="+url.QueryEscape(script),
		"/subjects?q="+url.QueryEscape(script), "/login?next="+url.QueryEscape(script)) {
		got := b.get(path)
		require.NotContains(t, got.body, "<script>", path)
		require.NotContains(t, got.body, "<img src=x", path)
	}
	require.Contains(t, b.get("/rules").body, "&lt;script&gt;")
	got := b.login(script, "x")
	require.Equal(t, http.StatusUnauthorized, got.status)
	require.NotContains(t, got.body, "<script>")
	require.Contains(t, curlText("PUT", "/v1/x'y", "{}"), `'/v1/x'\''y'`, "a copied command must not contain another one")
}

func TestNothingWithoutSession(t *testing.T) {
	s := newStack(t)
	b := s.browser()
	for _, path := range pagePaths("x") {
		got := b.get(path)
		require.Equal(t, http.StatusSeeOther, got.status, path)
		require.True(t, strings.HasPrefix(got.header.Get("Location"), "/login"), path)
		checkHeaders(t, got, path)
	}
	for _, path := range []string{"/logout", "/tenant", "/sessions/end"} {
		require.Equal(t, "/login", b.post(path, url.Values{}).header.Get("Location"), path)
	}
	checkHeaders(t, b.get("/login"), "/login")
	got := b.get("/rules/a/b")
	require.Equal(t, http.StatusNotFound, got.status)
	checkHeaders(t, got, "/rules/a/b")
}

func TestPagesThatCannotBeShown(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	b := s.as("ann@example.com")
	for path, want := range map[string]int{
		"/rules/none": 404, "/routes/none": 404, "/routes/none/edit": 404, "/routes?after=1": 400, "/subjects/": 404, "/subjects/%00": 404, "/subjects/" + strings.Repeat("x", 257): 404,
		"/rules?after=nonsense": 400, "/keys?after=1": 400, "/members?after=1": 400, "/subjects?state=blocked&after=1": 400, "/plans?after=1": 400,
		"/subjects/x?resource=%00": 400, "/subjects/x?attributes.=1": 400,
	} {
		got := b.get(path)
		require.Equal(t, want, got.status, path)
		checkHeaders(t, got, path)
		require.Contains(t, got.body, "Go to the overview", path)
	}
	require.Equal(t, http.StatusMethodNotAllowed, b.post("/rules/requests", url.Values{}).status)
}

func TestPaging(t *testing.T) {
	s := newStack(t)
	for i := range pageSize + 1 {
		_, _, err := s.store.PutSubject(t.Context(), s.a, tenants.Subject{Subject: "user_" + itoa(int64(i))}, tenants.Match{})
		require.NoError(t, err)
	}
	b := s.as("ann@example.com")
	got := b.get("/subjects?q=user")
	next := regexp.MustCompile(`rel="next" href="([^"]*)"`).FindStringSubmatch(got.body)
	require.NotNil(t, next)
	require.NotContains(t, got.body, ">user_9<", "with a prefix they are sorted by name")
	got = b.get(strings.ReplaceAll(next[1], "&amp;", "&"))
	require.Contains(t, got.body, ">user_9<")
	require.NotContains(t, got.body, `rel="next"`)
	require.Contains(t, got.body, `value="user"`, "the search is kept")
}

// Without Redis, pages work and say since when; without Postgres, they say what is unavailable.
func TestDegraded(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	s.serve(s.store, "redis://127.0.0.1:1")
	policy, err := s.policies.Get(t.Context(), s.a.TenantID())
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := s.checker.Check(t.Context(), policy, []check.Request{{Subject: "x", Resource: "y", Cost: 1}})
		return err == nil && !s.engines.DegradedSince().IsZero()
	}, time.Minute, time.Millisecond)
	b := s.as("ann@example.com")
	require.Contains(t, b.get("/rules").body, "Redis has been unavailable for")
	got := b.get("/subjects/user_1")
	require.Equal(t, http.StatusOK, got.status)
	require.Contains(t, got.body, "degraded: Redis unavailable")

	away := s.db.Open(tenants.Config{DatabaseURL: "postgres://x:y@127.0.0.1:1/z?sslmode=disable"})
	token := b.token()
	s.serve(away, "redis://127.0.0.1:1")
	r := s.browser().request(http.MethodGet, "/rules", nil)
	r.AddCookie(&http.Cookie{Name: sessionCookie, Value: token})
	got = s.browser().send(r)
	require.Equal(t, http.StatusServiceUnavailable, got.status, "and not a redirect to the login")
	require.Contains(t, got.body, "Configuration unavailable")
	require.NotContains(t, got.body, "127.0.0.1")
	got = s.browser().login("ann@example.com", password)
	require.Equal(t, http.StatusServiceUnavailable, got.status)
}

// The path determines whether an API client gets a page or a problem document.
func TestServes(t *testing.T) {
	for path, want := range map[string]bool{
		"/": true, "/login": true, "/playground": true, "/playground/token-bucket": true, "/tester": true, "/rules": true, "/rules/x": true, "/routes": true, "/subjects/a/b": true,
		"": false, "//": false, "//rules": false, "/v1/rules": false, "/assets/x": false, "/check": false, "/docs": false, "/nope": false, "/rulesx": false,
		"/healthz": false, "/openapi.json": false, "*": false,
	} {
		require.Equal(t, want, Serves(path), "%q", path)
	}
}

// The theme is stored in the browser, and choosing it leads back to the same page.
func TestTheme(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	require.NotContains(t, b.get("/rules").body, "data-theme=\"")
	got := b.post("/theme", url.Values{"theme": {"dark"}})
	require.Equal(t, http.StatusSeeOther, got.status)
	require.Equal(t, "/", got.header.Get("Location"))
	require.Contains(t, b.get("/rules").body, `data-theme="dark"`)
	require.Equal(t, http.StatusBadRequest, b.post("/theme", url.Values{"theme": {`"><script>`}}).status)
	b.post("/theme", url.Values{"theme": {"system"}})
	require.NotContains(t, b.get("/rules").body, "data-theme=\"")
}

// The list of subjects has each one once, registered or only seen, on pages of one size in the
// order of names.
func TestPagesOfSubjects(t *testing.T) {
	s := newStack(t)
	var want []string
	seen := map[string]int64{}
	for i := range 2 * pageSize {
		name := fmt.Sprintf("user_%03d", i)
		want = append(want, name)
		if i%3 == 0 || i == 1 { // one of them is registered, too
			seen[name] = int64(i + 1)
		}
		if i%3 != 0 {
			_, _, err := s.store.PutSubject(t.Context(), s.a, tenants.Subject{Subject: name}, tenants.Match{})
			require.NoError(t, err)
		}
	}
	s.asked(time.Hour, "orders", seen)
	b := s.as("ann@example.com")
	for _, path := range []string{"/subjects", "/subjects?q=user"} {
		var got []string
		unregistered := 0
		for pages := 1; path != ""; pages++ {
			require.LessOrEqual(t, pages, 2)
			body := b.get(path).body
			for _, row := range regexp.MustCompile(`href="/subjects/user_\d+">(user_\d+)</a></th>`).FindAllStringSubmatch(body, -1) {
				got = append(got, row[1])
			}
			unregistered += strings.Count(body, "Not registered")
			path = ""
			if next := regexp.MustCompile(`rel="next" href="([^"]*)"`).FindStringSubmatch(body); next != nil {
				path = strings.ReplaceAll(next[1], "&amp;", "&")
			}
		}
		require.Equal(t, want, got)
		require.Equal(t, len(seen)-1, unregistered)
	}
}

// Lists that do not show the overrides of subjects do not read them, because a page of subjects can
// have very many. The list of subjects reads only how many there are.
func TestListsOfSubjectsReadNoOverrides(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	_, _, err := s.store.PutOverride(t.Context(), s.a, "user_7", tenants.Override{Rule: "requests", Limit: limit.Limit{Limit: 7}}, tenants.Match{})
	require.NoError(t, err)
	s.asked(time.Hour, "orders", map[string]int64{"user_7": 3, "user_8": 3})
	s.db.Exec("REVOKE SELECT ON overrides FROM weir_app")
	b := s.as("ann@example.com")
	for _, path := range []string{"/audit", "/tester", "/tester/subjects?q=user", "/search?q=user"} {
		got := b.get(path)
		require.Equal(t, http.StatusOK, got.status, path)
		require.Contains(t, got.body, "user_7", path)
	}
	s.db.Exec("GRANT SELECT (tenant_id, subject) ON overrides TO weir_app")
	for _, path := range []string{"/subjects", "/subjects?q=user_7", "/subjects?q=ser_7", "/subjects?state=active"} {
		got := b.get(path)
		require.Equal(t, http.StatusOK, got.status, path)
		_, row, _ := strings.Cut(got.body, `href="/subjects/user_7">user_7</a></th>`)
		row, _, _ = strings.Cut(row, "</tr>")
		require.Contains(t, row, `data-label="Overrides">1</td>`, path)
	}
}
