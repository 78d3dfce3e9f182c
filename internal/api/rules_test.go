package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
)

func TestRuleDefaultsAndShape(t *testing.T) {
	s := newAdminStack(t)
	made := s.call(s.key, http.MethodPost, "/v1/rules", obj{"slug": "api", "limit": 100, "window": "60s"}).ok(201)
	require.Equal(t, "/v1/rules/api", made.header.Get("Location"))
	rule := made.json()
	for field, want := range map[string]any{
		"slug": "api", "name": "api", "description": "", "resource": "*", "algorithm": "sliding_window_counter",
		"limit": 100.0, "window": "60s", "burst": nil, "precision": nil, "by": []any{"subject"}, "mode": "enforce",
		"on_unavailable": "local", "penalty": nil, "consistency": "strict",
	} {
		require.Equal(t, want, rule[field], field)
	}
	require.Equal(t, made.body, s.call(s.key, http.MethodGet, "/v1/rules/api", nil).ok(200).body)

	// All fields, as written; a calendar window; one counter for the whole tenant.
	full := obj{
		"slug": "full", "name": "Full", "description": "d\n<b>", "resource": "orders:*", "algorithm": "sliding_window_buckets",
		"limit": 5, "window": "2m", "precision": "10s", "by": []string{}, "mode": "shadow", "on_unavailable": "deny", "penalty": "90s",
	}
	got := s.call(s.key, http.MethodPost, "/v1/rules", full).ok(201).json()
	require.Equal(t, []any{}, got["by"])
	require.Equal(t, "10s", got["precision"])
	require.Equal(t, "90s", got["penalty"])
	require.Equal(t, "d\n<b>", got["description"])
	month := s.call(s.key, http.MethodPut, "/v1/rules/quota", obj{"algorithm": "fixed_window", "limit": 1_000_000_000_000_000, "window": "month"}).ok(201).json()
	require.Equal(t, "month", month["window"])
	bucket := s.call(s.key, http.MethodPut, "/v1/rules/bucket", obj{"algorithm": "token_bucket", "limit": 10, "burst": 20, "window": "1s", "consistency": "leased"}).ok(201).json()
	require.InDelta(t, 20, bucket["burst"], 0)
	require.Equal(t, "leased", bucket["consistency"])
	require.Equal(t, "strict", s.call(s.key, http.MethodPatch, "/v1/rules/bucket", obj{"consistency": nil}).ok(200).json()["consistency"])

	s.call(s.key, http.MethodPost, "/v1/rules", full).problem(http.StatusConflict, codeSlugTaken)
}

// An invalid rule is refused with the names of its fields, and nothing is stored (reliability rows
// 54, 55, 48).
func TestRuleRefusals(t *testing.T) {
	s := newAdminStack(t)
	base := func(change obj) obj {
		b := obj{"slug": "r", "limit": 10, "window": "1m"}
		for k, v := range change {
			b[k] = v
		}
		return b
	}
	long := strings.Repeat("x", 300)
	many := make([]string, 17)
	for i := range many {
		many[i] = fmt.Sprintf("attributes.a%d", i)
	}
	for name, c := range map[string]struct {
		body obj
		at   string
	}{
		"window 0s":              {base(obj{"window": "0s"}), "/window"},
		"window negative":        {base(obj{"window": "-1m"}), "/window"},
		"window 1ns":             {base(obj{"window": "1ns"}), "/window"},
		"window too long":        {base(obj{"window": "999999h"}), "/window"},
		"window exponent":        {base(obj{"window": "1e3s"}), "/window"},
		"window blank":           {base(obj{"window": " 1m"}), "/window"},
		"window number":          {base(obj{"window": 60}), "/window"},
		"window overflow":        {base(obj{"window": "99999999999999999999d"}), "/window"},
		"calendar elsewhere":     {base(obj{"window": "month"}), "/window"},
		"limit 0":                {base(obj{"limit": 0}), "/limit"},
		"limit 2^53":             {base(obj{"limit": 9007199254740992}), "/limit"},
		"limit fraction":         {base(obj{"limit": 1.5}), "/limit"},
		"limit text":             {base(obj{"limit": "10"}), "/limit"},
		"limit null":             {base(obj{"limit": nil}), "/limit"},
		"log limit":              {base(obj{"algorithm": "sliding_window_log", "limit": 1_000_000_000}), "/limit"},
		"burst 0":                {base(obj{"algorithm": "token_bucket", "burst": 0}), "/burst"},
		"burst -1":               {base(obj{"algorithm": "token_bucket", "burst": -1}), "/burst"},
		"burst elsewhere":        {base(obj{"burst": 5}), "/burst"},
		"burst never refills":    {base(obj{"algorithm": "token_bucket", "limit": 1, "window": "366d", "burst": 2}), "/burst"},
		"precision uneven":       {base(obj{"algorithm": "sliding_window_buckets", "precision": "7s"}), "/precision"},
		"precision too fine":     {base(obj{"algorithm": "sliding_window_buckets", "window": "30d", "precision": "1s"}), "/precision"},
		"precision missing":      {base(obj{"algorithm": "sliding_window_buckets"}), "/precision"},
		"precision elsewhere":    {base(obj{"precision": "1s"}), "/precision"},
		"penalty 100 years":      {base(obj{"penalty": "36500d"}), "/penalty"},
		"penalty no duration":    {base(obj{"penalty": "soon"}), "/penalty"},
		"algorithm unknown":      {base(obj{"algorithm": "gcra"}), "/algorithm"},
		"mode unknown":           {base(obj{"mode": "on"}), "/mode"},
		"on_unavailable unknown": {base(obj{"on_unavailable": "maybe"}), "/on_unavailable"},
		"consistency unknown":    {base(obj{"consistency": "loose"}), "/consistency"},
		"leased log":             {base(obj{"consistency": "leased", "algorithm": "sliding_window_log"}), "/consistency"},
		"leased queue":           {base(obj{"consistency": "leased", "algorithm": "leaky_bucket_queue"}), "/consistency"},
		"leased with a penalty":  {base(obj{"consistency": "leased", "penalty": "1m"}), "/consistency"},
		"resource pattern":       {base(obj{"resource": "a*b"}), "/resource"},
		"resource NUL":           {base(obj{"resource": "a\x00"}), "/resource"},
		"resource long":          {base(obj{"resource": long}), "/resource"},
		"name long":              {base(obj{"name": long}), "/name"},
		"by empty attribute":     {base(obj{"by": []string{"attributes."}}), "/by/0"},
		"by twice":               {base(obj{"by": []string{"subject", "subject"}}), "/by/1"},
		"by unknown":             {base(obj{"by": []string{"ip"}}), "/by/0"},
		"by 64 KiB":              {base(obj{"by": []string{"attributes." + strings.Repeat("x", 64<<10)}}), "/by/0"},
		"by 17":                  {base(obj{"by": many}), "/by"},
		"by text":                {base(obj{"by": "subject"}), "/by"},
		"slug missing":           {obj{"limit": 1, "window": "1s"}, "/slug"},
		"slug with slash":        {base(obj{"slug": "a/b"}), "/slug"},
		"slug long":              {base(obj{"slug": strings.Repeat("a", 64)}), "/slug"},
		"id":                     {base(obj{"id": "x"}), "/id"},
		"version":                {base(obj{"version": 1}), "/version"},
		"created_at":             {base(obj{"created_at": "2026-01-01T00:00:00Z"}), "/created_at"},
		"tenant_id":              {base(obj{"tenant_id": "x"}), "/tenant_id"},
		"other case":             {base(obj{"Name": "x"}), "/Name"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, []string{c.at}, s.in(t).call(s.key, http.MethodPost, "/v1/rules", c.body).pointers(422, codeInvalidRequest))
		})
	}
	require.Empty(t, s.call(s.key, http.MethodGet, "/v1/rules", nil).json()["items"])

	// All errors are reported at once.
	p := s.call(s.key, http.MethodPost, "/v1/rules", base(obj{"limit": 0, "window": "soon", "slug": "R"}))
	require.Equal(t, []string{"/limit", "/slug", "/window"}, p.pointers(422, codeInvalidRequest))

	readOnly := s.call(s.key, http.MethodPost, "/v1/rules", base(obj{"version": 1})).problem(422, codeInvalidRequest)
	require.Equal(t, "is read-only", readOnly.Errors[0].Message)
}

// A rule cannot be changed if the limit of a plan or an override would become invalid.
func TestRulePatch(t *testing.T) {
	s := newAdminStack(t)
	s.call(s.key, http.MethodPost, "/v1/rules", obj{
		"slug": "r", "name": "R", "algorithm": "token_bucket", "limit": 10, "burst": 20, "window": "60s", "by": []string{"subject", "resource"}, "penalty": "5s",
	}).ok(201)
	patch := func(body any, headers ...header) answer {
		return s.call(s.key, http.MethodPatch, "/v1/rules/r", body, headers...)
	}
	got := patch(obj{"limit": 11}, header{"Content-Type", "application/merge-patch+json"}).ok(200).json()
	require.InDelta(t, 11, got["limit"], 0)
	require.Equal(t, "60s", got["window"], "what a patch leaves out stays as it was written")
	require.InDelta(t, 20, got["burst"], 0)

	got = patch(obj{"burst": nil, "name": nil, "penalty": nil, "by": []string{"resource"}}).ok(200).json()
	require.Nil(t, got["burst"])
	require.Nil(t, got["penalty"])
	require.Equal(t, "r", got["name"], "null gives the default")
	require.Equal(t, []any{"resource"}, got["by"], "arrays are replaced")

	require.Equal(t, []string{"/limit", "/window"}, patch(obj{"limit": nil, "window": nil}).pointers(422, codeInvalidRequest))
	require.Equal(t, []string{"/limit"}, patch(obj{"limit": "11"}).pointers(422, codeInvalidRequest))
	require.Equal(t, []string{"/slug"}, patch(obj{"slug": "s"}).pointers(422, codeInvalidRequest))
	require.Equal(t, []string{"/version"}, patch(obj{"version": 3}).pointers(422, codeInvalidRequest))
	patch(obj{"slug": "r"}).ok(200)

	notTaken := patch(`[{"op":"replace","path":"/limit","value":3}]`, header{"Content-Type", "application/json-patch+json"})
	notTaken.problem(http.StatusUnsupportedMediaType, codeUnsupportedMediaType)
	require.Contains(t, notTaken.header.Get("Accept-Patch"), mergePatchType)
	patch(`[{"op":"replace","path":"/limit","value":3}]`).problem(422, codeInvalidRequest)

	s.call(s.key, http.MethodPut, "/v1/plans/pro", obj{"limits": obj{"r": obj{"limit": 100_000}}}).ok(201)
	require.Contains(t, patch(obj{"algorithm": "sliding_window_log"}).pointers(422, codeInvalidRequest), "/algorithm")
	require.Equal(t, "token_bucket", s.call(s.key, http.MethodGet, "/v1/rules/r", nil).json()["algorithm"])
}

func TestRulePutIsIdempotent(t *testing.T) {
	s := newAdminStack(t)
	body := obj{"limit": 10, "window": "1m", "description": "d"}
	first := s.call(s.key, http.MethodPut, "/v1/rules/r", body).ok(201)
	require.Equal(t, "/v1/rules/r", first.header.Get("Location"))
	again := s.call(s.key, http.MethodPut, "/v1/rules/r", body).ok(200)
	require.Equal(t, first.header.Get("ETag"), again.header.Get("ETag"), "nothing changed, so no version either")
	require.Empty(t, again.header.Get("Location"))
	// A PUT resets omitted fields to their defaults.
	third := s.call(s.key, http.MethodPut, "/v1/rules/r", obj{"slug": "r", "limit": 10, "window": "1m"}).ok(200)
	require.Empty(t, third.json()["description"])
	require.Equal(t, []string{"/slug"}, s.call(s.key, http.MethodPut, "/v1/rules/r", obj{"slug": "q", "limit": 10, "window": "1m"}).pointers(422, codeInvalidRequest))
	require.Equal(t, []string{"path:rule"}, s.call(s.key, http.MethodPut, "/v1/rules/Not-A-Slug", body).pointers(422, codeInvalidRequest))
	s.call(s.key, http.MethodDelete, "/v1/rules/r", nil).ok(204)
	s.call(s.key, http.MethodDelete, "/v1/rules/r", nil).problem(404, codeNotFound)
	s.call(s.key, http.MethodPatch, "/v1/rules/r", obj{"limit": 1}).problem(404, codeNotFound)
}

// A 33rd rule that matches one check is refused, because every check would pay for it.
func TestRulesMatchingOneCheck(t *testing.T) {
	s := newAdminStack(t)
	for i := range limit.MaxMatchingRules {
		s.call(s.key, http.MethodPut, fmt.Sprintf("/v1/rules/r-%d", i), obj{"limit": 1, "window": "1s"}).ok(201)
	}
	body := obj{"limit": 1, "window": "1s", "resource": "orders:*"}
	require.Equal(t, []string{"/resource"}, s.call(s.key, http.MethodPut, "/v1/rules/more", body).pointers(422, codeInvalidRequest))
	body["mode"] = "off"
	s.call(s.key, http.MethodPut, "/v1/rules/more", body).ok(201)
}
