package dashboard

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/evanw/esbuild/pkg/api"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/testenv"
)

// hostile is a name with special characters of every language in which it is written.
const hostile = "it's \"q\" \\ `b` ${x} $(id) <script>alert(1)</script> %00\u2028"

func (s *stack) tested(b *browser, fields ...string) page {
	values := url.Values{}
	for i := 0; i < len(fields); i += 2 {
		values.Set(fields[i], fields[i+1])
	}
	return b.get("/tester?" + values.Encode())
}

// The tester shows every rule, its limit with the source, and the wait, and consumes nothing.
func TestTesterExplains(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	window, err := limit.ParseWindow("1m")
	require.NoError(t, err)
	for _, r := range []limit.Rule{
		{Slug: "exports", Resource: "exports:*", Algorithm: limit.FixedWindow, Limit: 5, Window: window},
		{Slug: "sleeping", Resource: "*", Algorithm: limit.FixedWindow, Limit: 5, Window: window, Mode: limit.Off},
		{Slug: "trial", Resource: "*", Algorithm: limit.FixedWindow, Limit: 1, Window: window, Mode: limit.Shadow, By: []string{"subject"}},
	} {
		_, err := s.store.CreateRule(t.Context(), s.a, r)
		require.NoError(t, err)
	}
	s.serve(s.store, testenv.RedisURL(t))
	b := s.as("ann@example.com")
	empty := b.get("/tester")
	require.Equal(t, http.StatusOK, empty.status)
	require.Contains(t, empty.body, `name="attributes.ip"`, "Attributes of your rules")
	require.Contains(t, empty.body, `<option value="ada mark" label="Label mark">`)
	require.Contains(t, empty.body, "Plan mark")

	for range 3 { // uses no units
		got := s.tested(b, "subject", "user_1", "cost", "3")
		require.Equal(t, http.StatusOK, got.status, got.body)
		checkHeaders(t, got, "/tester")
		for _, words := range []string{
			"Allowed", "17 of 20 remaining after this check", "20 per minute", "(from plan Plan mark)", "decides", "shadow: would deny",
			"is counted per ip, which the check lacks", "</a> is off", "1 rule is for another resource", "“exports:”",
		} {
			require.Contains(t, got.body, words)
		}
	}
	got := s.tested(b, "subject", "user_1", "attributes.ip", "192.0.2.1", "resource", "exports:pdf")
	require.Contains(t, got.body, "4 rules")
	require.NotContains(t, got.body, "which the check lacks")
	require.Contains(t, got.body, "The tightest is exports.")
	got = s.tested(b, "subject", "user_1", "attributes", "ip=192.0.2.1\r\n\r\nteam=a=b")
	require.NotContains(t, got.body, "which the check lacks")
	require.Contains(t, got.body, "&#34;attributes&#34;:{&#34;ip&#34;:&#34;192.0.2.1&#34;,&#34;team&#34;:&#34;a=b&#34;}")
	require.Contains(t, s.tested(b, "subject", "ada mark").body, "(from an override)")
	require.Contains(t, s.tested(b, "subject", "user_1", "cost", "21").body, "A cost of 21 is never allowed: Rule mark allows at most 20 units at once.")
	require.Contains(t, s.tested(b, "subject", "user_1", "cost", "0").body, "A cost of 0 uses no units.")

	policy, err := s.policies.Get(t.Context(), s.a.TenantID())
	require.NoError(t, err)
	_, err = s.checker.Check(t.Context(), policy, []check.Request{{Subject: "user_1", Resource: "default", Cost: 19}})
	require.NoError(t, err)
	got = s.tested(b, "subject", "user_1", "cost", "2")
	require.Contains(t, got.body, "Denied")
	require.Regexp(t, `Rule mark denies the check: 1 unit remains, and the cost is 2\. Retry after (1 minute|\d+ seconds)`, got.body)
	require.Contains(t, got.body, "1 of 20 remaining")
	require.Contains(t, s.tested(b, "subject", "user_1").body, "0 of 20 remaining after this check")
}

func TestTesterSeesStates(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	for name, state := range map[string]check.SubjectState{"bad": check.Blocked, "free": check.Exempt} {
		_, _, err := s.store.PutSubject(t.Context(), s.a, tenants.Subject{Subject: name, State: state}, tenants.Match{})
		require.NoError(t, err)
	}
	s.serve(s.store, testenv.RedisURL(t))
	b := s.as("ann@example.com")
	require.Contains(t, s.tested(b, "subject", "bad").body, "The subject is blocked. Every check is denied, regardless of the rules.")
	require.Contains(t, s.tested(b, "subject", "bad").body, "is not evaluated: the subject is blocked")
	got := s.tested(b, "subject", "free", "cost", "100")
	require.Contains(t, got.body, "Allowed")
	require.Contains(t, got.body, "shadow: would deny")

	// a tenant without rules
	got = s.tested(s.as("bob@example.com"), "subject", "x")
	require.Contains(t, got.body, "A check without matching rules is allowed.")
}

// Errors are shown at their fields, and nothing is evaluated.
func TestTesterRefuses(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	b := s.as("ann@example.com")
	many := strings.Builder{}
	for i := range limit.MaxAttributes + 1 {
		many.WriteString("a" + itoa(int64(i)) + "=x\n")
	}
	for _, c := range [][2]string{
		{"subject", ""}, {"subject", strings.Repeat("x", 257)}, {"subject", "a\x00"}, {"resource", "a\nb"}, {"cost", "x"}, {"cost", "-1"}, {"cost", "1e3"},
		{"cost", "1000000000000001"}, {"plan", "none"}, {"plan", "x y"}, {"attributes", "ip"}, {"attributes", "=x"}, {"attributes", "ip=1\nip=2"},
		{"attributes", many.String()}, {"attributes", "a b=1"}, {"attributes.ip", strings.Repeat("x", 257)},
	} {
		got := s.tested(b, "subject", "user_1", c[0], c[1])
		require.Equal(t, http.StatusUnprocessableEntity, got.status, c)
		require.Contains(t, got.body, "Check not tested", c)
		require.Contains(t, got.body, `aria-invalid="true"`, c)
		require.NotContains(t, got.body, `id="verdict"`, c)
		checkHeaders(t, got, c[0])
	}
}

func TestTesterIsForMembers(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "secret")
	s.fill(s.b, "other")
	s.serve(s.store, testenv.RedisURL(t))
	for _, role := range tenants.Roles {
		if role != tenants.Owner {
			s.member(s.a, string(role)+"@example.com", role)
			require.Equal(t, http.StatusOK, s.tested(s.as(string(role)+"@example.com"), "subject", "x").status, role)
		}
	}
	for _, path := range []string{"/tester", "/tester?subject=x", "/tester/subjects?subject=a"} {
		require.Equal(t, http.StatusSeeOther, s.browser().get(path).status)
		require.NotContains(t, s.as("bob@example.com").get(path).body, "secret")
	}
	// A plan of another tenant is unknown, like one that does not exist.
	_, err := s.store.CreatePlan(t.Context(), s.a, tenants.Plan{Slug: "only-a"})
	require.NoError(t, err)
	require.Equal(t, http.StatusUnprocessableEntity, s.tested(s.as("bob@example.com"), "subject", "x", "plan", "only-a").status)
	require.Equal(t, `<option value="ada secret" label="Label secret"></option>`, s.as("ann@example.com").get("/tester/subjects?subject=ad").body)
	require.Empty(t, s.as("ann@example.com").get("/tester/subjects?subject=zz").body)
	require.Empty(t, s.as("ann@example.com").get("/tester/subjects?subject=%00").body)
}

func TestTesterEscapes(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, hostile[:strings.Index(hostile, "%")])
	s.serve(s.store, testenv.RedisURL(t))
	got := s.tested(s.as("ann@example.com"), "subject", hostile, "resource", hostile, "attributes", "x="+hostile)
	require.Equal(t, http.StatusOK, got.status)
	checkHeaders(t, got, "/tester")
	require.NotContains(t, got.body, "<script>alert")
}

// If Redis is unavailable, the tester shows what checks are answered.
func TestTesterDegraded(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	s.serve(s.store, "redis://127.0.0.1:1")
	b := s.as("ann@example.com")
	require.Eventually(t, func() bool {
		return strings.Contains(s.tested(b, "subject", "x").body, "Checks get this answer until Redis is available again")
	}, time.Minute, time.Millisecond)
}

// Copied samples must run unchanged, for any names.
func TestCodeSamples(t *testing.T) {
	for _, r := range []check.Request{
		{Subject: "user_42", Resource: "default", Cost: 1},
		{Subject: hostile, Resource: hostile, Cost: 0, Plan: "pro", Attributes: []check.Attribute{{Name: "ip", Value: hostile}, {Name: "a", Value: "b"}}},
	} {
		var sent *http.Request
		var body []byte
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			sent = r
			body, _ = io.ReadAll(r.Body)
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Weir-Decision", "allow")
			_, _ = io.WriteString(w, `{"allowed":true,"subject":"s","resource":"r","cost":1,"plan":null,"rule":null,"limit":null,"remaining":null,`+
				`"retry_after_ms":null,"reset_after_ms":null,"rules":[],"degraded":false}`)
		}))
		t.Cleanup(server.Close)
		run := func(name string, args ...string) string {
			command := exec.CommandContext(t.Context(), name, args...)
			command.Env = append(os.Environ(), "WEIR_URL="+server.URL, "WEIR_KEY=secret", "GOFLAGS=", "GOWORK=off")
			command.Dir = t.TempDir()
			if name == "go" {
				client := filepath.Join(testenv.Root(), "sdk", "go")
				module := "module sample\n\ngo 1.26\n\nrequire " + goClient + " v0.0.0\n\nreplace " + goClient + " => " + client + "\n"
				// On a slow machine, a check could take longer than the default timeouts.
				patient := strings.Replace(goCheck(&r), `os.Getenv("WEIR_KEY"))`, `os.Getenv("WEIR_KEY"), weir.WithTimeout(60e9), weir.WithConnectTimeout(60e9))`, 1)
				for file, text := range map[string]string{"main.go": patient, "go.mod": module} {
					require.NoError(t, os.WriteFile(filepath.Join(command.Dir, file), []byte(text), 0o600))
				}
			}
			out, err := command.CombinedOutput()
			require.NoError(t, err, "%s", out)
			return string(out)
		}
		want := checkJSON(&r)

		require.Equal(t, "allowed: true\n", run("go", "run", "."))
		require.JSONEq(t, want, string(body))
		require.Equal(t, "/v1/check", sent.URL.Path)
		require.Equal(t, "Bearer secret", sent.Header.Get("Authorization"))
		require.Equal(t, "application/json", sent.Header.Get("Content-Type"))

		// The shell is real; the program that it would call writes its arguments.
		words := strings.Split(run("bash", "-c", `curl() { printf '%s\0' "$@"; }`+"\n"+curlCheck(&r)), "\x00")
		require.Equal(t, []string{
			server.URL + "/v1/check", "-H", "Authorization: Bearer secret", "-H", "Content-Type: application/json", "-d", want, "",
		}, words)

		result := api.Transform(typeScriptCheck(&r), api.TransformOptions{Loader: api.LoaderTS, Format: api.FormatESModule, Target: api.ES2022})
		require.Empty(t, result.Errors)
		require.Empty(t, result.Warnings)
		// Keys have no quotes. The values are JSON, which scripts parse as it is.
		_, call, found := strings.Cut(typeScriptCheck(&r), "client.check({ ")
		require.True(t, found)
		call, _, found = strings.Cut(call, " });\nconsole")
		require.True(t, found)
		require.JSONEq(t, want, "{"+quoteKeys(call, ": ")+"}")

		_, call, found = strings.Cut(pythonCheck(&r), "client.check(")
		require.True(t, found)
		call, _, found = strings.Cut(call, ")\nprint")
		require.True(t, found)
		call = "subject=" + call
		if r.Resource != "default" {
			call = strings.Replace(call, ", "+jsonText(r.Resource), ", resource="+jsonText(r.Resource), 1)
		}
		require.JSONEq(t, want, "{"+quoteKeys(call, "=")+"}")
	}
	var plain map[string]any
	require.NoError(t, json.Unmarshal([]byte(checkJSON(&check.Request{Subject: "a", Resource: "default", Cost: 1})), &plain))
	require.Equal(t, map[string]any{"subject": "a"}, plain, "defaults are omitted")
}

const goClient = "github.com/weir-dev/weir-go"

// quoteKeys makes JSON of arguments with names.
func quoteKeys(arguments, is string) string {
	for _, name := range []string{"subject", "resource", "cost", "plan", "attributes"} {
		if rest, found := strings.CutPrefix(arguments, name+is); found {
			arguments = jsonText(name) + ":" + rest
		}
		arguments = strings.Replace(arguments, ", "+name+is, ", "+jsonText(name)+":", 1)
	}
	return arguments
}

// The tester suggests the code of the documentation.
func TestCodeSamplesAreThoseOfTheDocumentation(t *testing.T) {
	r := check.Request{Subject: "user_42", Resource: "orders:create", Cost: 1}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(testenv.Root(), filepath.FromSlash(name)))
		require.NoError(t, err)
		return string(text)
	}
	_, first, found := strings.Cut(read("sdk/go/examples/first/main.go"), "package main\n")
	require.True(t, found)
	require.Equal(t, "package main\n"+first, goCheck(&r))
	require.Equal(t, read("sdk/typescript/test/samples/first.ts"), typeScriptCheck(&r))
	require.Equal(t, read("sdk/python/tests/samples/first.py"), pythonCheck(&r))
	require.Contains(t, read("docs/clients/typescript.md"), typeScriptCheck(&r))
	require.Contains(t, read("docs/clients/python.md"), pythonCheck(&r))
	var languages []string
	for _, sample := range codeSamples(&r) {
		languages = append(languages, sample.Language)
	}
	require.Equal(t, []string{"curl", "Go", "TypeScript", "Python"}, languages)
}
