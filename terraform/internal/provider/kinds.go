package provider

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// A kind is one kind of objects of the API. The resource weir_NAME manages an object, the data
// source weir_NAME reads one, and the data source weir_PLURAL reads a list.
type kind struct {
	name, plural string
	about        string // what the resource is, in Markdown
	notes        string // what else to know about the resource, in Markdown

	input, answer string // schemas of the body that creates an object, and of the answer
	shown         string // schema for data sources, if it is not that of the answer

	// path is the path of an object, with attributes in braces. The attributes of key identify it;
	// those that are not part of the body are in the path only.
	path       string
	collection string // the path of the list; "": there is none
	filters    []filter
	key        []string
	pathDocs   map[string]string // of attributes that are in the path only

	method     string // that creates an object: POST to the collection, PUT, or PATCH of what always exists
	replaces   bool   // PUT also changes an object; otherwise PATCH
	forget     bool   // a deletion leaves the object as it is; with PATCH, otherwise it resets all fields
	noResource bool   // only data sources

	omit      []string // fields of the API that the resource does not have
	adjust    func(k *kind)
	derive    func(planned map[string]any)                                // sets values that depend on others
	verify    func(state, planned map[string]any) (field, message string) // refuses a plan; field "": it is valid
	gone      func(answer map[string]any) (reason string, gone bool)
	fallbacks map[string]any

	attributes []*attribute // of the resource
	oneAttrs   []*attribute // of the data source of one object
	itemAttrs  []*attribute // of the items of the data source of a list
}

// A filter is a query parameter of a list.
type filter struct{ name, doc string }

// never are fields that a resource does not have, because they change with every write, or are only
// in some answers.
var never = []string{"version", "updated_at", "warnings", "secret_omitted"}

const (
	post  = http.MethodPost
	put   = http.MethodPut
	patch = http.MethodPatch
)

var kinds = []*kind{
	{
		name: "rule", plural: "rules", input: "RuleCreate", answer: "Rule", method: post,
		about:      "A rule says what is limited and how.",
		notes:      "Counters are kept when you change a rule, even if the limit changes. A new `algorithm`, `window`, `precision` or `by` starts with new counters.",
		collection: "/v1/rules", path: "/v1/rules/{slug}", key: []string{"slug"},
		filters: []filter{
			{"q", "Only rules whose slug or name begins with this text"}, {"resource", "Only rules with exactly this resource pattern"},
			{"algorithm", "Only rules with this algorithm"}, {"mode", "Only rules in this mode"},
		},
		fallbacks: map[string]any{
			"description": "", "resource": "*", "algorithm": "sliding_window_counter", "by": []any{"subject"}, "mode": "enforce",
			"on_unavailable": "local", "consistency": "strict", "metering": "none", "meter_event": "",
			"burst": nil, "warn_at": nil, "precision": nil, "penalty": nil, "name": nil, "zone": nil, "anchor": nil, "overage": nil, "lease": nil,
			"on_missing_attribute": nil,
		},
		derive: deriveRule,
		adjust: func(k *kind) {
			for _, name := range []string{"zone", "anchor", "overage", "lease", "on_missing_attribute"} {
				if a := attributeNamed(k.attributes, name); a != nil { // nil: generate-terraform is about to add it
					a.computed = true // derived from other attributes
				}
			}
		},
	},
	{
		name: "plan", plural: "plans", input: "PlanCreate", answer: "Plan", method: post,
		about: "A plan is a billing tier. It has limits of its own for rules.",
		notes: "- `limits` are those of the newest version of the plan. Without `limits`, Terraform does not manage them: use `weir_plan_limit`, or the dashboard.\n" +
			"- To publish a new version, increase `newest_version` by one, together with the new `limits`. Subjects that have the plan keep their version.\n" +
			"- The first plan of a tenant is the default plan. To make another plan the default, set `default = true` there, and omit it elsewhere.\n" +
			"- A plan that subjects have cannot be deleted, and the default plan only after all others.",
		collection: "/v1/plans", path: "/v1/plans/{slug}", key: []string{"slug"},
		fallbacks: map[string]any{"description": "", "on_change": "carry", "fail": "closed", "name": nil, "bounds": nil, "limits": nil},
		derive:    nameFromSlug,
		adjust: func(k *kind) {
			attributeNamed(k.attributes, "bounds").emptyNull = true
			limits := attributeNamed(k.attributes, "limits")
			limits.unmanaged = true
			limitFields(limits.fields)
			attributeNamed(k.attributes, "default").unstable = true
			newest := attributeNamed(k.attributes, "newest_version")
			newest.optional, newest.unstable = true, true
			newest.doc = "Number of the newest version. Increase it by one to publish a version with the new `limits`"
		},
		verify: verifyPlan,
	},
	{
		name: "plan_limit", input: "PlanLimitInput", answer: "PlanLimit", method: put, replaces: true,
		about: "The limit of a plan for one rule.",
		notes: "Use it to manage single limits. To manage all limits of a plan, use `limits` of `weir_plan` instead; not both for the same plan.",
		path:  "/v1/plans/{plan}/limits/{rule}", key: []string{"plan", "rule"},
		pathDocs:  map[string]string{"plan": "Slug of the plan", "rule": "Slug of the rule"},
		fallbacks: map[string]any{"limit": nil, "burst": nil, "warn_at": nil, "overage": nil, "metering": nil, "unlimited": false},
	},
	{
		name: "subject", plural: "subjects", input: "SubjectPut", answer: "Subject", method: put,
		about: "A registered subject: a customer with a plan, a state and labels. Subjects need no registration to be limited.",
		notes: "Register the few subjects that belong to your configuration, such as internal callers. Customers that your billing system moves between plans do not belong into Terraform.\n\n" +
			"Scheduled plan changes (`next_plan`) are left as they are.",
		collection: "/v1/subjects", path: "/v1/subjects/{subject}", key: []string{"subject"},
		pathDocs: map[string]string{"subject": "1 to 256 bytes of UTF-8 without control characters; not `.` or `..`"},
		filters: []filter{
			{"prefix", "Only subjects that begin with this text"}, {"plan", "Only subjects with this plan"},
			{"state", "Only subjects in this state"}, {"label", "`NAME=VALUE`, or `NAME` for any value"},
		},
		omit:      []string{"next_plan", "next_plan_at", "next_plan_at_cycle_end", "overrides"},
		fallbacks: map[string]any{"plan": nil, "state": "active", "labels": map[string]any{}, "billing_ref": nil, "cycle_anchor": nil, "multiplier": json.Number("1")},
		adjust:    func(k *kind) { attributeNamed(k.attributes, "plan_version").unstable = true },
	},
	{
		name: "override", plural: "overrides", input: "OverrideInput", answer: "Override", shown: "SubjectOverride", method: put, replaces: true,
		about: "The limit of one subject for one rule. It takes precedence over the limit of the plan.",
		notes: "An override registers its subject. If Terraform also manages the subject, refer to it: `subject = weir_subject.example.subject`. An override that has expired stays in the configuration without effect.",
		path:  "/v1/subjects/{subject}/overrides/{rule}", key: []string{"subject", "rule"}, collection: "/v1/overrides",
		filters: []filter{
			{"rule", "Only overrides of the rule with this slug"}, {"prefix", "Only overrides of subjects that begin with this text"},
			{"active", "`true`: only overrides in force; `false`: only the others"}, {"ending_before", "Only overrides that expire before this time, RFC 3339"},
		},
		pathDocs:  map[string]string{"subject": "The subject", "rule": "Slug of the rule"},
		fallbacks: map[string]any{"limit": nil, "burst": nil, "unlimited": false, "reason": "", "starts_at": nil, "expires_at": nil},
	},
	{
		name: "route", plural: "routes", input: "RouteCreate", answer: "Route", method: post,
		about:      "A route says how the requests of a gateway become checks.",
		collection: "/v1/routes", path: "/v1/routes/{slug}", key: []string{"slug"},
		fallbacks: map[string]any{
			"description": "", "hash": "secrets", "no_subject": "deny", "default_resource": "default", "cost": json.Number("1"), "name": nil,
			"attributes": map[string]any{}, "denied_status": json.Number("429"), "fail": "closed", "resources": []any{},
		},
		adjust: func(k *kind) { attributeNamed(k.attributes, "resources").field("resource").computed = true },
		derive: deriveRoute,
	},
	{
		name: "key", plural: "keys", input: "KeyCreate", answer: "APIKey", method: post,
		about: "An API key of the tenant.",
		notes: "- The `secret` is in the state of Terraform, and nowhere else: protect the state. For a key that is needed only while Terraform runs, use the ephemeral resource `weir_key`.\n" +
			"- If the key is revoked or rotated outside of Terraform, the next apply creates a new key.\n" +
			"- An imported key has no `secret`.",
		collection: "/v1/keys", path: "/v1/keys/{id}", key: []string{"id"},
		omit:      []string{"last_used_at", "revoked_at", "rotated_to"},
		fallbacks: map[string]any{"name": "", "kind": "key", "expires_at": nil, "addresses": []any{}, "resources": []any{}},
		adjust: func(k *kind) {
			attributeNamed(k.attributes, "scopes").form = setForm
			attributeNamed(k.attributes, "kind").immutable = true
			secret := attributeNamed(k.attributes, "secret")
			secret.once, secret.sensitive = true, true
		},
		gone: func(answer map[string]any) (string, bool) {
			switch {
			case answer["revoked_at"] != nil:
				return "The key was revoked.", true
			case answer["rotated_to"] != nil:
				return "The key was rotated: it is going to expire.", true
			}
			return "", false
		},
	},
	{
		name: "member", plural: "members", input: "MemberCreate", answer: "Member", method: post,
		about:      "A person who can sign in to the dashboard, or the invitation of one.",
		notes:      "Weir sends the invitation by mail. If mail is not configured, `link` has the invitation link, which you pass on. An API key cannot manage owners.",
		collection: "/v1/members", path: "/v1/members/{id}", key: []string{"id"},
		adjust: func(k *kind) {
			email := attributeNamed(k.attributes, "email")
			email.immutable, email.foldCase = true, true
			link := attributeNamed(k.attributes, "link")
			link.once, link.sensitive = true, true
		},
	},
	{
		name: "notification_endpoint", plural: "notification_endpoints", input: "NotificationEndpointCreate", answer: "NotificationEndpointCreated",
		shown: "NotificationEndpoint", method: post,
		about:      "An address that gets notifications about the tenant.",
		notes:      "The signing `secret` is in the state of Terraform: protect the state. An imported endpoint has no `secret`.",
		collection: "/v1/notification-endpoints", path: "/v1/notification-endpoints/{id}", key: []string{"id"},
		omit:      []string{"dropped", "dropped_at", "disabled_reason", "previous_secret_until", "secret_last4"},
		fallbacks: map[string]any{"description": "", "types": []any{}, "enabled": true},
		adjust: func(k *kind) {
			secret := attributeNamed(k.attributes, "secret")
			secret.once, secret.sensitive = true, true
		},
	},
	{
		name: "billing_endpoint", plural: "billing_endpoints", input: "BillingEndpointCreate", answer: "BillingEndpoint", method: post,
		about: "A connection to a billing system, which sends its events to `url`.",
		notes: "`signing_secrets` and `api_key` are write-only: Terraform 1.11 or newer sends them, and stores them neither in the plan nor in the state. " +
			"To send new ones, change `secrets_version`, too.",
		collection: "/v1/billing/endpoints", path: "/v1/billing/endpoints/{id}", key: []string{"id"},
		omit:      []string{"last_event_at", "reconciled_at", "reconcile_failed_at", "reconcile_error", "refused_at", "refused_reason", "live", "signing_secret_last4", "api_key_last4"},
		fallbacks: map[string]any{"name": "", "subject_from": "customer", "grace_days": json.Number("7"), "fallback_plan": nil},
		adjust: func(k *kind) {
			attributeNamed(k.attributes, "system").immutable = true
			for _, name := range []string{"signing_secrets", "api_key"} {
				a := attributeNamed(k.attributes, name)
				a.writeOnly, a.sensitive = true, true
			}
			k.attributes = append(k.attributes, &attribute{
				name: "secrets_version", form: integerForm, optional: true, hasFallback: true, inPath: true,
				doc: "Change this number to send `signing_secrets` and `api_key` again",
			})
		},
	},
	{
		name: "billing_price", plural: "billing_prices", input: "BillingPricePut", answer: "BillingPrice", method: put, replaces: true,
		about:      "Maps a price of the billing system to a plan, or to credits.",
		collection: "/v1/billing/prices", path: "/v1/billing/prices/{id}", key: []string{"id"},
		pathDocs:  map[string]string{"id": "Id of a price or product at the provider"},
		fallbacks: map[string]any{"plan": nil, "credits": nil, "multiply": false, "priority": json.Number("0")},
	},
	{
		name: "portal", input: "PortalFields", answer: "Portal", method: patch,
		about: "The settings of the customer page. A tenant has one.",
		notes: "Creating the resource replaces the present settings, and destroying it resets them. The content of `logo` is not compared with the server, which stores the picture in another format. Import it with any id, such as `portal`.",
		path:  "/v1/portal",
		fallbacks: map[string]any{
			"brand": nil, "accent": nil, "logo": nil, "frame_origins": []any{}, "offered_plans": []any{}, "requests": true,
			"auto_approve_percent": json.Number("0"), "auto_approve_for": "1d", "auto_approve_every": "30d",
		},
		adjust: func(k *kind) { attributeNamed(k.attributes, "logo").opaque = true },
	},
	{
		name: "tenant", input: "TenantPatch", answer: "Tenant", method: patch, forget: true,
		about:     "The tenant of the key. It always exists: Terraform changes its name.",
		notes:     "Destroying the resource leaves the tenant as it is. Import it with any id, such as `tenant`.",
		path:      "/v1/tenant",
		fallbacks: map[string]any{"name": nil},
		adjust: func(k *kind) {
			name := attributeNamed(k.attributes, "name")
			name.required, name.optional, name.computed = true, false, false
			name.doc = "Up to 200 characters"
		},
	},
	{
		name: "plan_version", plural: "plan_versions", shown: "PlanVersion", noResource: true,
		about: "The versions of a plan.", collection: "/v1/plans/{plan}/versions",
		filters: []filter{{"{plan}", "Slug of the plan"}},
	},
}

// init derives the attributes of all kinds.
func init() {
	all, err := readSchemas(schemasFile)
	if err != nil {
		panic("provider: schemas.json: " + err.Error())
	}
	for _, k := range kinds {
		k.build(all)
	}
}

func (k *kind) build(all apiSchemas) {
	if len(all) == 0 {
		return // schemas.json is written for the first time
	}
	if k.answer != "" {
		k.oneAttrs = shownAttributes(all, all[k.answer])
	}
	shown := k.shown
	if shown == "" {
		shown = k.answer
	}
	k.itemAttrs = shownAttributes(all, all[shown])
	if k.noResource {
		return
	}
	input, answer := all[k.input], all[k.answer]
	names := map[string]bool{}
	for name := range input.Properties {
		names[name] = true
	}
	for name := range answer.Properties {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if slices.Contains(never, name) || slices.Contains(k.omit, name) {
			continue
		}
		a := newAttribute(all, name, input.Properties[name], answer.Properties[name])
		a.name = terraformName(name)
		k.attributes = append(k.attributes, a)
		if input.Properties[name] == nil {
			continue
		}
		a.required = slices.Contains(input.Required, name)
		a.optional = !a.required
		if a.required {
			a.computed = false
		}
		if fallback, given := k.fallbacks[name]; given {
			a.hasFallback, a.fallback = true, fallback
			a.computed = fallback != nil || name == "name" && a.optional
		}
	}
	for _, name := range slices.Sorted(maps.Keys(k.pathDocs)) {
		a := attributeNamed(k.attributes, name)
		if a == nil {
			a = &attribute{name: name}
			k.attributes = append(k.attributes, a)
		}
		a.doc, a.required, a.optional, a.computed, a.inPath, a.immutable = k.pathDocs[name], true, false, false, true, true
	}
	if slug := attributeNamed(k.attributes, "slug"); slug != nil && slug.required {
		slug.immutable = true
	}
	for _, name := range slices.Sorted(maps.Keys(k.pathDocs)) {
		if attributeNamed(k.oneAttrs, name) == nil {
			k.oneAttrs = append(k.oneAttrs, &attribute{name: name, doc: k.pathDocs[name], computed: true})
		}
	}
	if k.adjust != nil {
		k.adjust(k)
	}
	for _, a := range k.attributes {
		if a.required && a.optional {
			panic(fmt.Sprintf("provider: %s.%s is required and optional", k.name, a.name))
		}
	}
	sortAttributes(k.attributes)
	sortAttributes(k.oneAttrs)
}

// shownAttributes derives the attributes of data sources.
func shownAttributes(all apiSchemas, s *apiSchema) (list []*attribute) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		if slices.Contains([]string{"warnings", "secret", "secret_omitted", "link"}, name) {
			continue // only in answers to writes
		}
		a := newAttribute(all, name, nil, s.Properties[name])
		a.name = terraformName(name)
		list = append(list, a)
	}
	return list
}

func sortAttributes(list []*attribute) {
	slices.SortFunc(list, func(a, b *attribute) int { return strings.Compare(a.name, b.name) })
}

// limitFields gives the field unlimited of a limit its default.
func limitFields(fields []*attribute) {
	if a := attributeNamed(fields, "unlimited"); a != nil {
		a.hasFallback, a.fallback, a.computed = true, false, true
	}
}

func nameFromSlug(planned map[string]any) {
	if planned["name"] == nil {
		planned["name"] = planned["slug"]
	}
}

// deriveRule sets the values that a rule gets from other values.
func deriveRule(planned map[string]any) {
	nameFromSlug(planned)
	derive := func(name string, applies bool, value string) {
		switch {
		case planned[name] != nil:
		case !isKnown(planned["algorithm"]) || !isKnown(planned["window"]):
			planned[name] = unknown{}
		case applies:
			planned[name] = value
		}
	}
	algorithm, _ := planned["algorithm"].(string)
	window, _ := planned["window"].(string)
	calendar := algorithm == "fixed_window" && slices.Contains([]string{"day", "week", "month", "year"}, window)
	derive("zone", calendar, "UTC")
	derive("anchor", calendar, "calendar")
	derive("lease", planned["consistency"] == "leased", "250ms")
	if planned["lease"] == nil && !isKnown(planned["consistency"]) {
		planned["lease"] = unknown{}
	}
	derive("overage", slices.Contains([]string{"fixed_window", "fixed_window_first_hit", "sliding_window_counter", "sliding_window_buckets"}, algorithm), "deny")
	by, _ := planned["by"].([]any)
	switch byAttribute := func(value any) bool { return strings.HasPrefix(fmt.Sprint(value), "attributes.") }; {
	case planned["on_missing_attribute"] != nil:
	case !isKnown(planned["by"]) || slices.ContainsFunc(by, func(value any) bool { return !isKnown(value) }):
		planned["on_missing_attribute"] = unknown{}
	case slices.ContainsFunc(by, byAttribute):
		planned["on_missing_attribute"] = "skip"
	}
}

// deriveRoute gives each template without a resource that of its match.
func deriveRoute(planned map[string]any) {
	nameFromSlug(planned)
	templates, _ := planned["resources"].([]any)
	for _, t := range templates {
		if template, isObject := t.(map[string]any); isObject && template["resource"] == nil {
			template["resource"] = template["match"]
		}
	}
}

// verifyPlan refuses numbers of versions that the API cannot publish.
func verifyPlan(state, planned map[string]any) (field, message string) {
	number, isNumber := planned["newest_version"].(json.Number)
	if !isNumber {
		return "", ""
	}
	next, err := number.Int64()
	now, _ := state["newest_version"].(json.Number)
	present, _ := now.Int64() // 0 if the plan does not exist
	switch {
	case err != nil || len(state) == 0 && next != 1:
		return "newest_version", "must be 1 for a new plan. Omit it, or publish further versions afterwards."
	case len(state) != 0 && next != present && next != present+1:
		return "newest_version", fmt.Sprintf("must be %d, the newest version of the plan, or %d to publish a version.", present, present+1)
	}
	return "", ""
}

// pathOf returns the path of an object.
func (k *kind) pathOf(object map[string]any) string { return expand(k.path, object) }

// expand replaces the attributes in the braces of a path.
func expand(path string, object map[string]any) string {
	for {
		start := strings.IndexByte(path, '{')
		if start < 0 {
			return path
		}
		end := start + strings.IndexByte(path[start:], '}')
		value, _ := object[path[start+1:end]].(string)
		path = path[:start] + url.PathEscape(value) + path[end+1:]
	}
}

// terraformName returns the name of an attribute. Terraform reserves the name provider.
func terraformName(name string) string {
	if name == "provider" {
		return "system"
	}
	return name
}

// apiName returns the name of an attribute in the API.
func (a *attribute) apiName() string {
	if a.name == "system" {
		return "provider"
	}
	return a.name
}
