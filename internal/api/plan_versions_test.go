package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// A new version applies to new customers only. A preview of a migration lists the subjects that it
// would deny immediately, with their usage and both limits. Then the migration moves the subjects,
// and reports its progress.
func TestPlanVersionsAndMigrations(t *testing.T) {
	s := newAdminStack(t)
	s.call(s.key, http.MethodPut, "/v1/rules/quota", obj{"limit": 5, "window": "1h", "algorithm": "fixed_window_first_hit"}).ok(201)
	s.call(s.key, http.MethodPut, "/v1/plans/free", obj{}).ok(201)
	s.call(s.key, http.MethodPut, "/v1/plans/pro", obj{"limits": obj{"quota": obj{"limit": 100}}}).ok(201)
	for _, subject := range []string{"heavy", "light"} {
		put := s.call(s.key, http.MethodPut, "/v1/subjects/"+subject, obj{"plan": "pro"}).ok(201).json()
		require.Equal(t, 1.0, put["plan_version"])
	}
	published := s.call(s.key, http.MethodPost, "/v1/plans/pro/versions", obj{"limits": obj{"quota": obj{"limit": 50}}}).ok(201)
	require.Equal(t, 2.0, published.json()["newest_version"])
	require.Equal(t, "/v1/plans/pro", published.header.Get("Location"))
	require.Equal(t, 2.0, s.call(s.key, http.MethodPut, "/v1/subjects/new", obj{"plan": "pro"}).ok(201).json()["plan_version"])
	s.call(s.key, http.MethodPut, "/v1/subjects/new", obj{"plan_version": 1}).problem(422, codeInvalidRequest)
	s.call(s.key, http.MethodPatch, "/v1/subjects/new", obj{"plan_version": 3}).problem(422, codeInvalidRequest)

	for subject, limit := range map[string]float64{"heavy": 100, "new": 50} {
		answer := s.call(s.key, http.MethodPost, "/v1/check", obj{"subject": subject, "cost": 10}).ok(200).json()
		require.Equal(t, limit, answer["limit"])
		require.Equal(t, "pro", answer["plan"])
	}
	s.call(s.key, http.MethodPost, "/v1/check", obj{"subject": "heavy", "cost": 70}).ok(200)

	// The same body with dry_run, and without.
	over := []any{obj{"subject": "heavy", "rule": "quota", "used": 80.0, "limit": 100.0, "new_limit": 50.0, "denied": false}}
	dry := s.call(s.key, http.MethodPost, "/v1/plans/pro/migrations", obj{"dry_run": true}).ok(200).json()
	require.Nil(t, dry["id"])
	require.Equal(t, 2.0, dry["subjects"])
	require.Equal(t, obj{"subjects": 2.0, "compared": 2.0, "over": over, "more_over": 0.0, "degraded": false}, dry["preview"])
	require.Empty(t, s.call(s.key, http.MethodGet, "/v1/plans/pro/migrations", nil).ok(200).json()["items"])

	made := s.call(s.key, http.MethodPost, "/v1/plans/pro/migrations", obj{}).ok(201)
	require.Equal(t, "running", made.json()["state"])
	for more := true; more; {
		var err error
		_, more, err = s.store.RunPlanMigrations(t.Context())
		require.NoError(t, err)
	}
	done := s.call(s.key, http.MethodGet, made.header.Get("Location"), nil).ok(200).json()
	require.Equal(t, []any{"done", 2.0, 2.0}, []any{done["state"], done["subjects"], done["moved"]})
	s.call(s.key, http.MethodPost, made.header.Get("Location")+"/cancel", nil).problem(409, codeMigrationEnded)
	versions := s.call(s.key, http.MethodGet, "/v1/plans/pro/versions", nil).ok(200).json()["items"].([]any)
	require.Equal(t, []any{3.0, 0.0}, []any{versions[0].(obj)["subjects"], versions[1].(obj)["subjects"]})
	s.call(s.key, http.MethodDelete, "/v1/plans/pro/versions/1", nil).ok(204)

	// A preview of a change of limits in place.
	preview := s.call(s.key, http.MethodPost, "/v1/plans/pro/preview", obj{"limits": obj{"quota": obj{"limit": 8}}}).ok(200).json()
	require.Equal(t, 3.0, preview["subjects"])
	require.Len(t, preview["over"], 2)

	// The list of scheduled changes shows the subjects that they would deny.
	s.call(s.key, http.MethodPatch, "/v1/subjects/heavy", obj{"next_plan": "free", "next_plan_at": "2999-01-01T00:00:00Z"}).ok(200)
	past := s.call(s.key, http.MethodPatch, "/v1/subjects/heavy", obj{"next_plan": "free", "next_plan_at": "2020-01-01T00:00:00Z"})
	require.Equal(t, []string{"/next_plan_at"}, past.pointers(422, codeInvalidRequest))
	for _, dry := range []bool{true, false} {
		at := s.call(s.key, http.MethodPost, "/v1/plans/pro/migrations", obj{"to": "free", "at": "2020-01-01T00:00:00Z", "dry_run": dry})
		require.Equal(t, []string{"/at"}, at.pointers(422, codeInvalidRequest))
	}
	changes := s.call(s.key, http.MethodGet, "/v1/plan-changes", nil).ok(200).json()["items"].([]any)
	require.Equal(t, 5.0, changes[0].(obj)["over"].([]any)[0].(obj)["new_limit"])
	require.Equal(t, 80.0, changes[0].(obj)["over"].([]any)[0].(obj)["used"])

	for body, pointer := range map[string]string{`{"at":"soon"}`: "/at", `{"to":""}`: "/to", `{"from_version":9}`: "/from_version"} {
		require.Equal(t, []string{pointer}, s.raw(http.MethodPost, "/v1/plans/pro/migrations", body).pointers(422, codeInvalidRequest))
	}
	cycle := s.call(s.key, http.MethodPost, "/v1/plans/pro/migrations", obj{"to": "free", "at": "cycle_end"}).ok(201)
	require.Equal(t, true, cycle.json()["at_cycle_end"])
	s.call(s.key, http.MethodPost, "/v1/plans/pro/migrations", obj{"to": "free"}).problem(409, codeMigrationRunning)
	require.Equal(t, "canceled", s.call(s.key, http.MethodPost, cycle.header.Get("Location")+"/cancel", nil).ok(200).json()["state"])
}

// A preview that finds no place is refused, whichever request runs it: its tenant has one place.
func TestPreviewsTakePlaces(t *testing.T) {
	s := newAdminStack(t)
	s.call(s.key, http.MethodPut, "/v1/rules/quota", obj{"limit": 5, "window": "1h"}).ok(201)
	s.call(s.key, http.MethodPut, "/v1/plans/pro", obj{}).ok(201)
	s.call(s.key, http.MethodPut, "/v1/plans/free", obj{}).ok(201)
	require.Empty(t, s.call(s.key, http.MethodGet, "/v1/plan-changes", nil).ok(200).json()["items"])
	next := obj{"plan": "pro", "next_plan": "free", "next_plan_at": "2999-01-01T00:00:00Z"}
	s.call(s.key, http.MethodPut, "/v1/subjects/ada", next).ok(201)
	previews := func() []answer {
		return []answer{
			s.call(s.key, http.MethodPost, "/v1/plans/pro/preview", obj{"limits": obj{"quota": obj{"limit": 1}}}),
			s.call(s.key, http.MethodPost, "/v1/plans/pro/migrations", obj{"dry_run": true, "to": "free"}),
			s.call(s.key, http.MethodGet, "/v1/plan-changes", nil),
		}
	}
	end, err := s.checker.BeginPreview(t.Context(), s.a.TenantID())
	require.NoError(t, err)
	for _, refused := range previews() {
		refused.problem(503, codeOverloaded)
		require.NotEmpty(t, refused.header.Get("Retry-After"))
	}
	end()
	for range 2 { // each leaves its place
		for _, done := range previews() {
			done.ok(200)
		}
	}
}

// An export with versions can be imported.
func TestConfigPlanVersions(t *testing.T) {
	s := newAdminStack(t)
	s.call(s.key, http.MethodPut, "/v1/rules/quota", obj{"limit": 5, "window": "1h"}).ok(201)
	s.call(s.key, http.MethodPut, "/v1/plans/pro", obj{"limits": obj{"quota": obj{"limit": 100}}}).ok(201)
	s.call(s.key, http.MethodPut, "/v1/subjects/old", obj{"plan": "pro"}).ok(201)
	s.call(s.key, http.MethodPost, "/v1/plans/pro/versions", obj{"limits": obj{"quota": obj{"limit": 50}}}).ok(201)
	s.call(s.key, http.MethodPut, "/v1/subjects/new", obj{"plan": "pro"}).ok(201)

	config := s.call(s.key, http.MethodGet, "/v1/config?subjects=true", nil).ok(200)
	plan := config.json()["plans"].([]any)[0].(obj)
	require.Equal(t, 2.0, plan["newest_version"])
	require.Equal(t, obj{"1": obj{"quota": obj{"limit": 100.0}}}, plan["older_versions"])
	body := config.json()
	delete(body, "tenant")
	s.call(s.other, http.MethodPut, "/v1/config", body).ok(200)
	again := s.call(s.other, http.MethodPut, "/v1/config?dry_run=true", body).ok(200).json()
	require.Empty(t, again["changes"])
	require.Equal(t, 1.0, s.call(s.other, http.MethodGet, "/v1/subjects/old", nil).ok(200).json()["plan_version"])
	require.Equal(t, 2.0, s.call(s.other, http.MethodGet, "/v1/subjects/new", nil).ok(200).json()["plan_version"])

	body["plans"].([]any)[0].(obj)["older_versions"] = obj{"one": obj{}, "1": obj{"quota": obj{"limit": 0}}}
	require.Equal(t, []string{"/plans/0/older_versions/1/quota/limit", "/plans/0/older_versions/one"},
		s.call(s.other, http.MethodPut, "/v1/config", body).pointers(422, codeInvalidRequest))

	// The same of a file of subjects.
	file := s.export(s.key, "?format=csv")
	require.Contains(t, file, "old,pro,active,,,,1,\r\n")
	s.call(s.other, http.MethodPatch, "/v1/subjects/old", obj{"plan_version": 2}).ok(200)
	require.Equal(t, 1.0, s.call(s.other, http.MethodPost, "/v1/bulk/subjects", file, header{"Content-Type", csvType}).ok(200).json()["updated"])
	require.Equal(t, 1.0, s.call(s.other, http.MethodGet, "/v1/subjects/old", nil).ok(200).json()["plan_version"])
	require.Equal(t, []string{"line:2/plan_version", "line:3/plan_version", "line:4/plan_version"},
		s.bulk("", csvType, "subject,plan,plan_version\na,pro,9\nb,,1\nc,pro,x\n").pointers(422, codeInvalidRequest))
}
