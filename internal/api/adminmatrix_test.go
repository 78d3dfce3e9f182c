package api

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/billing"
	"weir/internal/limit"
	"weir/internal/route"
	"weir/internal/subscription"
	"weir/internal/tenants"
	"weir/internal/usage"
)

type obj = map[string]any

// adminCase is a test of one operation. {NAME} in paths is an object of the case: {rule}, {plan},
// {subject}, {key}, {tenant} of tenant A, and with b- in front of tenant B.
type adminCase struct {
	path    string
	foreign string // the same for an object of tenant B; "" where the path names no object that must exist
	body    any
	as      string // media type of the bodies; "": JSON
	status  int
	bad     any      // a body that is refused; nil for operations without one
	badPath string   // or a path with a query that is refused
	names   []string // the fields or parameters that the refusal names
	pure    bool     // a POST that changes nothing and asks no database
	asks    bool     // a POST that changes nothing
	rows    int      // rows of the trail; 0: one, if it changes anything
}

// Every operation of the OpenAPI document has a case here. The test fails for an operation without
// a case.
var adminCases = map[string]adminCase{
	"get-tenant":   {path: "/v1/tenant", status: 200, badPath: "/v1/tenant?limit=1"},
	"patch-tenant": {path: "/v1/tenant", body: obj{"name": "New"}, status: 200, bad: obj{"state": "suspended", "id": "x"}, names: []string{"/id", "/state"}},

	"list-keys":  {path: "/v1/keys", status: 200, badPath: "/v1/keys?limit=0", names: []string{"query:limit"}},
	"create-key": {path: "/v1/keys", body: obj{"scopes": []string{"check"}}, status: 201, bad: obj{"scopes": []string{}, "last4": "abcd"}, names: []string{"/last4", "/scopes"}},
	"get-key":    {path: "/v1/keys/{key}", foreign: "/v1/keys/{b-key}", status: 200, badPath: "/v1/keys/{key}?x=1"},
	"patch-key":  {path: "/v1/keys/{key}", foreign: "/v1/keys/{b-key}", body: obj{"name": "n"}, status: 200, bad: obj{"scopes": nil, "name": 5}, names: []string{"/name"}},
	"revoke-key": {path: "/v1/keys/{key}", foreign: "/v1/keys/{b-key}", status: 204, badPath: "/v1/keys/{key}?force=true"},
	"rotate-key": {path: "/v1/keys/{key}/rotate", foreign: "/v1/keys/{b-key}/rotate", body: obj{"overlap": "1h"}, status: 201, bad: obj{"overlap": "31d"}, names: []string{"/overlap"}},

	"list-rules":  {path: "/v1/rules?q=r-&mode=enforce&algorithm=sliding_window_counter", status: 200, badPath: "/v1/rules?limit=201", names: []string{"query:limit"}},
	"create-rule": {path: "/v1/rules", body: obj{"slug": "made", "limit": 5, "window": "1m"}, status: 201, bad: obj{"slug": "Bad!", "limit": 5, "window": "1m"}, names: []string{"/slug"}},
	"get-rule":    {path: "/v1/rules/{rule}", foreign: "/v1/rules/{b-rule}", status: 200, badPath: "/v1/rules/{rule}?x=1"},
	"put-rule":    {path: "/v1/rules/{rule}", body: obj{"limit": 7, "window": "1h"}, status: 200, bad: obj{"limit": 0, "window": "0s"}, names: []string{"/limit", "/window"}},
	"patch-rule":  {path: "/v1/rules/{rule}", foreign: "/v1/rules/{b-rule}", body: obj{"limit": 8}, status: 200, bad: obj{"limit": nil}, names: []string{"/limit"}},
	"delete-rule": {path: "/v1/rules/{rule}", foreign: "/v1/rules/{b-rule}", status: 204, badPath: "/v1/rules/{rule}?x=1"},

	"list-routes":  {path: "/v1/routes", status: 200, badPath: "/v1/routes?limit=0", names: []string{"query:limit"}},
	"create-route": {path: "/v1/routes", body: obj{"slug": "made", "subject": []string{"ip"}}, status: 201, bad: obj{"slug": "made2", "subject": []string{"query:key"}, "resources": []obj{{"match": "orders"}}}, names: []string{"/resources/0/match", "/subject/0"}},
	"get-route":    {path: "/v1/routes/{route}", foreign: "/v1/routes/{b-route}", status: 200, badPath: "/v1/routes/{route}?x=1"},
	"put-route":    {path: "/v1/routes/{route}", body: obj{"subject": []string{"jwt:sub"}}, status: 200, bad: obj{"subject": []string{}, "cost": -1}, names: []string{"/cost", "/subject"}},
	"patch-route":  {path: "/v1/routes/{route}", foreign: "/v1/routes/{b-route}", body: obj{"fail": "open"}, status: 200, bad: obj{"subject": nil, "attributes": obj{"a.b": "nowhere"}}, names: []string{"/attributes/a.b", "/subject"}},
	"delete-route": {path: "/v1/routes/{route}", foreign: "/v1/routes/{b-route}", status: 204, badPath: "/v1/routes/{route}?x=1"},

	"list-plans":        {path: "/v1/plans", status: 200, badPath: "/v1/plans?limit=1e2", names: []string{"query:limit"}},
	"create-plan":       {path: "/v1/plans", body: obj{"slug": "made"}, status: 201, bad: obj{"slug": "made2", "limits": obj{"no-such-rule": obj{"limit": 1}}}, names: []string{"/limits/no-such-rule"}},
	"get-plan":          {path: "/v1/plans/{plan}", foreign: "/v1/plans/{b-plan}", status: 200, badPath: "/v1/plans/{plan}?x=1"},
	"put-plan":          {path: "/v1/plans/{plan}", body: obj{"name": "P"}, status: 200, bad: obj{"default": "yes"}, names: []string{"/default"}},
	"patch-plan":        {path: "/v1/plans/{plan}", foreign: "/v1/plans/{b-plan}", body: obj{"name": "Q"}, status: 200, bad: obj{"slug": "other"}, names: []string{"/slug"}},
	"delete-plan":       {path: "/v1/plans/{plan}", foreign: "/v1/plans/{b-plan}", status: 204, badPath: "/v1/plans/{plan}?x=1"},
	"get-plan-limit":    {path: "/v1/plans/{plan}/limits/{rule}", foreign: "/v1/plans/{b-plan}/limits/{b-rule}", status: 200, badPath: "/v1/plans/{plan}/limits/{rule}?x=1"},
	"put-plan-limit":    {path: "/v1/plans/{plan}/limits/{rule}", foreign: "/v1/plans/{b-plan}/limits/{rule}", body: obj{"limit": 50}, status: 200, bad: obj{"limit": 50, "unlimited": true}, names: []string{"/unlimited"}},
	"delete-plan-limit": {path: "/v1/plans/{plan}/limits/{rule}", foreign: "/v1/plans/{b-plan}/limits/{b-rule}", status: 204, badPath: "/v1/plans/{plan}/limits/{rule}?x=1"},

	"list-plan-versions":    {path: "/v1/plans/default/versions", foreign: "/v1/plans/{b-plan}/versions", status: 200, badPath: "/v1/plans/default/versions?limit=0", names: []string{"query:limit"}},
	"publish-plan":          {path: "/v1/plans/{plan}/versions", foreign: "/v1/plans/{b-plan}/versions", body: obj{}, status: 201, bad: obj{"limits": obj{"no-such-rule": obj{"limit": 1}}}, names: []string{"/limits/no-such-rule"}},
	"delete-plan-version":   {path: "/v1/plans/{versioned}/versions/1", foreign: "/v1/plans/{b-versioned}/versions/1", status: 204, badPath: "/v1/plans/{versioned}/versions/1?x=1"},
	"preview-plan":          {path: "/v1/plans/{plan}/preview", foreign: "/v1/plans/{b-plan}/preview", body: obj{"limits": obj{}}, status: 200, asks: true, bad: obj{"limits": obj{"no-such-rule": obj{"limit": 1}}}, names: []string{"/limits/no-such-rule"}},
	"list-plan-migrations":  {path: "/v1/plans/default/migrations", foreign: "/v1/plans/{b-plan}/migrations", status: 200, badPath: "/v1/plans/default/migrations?limit=0", names: []string{"query:limit"}},
	"create-plan-migration": {path: "/v1/plans/{plan}/migrations", foreign: "/v1/plans/{b-plan}/migrations", body: obj{"to": "default"}, status: 201, bad: obj{"to": "no-such-plan"}, names: []string{"/to"}},
	"get-plan-migration":    {path: "/v1/plans/{versioned}/migrations/{migration}", foreign: "/v1/plans/{b-versioned}/migrations/{b-migration}", status: 200, badPath: "/v1/plans/{versioned}/migrations/{migration}?x=1"},
	"cancel-plan-migration": {path: "/v1/plans/{versioned}/migrations/{migration}/cancel", foreign: "/v1/plans/{b-versioned}/migrations/{b-migration}/cancel", status: 200, badPath: "/v1/plans/{versioned}/migrations/{migration}/cancel?x=1"},

	"list-plan-changes": {path: "/v1/plan-changes", status: 200, badPath: "/v1/plan-changes?limit=0", names: []string{"query:limit"}},

	"list-subjects":   {path: "/v1/subjects?prefix=s-", status: 200, badPath: "/v1/subjects?state=gone", names: []string{"query:state"}},
	"get-subject":     {path: "/v1/subjects/{subject}", foreign: "/v1/subjects/{b-subject}", status: 200, badPath: "/v1/subjects/{subject}?x=1"},
	"put-subject":     {path: "/v1/subjects/{subject}", body: obj{"state": "blocked"}, status: 200, bad: obj{"plan": "no-such-plan"}, names: []string{"/plan"}},
	"patch-subject":   {path: "/v1/subjects/{subject}", foreign: "/v1/subjects/{b-subject}", body: obj{"labels": obj{"a": "b"}}, status: 200, bad: obj{"labels": obj{"a": 1}}, names: []string{"/labels/a"}},
	"delete-subject":  {path: "/v1/subjects/{subject}", foreign: "/v1/subjects/{b-subject}", status: 204, badPath: "/v1/subjects/{subject}?x=1"},
	"get-override":    {path: "/v1/subjects/{subject}/overrides/{rule}", foreign: "/v1/subjects/{b-subject}/overrides/{b-rule}", status: 200, badPath: "/v1/subjects/{subject}/overrides/{rule}?x=1"},
	"put-override":    {path: "/v1/subjects/{subject}/overrides/{rule}", foreign: "/v1/subjects/{subject}/overrides/{b-rule}", body: obj{"limit": 9, "reason": "trial"}, status: 200, bad: obj{"limit": -1}, names: []string{"/limit"}},
	"delete-override": {path: "/v1/subjects/{subject}/overrides/{rule}", foreign: "/v1/subjects/{b-subject}/overrides/{b-rule}", status: 204, badPath: "/v1/subjects/{subject}/overrides/{rule}?x=1"},

	"list-credits":   {path: "/v1/subjects/shared/credits", status: 200, badPath: "/v1/subjects/shared/credits?limit=0", names: []string{"query:limit"}},
	"grant-credits":  {path: "/v1/subjects/{subject}/credits", body: obj{"rule": "r-grant-credits", "units": 50, "reference": "invoice 1"}, status: 201, bad: obj{"rule": "no-such-rule", "units": 50}, names: []string{"/rule"}},
	"get-credits":    {path: "/v1/subjects/{subject}/credits/{credits}", foreign: "/v1/subjects/{b-subject}/credits/{b-credits}", status: 200, badPath: "/v1/subjects/{subject}/credits/{credits}?x=1"},
	"revoke-credits": {path: "/v1/subjects/{subject}/credits/{credits}", foreign: "/v1/subjects/{b-subject}/credits/{b-credits}", status: 204, badPath: "/v1/subjects/{subject}/credits/{credits}?x=1"},

	"export-subjects": {path: "/v1/bulk/subjects?prefix=s-", status: 200, badPath: "/v1/bulk/subjects?format=xls", names: []string{"query:format"}},
	"import-subjects": {path: "/v1/bulk/subjects", as: csvType, body: "subject,state\r\nimported,blocked\r\n", status: 200, rows: 2, // the subject's, and the import's own
		bad: "subject,plan,state\r\nimported,no-such-plan,active\r\nother,,asleep\r\n", names: []string{"line:2/plan", "line:3/state"}},
	"list-overrides": {path: "/v1/overrides?active=true&prefix=s-", status: 200, badPath: "/v1/overrides?ending_before=soon", names: []string{"query:ending_before"}},

	"get-limits":    {path: "/v1/subjects/{subject}/limits?resource=r&attribute=ip:1&attribute=region:eu", status: 200, badPath: "/v1/subjects/{subject}/limits?attribute=ip", names: []string{"query:attribute"}},
	"reset-subject": {path: "/v1/subjects/{subject}/reset", body: obj{"reason": "a mistake of ours"}, status: 200, bad: obj{"rule": "no-such-rule", "reason": "r"}, names: []string{"/rule"}},

	"list-members":  {path: "/v1/members", status: 200, badPath: "/v1/members?limit=0", names: []string{"query:limit"}},
	"create-member": {path: "/v1/members", body: obj{"email": "New@Example.com", "role": "viewer"}, status: 201, bad: obj{"email": "nobody", "role": "viewer"}, names: []string{"/email"}},
	"get-member":    {path: "/v1/members/{member}", foreign: "/v1/members/{b-member}", status: 200, badPath: "/v1/members/{member}?x=1"},
	"patch-member":  {path: "/v1/members/{member}", foreign: "/v1/members/{b-member}", body: obj{"role": "editor"}, status: 200, bad: obj{"role": "root", "state": "active"}, names: []string{"/role", "/state"}},
	"delete-member": {path: "/v1/members/{member}", foreign: "/v1/members/{b-member}", status: 204, badPath: "/v1/members/{member}?x=1"},

	"list-billing-endpoints":     {path: "/v1/billing/endpoints", status: 200, badPath: "/v1/billing/endpoints?limit=0", names: []string{"query:limit"}},
	"create-billing-endpoint":    {path: "/v1/billing/endpoints", body: obj{"provider": "stripe", "signing_secrets": []string{"whsec_another"}, "subject_from": "metadata.user"}, status: 201, bad: obj{"provider": "generic", "signing_secrets": []string{"???not-base64"}, "subject_from": "metadata.", "fallback_plan": "none"}, names: []string{"/signing_secrets/0", "/subject_from"}},
	"get-billing-endpoint":       {path: "/v1/billing/endpoints/{endpoint}", foreign: "/v1/billing/endpoints/{b-endpoint}", status: 200, badPath: "/v1/billing/endpoints/{endpoint}?x=1"},
	"patch-billing-endpoint":     {path: "/v1/billing/endpoints/{endpoint}", foreign: "/v1/billing/endpoints/{b-endpoint}", body: obj{"grace_days": 3}, status: 200, bad: obj{"fallback_plan": "no-such-plan"}, names: []string{"/fallback_plan"}},
	"delete-billing-endpoint":    {path: "/v1/billing/endpoints/{endpoint}", foreign: "/v1/billing/endpoints/{b-endpoint}", status: 204, badPath: "/v1/billing/endpoints/{endpoint}?x=1", rows: 2}, // its price's, and its own
	"list-billing-prices":        {path: "/v1/billing/prices", status: 200, badPath: "/v1/billing/prices?limit=0", names: []string{"query:limit"}},
	"get-billing-price":          {path: "/v1/billing/prices/{price}", foreign: "/v1/billing/prices/{b-price}", status: 200, badPath: "/v1/billing/prices/{price}?x=1"},
	"put-billing-price":          {path: "/v1/billing/prices/{price}", body: obj{"plan": "default", "multiply": true}, status: 200, bad: obj{"plan": "no-such-plan"}, names: []string{"/plan"}},
	"delete-billing-price":       {path: "/v1/billing/prices/{price}", foreign: "/v1/billing/prices/{b-price}", status: 204, badPath: "/v1/billing/prices/{price}?x=1"},
	"reconcile-billing-endpoint": {path: "/v1/billing/endpoints/{endpoint}/reconcile", foreign: "/v1/billing/endpoints/{b-endpoint}/reconcile", status: 200, badPath: "/v1/billing/endpoints/{endpoint}/reconcile?x=1"},

	"list-billing-events":   {path: "/v1/billing/events?outcome=parked", status: 200, badPath: "/v1/billing/events?outcome=lost", names: []string{"query:outcome"}},
	"get-billing-event":     {path: "/v1/billing/events/{event}", foreign: "/v1/billing/events/{b-event}", status: 200, badPath: "/v1/billing/events/{event}?x=1"},
	"replay-billing-event":  {path: "/v1/billing/events/{event}/replay", foreign: "/v1/billing/events/{b-event}/replay", status: 200, badPath: "/v1/billing/events/{event}/replay?x=1", rows: 2}, // the event's, and the subject's
	"dismiss-billing-event": {path: "/v1/billing/events/{event}/dismiss", foreign: "/v1/billing/events/{b-event}/dismiss", status: 200, badPath: "/v1/billing/events/{event}/dismiss?x=1"},

	"list-security-events":    {path: "/v1/security-events?limit=1", status: 200, badPath: "/v1/security-events?kind=none", names: []string{"query:kind"}},
	"get-security-settings":   {path: "/v1/security-settings", status: 200, badPath: "/v1/security-settings?x=1"},
	"patch-security-settings": {path: "/v1/security-settings", body: obj{"session_idle": "1h", "max_sessions": 5}, status: 200, bad: obj{"session_idle": "1d", "session_life": "8d", "confirm_after": "0s", "event_retention": "1d"}, names: []string{"/confirm_after", "/event_retention", "/session_idle", "/session_life"}},
	"get-portal":              {path: "/v1/portal", status: 200, badPath: "/v1/portal?x=1"},
	"patch-portal":            {path: "/v1/portal", body: obj{"brand": "Acme", "accent": "#1A73E8"}, status: 200, bad: obj{"accent": "red", "frame_origins": []string{"http://evil.example"}, "offered_plans": []string{"none"}, "auto_approve_for": "5m"}, names: []string{"/accent", "/auto_approve_for", "/frame_origins/0", "/offered_plans/0"}},
	"list-portal-links":       {path: "/v1/subjects/shared/portal-links", status: 200, badPath: "/v1/subjects/shared/portal-links?limit=0", names: []string{"query:limit"}},
	"create-portal-link":      {path: "/v1/subjects/{subject}/portal-links", body: obj{}, status: 201, bad: obj{"expires_in": "90d"}, names: []string{"/expires_in"}},
	"delete-portal-link":      {path: "/v1/subjects/shared/portal-links/{link}", foreign: "/v1/subjects/shared/portal-links/{b-link}", status: 204, badPath: "/v1/subjects/shared/portal-links/{link}?x=1"},
	"list-limit-requests":     {path: "/v1/limit-requests?state=open", status: 200, badPath: "/v1/limit-requests?state=gone", names: []string{"query:state"}},
	"get-limit-request":       {path: "/v1/limit-requests/{request}", foreign: "/v1/limit-requests/{b-request}", status: 200, badPath: "/v1/limit-requests/{request}?x=1"},
	"approve-limit-request":   {path: "/v1/limit-requests/{request}/approve", foreign: "/v1/limit-requests/{b-request}/approve", body: obj{"for": "1d"}, status: 200, rows: 2, bad: obj{"for": "90d"}, names: []string{"/for"}}, // the request's, and the subject's
	"refuse-limit-request":    {path: "/v1/limit-requests/{request}/refuse", foreign: "/v1/limit-requests/{b-request}/refuse", body: obj{"answer": "Not now."}, status: 200, bad: obj{"answer": 5}, names: []string{"/answer"}},

	"list-notification-endpoints":  {path: "/v1/notification-endpoints", status: 200, badPath: "/v1/notification-endpoints?limit=0", names: []string{"query:limit"}},
	"create-notification-endpoint": {path: "/v1/notification-endpoints", body: obj{"url": "https://example.com/more"}, status: 201, bad: obj{"url": "http://example.com", "types": []string{"no.such"}}, names: []string{"/types/0", "/url"}},
	"get-notification-endpoint":    {path: "/v1/notification-endpoints/{endpoint}", foreign: "/v1/notification-endpoints/{b-endpoint}", status: 200, badPath: "/v1/notification-endpoints/{endpoint}?x=1"},
	"patch-notification-endpoint":  {path: "/v1/notification-endpoints/{endpoint}", foreign: "/v1/notification-endpoints/{b-endpoint}", body: obj{"enabled": false}, status: 200, bad: obj{"url": nil, "types": []string{"test"}}, names: []string{"/url"}},
	"delete-notification-endpoint": {path: "/v1/notification-endpoints/{endpoint}", foreign: "/v1/notification-endpoints/{b-endpoint}", status: 204, badPath: "/v1/notification-endpoints/{endpoint}?x=1"},
	"rotate-notification-secret":   {path: "/v1/notification-endpoints/{endpoint}/rotate", foreign: "/v1/notification-endpoints/{b-endpoint}/rotate", body: obj{"overlap": "1h"}, status: 201, bad: obj{"overlap": "31d"}, names: []string{"/overlap"}},
	"test-notification-endpoint":   {path: "/v1/notification-endpoints/{endpoint}/test", foreign: "/v1/notification-endpoints/{b-endpoint}/test", status: 200, badPath: "/v1/notification-endpoints/{endpoint}/test?x=1"},
	"list-notification-deliveries": {path: "/v1/notification-deliveries?state=pending", status: 200, badPath: "/v1/notification-deliveries?state=gone", names: []string{"query:state"}},
	"get-notification-delivery":    {path: "/v1/notification-deliveries/{delivery}", foreign: "/v1/notification-deliveries/{b-delivery}", status: 200, badPath: "/v1/notification-deliveries/{delivery}?x=1"},
	"replay-notification-delivery": {path: "/v1/notification-deliveries/{delivery}/replay", foreign: "/v1/notification-deliveries/{b-delivery}/replay", status: 200, badPath: "/v1/notification-deliveries/{delivery}/replay?x=1"},

	"get-config": {path: "/v1/config?subjects=true", status: 200, badPath: "/v1/config?format=xml", names: []string{"query:format"}},
	"put-config": {path: "/v1/config", body: obj{"rules": []obj{{"slug": "made-by-config", "limit": 5, "window": "1m", "resource": "c"}}}, status: 200,
		bad: obj{"rules": []obj{{"slug": "ok", "limit": 5, "window": "1m"}, {"slug": "Bad", "limit": 0, "window": "soon"}}}, names: []string{"/rules/1/limit", "/rules/1/slug", "/rules/1/window"}},

	"simulate": {path: "/v1/simulate", pure: true, status: 200,
		body: obj{"rules": []obj{{"slug": "r", "limit": 1, "window": "1m"}}, "requests": []obj{{"at_ms": 0, "subject": "s"}}},
		bad:  obj{"rules": []obj{{"slug": "r", "limit": 0, "window": "1ns"}}}, names: []string{"/requests", "/rules/0/limit", "/rules/0/window"}},

	"list-meter-pushes": {path: "/v1/billing/pushes?rule={rule}", status: 200, badPath: "/v1/billing/pushes?limit=0", names: []string{"query:limit"}},
	"get-metered-usage": {path: "/v1/usage/metered?open=true", status: 200, badPath: "/v1/usage/metered?from=2026-01-31T12:30:00Z&grain=day", names: []string{"query:grain"}},

	"list-decisions":   {path: "/v1/decisions?denied=true", pure: true, status: 200, badPath: "/v1/decisions?limit=301&since=soon", names: []string{"query:limit", "query:since"}},
	"stream-decisions": {path: "/v1/decisions/stream?for=1s", pure: true, status: 200, badPath: "/v1/decisions/stream?for=2h", names: []string{"query:for"}},

	"get-usage": {path: "/v1/usage?group_by=rule,plan", status: 200, badPath: "/v1/usage?from=1926-01-01T00:00:00Z&group_by=rules", names: []string{"query:group_by"}},

	"list-audit":   {path: "/v1/audit?kind=rule&limit=1", status: 200, badPath: "/v1/audit?kind=rules", names: []string{"query:kind"}},
	"verify-audit": {path: "/v1/audit/verify", status: 200, badPath: "/v1/audit/verify?head=1", names: []string{"query:head"}},

	"list-tenants":        {path: "/v1/tenants", status: 200, badPath: "/v1/tenants?limit=-1", names: []string{"query:limit"}},
	"create-tenant":       {path: "/v1/tenants", body: obj{"slug": "made", "name": "Made"}, status: 201, bad: obj{"slug": "platform"}, names: []string{"/slug"}},
	"get-tenant-by-ref":   {path: "/v1/tenants/{tenant}", foreign: "/v1/tenants/no-such-tenant", status: 200, badPath: "/v1/tenants/{tenant}?x=1"},
	"patch-tenant-by-ref": {path: "/v1/tenants/{tenant}", foreign: "/v1/tenants/no-such-tenant", body: obj{"state": "suspended"}, status: 200, bad: obj{"state": "gone"}, names: []string{"/state"}},
	"delete-tenant":       {path: "/v1/tenants/{tenant}", foreign: "/v1/tenants/no-such-tenant", status: 204, badPath: "/v1/tenants/{tenant}?x=1"},
}

// For each operation: which roles and scopes it refuses, which inputs it refuses, that another
// tenant's objects are not found, its answer while Postgres is unavailable, and that it works.
func TestEveryAdminOperation(t *testing.T) {
	s := newAdminStack(t)
	broken := s.withoutDatabase()
	operations := s.operations()
	for id := range operations {
		require.Contains(t, adminCases, id, "an operation without a case")
	}
	defer func() { t.Log(validated.String()) }()
	for id, c := range adminCases {
		t.Run(id, func(t *testing.T) {
			op, known := operations[id]
			require.True(t, known, "a case without an operation")
			s, broken := s.in(t), broken.in(t)
			call := func(s *adminStack, key, path string, body any) answer {
				s.t.Helper()
				if c.as != "" && body != nil {
					return s.call(key, op.method, path, body, header{"Content-Type", c.as})
				}
				return s.call(key, op.method, path, body)
			}
			fill := s.prepare(id)
			path := fill.Replace(c.path)
			operator := strings.HasPrefix(c.path, "/v1/tenants")
			key := s.key
			if operator {
				key = s.operator
				call(s, s.key, path, c.body).problem(http.StatusForbidden, codeOperatorOnly)
			}

			call(s, "", path, c.body).problem(http.StatusUnauthorized, codeMissingKey)
			call(s, s.checkKey, path, c.body).problem(http.StatusForbidden, codeInsufficientScope)
			wrong := s.readKey
			if op.method == http.MethodGet || c.pure || c.asks {
				wrong = s.wKey
			}
			call(s, wrong, path, c.body).problem(http.StatusForbidden, codeInsufficientScope)
			if managed := strings.HasPrefix(c.path, "/v1/keys") || strings.HasPrefix(c.path, "/v1/members") || strings.HasPrefix(c.path, "/v1/billing") || strings.HasPrefix(c.path, "/v1/notification-"); managed {
				call(s, s.wKey, path, c.body).problem(http.StatusForbidden, codeInsufficientScope)
			}

			if c.foreign != "" {
				call(s, key, fill.Replace(c.foreign), c.body).problem(http.StatusNotFound, codeNotFound)
			}

			away := call(broken, key, path, c.body)
			if c.pure {
				away.ok(c.status)
			} else {
				away.problem(http.StatusServiceUnavailable, codeConfigurationStoreAway)
				require.NotEmpty(t, away.header.Get("Retry-After"))
			}

			switch {
			case c.bad != nil:
				require.Equal(t, c.names, call(s, key, path, c.bad).pointers(http.StatusUnprocessableEntity, codeInvalidRequest))
			case c.names != nil:
				require.Equal(t, c.names, call(s, key, fill.Replace(c.badPath), nil).pointers(http.StatusUnprocessableEntity, codeInvalidRequest))
			default:
				call(s, key, fill.Replace(c.badPath), nil).problem(http.StatusBadRequest, codeUnknownParameter)
			}

			done := call(s, key, path, c.body).ok(c.status)
			rows := s.auditRows(done.header.Get("X-Request-Id"), operator)
			if op.method == http.MethodGet || c.pure || c.asks {
				require.Zero(t, rows)
			} else {
				require.Equal(t, max(c.rows, 1), rows, "each change writes its row into the trail of who made it")
			}
		})
	}
}

// auditRows returns the number of rows that a request has written into the trail of tenant A or of
// the operator.
func (s *adminStack) auditRows(requestID string, ofOperator bool) (n int) {
	s.t.Helper()
	require.NotEmpty(s.t, requestID)
	s.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
		require.NoError(s.t, conn.QueryRow(ctx, `SELECT count(*) FROM audit a JOIN tenants t ON t.id = a.tenant_id
			WHERE a.request_id = $1 AND t.slug = CASE WHEN $2 THEN 'platform' ELSE 'tenant-a' END`, requestID, ofOperator).Scan(&n))
	})
	return n
}

// prepare creates the objects of a case, named after it, and returns their names.
func (s *adminStack) prepare(id string) *strings.Replacer {
	return s.prepareNamed(id, "{tenant} {subject} {key} {member}", map[string]tenants.Actor{"": s.a, "b-": s.b})
}

// prepareNamed is prepare of some tenants, whose objects have names with the prefixes. Of subjects,
// API keys, members and tenants it only creates those that the text contains.
func (s *adminStack) prepareNamed(id, text string, actors map[string]tenants.Actor) *strings.Replacer {
	s.t.Helper()
	ctx := s.t.Context()
	names := []string{}
	for prefix, actor := range actors {
		rule := limit.NewRule(prefix + "r-" + id)
		rule.Resource = rule.Slug // at most 32 rules may match one check
		rule.Limit, rule.Window = 10, limit.Window{Duration: limit.Duration{Text: "1m", MS: 60_000}}
		_, err := s.store.CreateRule(ctx, actor, rule)
		require.NoError(s.t, err)
		limits := map[string]limit.Limit{rule.Slug: {Limit: 20}}
		if _, err := s.store.PlanBySlug(ctx, actor, "default"); err != nil { // so that no case deletes the default one
			_, err = s.store.CreatePlan(ctx, actor, tenants.Plan{Slug: "default"})
			require.NoError(s.t, err)
		}
		plan, err := s.store.CreatePlan(ctx, actor, tenants.Plan{Slug: prefix + "p-" + id, Limits: limits})
		require.NoError(s.t, err)
		way := route.New(prefix + "w-" + id)
		way.Subject = []string{"header:X-User"}
		if strings.Contains(id, "route") || id == "put" { // a tenant may have 200
			_, err = s.store.CreateRoute(ctx, actor, way)
			require.NoError(s.t, err)
		}
		subject := prefix + "s-" + id
		if strings.Contains(text, "{subject}") {
			_, _, err = s.store.PutOverride(ctx, actor, subject, tenants.Override{Rule: rule.Slug, Limit: limit.Limit{Limit: 30}}, tenants.Match{})
			require.NoError(s.t, err)
		}
		if strings.Contains(text, "{key}") {
			key, _, err := s.store.CreateKey(ctx, actor, tenants.NewAPIKey{Name: id, Scopes: []tenants.Scope{tenants.ScopeRead}})
			require.NoError(s.t, err)
			names = append(names, "{"+prefix+"key}", key.ID.String())
		}
		if strings.Contains(text, "{member}") {
			member, err := s.store.InviteMember(ctx, actor, id+"@example.com", tenants.Viewer)
			require.NoError(s.t, err)
			names = append(names, "{"+prefix+"member}", member.ID.String())
		}
		if strings.Contains(id, "plan-changes") {
			_, err = s.store.EditSubject(ctx, actor, subject, tenants.Match{}, func(b *tenants.Subject) error {
				at := time.Date(2999, 1, 1, 0, 0, 0, 0, time.UTC)
				b.NextPlan, b.NextPlanAt = plan.Slug, &at
				return nil
			})
			require.NoError(s.t, err)
		}
		if strings.Contains(id, "plan-version") || strings.Contains(id, "plan-migration") {
			names = append(names, s.prepareVersions(id, prefix, actor)...)
		}
		if strings.Contains(id, "billing") { // a tenant may have few endpoints
			names = append(names, s.prepareBilling(id, prefix, actor, plan.Slug, subject)...)
		}
		if strings.Contains(id, "portal-link") || strings.Contains(id, "limit-request") {
			names = append(names, s.preparePortal(prefix, actor, subject, rule.Slug)...)
		}
		if strings.Contains(id, "notification") { // a tenant may have few endpoints
			names = append(names, s.prepareNotifications(prefix, actor)...)
		}
		if strings.Contains(id, "credits") {
			requests := limit.NewRule("api-requests")
			requests.Resource, requests.Limit, requests.Window = "api", 10, rule.Window
			_, _, err = s.store.PutRule(ctx, actor, requests, tenants.Match{})
			require.NoError(s.t, err)
			grant, _, err := s.store.GrantCredits(ctx, actor, subject, tenants.NewCredits{Rule: rule.Slug, Units: 10})
			require.NoError(s.t, err)
			_, _, err = s.store.GrantCredits(ctx, actor, "shared", tenants.NewCredits{Rule: rule.Slug, Units: 10})
			require.NoError(s.t, err)
			names = append(names, "{"+prefix+"credits}", grant.ID.String())
		}
		if strings.Contains(id, "meter") {
			s.prepareMetering(actor, subject, rule.Slug)
		}
		names = append(names, "{"+prefix+"rule}", rule.Slug, "{"+prefix+"plan}", plan.Slug, "{"+prefix+"route}", way.Slug, "{"+prefix+"subject}", subject)
	}
	if strings.Contains(text, "{tenant}") {
		tenant, _, _, err := s.store.CreateTenant(ctx, tenants.AsOperator("test"), tenants.NewTenant{Slug: "t-" + id, Name: id})
		require.NoError(s.t, err)
		names = append(names, "{tenant}", tenant.Slug)
	}
	return strings.NewReplacer(names...)
}

// prepareVersions publishes versions of the plan default and of one of the case's own, and
// migrates the subjects of both.
func (s *adminStack) prepareVersions(id, prefix string, actor tenants.Actor) []string {
	s.t.Helper()
	ctx := s.t.Context()
	versioned := prefix + "v-" + id
	_, err := s.store.CreatePlan(ctx, actor, tenants.Plan{Slug: versioned})
	require.NoError(s.t, err)
	var last tenants.PlanMigration
	for _, plan := range []string{"default", versioned} {
		_, err := s.store.PublishPlan(ctx, actor, plan, nil, tenants.Match{})
		require.NoError(s.t, err)
		last, err = s.store.CreatePlanMigration(ctx, actor, tenants.NewPlanMigration{Plan: plan})
		require.NoError(s.t, err)
		if plan == "default" { // the next case creates another
			_, err = s.store.CancelPlanMigration(ctx, actor, plan, last.ID)
			require.NoError(s.t, err)
		}
	}
	return []string{"{" + prefix + "versioned}", versioned, "{" + prefix + "migration}", last.ID.String()}
}

// prepareMetering records a metered unit of the present hour, and what is sent of it to a meter.
func (s *adminStack) prepareMetering(actor tenants.Actor, subject, rule string) {
	s.t.Helper()
	hour := time.Now().Truncate(time.Hour)
	require.NoError(s.t, s.store.WriteMetered(s.t.Context(), &usage.MeterBatch{
		Writer: uuid.New(), Sequence: 1, Last: true, CompleteUntil: hour,
		Rows: []usage.MeterRow{{
			MeterKey: usage.MeterKey{Tenant: actor.TenantID(), StartMS: hour.UnixMilli(), Subject: subject, Rule: rule},
			Metered:  usage.Metered{Units: 1, Checks: 1},
		}},
	}))
	s.db.Exec("INSERT INTO metered_pushes (tenant_id, id, start, rule, meter_event, kind) VALUES ($1, $2, $3, $4, 'calls', 'units')",
		actor.TenantID(), uuid.New(), hour, rule)
}

// preparePortal creates a link to the page of the subject "shared", and a request of the case's
// subject.
func (s *adminStack) preparePortal(prefix string, actor tenants.Actor, subject, rule string) []string {
	s.t.Helper()
	ctx := s.t.Context()
	link, _, err := s.store.CreatePortalLink(ctx, actor, tenants.NewPortalLink{Subject: "shared"})
	require.NoError(s.t, err)
	_, token, err := s.store.CreatePortalLink(ctx, actor, tenants.NewPortalLink{Subject: subject})
	require.NoError(s.t, err)
	session, secret, err := s.store.FollowPortalLink(ctx, token)
	require.NoError(s.t, err)
	visit, err := s.store.PortalVisit(ctx, session, secret, nil)
	require.NoError(s.t, err)
	request, _, err := s.store.RequestLimit(ctx, &visit, tenants.NewLimitRequest{Rule: rule, Had: limit.Limit{Limit: 30}, Asked: 60})
	require.NoError(s.t, err)
	return []string{"{" + prefix + "link}", link.ID.String(), "{" + prefix + "request}", request.ID.String()}
}

// prepareNotifications creates a notification endpoint with a delivery, in place of older ones.
func (s *adminStack) prepareNotifications(prefix string, actor tenants.Actor) []string {
	s.t.Helper()
	ctx := s.t.Context()
	older, _, err := s.store.NotificationEndpoints(ctx, actor, tenants.Page{})
	require.NoError(s.t, err)
	if len(older) > 2 { // lists need two
		require.NoError(s.t, s.store.DeleteNotificationEndpoint(ctx, actor, older[len(older)-1].ID, tenants.Match{}))
	}
	e, _, err := s.store.CreateNotificationEndpoint(ctx, actor, tenants.NotificationEndpoint{URL: "https://example.com/" + prefix, Enabled: true})
	require.NoError(s.t, err)
	d, err := s.store.TestNotificationEndpoint(ctx, actor, e.ID)
	require.NoError(s.t, err)
	return []string{"{" + prefix + "endpoint}", e.ID.String(), "{" + prefix + "delivery}", d.ID.String()}
}

// prepareBilling creates an endpoint, a price and an event that changes the subject's plan.
func (s *adminStack) prepareBilling(id, prefix string, actor tenants.Actor, plan, subject string) []string {
	s.t.Helper()
	ctx := s.t.Context()
	e, err := s.store.CreateBillingEndpoint(ctx, actor, tenants.BillingEndpoint{Provider: tenants.StripeProvider, SubjectFrom: tenants.FromMetadata + "user"},
		tenants.BillingSecrets{Signing: []string{"whsec_" + id}, APIKey: ptr("rk_test_" + prefix + "reads")})
	require.NoError(s.t, err)
	price := prefix + "price_" + id
	_, _, err = s.store.PutBillingPrice(ctx, actor, tenants.BillingPrice{Price: price, Endpoint: e.ID, Plan: plan}, tenants.Match{})
	require.NoError(s.t, err)
	body := `{"object":"event","id":"evt_` + id + `","type":"customer.subscription.created","created":1700000000,"data":{"object":{"id":"sub_1",
		"customer":"` + prefix + `cus_1","status":"active","metadata":{"user":"` + subject + `"},"items":{"data":[{"quantity":1,"price":{"id":"` + price + `"}}]}}}}`
	read, err := subscription.ParseStripe([]byte(body))
	require.NoError(s.t, err)
	_, err = s.store.StoreBillingEvent(ctx, tenants.Webhook{Tenant: actor.TenantID(), Endpoint: e.ID}, read, []byte(body))
	require.NoError(s.t, err)
	events, _, err := s.store.BillingEvents(ctx, actor, tenants.BillingEventFilter{Endpoint: &e.ID}, tenants.Page{Limit: 1})
	require.NoError(s.t, err)
	if strings.Contains(id, "dismiss") { // only an event that is parked or has failed can be dismissed
		require.NoError(s.t, s.store.DeleteBillingPrice(ctx, actor, price, tenants.Match{}))
		parked, err := billing.New(billing.Options{Store: s.store}).Replay(ctx, actor, events[0].ID)
		require.NoError(s.t, err)
		require.Equal(s.t, tenants.EventParked, parked.Outcome, parked.Why)
	}
	return []string{"{" + prefix + "endpoint}", e.ID.String(), "{" + prefix + "price}", price, "{" + prefix + "event}", events[0].ID.String()}
}

// A PUT with a name that another tenant uses creates a new object, and does not change the other
// tenant's.
func TestPutUnderAnotherTenantsName(t *testing.T) {
	s := newAdminStack(t)
	fill := s.prepare("put")
	for path, body := range map[string]obj{
		"/v1/rules/{b-rule}":       {"limit": 1, "window": "1s"},
		"/v1/plans/{b-plan}":       {"name": "mine"},
		"/v1/routes/{b-route}":     {"subject": []string{"ip"}},
		"/v1/subjects/{b-subject}": {"billing_ref": "mine"},
	} {
		path = fill.Replace(path)
		before := s.call(s.other, http.MethodGet, path, nil).ok(200)
		// The version of the other tenant's object cannot be used either.
		s.call(s.key, http.MethodPut, path, body, header{"If-Match", before.header.Get("ETag")}).
			problem(http.StatusPreconditionFailed, codePreconditionFailed)
		s.call(s.key, http.MethodPut, path, body).ok(201)
		require.Equal(t, before.body, s.call(s.other, http.MethodGet, path, nil).ok(200).body)
	}
}
