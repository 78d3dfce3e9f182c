package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

func newPlanStack(t *testing.T) *adminStack {
	s := newAdminStack(t)
	s.call(s.key, http.MethodPut, "/v1/rules/api", obj{"limit": 10, "window": "1m"}).ok(201)
	s.call(s.key, http.MethodPut, "/v1/rules/bucket", obj{"algorithm": "token_bucket", "limit": 10, "window": "1s", "burst": 20}).ok(201)
	return s
}

func number(limit, burst any, unlimited bool) obj {
	return obj{"limit": limit, "burst": burst, "unlimited": unlimited, "warn_at": nil, "overage": nil, "metering": nil}
}

// warnedAt adds a share to a limit.
func warnedAt(share any, limit obj) obj {
	limit["warn_at"] = share
	return limit
}

// The limit of a plan, also an unlimited one, can say which units of its subjects are metered, in
// place of the rule.
func TestPlanLimitMetering(t *testing.T) {
	s := newPlanStack(t)
	s.call(s.key, http.MethodPut, "/v1/rules/api", obj{"limit": 10, "window": "1m", "metering": "units"}).ok(200)
	const path = "/v1/plans/pro/limits/api"
	s.call(s.key, http.MethodPut, "/v1/plans/pro", obj{"limits": obj{"api": obj{"limit": 100, "metering": "none"}}}).ok(201)
	metering := func() any { return s.call(s.key, http.MethodGet, path, nil).ok(200).json()["metering"] }
	patch := func(limit obj) answer {
		return s.call(s.key, http.MethodPatch, "/v1/plans/pro", obj{"limits": obj{"api": limit}})
	}
	require.Equal(t, "none", metering())
	patch(obj{"limit": 200}).ok(200)
	require.Equal(t, "none", metering())
	patch(obj{"limit": nil, "unlimited": true, "metering": "units"}).ok(200)
	require.Equal(t, "units", metering())
	require.Equal(t, []string{"/limits/api/metering"}, patch(obj{"metering": "some"}).pointers(422, codeInvalidRequest))

	// The configuration document has it, and the version that subjects keep.
	s.call(s.key, http.MethodPut, "/v1/subjects/kept", obj{"plan": "pro"}).ok(201)
	s.call(s.key, http.MethodPost, "/v1/plans/pro/versions", obj{"limits": obj{"api": obj{"limit": 5, "unlimited": false, "metering": "overage"}}}).ok(201)
	document := s.call(s.key, http.MethodGet, "/v1/config", nil).ok(200)
	require.Contains(t, string(document.body), `"metering": "overage"`)
	plan := document.json()["plans"].([]any)[0].(obj)
	require.Equal(t, obj{"unlimited": true, "metering": "units"}, plan["older_versions"].(obj)["1"].(obj)["api"])
	patch(obj{"metering": nil}).ok(200)
	require.Nil(t, metering())
	s.call(s.key, http.MethodPut, "/v1/config", document.json()).ok(200)
	require.Equal(t, "overage", metering())
}

// A plan can allow more than its limit of rules that can count the excess. A change of a rule that
// could no longer count it is refused.
func TestPlanLimitOverage(t *testing.T) {
	s := newPlanStack(t)
	s.call(s.key, http.MethodPut, "/v1/rules/log", obj{"algorithm": "sliding_window_log", "limit": 10, "window": "1m"}).ok(201)
	s.call(s.key, http.MethodPut, "/v1/rules/strict", obj{"limit": 10, "window": "1m", "penalty": "5m"}).ok(201)
	s.call(s.key, http.MethodPut, "/v1/rules/leased", obj{"limit": 10, "window": "1m", "consistency": "leased"}).ok(201)
	s.call(s.key, http.MethodPut, "/v1/plans/pro", obj{"limits": obj{"api": obj{"limit": 100, "overage": "allow"}}}).ok(201)
	limits := func() any {
		return s.call(s.key, http.MethodGet, "/v1/plans/pro", nil).ok(200).json()["limits"].(obj)["api"].(obj)["overage"]
	}
	patch := func(limit obj) answer {
		return s.call(s.key, http.MethodPatch, "/v1/plans/pro", obj{"limits": obj{"api": limit}})
	}
	require.Equal(t, "allow", limits())
	patch(obj{"limit": 200}).ok(200)
	require.Equal(t, "allow", limits())
	require.Equal(t, []string{"/limits/api/overage"}, patch(obj{"unlimited": true, "limit": nil}).pointers(422, codeInvalidRequest))
	for _, rule := range []string{"bucket", "log", "strict", "leased"} {
		require.Equal(t, []string{"/overage"},
			s.call(s.key, http.MethodPut, "/v1/plans/pro/limits/"+rule, obj{"limit": 5, "overage": "allow"}).pointers(422, codeInvalidRequest), rule)
		s.call(s.key, http.MethodPut, "/v1/plans/pro/limits/"+rule, obj{"limit": 5, "overage": "deny"}).ok(201)
	}
	require.Equal(t, []string{"/overage"}, s.call(s.key, http.MethodPut, "/v1/plans/pro/limits/api", obj{"limit": 5, "overage": "yes"}).pointers(422, codeInvalidRequest))

	edit := func(body obj) answer { return s.call(s.key, http.MethodPatch, "/v1/rules/api", body) }
	for field, value := range map[string]string{"algorithm": "sliding_window_log", "penalty": "5m", "consistency": "leased"} {
		require.Equal(t, []string{"/" + field}, edit(obj{field: value}).pointers(422, codeInvalidRequest))
		document := s.call(s.key, http.MethodGet, "/v1/config", nil).ok(200).json()
		rule := document["rules"].([]any)[0].(obj)
		rule[field] = value
		if field == "algorithm" {
			delete(rule, "overage")
		}
		require.Equal(t, []string{"/rules/0/" + field},
			s.call(s.key, http.MethodPut, "/v1/config", obj{"rules": document["rules"]}).pointers(422, codeInvalidRequest))
	}
	patch(obj{"overage": nil}).ok(200)
	require.Nil(t, limits())
	require.Equal(t, "deny", s.call(s.key, http.MethodGet, "/v1/rules/api", nil).ok(200).json()["overage"])
	require.Nil(t, s.call(s.key, http.MethodGet, "/v1/rules/bucket", nil).ok(200).json()["overage"])
	edit(obj{"overage": "allow"}).ok(200)
	require.Equal(t, []string{"/overage"}, edit(obj{"penalty": "5m"}).pointers(422, codeInvalidRequest))
	document := s.call(s.key, http.MethodGet, "/v1/config", nil).ok(200).json()
	require.Equal(t, "allow", document["rules"].([]any)[0].(obj)["overage"])
	require.Empty(t, s.call(s.key, http.MethodPut, "/v1/config?dry_run=true", document).ok(200).json()["changes"])
	trail := s.call(s.key, http.MethodGet, "/v1/audit?limit=1", nil).ok(200).json()["items"].([]any)[0].(obj)
	require.Equal(t, []any{obj{"overage": nil}, obj{"overage": "allow"}}, []any{trail["before"], trail["after"]})
}

// The share of a warning belongs to the limit of a plan, and can be set, merged and removed.
func TestPlanLimitWarnAt(t *testing.T) {
	s := newPlanStack(t)
	s.call(s.key, http.MethodPut, "/v1/plans/pro", obj{"limits": obj{"api": obj{"limit": 100, "warn_at": 0.8}}}).ok(201)
	limits := func() any { return s.call(s.key, http.MethodGet, "/v1/plans/pro", nil).ok(200).json()["limits"] }
	patch := func(limit any) answer {
		return s.call(s.key, http.MethodPatch, "/v1/plans/pro", obj{"limits": obj{"api": limit}})
	}
	require.Equal(t, obj{"api": warnedAt(0.8, number(100.0, nil, false))}, limits())
	patch(obj{"limit": 200}).ok(200)
	require.Equal(t, obj{"api": warnedAt(0.8, number(200.0, nil, false))}, limits())
	require.Equal(t, []string{"/limits/api/warn_at"}, patch(obj{"unlimited": true, "limit": nil}).pointers(422, codeInvalidRequest))
	patch(obj{"warn_at": 0.3333}).ok(200)
	require.Equal(t, obj{"api": warnedAt(0.3333, number(200.0, nil, false))}, limits())
	patch(obj{"warn_at": 0}).ok(200)
	require.Equal(t, obj{"api": warnedAt(0.0, number(200.0, nil, false))}, limits())
	patch(obj{"warn_at": nil}).ok(200)
	require.Equal(t, obj{"api": number(200.0, nil, false)}, limits())

	const path = "/v1/plans/pro/limits/api"
	require.Equal(t, warnedAt(1.0, number(5.0, nil, false)), s.call(s.key, http.MethodPut, path, obj{"limit": 5, "warn_at": 1}).ok(200).json())
	for _, one := range []string{"1.0", "1e0", "0.1e1"} { // as some encoders write it
		s.call(s.key, http.MethodPut, path, `{"limit":5,"warn_at":`+one+`}`).ok(200)
		s.call(s.key, http.MethodPut, path, `{"limit":`+one+`}`).pointers(422, codeInvalidRequest)
	}
	for _, share := range []any{-0.1, 1.1, 80, 0.33333, "0.8", true} {
		require.Equal(t, []string{"/warn_at"}, s.call(s.key, http.MethodPut, path, obj{"limit": 5, "warn_at": share}).pointers(422, codeInvalidRequest), share)
	}
	s.call(s.key, http.MethodPut, "/v1/subjects/u/overrides/api", obj{"limit": 5, "warn_at": 0.5}).pointers(422, codeInvalidRequest)

	// The newest version keeps the share when it becomes an older one, and the document has both.
	s.call(s.key, http.MethodPost, "/v1/plans/pro/versions", obj{"limits": obj{"api": obj{"warn_at": 0.9}}}).ok(201)
	require.Equal(t, obj{"api": warnedAt(1.0, number(5.0, nil, false))},
		s.call(s.key, http.MethodGet, "/v1/plans/pro/versions", nil).ok(200).json()["items"].([]any)[1].(obj)["limits"])
	s.call(s.key, http.MethodPut, "/v1/rules/api", obj{"limit": 10, "window": "1m", "warn_at": 0.25}).ok(200)
	document := s.call(s.key, http.MethodGet, "/v1/config", nil).ok(200).json()
	plan := document["plans"].([]any)[0].(obj)
	require.Equal(t, obj{"api": obj{"limit": 5.0, "warn_at": 0.9}}, plan["limits"])
	require.Equal(t, obj{"1": obj{"api": obj{"limit": 5.0, "warn_at": 1.0}}}, plan["older_versions"])
	require.Equal(t, 0.25, document["rules"].([]any)[0].(obj)["warn_at"])
	dryRun := func(document obj) []any {
		return s.call(s.key, http.MethodPut, "/v1/config?dry_run=true", document).ok(200).json()["changes"].([]any)
	}
	require.Empty(t, dryRun(document))
	asText := string(s.call(s.key, http.MethodGet, "/v1/config?format=yaml", nil).ok(200).body)
	require.Contains(t, asText, "warn_at: 0.25")
	require.Empty(t, s.call(s.key, http.MethodPut, "/v1/config?dry_run=true", asText, asYAML).ok(200).json()["changes"])
	plan["limits"].(obj)["api"].(obj)["warn_at"] = 0.5
	changes := dryRun(document)
	require.Len(t, changes, 1)
	require.Contains(t, changes[0].(obj)["text"], "warn_at")
	trail := s.call(s.key, http.MethodGet, "/v1/audit?limit=1", nil).ok(200).json()["items"].([]any)[0].(obj)
	require.Equal(t, obj{"warn_at": nil}, trail["before"])
	require.Equal(t, obj{"warn_at": 0.25}, trail["after"])
}

func TestPlanLife(t *testing.T) {
	s := newPlanStack(t)
	made := s.call(s.key, http.MethodPost, "/v1/plans", obj{"slug": "free", "limits": obj{"api": obj{"limit": 100}}}).ok(201)
	require.Equal(t, "/v1/plans/free", made.header.Get("Location"))
	free := made.json()
	require.Equal(t, true, free["default"], "a tenant's first plan is its default")
	require.Equal(t, "free", free["name"])
	require.Equal(t, obj{"api": number(100.0, nil, false)}, free["limits"])
	s.call(s.key, http.MethodPost, "/v1/plans", obj{"slug": "free"}).problem(409, codeSlugTaken)

	pro := s.call(s.key, http.MethodPut, "/v1/plans/pro", obj{
		"name": "Pro", "default": true, "limits": obj{"api": obj{"unlimited": true}, "bucket": obj{"limit": 50, "burst": 60}},
	}).ok(201).json()
	require.Equal(t, true, pro["default"])
	require.Equal(t, obj{"api": number(nil, nil, true), "bucket": number(50.0, 60.0, false)}, pro["limits"])
	require.Equal(t, false, s.call(s.key, http.MethodGet, "/v1/plans/free", nil).ok(200).json()["default"], "there is one default plan")

	// A patch merges limits; a PUT replaces them.
	limits := func(a answer) any { return a.ok(200).json()["limits"] }
	patch := func(body obj) answer { return s.call(s.key, http.MethodPatch, "/v1/plans/pro", body) }
	require.Equal(t, obj{"bucket": number(70.0, 60.0, false)}, limits(patch(obj{"limits": obj{"api": nil, "bucket": obj{"limit": 70}}})))
	require.Equal(t, obj{"bucket": number(70.0, nil, false)}, limits(patch(obj{"limits": obj{"bucket": obj{"burst": nil}}})))
	require.Equal(t, obj{"bucket": number(70.0, nil, false)}, limits(patch(obj{"name": "Professional"})))
	require.Equal(t, obj{}, limits(patch(obj{"limits": nil})))
	require.Equal(t, obj{"api": number(1.0, nil, false)}, limits(s.call(s.key, http.MethodPut, "/v1/plans/pro", obj{"limits": obj{"api": obj{"limit": 1}}})))
	require.Equal(t, obj{}, limits(s.call(s.key, http.MethodPut, "/v1/plans/pro", obj{})))

	// A plan with subjects cannot be deleted (reliability row 62).
	s.call(s.key, http.MethodDelete, "/v1/plans/pro", nil).problem(409, codeDefaultPlan)
	patch(obj{"default": false}).problem(409, codeDefaultPlan)
	s.call(s.key, http.MethodPut, "/v1/subjects/u", obj{"plan": "free"}).ok(201)
	s.call(s.key, http.MethodDelete, "/v1/plans/free", nil).problem(409, codePlanInUse)
	s.call(s.key, http.MethodDelete, "/v1/subjects/u", nil).ok(204)
	s.call(s.key, http.MethodDelete, "/v1/plans/free", nil).ok(204)
	s.call(s.key, http.MethodDelete, "/v1/plans/pro", nil).ok(204)
	require.Equal(t, []any{}, s.call(s.key, http.MethodGet, "/v1/plans", nil).ok(200).json()["items"])
}

func TestPlanLimits(t *testing.T) {
	s := newPlanStack(t)
	plan := s.call(s.key, http.MethodPut, "/v1/plans/pro", obj{}).ok(201)
	const path = "/v1/plans/pro/limits/api"
	put := s.call(s.key, http.MethodPut, path, obj{"limit": 500}, header{"If-Match", plan.header.Get("ETag")}).ok(201)
	require.Equal(t, path, put.header.Get("Location"))
	require.Equal(t, number(500.0, nil, false), put.json())
	require.Equal(t, put.header.Get("ETag"), s.call(s.key, http.MethodGet, "/v1/plans/pro", nil).ok(200).header.Get("ETag"), "a limit is a part of its plan")
	require.Equal(t, number(nil, nil, true), s.call(s.key, http.MethodPut, path, obj{"unlimited": true, "limit": nil}).ok(200).json())
	s.call(s.key, http.MethodPut, path, obj{"limit": 1}, header{"If-Match", plan.header.Get("ETag")}).problem(412, codePreconditionFailed)

	for name, c := range map[string]struct {
		path string
		body obj
		at   []string
	}{
		"nothing":         {path, obj{}, []string{"/limit"}},
		"0":               {path, obj{"limit": 0}, []string{"/limit"}},
		"negative":        {path, obj{"limit": -5}, []string{"/limit"}},
		"2^53":            {path, obj{"limit": 9007199254740992}, []string{"/limit"}},
		"burst elsewhere": {path, obj{"limit": 5, "burst": 6}, []string{"/burst"}},
		"burst 0":         {"/v1/plans/pro/limits/bucket", obj{"limit": 5, "burst": 0}, []string{"/burst"}},
		"both":            {path, obj{"limit": 5, "unlimited": true}, []string{"/unlimited"}},
		"rule":            {path, obj{"limit": 5, "rule": "api"}, []string{"/rule"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.at, s.in(t).call(s.key, http.MethodPut, c.path, c.body).pointers(422, codeInvalidRequest))
		})
	}
	s.call(s.key, http.MethodPut, "/v1/plans/none/limits/api", obj{"limit": 1}).problem(404, codeNotFound)
	s.call(s.key, http.MethodPut, "/v1/plans/pro/limits/none", obj{"limit": 1}).problem(404, codeNotFound)
	s.call(s.key, http.MethodDelete, path, nil).ok(204)
	s.call(s.key, http.MethodDelete, path, nil).problem(404, codeNotFound)

	require.Equal(t, []string{"/limits/api/burst", "/limits/bucket/limit"},
		s.call(s.key, http.MethodPut, "/v1/plans/pro", obj{"limits": obj{"api": obj{"limit": 1, "burst": 1}, "bucket": obj{"limit": -1}}}).pointers(422, codeInvalidRequest))
	require.Equal(t, []string{"/limits/api/limit"},
		s.call(s.key, http.MethodPatch, "/v1/plans/pro", obj{"limits": obj{"api": obj{"limit": 0}}}).pointers(422, codeInvalidRequest))
	require.Equal(t, []string{"/limits/api/version"},
		s.call(s.key, http.MethodPut, "/v1/plans/pro", obj{"limits": obj{"api": obj{"limit": 1, "version": 2}}}).pointers(422, codeInvalidRequest))
	require.Equal(t, []string{"/limits/api"},
		s.call(s.key, http.MethodPut, "/v1/plans/pro", obj{"limits": obj{"api": 5}}).pointers(422, codeInvalidRequest))
	require.Equal(t, []string{"path:plan"}, s.call(s.key, http.MethodPut, "/v1/plans/PRO", obj{}).pointers(422, codeInvalidRequest))
	require.Equal(t, []string{"/id"}, s.call(s.key, http.MethodPost, "/v1/plans", obj{"slug": "x", "id": "x"}).pointers(422, codeInvalidRequest))
}
