package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// The fields of calendar windows are read back as they were sent, over all endpoints. Invalid
// values are refused with their field.
func TestCalendarFields(t *testing.T) {
	s := newAdminStack(t)
	monthly := obj{
		"slug": "monthly", "algorithm": "fixed_window", "limit": 10_000, "window": "year", "zone": "Europe/Berlin", "anchor": "subject", "resource": "m:*",
	}
	created := s.call(s.key, http.MethodPost, "/v1/rules", monthly).ok(201).json()
	for field, want := range map[string]any{"window": "year", "zone": "Europe/Berlin", "anchor": "subject"} {
		require.Equal(t, want, created[field], field)
	}
	require.Contains(t, string(s.call(s.key, http.MethodGet, "/v1/config?format=yaml", nil).ok(200).body), "    zone: Europe/Berlin\n    anchor: subject\n")
	trail := s.call(s.key, http.MethodGet, "/v1/audit?kind=rule&limit=1", nil).ok(200).json()["items"].([]any)[0].(obj)
	require.Equal(t, "Europe/Berlin", trail["after"].(obj)["zone"])

	with := func(field string, value any) obj {
		body := obj{"algorithm": "fixed_window", "limit": 5, "window": "month", "resource": "n:*"}
		body[field] = value
		return body
	}
	for pointer, body := range map[string]obj{
		"/zone":   with("zone", "Europe/Nowhere"),
		"/anchor": {"algorithm": "fixed_window", "limit": 5, "window": "month", "anchor": "subject", "by": []string{}},
	} {
		a := s.call(s.key, http.MethodPut, "/v1/rules/refused", body)
		require.Equal(t, []string{pointer}, a.pointers(422, codeInvalidRequest))
	}
	a := s.call(s.key, http.MethodPut, "/v1/rules/refused", obj{"limit": 5, "window": "1m", "zone": "Europe/Berlin", "anchor": "subject"})
	require.ElementsMatch(t, []string{"/zone", "/anchor"}, a.pointers(422, codeInvalidRequest), "only calendar windows have them")
	utc := s.call(s.key, http.MethodPut, "/v1/rules/plain", with("name", "Plain")).ok(201).json()
	require.Equal(t, []any{"UTC", "calendar"}, []any{utc["zone"], utc["anchor"]})
}

// A cycle anchor is stored with milliseconds, and null removes it.
func TestCycleAnchor(t *testing.T) {
	s := newAdminStack(t)
	put := s.call(s.key, http.MethodPut, "/v1/subjects/ada", obj{"cycle_anchor": "2026-01-31T09:30:00.123456+01:00"}).ok(201).json()
	require.Equal(t, "2026-01-31T08:30:00.123Z", put["cycle_anchor"])
	same := s.call(s.key, http.MethodPatch, "/v1/subjects/ada", obj{"cycle_anchor": "2026-01-31T08:30:00.123Z"}).ok(200).json()
	require.Equal(t, put["version"], same["version"])
	require.Nil(t, s.call(s.key, http.MethodPatch, "/v1/subjects/ada", obj{"cycle_anchor": nil}).ok(200).json()["cycle_anchor"])
	a := s.call(s.key, http.MethodPut, "/v1/subjects/ada", obj{"cycle_anchor": "tomorrow"})
	require.Equal(t, []string{"/cycle_anchor"}, a.pointers(422, codeInvalidRequest))
}

// A plan change is scheduled, listed, moved and cancelled with the fields of the subject.
func TestNextPlan(t *testing.T) {
	s := newAdminStack(t)
	for _, plan := range []string{"basic", "gold"} {
		s.call(s.key, http.MethodPut, "/v1/plans/"+plan, obj{"on_change": "scale"}).ok(201)
	}
	put := s.call(s.key, http.MethodPut, "/v1/subjects/ada", obj{
		"plan": "gold", "cycle_anchor": "2020-01-31T09:30:00Z", "next_plan": "basic", "next_plan_at": "2999-01-01T00:00:00+01:00",
	}).ok(201).json()
	require.Equal(t, []any{"basic", "2998-12-31T23:00:00Z"}, []any{put["next_plan"], put["next_plan_at"]})
	changes := func() []any {
		return s.call(s.key, http.MethodGet, "/v1/plan-changes", nil).ok(200).json()["items"].([]any)
	}
	require.Equal(t, []any{obj{
		"subject": "ada", "plan": "gold", "plan_version": 1.0, "next_plan": "basic", "at": "2998-12-31T23:00:00Z", "over": []any{}, "billing_event": nil,
	}}, changes())
	moved := s.call(s.key, http.MethodPatch, "/v1/subjects/ada", obj{"next_plan_at": "cycle_end"}).ok(200).json()
	require.Regexp(t, `^2\d\d\d-\d\d-(28|29|30|31)T09:30:00Z$`, moved["next_plan_at"])
	canceled := s.call(s.key, http.MethodPatch, "/v1/subjects/ada", obj{"next_plan": nil}).ok(200).json()
	require.Equal(t, []any{nil, nil, "gold"}, []any{canceled["next_plan"], canceled["next_plan_at"], canceled["plan"]})
	require.Empty(t, changes())
	for pointer, body := range map[string]obj{
		"/next_plan":    {"next_plan": "silver", "next_plan_at": "2999-01-01T00:00:00Z"},
		"/next_plan_at": {"next_plan": "basic", "next_plan_at": "tomorrow"},
	} {
		a := s.call(s.key, http.MethodPatch, "/v1/subjects/ada", body)
		require.Equal(t, []string{pointer}, a.pointers(422, codeInvalidRequest))
	}
	a := s.call(s.key, http.MethodPatch, "/v1/subjects/ada", obj{"next_plan": "basic"})
	require.Equal(t, []string{"/next_plan_at"}, a.pointers(422, codeInvalidRequest))
}
