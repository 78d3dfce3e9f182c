package api

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/route"
	"weir/internal/tenants"
	"weir/internal/testenv"
)

var asYAML = header{"Content-Type", yamlType}

// changes returns the texts of the changes in an answer.
func (a answer) changes() []string {
	a.t.Helper()
	texts := []string{}
	for _, c := range a.ok(200).json()["changes"].([]any) {
		texts = append(texts, c.(obj)["text"].(string))
	}
	return texts
}

const configYAML = `format: 1
tenant:
  name: Acme
rules:
  - slug: api
    name: The API
    description: |-
      Two lines,
      for people.
    resource: '*'
    algorithm: token_bucket
    limit: 100
    window: 1m
    burst: 500
    by: [subject, attributes.ip]
    mode: "off"
    on_unavailable: local
    on_missing_attribute: skip
    penalty: 10s
    consistency: strict
    metering: none
  - slug: monthly
    name: monthly
    resource: orders:*
    algorithm: fixed_window
    limit: 5000
    window: month
    zone: UTC
    anchor: calendar
    overage: deny
    by: []
    mode: enforce
    on_unavailable: deny
    consistency: leased
    lease: 250ms
    metering: overage
    meter_event: orders
routes:
  - slug: shop
    name: Shop
    subject: ['jwt:sub', ip]
    hash: secrets
    no_subject: deny
    resources:
      - match: GET /orders/{id}
      - match: POST /orders
        resource: orders:create
        cost: 5
    default_resource: default
    cost: 1
    attributes:
      ip: ip
    denied_status: 429
    fail: closed
plans:
  - slug: free
    name: Free
    default: true
    limits: {}
  - slug: pro
    name: Pro
    limits:
      api: {limit: 1000, burst: 2000}
      monthly: {unlimited: true}
`

// A configuration in a file is exported unchanged, in the order of its fields, and a second tenant
// can be made equal.
func TestConfigInAFile(t *testing.T) {
	s := newAdminStack(t)
	put := s.call(s.key, http.MethodPut, "/v1/config", configYAML, asYAML)
	require.Equal(t, []string{
		`Change tenant tenant-a: name from "" to "Acme".`, "Create rule api.", "Create rule monthly.", "Create route shop.", "Create plan free.", "Create plan pro.",
	}, put.changes())
	got := s.call(s.key, http.MethodGet, "/v1/config?format=yaml", nil).ok(200)
	require.Equal(t, yamlType, got.header.Get("Content-Type"))
	require.Equal(t, configYAML, string(got.body))
	require.Equal(t, put.header.Get("ETag"), got.header.Get("ETag"))
	require.Equal(t, got.body, s.call(s.key, http.MethodGet, "/v1/config", nil, header{"Accept", "application/yaml"}).ok(200).body)
	require.Equal(t, jsonType, s.call(s.key, http.MethodGet, "/v1/config", nil, header{"Accept", "*/*"}).ok(200).header.Get("Content-Type"))
	require.Equal(t, http.StatusNotModified, s.call(s.key, http.MethodGet, "/v1/config", nil, header{"If-None-Match", got.header.Get("ETag")}).status)

	again := s.call(s.key, http.MethodPut, "/v1/config?prune=true", configYAML, asYAML, header{"If-Match", got.header.Get("ETag")}).ok(200)
	require.JSONEq(t, `{"changes": []}`, string(again.body))
	require.Equal(t, got.header.Get("ETag"), again.header.Get("ETag"))

	s.call(s.other, http.MethodPut, "/v1/config", string(got.body), asYAML).ok(200)
	require.Equal(t, configYAML, string(s.call(s.other, http.MethodGet, "/v1/config?format=yaml", nil).ok(200).body))

	edited := strings.Replace(strings.Replace(configYAML, "limit: 1000", "limit: 1200", 1), "mode: enforce", "mode: shadow", 1)
	for _, query := range []string{"?dry_run=true", "", "?dry_run=true"} {
		want := []string{`Change rule monthly: mode from "enforce" to "shadow".`, "Change the limit of plan pro for rule api: limit from 1000 to 1200."}
		put := s.call(s.key, http.MethodPut, "/v1/config"+query, edited, asYAML)
		if len(put.json()["changes"].([]any)) == 0 {
			require.Equal(t, "?dry_run=true", query)
			continue
		}
		require.Equal(t, want, put.changes())
		require.Equal(t, obj{
			"action": "update", "kind": "rule", "name": "monthly", "text": want[0], "before": obj{"mode": "enforce"}, "after": obj{"mode": "shadow"},
		}, put.json()["changes"].([]any)[0])
	}
	s.call(s.key, http.MethodPut, "/v1/config", configYAML, asYAML, header{"If-Match", got.header.Get("ETag")}).
		problem(http.StatusPreconditionFailed, codePreconditionFailed)
}

// The example of docs/config.md is a real export.
func TestDocumentedConfig(t *testing.T) {
	s := newAdminStack(t)
	page, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "config.md"))
	require.NoError(t, err)
	_, example, _ := strings.Cut(string(page), "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	s.call(s.key, http.MethodPut, "/v1/config", example, asYAML).ok(200)
	require.Equal(t, example, string(s.call(s.key, http.MethodGet, "/v1/config?subjects=true&format=yaml", nil).ok(200).body))
}

// Any configuration that is exported, applied to another tenant and exported again has the same
// bytes, in JSON and in YAML. Applying it to the same tenant changes nothing.
func TestConfigRoundTrip(t *testing.T) {
	s := newAdminStack(t)
	for seed := range uint64(12) {
		d := randomDocument(rand.New(rand.NewPCG(seed, 1)))
		_, err := s.store.ApplyDocument(t.Context(), s.a, d, tenants.Apply{Prune: true})
		require.NoError(t, err, "seed %d", seed)
		for format, contentType := range map[string]string{"json": jsonType, "yaml": yamlType} {
			path := "/v1/config?subjects=true&format=" + format
			first := s.call(s.key, http.MethodGet, path, nil).ok(200)
			for _, key := range []string{s.key, s.other} {
				put := s.call(key, http.MethodPut, "/v1/config?prune=true", string(first.body), header{"Content-Type", contentType}).ok(200)
				if key == s.key {
					require.JSONEq(t, `{"changes": []}`, string(put.body), "seed %d\n%s", seed, first.body)
					require.Equal(t, first.header.Get("ETag"), put.header.Get("ETag"))
				}
				second := s.call(key, http.MethodGet, path, nil).ok(200)
				require.Equal(t, string(first.body), string(second.body), "seed %d", seed)
			}
		}
	}
}

// Texts that parsers of YAML or JSON might misinterpret or truncate.
var oddTexts = []string{
	"", " ", "yes", "off", "N", "null", "~", "true", "1", "0x10", "1_000", "1:30", "1e3", ".5", "2026-01-01", "2026-01-01T00:00:00Z", "<<", "=",
	"# no comment", "a # b", "a: b", "- a", "? a", "[a]", "{a}", "*a", "&a", "!a", "|", ">", "%a", "@a", "`a", "'", `"`, `\`, `\n`, "a\nb", "a\n\nb\n",
	"\n a", " a\nb ", "a\tb", "\ta\n\tb", "a\n", "\n", "---", "...", "a\u2028b", "\u00a0", "\ufeff", "\ufffd", "é", "e\u0301", "\U0001F600", "\u200b", "日本",
	"a,b", "<a&b>", strings.Repeat("long ", 30),
}

// claims are names that YAML could misinterpret.
var claims = []string{"sub", "https://example.com/id", "a: b", "# c", "realm.id", "é"}

func randomDocument(r *rand.Rand) tenants.Document {
	pick := func(n int) bool { return r.IntN(n) == 0 }
	text := func() string { return oddTexts[r.IntN(len(oddTexts))] }
	line := func() string { return strings.NewReplacer("\n", "", "\t", "").Replace(text()) }
	name := text()
	d := tenants.Document{TenantName: &name, Rules: []limit.Rule{}, Routes: []route.Route{}, Plans: []tenants.Plan{}, Subjects: []tenants.Subject{}}
	for i := range r.IntN(4) {
		in := route.New(fmt.Sprintf("w-%d", i))
		in.Name, in.Description, in.Subject = text(), text(), []string{"jwt:" + claims[r.IntN(len(claims))], "header:X-User"}
		in.Hash, in.Fail, in.Cost = []route.Hash{route.HashSecrets, route.HashAll, route.HashNone}[r.IntN(3)], route.FailOpen, r.Int64N(3)
		if pick(2) {
			in.Resources = []route.Template{{Match: "GET /a/{id}", Cost: new(int64)}, {Match: "/b", Resource: "r" + strings.ReplaceAll(line(), "*", "")}}
			in.Attributes = map[string]string{"x-y.z": "cookie:a'b", "on": "ip"}
		}
		d.Routes = append(d.Routes, in)
	}
	limits := map[string]func() limit.Limit{}
	for i := range r.IntN(12) {
		in := limit.NewRule([]string{"r-%d", "%d", "0%d", "on-%d", "-%d"}[r.IntN(5)])
		in.Slug = fmt.Sprintf(in.Slug, i)
		in.Name, in.Description, in.Resource = text(), text(), "r"+line()
		if strings.Contains(in.Resource, "*") {
			in.Resource = fmt.Sprintf("orders-%d:*", i)
		}
		in.Algorithm = limit.Algorithms[r.IntN(len(limit.Algorithms))]
		in.Limit = 1 + r.Int64N(limit.MaxLogLimit)
		in.Window, _ = limit.ParseWindow([]string{"1s", "60s", "1m", "24h", "1d"}[r.IntN(5)])
		in.Mode, in.OnUnavailable = limit.Mode(r.IntN(3)), limit.OnUnavailable(r.IntN(3))
		in.By = [][]string{{}, {"subject"}, {"resource", "attributes.x-y.z"}}[r.IntN(3)]
		switch {
		case in.Algorithm == limit.SlidingWindowBuckets:
			in.Precision, _ = limit.ParseDuration(in.Window.Text)
		case in.Algorithm == limit.FixedWindow && pick(2):
			in.Window, _ = limit.ParseWindow("week")
		case in.Algorithm.Bucket() && pick(2):
			in.Burst = 1 + r.Int64N(100)
		}
		if pick(3) {
			in.Penalty, _ = limit.ParseDuration("1500ms")
		}
		if numbers := in.Numbers(); numbers.Leasable() && pick(3) {
			in.Consistency = limit.Leased
		}
		if pick(3) {
			in.Metering, in.MeterEvent = limit.MeterUnits, "requests"
		}
		d.Rules = append(d.Rules, in)
		limits[in.Slug] = func() limit.Limit {
			if pick(4) {
				return limit.Limit{Unlimited: true}
			}
			return limit.Limit{Limit: 1 + r.Int64N(limit.MaxLogLimit)}
		}
	}
	for i := range r.IntN(5) {
		p := tenants.Plan{Slug: fmt.Sprintf("p%d", i), Name: text(), Description: text(), Limits: map[string]limit.Limit{}}
		for slug, lim := range limits {
			if pick(2) {
				p.Limits[slug] = lim()
			}
		}
		d.Plans = append(d.Plans, p)
	}
	if len(d.Plans) > 0 {
		d.Plans[r.IntN(len(d.Plans))].Default = true
	}
	for i := range r.IntN(8) {
		in := tenants.Subject{
			Subject: fmt.Sprint(line(), i), State: check.SubjectState(r.IntN(3)), BillingRef: line(), Overrides: []tenants.Override{},
			Labels: map[string]string{"a.b/c": line(), "true": line(), fmt.Sprint(i): "x"},
		}
		if len(d.Plans) > 0 && pick(2) {
			in.Plan = d.Plans[r.IntN(len(d.Plans))].Slug
		}
		for slug, lim := range limits {
			if pick(4) {
				start := time.Date(1999, 12, 31, 23, 59, 59, 123456000, time.FixedZone("", 3600))
				end := start.AddDate(100, 0, 0)
				in.Overrides = append(in.Overrides, tenants.Override{Rule: slug, Limit: lim(), Reason: text(), StartsAt: &start, ExpiresAt: &end})
			}
		}
		d.Subjects = append(d.Subjects, in)
	}
	return d
}

// All errors have their position in the document, those of the API together with those of the
// store.
func TestConfigPointsAtWhatIsWrong(t *testing.T) {
	s := newAdminStack(t)
	body := obj{
		"rules": []obj{
			{"slug": "a", "limit": 1, "window": "1m"},
			{"slug": "b", "limit": 0, "window": "soon", "burst": 0},
			{"slug": "a", "limit": 1, "window": "1m"},
		},
		"plans":    []obj{{"slug": "p", "limits": obj{"a": obj{"limit": 0}, "nowhere": obj{"limit": 1}}}},
		"subjects": []obj{{"subject": "s", "plan": "q", "labels": obj{"a.b/c": "\u0001"}, "overrides": obj{"a": obj{"limit": -1}, "c": obj{}}}},
	}
	for _, query := range []string{"", "?dry_run=true"} {
		require.Equal(t, []string{
			"/plans/0/limits/a/limit", "/plans/0/limits/nowhere", "/rules/1/burst", "/rules/1/limit", "/rules/1/window", "/rules/2/slug",
			"/subjects/0/labels/a.b~1c", "/subjects/0/overrides/a/limit", "/subjects/0/overrides/c", "/subjects/0/plan",
		}, s.call(s.key, http.MethodPut, "/v1/config"+query, body).pointers(http.StatusUnprocessableEntity, codeInvalidRequest))
	}
	require.Empty(t, s.call(s.key, http.MethodGet, "/v1/rules", nil).ok(200).json()["items"])
	// A value of a wrong type hides no other errors, and is reported once.
	require.Equal(t, []string{
		"/plans/0/limits/nowhere", "/plans/1", "/rules/0/by/1", "/rules/0/window", "/rules/1/id", "/rules/1/limit", "/rules/1/penalty", "/rules/1/slug", "/rules/2",
		"/rules/3/slug", "/subjects/0/labels/a", "/subjects/0/plan", "/surplus",
	}, s.call(s.key, http.MethodPut, "/v1/config", obj{
		"surplus": 1,
		"rules": []any{
			obj{"slug": "a", "limit": 1, "window": "soon", "by": []any{"subject", 5}}, obj{"slug": "B", "limit": "1", "window": "1m", "id": "x", "penalty": "1y"},
			"c", obj{"slug": "a", "limit": 1, "window": "1m"},
		},
		"plans":    []any{obj{"slug": "p", "limits": obj{"nowhere": obj{"limit": 1}}}, nil},
		"subjects": []any{obj{"subject": "s", "plan": "q", "labels": obj{"a": 5}}},
	}).pointers(http.StatusUnprocessableEntity, codeInvalidRequest))
	for text, pointer := range map[string]string{
		`{"rules": [{"slug": "a", "limit": 1, "window": "1m"}, {"slug": "b", "limit": "5", "window": "1m"}]}`: "/rules/1/limit",
		`{"rules": [{"slug": "a", "limit": 1, "window": "1m", "id": "x"}]}`:                                   "/rules/0/id",
		`{"rules": [{"slug": "a", "limit": 1}]}`:                                                              "/rules/0/window",
		`{"keys": []}`:                                                                                        "/keys",
		`{"format": 2}`:                                                                                       "/format",
		`{"tenant": {"id": "x"}}`:                                                                             "/tenant/id",
		`{"rules": {}}`:                                                                                       "/rules",
		`{"plans": [{"slug": 5}]}`:                                                                            "/plans/0/slug",
		`{"rules": [{"slug": "a", "limit": 1, "window": "1m"}], "subjects": [{"subject": "s", "overrides": {"a": {"limit": 1, "expires_at": "tomorrow"}}}]}`: "/subjects/0/overrides/a/expires_at",
		`{"subjects": [{"subject": "s", "labels": {"a.b": 5}}]}`: "/subjects/0/labels/a.b",
	} {
		require.Equal(t, []string{pointer}, s.call(s.key, http.MethodPut, "/v1/config", text).pointers(http.StatusUnprocessableEntity, codeInvalidRequest), text)
	}
	s.call(s.key, http.MethodPut, "/v1/config", obj{}).ok(200)
	s.call(s.key, http.MethodPut, "/v1/config", `{"rules": null, "plans": null, "tenant": null, "format": null}`).ok(200)
}

// The whole process with the maximum number of rules.
func TestConfigOfAThousandRules(t *testing.T) {
	s := newAdminStack(t)
	rules := make([]obj, limit.MaxRules)
	limits := obj{}
	for i := range rules {
		slug := fmt.Sprintf("rule-%03d", i)
		rules[i] = obj{"slug": slug, "limit": i + 1, "window": "1h", "resource": slug + ":*", "description": strings.Repeat("x", 1500)}
		limits[slug] = obj{"limit": 2*i + 1}
	}
	body := obj{"rules": rules, "plans": []obj{{"slug": "all", "limits": limits}}}
	// On a busy machine the request may time out. It is then repeated, as the answer says: either
	// everything was changed or nothing.
	put := func(path string, body any, headers ...header) (a answer) {
		t.Helper()
		for range 5 {
			if a = s.call(s.key, http.MethodPut, path, body, headers...); a.status != http.StatusServiceUnavailable {
				break
			}
			require.NotEmpty(t, a.header.Get("Retry-After"))
		}
		return a
	}
	require.Len(t, put("/v1/config", body).changes(), limit.MaxRules+1)
	exported := s.call(s.key, http.MethodGet, "/v1/config?format=yaml", nil).ok(200)
	require.Greater(t, len(exported.body), maxAdminBody, "larger than other bodies may be")
	require.Empty(t, put("/v1/config?prune=true", string(exported.body), asYAML).changes())
	body["rules"] = append(rules, obj{"slug": "one-more", "limit": 1, "window": "1h"})
	require.Equal(t, []string{"/rules"}, s.call(s.key, http.MethodPut, "/v1/config", body).pointers(http.StatusUnprocessableEntity, codeInvalidRequest))
	body["rules"] = rules[:1]
	s.call(s.key, http.MethodPut, "/v1/config", `"`+strings.Repeat(" ", maxConfigBody)+`"`).problem(http.StatusRequestEntityTooLarge, codeBodyTooLarge)
	s.call(s.key, http.MethodPut, "/v1/config", strings.Repeat(" ", maxConfigBody+1), asYAML).problem(http.StatusRequestEntityTooLarge, codeBodyTooLarge)
	s.call(s.key, http.MethodPut, "/v1/config", "rules: []", header{"Content-Type", "text/yaml"}).
		problem(http.StatusUnsupportedMediaType, codeUnsupportedMediaType)
	s.call(s.key, http.MethodPut, "/v1/rules/rule-000", "limit: 5\nwindow: 1m", asYAML).
		problem(http.StatusUnsupportedMediaType, codeUnsupportedMediaType)
}

// YAML is refused if it could be misinterpreted, or expand to more than was sent.
func TestYAMLRefusals(t *testing.T) {
	s := newAdminStack(t)
	bomb := "a: &a [x, x]\n"
	for c := 'b'; c < 'z'; c++ {
		bomb += fmt.Sprintf("%c: &%c [*%c, *%c, *%c, *%c]\n", c, c, c-1, c-1, c-1, c-1)
	}
	for text, code := range map[string]string{
		"":                                codeMalformedYAML,
		"# nothing":                       codeMalformedYAML,
		bomb:                              codeMalformedYAML,
		"tenant: &x {name: a}":            codeMalformedYAML,
		"a: &x b\nc: *x":                  codeMalformedYAML,
		"tenant:\n  <<: {name: a}":        codeMalformedYAML,
		"tenant: {name: !!str 5}":         codeMalformedYAML,
		"tenant: {name: !!binary YQ==}":   codeMalformedYAML,
		"!x {}":                           codeMalformedYAML,
		"? [a]\n: b":                      codeMalformedYAML,
		"format: 0x1":                     codeMalformedYAML,
		"format: 1_0":                     codeMalformedYAML,
		"format: .inf":                    codeMalformedYAML,
		"format: 1\n---\nformat: 1":       codeMalformedYAML,
		"format: 1\n---\n[":               codeMalformedYAML,
		"rules: [":                        codeMalformedYAML,
		"a:\n\t- b":                       codeMalformedYAML,
		"tenant: {name: \"\xff\"}":        codeMalformedYAML,
		"tenant: {name: \"\x00\"}":        codeMalformedYAML,
		strings.Repeat("[", 17):           codeMalformedYAML,
		strings.Repeat("[", 100_000):      codeMalformedYAML,
		strings.Repeat("- ", 100_000):     codeMalformedYAML,
		strings.Repeat("{a: ", 1000):      codeMalformedYAML,
		"tenant: {name: a}\ntenant: {}":   codeDuplicateField,
		"tenant: {name: a, 'name': b}":    codeDuplicateField,
		"rules: [{slug: a, \"slug\": b}]": codeDuplicateField,
	} {
		p := s.call(s.key, http.MethodPut, "/v1/config", text, asYAML).problem(http.StatusBadRequest, code)
		require.NotContains(t, p.Detail, "yaml:", "a parser's own words stay inside: %.40q", text)
	}
	p := s.call(s.key, http.MethodPut, "/v1/config", "rules:\n  - slug: a\n    slug: b", asYAML).problem(http.StatusBadRequest, codeDuplicateField)
	require.Equal(t, "/rules/0/slug", p.Errors[0].Pointer)
	for text, pointer := range map[string]string{
		"rules: [{slug: a, limit: 1.0, window: 1m}]": "/rules/0/limit",
		"rules: [{slug: a, limit: 1e2, window: 1m}]": "/rules/0/limit",
		"rules: [{slug: 5, limit: 1, window: 1m}]":   "/rules/0/slug",
		"tenant: {name: true}":                       "/tenant/name",
		"nonsense: 1":                                "/nonsense",
		"- a":                                        "",
		"just words":                                 "",
	} {
		require.Equal(t, []string{pointer}, s.call(s.key, http.MethodPut, "/v1/config", text, asYAML).
			pointers(http.StatusUnprocessableEntity, codeInvalidRequest), text)
	}
	require.Equal(t, []string{"Create rule a."}, s.call(s.key, http.MethodPut, "/v1/config",
		"---\n# a comment\nrules:\n- {slug: a, limit: 5, window: 60s, mode: off, by: [ ]} # another\n...\n", asYAML).changes())
}
