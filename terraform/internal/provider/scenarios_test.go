//go:build server

package provider

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"weir/terraform/internal/core"
)

// The scenarios run a real server. make test-terraform starts it with tests/withserver, and runs
// each scenario twice: in this process with package core, and with Terraform.

// A workspace applies configurations: package core, or Terraform.
type workspace interface {
	Plan(config string) (map[string]core.Action, error)
	Apply(config string) (map[string]core.Action, error)
	Import(config, address, id string) error
	// State returns the attributes of a resource, or nil.
	State(address string) map[string]any
	// BeforeApply calls f once, between the next plan and its apply.
	BeforeApply(f func())
	// Warned returns the warnings of the last operation.
	Warned() string
}

var tenants atomic.Int64

var scenarios = map[string]func(b *bench){
	"all kinds": func(b *bench) {
		config := b.config(`
resource "weir_tenant" "this" {
  name = "Acme"
}
resource "weir_rule" "api" {
  slug      = "api"
  algorithm = "token_bucket"
  limit     = 100
  window    = "60s"
  burst     = 500
  warn_at   = 0.8
}
resource "weir_rule" "monthly" {
  slug      = "monthly"
  algorithm = "fixed_window"
  limit     = 100000
  window    = "month"
}
resource "weir_plan" "free" {
  slug = "free"
}
resource "weir_plan" "pro" {
  slug = "pro"
  name = "Pro"
  limits = {
    (weir_rule.api.slug)     = { limit = 1000, burst = 2000 }
    (weir_rule.monthly.slug) = { unlimited = true }
  }
}
resource "weir_plan_limit" "free_api" {
  plan  = weir_plan.free.slug
  rule  = weir_rule.api.slug
  limit = 10
}
resource "weir_subject" "alice" {
  subject      = "team/alice smith"
  plan         = weir_plan.pro.slug
  labels       = { region = "eu" }
  cycle_anchor = "2026-01-15T12:00:00+02:00"
}
resource "weir_override" "alice" {
  subject    = weir_subject.alice.subject
  rule       = weir_rule.api.slug
  limit      = 5000
  reason     = "launch week"
  expires_at = "2999-12-01T00:00:00Z"
}
resource "weir_route" "shop" {
  slug    = "shop"
  subject = ["jwt:sub", "ip"]
  resources = [
    { match = "GET /orders/{id}" },
    { match = "POST /orders", resource = "orders:create", cost = 5 },
  ]
  attributes = { ip = "ip" }
}
resource "weir_key" "checkout" {
  name      = "checkout"
  scopes    = ["check", "read"]
  addresses = ["192.0.2.0/24"]
}
resource "weir_member" "ada" {
  email = "Ada@Example.com"
  role  = "editor"
}
resource "weir_notification_endpoint" "ops" {
  url   = "https://ops.example.com/weir"
  types = ["quota.reached"]
}
resource "weir_billing_endpoint" "stripe" {
  system          = "stripe"
  name            = "Stripe"
  signing_secrets = ["whsec_example1234"]
  secrets_version = 1
}
resource "weir_billing_price" "pro" {
  id       = "price_pro_monthly"
  endpoint = weir_billing_endpoint.stripe.id
  plan     = weir_plan.pro.slug
}
resource "weir_portal" "this" {
  brand         = "Acme"
  offered_plans = [weir_plan.free.slug, weir_plan.pro.slug]
}
`)
		var created []string
		for _, address := range strings.Fields("tenant.this rule.api rule.monthly plan.free plan.pro plan_limit.free_api subject.alice override.alice " +
			"route.shop key.checkout member.ada notification_endpoint.ops billing_endpoint.stripe billing_price.pro portal.this") {
			created = append(created, "create weir_"+address)
		}
		b.applies(config, created...)
		b.stored("/v1/rules/api", map[string]any{"limit": 100, "burst": 500, "window": "60s", "warn_at": 0.8})
		b.has("weir_rule.monthly", map[string]any{"zone": "UTC", "anchor": "calendar", "name": "monthly", "overage": "deny"})
		b.stored("/v1/subjects/team%2Falice%20smith", map[string]any{"plan": "pro", "labels": map[string]any{"region": "eu"}, "cycle_anchor": "2026-01-15T10:00:00Z"})
		b.has("weir_subject.alice", map[string]any{"cycle_anchor": "2026-01-15T12:00:00+02:00", "plan_version": 1})
		b.stored("/v1/plans/pro/limits/monthly", map[string]any{"unlimited": true})
		b.has("weir_member.ada", map[string]any{"email": "Ada@Example.com", "state": "invited"})
		b.stored("/v1/billing/prices/price_pro_monthly", map[string]any{"plan": "pro", "multiply": false})
		b.stored("/v1/tenant", map[string]any{"name": "Acme"})
		newest, _ := b.api(http.MethodGet, "/v1/audit?limit=1", "")["items"].([]any)[0].(map[string]any)
		if agent, _ := newest["user_agent"].(string); !strings.HasPrefix(agent, "terraform-provider-weir/") || !strings.Contains(agent, "terraform/1.") {
			b.Errorf("the user agent is %q", agent)
		}

		secret, _ := b.State("weir_key.checkout")["secret"].(string)
		if !strings.HasPrefix(secret, "weir_key_") {
			b.Errorf("the secret is %q", secret)
		}
		for name, value := range b.State("weir_billing_endpoint.stripe") {
			if text := fmt.Sprint(value); strings.Contains(text, "whsec") {
				b.Errorf("the state has the signing secret in %s: %s", name, text)
			}
		}

		// A destroy deletes everything.
		actions, err := b.Apply(b.config(""))
		b.must(err)
		if len(actions) != len(created) {
			b.Errorf("%d resources were deleted, want %d", len(actions), len(created))
		}
		b.stored("/v1/config?subjects=true", map[string]any{"rules": []any{}, "plans": []any{}, "routes": []any{}, "subjects": []any{}})
		b.stored("/v1/portal", map[string]any{"brand": nil, "offered_plans": []any{}})
	},
	"every algorithm": func(b *bench) {
		config := ""
		var created []string
		for name, fields := range map[string]string{
			"sliding_window_counter": ``, "sliding_window_log": ``, "sliding_window_buckets": `precision = "10s"`, "fixed_window": ``,
			"fixed_window_first_hit": ``, "token_bucket": ``, "leaky_bucket": `burst = 5`, "leaky_bucket_queue": ``,
		} {
			config += fmt.Sprintf("resource \"weir_rule\" %q {\n  slug = %q\n  algorithm = %q\n  limit = 10\n  window = \"1m\"\n  resource = %q\n  %s\n}\n",
				name, strings.ReplaceAll(name, "_", "-"), name, name, fields)
			created = append(created, "create weir_rule."+name)
		}
		b.applies(b.config(config), created...)
	},
	"drift": func(b *bench) {
		config := b.config(`
resource "weir_rule" "api" {
  slug   = "api"
  limit  = 100
  window = "1m"
}
resource "weir_plan" "free" {
  slug   = "free"
  limits = { (weir_rule.api.slug) = { limit = 50 } }
}
`)
		b.applies(config, "create weir_rule.api", "create weir_plan.free")

		// Changes of configured and of other attributes are seen, and repaired.
		b.api(http.MethodPatch, "/v1/rules/api", `{"limit":7}`)
		b.plans(config, "update weir_rule.api")
		b.applies(config, "update weir_rule.api")
		b.stored("/v1/rules/api", map[string]any{"limit": 100})
		b.api(http.MethodPatch, "/v1/rules/api", `{"mode":"off","description":"by hand","penalty":"30s"}`)
		b.applies(config, "update weir_rule.api")
		b.stored("/v1/rules/api", map[string]any{"mode": "enforce", "description": "", "penalty": nil})

		// Limits of a plan that were changed, added and deleted.
		b.api(http.MethodPut, "/v1/plans/free/limits/api", `{"limit":1}`)
		b.applies(config, "update weir_plan.free")
		b.api(http.MethodPost, "/v1/rules", `{"slug":"other","limit":1,"window":"1h"}`)
		b.api(http.MethodPut, "/v1/plans/free/limits/other", `{"limit":3}`)
		b.applies(config, "update weir_plan.free")
		b.stored("/v1/plans/free", map[string]any{"limits": map[string]any{"api": map[string]any{
			"limit": 50, "burst": nil, "unlimited": false, "warn_at": nil, "overage": nil, "metering": nil}}})
		b.api(http.MethodDelete, "/v1/plans/free/limits/api", "")
		b.applies(config, "update weir_plan.free")

		// What was deleted is created again.
		b.api(http.MethodDelete, "/v1/rules/api", "")
		b.applies(config, "create weir_rule.api", "update weir_plan.free")
		b.stored("/v1/plans/free/limits/api", map[string]any{"limit": 50})
	},
	"changes": func(b *bench) {
		rule := func(fields string) string {
			return b.config("resource \"weir_rule\" \"api\" {\n  slug = \"api\"\n  window = \"1m\"\n" + fields + "\n}\n")
		}
		b.applies(rule("limit = 100\n name = \"The API\"\n mode = \"shadow\"\n by = []\n penalty = \"30s\""), "create weir_rule.api")
		b.stored("/v1/rules/api", map[string]any{"name": "The API", "mode": "shadow", "by": []any{}, "penalty": "30s"})
		id := b.State("weir_rule.api")["id"]
		b.applies(rule("limit = 200"), "update weir_rule.api") // what is omitted gets its default
		b.stored("/v1/rules/api", map[string]any{"limit": 200, "name": "api", "mode": "enforce", "by": []any{"subject"}, "penalty": nil})
		b.has("weir_rule.api", map[string]any{"id": id})
		b.applies(b.config("resource \"weir_rule\" \"api\" {\n  slug = \"api-2\"\n  window = \"1m\"\n  limit = 1\n}\n"), "replace weir_rule.api")
		if status, _ := b.ask(http.MethodGet, "/v1/rules/api", ""); status != http.StatusNotFound {
			b.Errorf("the replaced rule: status %d", status)
		}

		labels := func(text string) string {
			return b.config("resource \"weir_subject\" \"a\" {\n  subject = \"a\"\n" + text + "\n}\n")
		}
		b.applies(labels(`labels = { one = "1", two = "2" }`), "create weir_subject.a", "delete weir_rule.api")
		b.applies(labels(`labels = { two = "3" }`), "update weir_subject.a")
		b.stored("/v1/subjects/a", map[string]any{"labels": map[string]any{"two": "3"}})
		b.applies(labels(`state = "blocked"`), "update weir_subject.a")
		b.stored("/v1/subjects/a", map[string]any{"labels": map[string]any{}, "state": "blocked"})
	},
	"limits that are not managed": func(b *bench) {
		plan := func(fields string) string {
			return b.config("resource \"weir_rule\" \"api\" {\n  slug = \"api\"\n  limit = 1\n  window = \"1m\"\n}\n" +
				"resource \"weir_plan\" \"p\" {\n  slug = \"p\"\n" + fields + "\n}\n")
		}
		b.applies(plan("limits = { (weir_rule.api.slug) = { limit = 2 } }"), "create weir_rule.api", "create weir_plan.p")
		b.applies(plan(""), "update weir_plan.p") // it is left as it is
		b.stored("/v1/plans/p/limits/api", map[string]any{"limit": 2})
		b.api(http.MethodPut, "/v1/plans/p/limits/api", `{"limit":3}`)
		b.settled(plan(""))
		b.applies(plan("limits = {}"), "update weir_plan.p") // none, and managed
		b.stored("/v1/plans/p", map[string]any{"limits": map[string]any{}})
		b.api(http.MethodPut, "/v1/plans/p/limits/api", `{"limit":3}`)
		b.applies(plan("limits = {}"), "update weir_plan.p")
		b.applies(plan("limits = { (weir_rule.api.slug) = { limit = 4, warn_at = 0.5, overage = \"allow\" } }"), "update weir_plan.p")
		b.applies(plan("limits = { (weir_rule.api.slug) = { unlimited = true } }"), "update weir_plan.p")
		b.stored("/v1/plans/p/limits/api", map[string]any{"limit": nil, "unlimited": true, "warn_at": nil, "overage": nil})
	},
	"customer page": func(b *bench) {
		const logo = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
		config := b.config("resource \"weir_portal\" \"this\" {\n  logo = \"" + logo + "\"\n  accent = \"#1a73e8\"\n  auto_approve_percent = 50\n}\n")
		b.api(http.MethodPatch, "/v1/portal", `{"brand":"By hand"}`)
		b.applies(config, "create weir_portal.this")
		b.stored("/v1/portal", map[string]any{"brand": nil, "accent": "#1a73e8", "auto_approve_percent": 50, "auto_approve_for": "1d"})
		b.api(http.MethodPatch, "/v1/portal", `{"logo":null,"requests":false}`)
		b.applies(config, "update weir_portal.this")
		if b.api(http.MethodGet, "/v1/portal", "")["logo"] == nil {
			b.Error("the logo was not restored")
		}
	},
	"prices": func(b *bench) {
		price := func(fields string) string {
			return b.config(`
resource "weir_rule" "api" {
  slug      = "api"
  limit     = 1
  window    = "1m"
}
resource "weir_plan" "pro" {
  slug = "pro"
}
resource "weir_billing_endpoint" "e" {
  system          = "stripe"
  signing_secrets = ["whsec_example"]
}
resource "weir_billing_price" "p" {
  id       = "price/1"
  endpoint = weir_billing_endpoint.e.id
` + fields + "\n}\n")
		}
		b.applies(price("credits = { rule = weir_rule.api.slug, units = 100 }"),
			"create weir_rule.api", "create weir_plan.pro", "create weir_billing_endpoint.e", "create weir_billing_price.p")
		b.applies(price("credits = { rule = weir_rule.api.slug, units = 100, expires_after_days = 30 }"), "update weir_billing_price.p")
		b.api(http.MethodPut, "/v1/billing/prices/price%2F1", `{"plan":"pro","multiply":true}`)
		b.applies(price("plan = weir_plan.pro.slug\n priority = 3"), "update weir_billing_price.p")
		b.stored("/v1/billing/prices/price%2F1", map[string]any{"plan": "pro", "multiply": false, "priority": 3, "credits": nil})
		b.api(http.MethodDelete, "/v1/billing/prices/price%2F1", "")
		b.applies(price("plan = weir_plan.pro.slug"), "create weir_billing_price.p")
	},
	"import": func(b *bench) {
		b.api(http.MethodPost, "/v1/rules", `{"slug":"api","limit":100,"window":"1m","penalty":"10s"}`)
		b.api(http.MethodPost, "/v1/plans", `{"slug":"free","limits":{"api":{"limit":5}}}`)
		b.api(http.MethodPut, "/v1/subjects/a%2Fb", `{"plan":"free"}`)
		b.api(http.MethodPut, "/v1/subjects/a%2Fb/overrides/api", `{"limit":9,"expires_at":"2999-01-01T00:00:00Z"}`)
		b.api(http.MethodPost, "/v1/routes", `{"slug":"shop","subject":["ip"],"resources":[{"match":"GET /x"}]}`)
		b.api(http.MethodPost, "/v1/members", `{"email":"ada@example.com","role":"viewer"}`)
		key := b.api(http.MethodPost, "/v1/keys", `{"name":"k","scopes":["check"]}`)
		b.api(http.MethodPatch, "/v1/portal", `{"brand":"Acme"}`)
		config := b.config(`
resource "weir_rule" "api" {
  slug    = "api"
  limit   = 100
  window  = "1m"
  penalty = "10s"
}
resource "weir_plan" "free" {
  slug   = "free"
  limits = { (weir_rule.api.slug) = { limit = 5 } }
}
resource "weir_plan_limit" "free_api" {
  plan  = weir_plan.free.slug
  rule  = weir_rule.api.slug
  limit = 5
}
resource "weir_subject" "ab" {
  subject = "a/b"
  plan    = weir_plan.free.slug
}
resource "weir_override" "ab" {
  subject    = weir_subject.ab.subject
  rule       = weir_rule.api.slug
  limit      = 9
  expires_at = "2999-01-01T01:00:00+01:00"
}
resource "weir_route" "shop" {
  slug      = "shop"
  subject   = ["ip"]
  resources = [{ match = "GET /x" }]
}
resource "weir_member" "ada" {
  email = "ada@example.com"
  role  = "viewer"
}
resource "weir_key" "k" {
  name   = "k"
  scopes = ["check"]
}
resource "weir_portal" "this" {
  brand = "Acme"
}
`)
		for address, id := range map[string]string{
			"weir_rule.api": "api", "weir_plan.free": "free", "weir_plan_limit.free_api": "free/api", "weir_subject.ab": "a/b", "weir_override.ab": "a/b/api",
			"weir_route.shop": "shop", "weir_member.ada": "Ada@example.com", "weir_key.k": key["id"].(string), "weir_portal.this": "portal",
		} {
			b.must(b.Import(config, address, id))
		}
		b.settled(config)
		if err := b.Import(b.config("resource \"weir_rule\" \"x\" {\n  slug = \"x\"\n  limit = 1\n  window = \"1m\"\n}\n"), "weir_rule.x", "x"); err == nil || !strings.Contains(flatten(err.Error()), "NOT_FOUND") {
			b.Errorf("import of what does not exist: %v", err)
		}
	},
	"errors": func(b *bench) {
		rule := func(fields string) string {
			return b.config("resource \"weir_rule\" \"api\" {\n  slug = \"api\"\n" + fields + "\n}\n")
		}
		b.refused(rule("limit = 0\n window = \"1m\""), "limit", "/limit must be from 1 to 1000000000000000")
		b.refused(rule("limit = 1\n window = \"1m\"\n mode = \"of\""), "/mode must be one of enforce, shadow, off")
		b.refused(rule("limit = 1\n window = \"1 minute\""), "window", "/window must be a duration such as 10s", "INVALID_REQUEST", "422")
		b.refused(rule("limit = 20000\n window = \"1m\"\n algorithm = \"sliding_window_log\"\n penalty = \"x\""), "/limit", "/penalty")
		b.refused(b.config("resource \"weir_plan\" \"p\" {\n  slug = \"p\"\n  limits = { nothing = { limit = 1 } }\n}\n"), "/limits/nothing")
		b.refused(b.config("resource \"weir_plan\" \"p\" {\n  slug = \"p\"\n  newest_version = 3\n}\n"), "/newest_version must be 1 for a new plan")

		b.api(http.MethodPost, "/v1/rules", `{"slug":"api","limit":100,"window":"1m"}`)
		b.refused(rule("limit = 1\n window = \"1m\""), "SLUG_TAKEN", "409", "import")
		b.api(http.MethodPut, "/v1/subjects/a", `{}`)
		b.refused(b.config("resource \"weir_subject\" \"a\" {\n  subject = \"a\"\n}\n"), "it exists", "terraform import weir_subject.NAME a")

		weak := *b
		weak.key = b.api(http.MethodPost, "/v1/keys", `{"name":"weak","scopes":["read"]}`)["secret"].(string)
		b.refused(weak.config("resource \"weir_rule\" \"x\" {\n  slug = \"x\"\n  limit = 1\n  window = \"1m\"\n}\n"), "403", "INSUFFICIENT_SCOPE", "Use an API key with this scope")
		weak.key = "weir_key_" + strings.Repeat("A", 36)
		b.refused(weak.config("resource \"weir_rule\" \"x\" {\n  slug = \"x\"\n  limit = 1\n  window = \"1m\"\n}\n"), "401", "Set WEIR_KEY")
	},
	"warnings": func(b *bench) {
		_, err := b.Apply(b.config("resource \"weir_rule\" \"log\" {\n  slug = \"log\"\n  limit = 5000\n  window = \"1d\"\n  algorithm = \"sliding_window_log\"\n}\n"))
		b.must(err)
		if !strings.Contains(b.Warned(), "each counter stores up to 5000 instants") {
			b.Errorf("no warning in %s", b.Warned())
		}
	},
	"two changes at once": func(b *bench) {
		config := func(limit int) string {
			return b.config(fmt.Sprintf("resource \"weir_rule\" \"api\" {\n  slug = \"api\"\n  window = \"1m\"\n  limit = %d\n}\n", limit))
		}
		b.applies(config(1), "create weir_rule.api")
		b.BeforeApply(func() { b.api(http.MethodPatch, "/v1/rules/api", `{"limit":7,"mode":"off"}`) })
		b.refused(config(2), "PRECONDITION_FAILED", "412", "Changed since the plan: limit, mode", "Run the plan again")
		b.stored("/v1/rules/api", map[string]any{"limit": 7, "mode": "off"})
		b.applies(config(2), "update weir_rule.api")
		b.stored("/v1/rules/api", map[string]any{"limit": 2, "mode": "enforce"})

		// Objects that share a version do not disturb each other.
		plan := func(limit int) string {
			return config(2) + fmt.Sprintf(`
resource "weir_plan" "free" {
  slug = "free"
}
resource "weir_plan_limit" "free" {
  plan  = weir_plan.free.slug
  rule  = weir_rule.api.slug
  limit = %d
}
`, limit)
		}
		b.applies(plan(5), "create weir_plan.free", "create weir_plan_limit.free")
		b.BeforeApply(func() { b.api(http.MethodPatch, "/v1/plans/free", `{"description":"by hand"}`) })
		if _, err := b.Apply(plan(6)); err != nil {
			b.Error(err)
		}
		b.stored("/v1/plans/free/limits/api", map[string]any{"limit": 6})
		b.plans(plan(6), "update weir_plan.free")

		// What somebody else did in the meantime needs no change.
		b.BeforeApply(func() { b.api(http.MethodPatch, "/v1/rules/api", `{"limit":9}`) })
		if _, err := b.Apply(config(9)); err != nil {
			b.Error(err)
		}
		b.settled(config(9))
	},
	"examples": func(b *bench) {
		module := filepath.Join("..", "..")
		read := func(pattern string) (text string) {
			files, err := filepath.Glob(filepath.Join(module, "examples", pattern))
			b.must(err)
			for _, file := range files {
				content, err := os.ReadFile(file)
				b.must(err)
				text += string(content) + "\n"
			}
			return text
		}
		resources := read("resources/*/*.tf")
		_, err := b.Apply(b.config(resources))
		b.must(err)
		b.settled(b.config(resources))
		b.settled(b.config(resources + read("data-sources/*/*.tf") + read("ephemeral-resources/*/*.tf")))

		readme, err := os.ReadFile(filepath.Join(module, "README.md"))
		b.must(err)
		_, example, _ := strings.Cut(string(readme), "\n}\nresource")
		example, _, found := strings.Cut("resource"+example, "```")
		if !found {
			b.Fatal("README.md has no example")
		}
		b.settled(b.config(strings.Replace(resources, strings.TrimSpace(example), example, 1)))
		if !strings.Contains(resources, strings.TrimSpace(example)) {
			b.Errorf("the example of README.md is not the one of weir_rule: %s", example)
		}
	},
	"keys": func(b *bench) {
		config := b.config("resource \"weir_key\" \"k\" {\n  name = \"k\"\n  scopes = [\"read\", \"check\"]\n}\n")
		b.applies(config, "create weir_key.k")
		first := b.State("weir_key.k")
		b.applies(strings.ReplaceAll(config, `"k"`+"\n  scopes", `"renamed"`+"\n  scopes"), "update weir_key.k")
		b.has("weir_key.k", map[string]any{"id": first["id"], "secret": first["secret"], "name": "renamed"})
		b.applies(config, "update weir_key.k")
		b.api(http.MethodDelete, fmt.Sprintf("/v1/keys/%s", first["id"]), "")
		b.applies(config, "create weir_key.k")
		second := b.State("weir_key.k")
		if second["secret"] == first["secret"] || second["id"] == first["id"] {
			b.Error("the revoked key was not replaced")
		}
		b.api(http.MethodPost, fmt.Sprintf("/v1/keys/%s/rotate", second["id"]), "{}")
		b.applies(config, "create weir_key.k")
	},
	"versions of a plan": func(b *bench) {
		plan := func(version, limit int) string {
			return b.config(fmt.Sprintf(`
resource "weir_rule" "api" {
  slug   = "api"
  limit  = 1
  window = "1m"
}
resource "weir_plan" "pro" {
  slug           = "pro"
  newest_version = %d
  limits         = { (weir_rule.api.slug) = { limit = %d } }
}
`, version, limit))
		}
		b.applies(plan(1, 10), "create weir_rule.api", "create weir_plan.pro")
		b.api(http.MethodPut, "/v1/subjects/old", `{"plan":"pro"}`)
		b.applies(plan(2, 20), "update weir_plan.pro")
		b.stored("/v1/plans/pro/limits/api", map[string]any{"limit": 20})
		b.stored("/v1/subjects/old", map[string]any{"plan_version": 1})
		b.refused(plan(4, 20), "/newest_version must be 2, the newest version of the plan, or 3 to publish a version")
		b.applies(plan(2, 30), "update weir_plan.pro") // the newest version itself
		versions := b.api(http.MethodGet, "/v1/plans/pro/versions", "")
		if n := len(versions["items"].([]any)); n != 2 {
			b.Errorf("%d versions", n)
		}
	},
	"default plan": func(b *bench) {
		plans := func(first, second string) string {
			return b.config(fmt.Sprintf("resource \"weir_plan\" \"a\" {\n  slug = \"a\"\n%s\n}\nresource \"weir_plan\" \"b\" {\n  slug = \"b\"\n  description = weir_plan.a.slug\n%s\n}\n", first, second))
		}
		b.applies(plans("", ""), "create weir_plan.a", "create weir_plan.b")
		b.has("weir_plan.a", map[string]any{"default": true})
		b.applies(plans("", "default = true"), "update weir_plan.b")
		b.stored("/v1/plans/a", map[string]any{"default": false})
		b.applies(plans("default = true", ""), "update weir_plan.a")
		b.stored("/v1/plans/a", map[string]any{"default": true})
	},
	"write-only secrets": func(b *bench) {
		endpoint := func(secret string, version int) string {
			return b.config(fmt.Sprintf("resource \"weir_billing_endpoint\" \"e\" {\n  system = \"generic\"\n  signing_secrets = [%q]\n  secrets_version = %d\n}\n", secret, version))
		}
		last4 := func() string {
			item := b.api(http.MethodGet, "/v1/billing/endpoints/"+b.State("weir_billing_endpoint.e")["id"].(string), "")
			return fmt.Sprint(item["signing_secret_last4"])
		}
		first, second := "whsec_"+strings.Repeat("QUJD", 11), "whsec_"+strings.Repeat("REVG", 11)
		b.applies(endpoint(first, 1), "create weir_billing_endpoint.e")
		before := last4()
		b.settled(endpoint(second, 1)) // without a new version it is not sent
		b.applies(endpoint(second, 2), "update weir_billing_endpoint.e")
		if after := last4(); after == before {
			b.Errorf("the secret was not replaced: %s", after)
		}
	},
	"data sources": func(b *bench) {
		b.api(http.MethodPost, "/v1/rules", `{"slug":"api","limit":100,"window":"1m"}`)
		b.api(http.MethodPost, "/v1/rules", `{"slug":"other","limit":5,"window":"1h","mode":"shadow"}`)
		b.api(http.MethodPost, "/v1/plans", `{"slug":"free","limits":{"api":{"limit":5}}}`)
		b.api(http.MethodPut, "/v1/subjects/carol", `{"labels":{"region":"eu"}}`)
		b.api(http.MethodPut, "/v1/subjects/carol/overrides/api", `{"limit":8}`)
		b.applies(b.config(`
data "weir_rule" "api" {
  slug = "api"
}
data "weir_rules" "shadow" {
  mode = "shadow"
}
data "weir_plan" "free" {
  slug = "free"
}
data "weir_plan_versions" "free" {
  plan = "free"
}
data "weir_subjects" "eu" {
  label = "region=eu"
}
data "weir_override" "carol" {
  subject = "carol"
  rule    = "api"
}
data "weir_keys" "all" {
}
data "weir_tenant" "this" {
}
resource "weir_rule" "copy" {
  slug        = "copy"
  limit       = data.weir_rule.api.limit + data.weir_plan.free.limits["api"].limit
  window      = data.weir_rules.shadow.items[0].window
  description = "${data.weir_subjects.eu.items[0].subject} ${data.weir_override.carol.limit} ${data.weir_plan_versions.free.items[0].number} ${data.weir_keys.all.items[0].name}"
}
`), "create weir_rule.copy")
		b.stored("/v1/rules/copy", map[string]any{"limit": 105, "window": "1h", "description": "carol 8 1 first key"})
		b.refused(b.config("data \"weir_rule\" \"x\" {\n  slug = \"x\"\n}\n"), "404", "NOT_FOUND")
		b.refused(b.config("data \"weir_rules\" \"x\" {\n  mode = \"of\"\n}\n"), "mode")
	},
	"ephemeral key": func(b *bench) {
		config := b.config(`
ephemeral "weir_key" "k" {
  name     = "for a run"
  scopes   = ["check"]
  lifetime = "10m"
}
resource "weir_billing_endpoint" "e" {
  system          = "stripe"
  signing_secrets = [ephemeral.weir_key.k.secret]
  secrets_version = 1
}
`)
		b.applies(config, "create weir_billing_endpoint.e")
		revoked := 0
		for _, item := range b.api(http.MethodGet, "/v1/keys", "")["items"].([]any) {
			key := item.(map[string]any)
			if key["name"] != "for a run" {
				continue
			}
			if key["revoked_at"] == nil || key["expires_at"] == nil {
				b.Errorf("the key is still in force: %v", key)
			}
			revoked++
		}
		if revoked == 0 {
			b.Error("there was no key")
		}
	},
}

// runScenarios runs all scenarios, each with a tenant of its own.
func runScenarios(t *testing.T, create func(t *testing.T) workspace) {
	for _, name := range slices.Sorted(maps.Keys(scenarios)) {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			b := &bench{TB: t, workspace: create(t)}
			b.url, b.key = newTenant(t)
			scenarios[name](b)
		})
	}
}
