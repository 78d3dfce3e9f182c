package api

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/places"
)

func newSubjectStack(t *testing.T) *adminStack {
	s := newPlanStack(t)
	s.call(s.key, http.MethodPut, "/v1/plans/free", obj{}).ok(201)
	s.call(s.key, http.MethodPut, "/v1/plans/pro", obj{}).ok(201)
	return s
}

func TestSubjectLife(t *testing.T) {
	s := newSubjectStack(t)
	const path = "/v1/subjects/user_42"
	s.call(s.key, http.MethodGet, path, nil).problem(404, codeNotFound)
	bare := s.call(s.key, http.MethodPut, path, obj{}).ok(201)
	require.Equal(t, path, bare.header.Get("Location"))
	for field, want := range map[string]any{
		"subject": "user_42", "plan": nil, "state": "active", "labels": obj{}, "billing_ref": nil, "overrides": obj{},
	} {
		require.Equal(t, want, bare.json()[field], field)
	}
	full := obj{"subject": "user_42", "plan": "pro", "state": "exempt", "labels": obj{"team/region": "eu", "a.b": "<b>'; --"}, "billing_ref": "cus_1"}
	put := s.call(s.key, http.MethodPut, path, full).ok(200)
	for field, want := range full {
		require.Equal(t, want, put.json()[field], field)
	}
	require.Equal(t, put.header.Get("ETag"), s.call(s.key, http.MethodPut, path, full).ok(200).header.Get("ETag"), "nothing changed")

	patched := s.call(s.key, http.MethodPatch, path, obj{"plan": nil, "billing_ref": nil, "labels": obj{"a.b": nil, "new": "x"}}).ok(200).json()
	require.Nil(t, patched["plan"])
	require.Nil(t, patched["billing_ref"])
	require.Equal(t, "exempt", patched["state"])
	require.Equal(t, obj{"team/region": "eu", "new": "x"}, patched["labels"])
	patched = s.call(s.key, http.MethodPatch, path, obj{"labels": nil, "state": nil}).ok(200).json()
	require.Equal(t, obj{}, patched["labels"])
	require.Equal(t, "active", patched["state"])

	s.call(s.key, http.MethodPut, path+"/overrides/api", obj{"limit": 5}).ok(201)
	require.Contains(t, s.call(s.key, http.MethodPut, path, obj{}).ok(200).json()["overrides"], "api", "a PUT leaves overrides alone")
	s.call(s.key, http.MethodDelete, path, nil).ok(204)
	s.call(s.key, http.MethodPatch, path, obj{"state": "blocked"}).problem(404, codeNotFound)
	require.Equal(t, obj{}, s.call(s.key, http.MethodPut, path, obj{}).ok(201).json()["overrides"], "overrides go with their subject")
}

func TestSubjectRefusals(t *testing.T) {
	s := newSubjectStack(t)
	labels := obj{}
	for i := range 33 {
		labels[fmt.Sprintf("l%d", i)] = "x"
	}
	for name, c := range map[string]struct {
		body obj
		at   string
	}{
		"another subject":  {obj{"subject": "v"}, "/subject"},
		"unknown plan":     {obj{"plan": "gold"}, "/plan"},
		"empty plan":       {obj{"plan": ""}, "/plan"},
		"unknown state":    {obj{"state": "asleep"}, "/state"},
		"label name":       {obj{"labels": obj{"a b": "x"}}, "/labels"},
		"label value":      {obj{"labels": obj{"a": strings.Repeat("x", 257)}}, "/labels/a"},
		"label NUL":        {obj{"labels": obj{"a.b/c": "\x00"}}, "/labels/a.b~1c"},
		"label no text":    {obj{"labels": obj{"a.b": 5}}, "/labels/a.b"},
		"33 labels":        {obj{"labels": labels}, "/labels"},
		"billing_ref":      {obj{"billing_ref": strings.Repeat("x", 257)}, "/billing_ref"},
		"read-only":        {obj{"created_at": "2026-01-01T00:00:00Z"}, "/created_at"},
		"overrides in PUT": {obj{"overrides": obj{}}, "/overrides"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, []string{c.at}, s.in(t).call(s.key, http.MethodPut, "/v1/subjects/u", c.body).pointers(422, codeInvalidRequest))
		})
	}
	// The plan of another tenant is unknown, like one that does not exist.
	s.call(s.other, http.MethodPut, "/v1/plans/theirs", obj{}).ok(201)
	theirs := s.call(s.key, http.MethodPut, "/v1/subjects/u", obj{"plan": "theirs"}).problem(422, codeInvalidRequest)
	nobodys := s.call(s.key, http.MethodPut, "/v1/subjects/u", obj{"plan": "nobodys"}).problem(422, codeInvalidRequest)
	for i := range theirs.Errors { // apart from the name, which the request says
		theirs.Errors[i].Message = strings.ReplaceAll(theirs.Errors[i].Message, "theirs", "nobodys")
	}
	require.Equal(t, nobodys.Errors, theirs.Errors)
}

// A filter is text, whatever it contains (reliability row 51).
func TestSubjectSearch(t *testing.T) {
	s := newSubjectStack(t)
	for subject, body := range map[string]obj{
		"user-1": {"plan": "pro", "labels": obj{"team": "red", "eu": ""}}, "user-2": {"state": "blocked", "labels": obj{"team": "blue"}},
		"User-3": {}, "us%r": {}, "us_r": {"labels": obj{"odd": "a=b%_'"}}, `us\r`: {}, "us'r": {}, "us$$r": {"plan": "pro"},
	} {
		s.call(s.key, http.MethodPut, "/v1/subjects/"+url.PathEscape(subject), body).ok(201)
	}
	s.call(s.other, http.MethodPut, "/v1/subjects/user-of-b", obj{}).ok(201)
	for query, want := range map[string][]string{
		"prefix=user":                 {"user-1", "user-2"},
		"prefix=us%25":                {"us%r"},
		"prefix=us_":                  {"us_r"},
		"prefix=us%5C":                {`us\r`},
		"prefix=us%27":                {"us'r"},
		"prefix=us$$":                 {"us$$r"},
		"prefix=%27+OR+1%3D1":         {},
		"plan=pro":                    {"us$$r", "user-1"},
		"plan=gold":                   {},
		"state=blocked":               {"user-2"},
		"label=team":                  {"user-1", "user-2"},
		"label=team%3Dred":            {"user-1"},
		"label=team=blue":             {"user-2"},
		"label=eu=":                   {"user-1"},
		"label=odd=a%3Db%25_%27":      {"us_r"},
		"label=odd=a":                 {},
		"prefix=user&plan=pro":        {"user-1"},
		"plan=pro&state=blocked":      {},
		"prefix=user&label=team=blue": {"user-2"},
	} {
		var got []string
		for _, item := range s.call(s.key, http.MethodGet, "/v1/subjects?"+query, nil).ok(200).json()["items"].([]any) {
			got = append(got, item.(obj)["subject"].(string))
		}
		slices.Sort(got)
		require.ElementsMatch(t, want, got, query)
	}
	require.Equal(t, []string{"query:label"}, s.call(s.key, http.MethodGet, "/v1/subjects?label==red", nil).pointers(422, codeInvalidRequest))
}

// Overrides (reliability row 61).
func TestOverrides(t *testing.T) {
	s := newSubjectStack(t)
	const path = "/v1/subjects/user_42/overrides/api"
	s.call(s.key, http.MethodDelete, path, nil).problem(404, codeNotFound)
	made := s.call(s.key, http.MethodPut, path, obj{
		"limit": 5000, "reason": "<script>alert(1)</script>", "starts_at": "2026-01-01T02:00:00+02:00", "expires_at": "9999-12-31T23:59:59Z",
	}).ok(201)
	require.Equal(t, path, made.header.Get("Location"))
	for field, want := range map[string]any{
		"limit": 5000.0, "burst": nil, "unlimited": false, "reason": "<script>alert(1)</script>",
		"starts_at": "2026-01-01T00:00:00Z", "expires_at": "9999-12-31T23:59:59Z", "created_by": "key:first key",
	} {
		require.Equal(t, want, made.json()[field], field)
	}
	subject := s.call(s.key, http.MethodGet, "/v1/subjects/user_42", nil).ok(200)
	require.Equal(t, made.json(), subject.json()["overrides"].(obj)["api"], "an override registers its subject")
	require.Equal(t, made.header.Get("ETag"), subject.header.Get("ETag"))

	require.Equal(t, true, s.call(s.key, http.MethodPut, path, obj{"unlimited": true}, header{"If-Match", made.header.Get("ETag")}).ok(200).json()["unlimited"])
	s.call(s.key, http.MethodPut, path, obj{"limit": 1}, header{"If-Match", made.header.Get("ETag")}).problem(412, codePreconditionFailed)

	for name, c := range map[string]struct {
		body obj
		at   []string
	}{
		"nothing":          {obj{"reason": "x"}, []string{"/limit"}},
		"negative":         {obj{"limit": -1}, []string{"/limit"}},
		"over":             {obj{"limit": 1, "expires_at": "2020-01-01T00:00:00Z"}, []string{"/expires_at"}},
		"year 10000":       {obj{"limit": 1, "expires_at": "10000-01-01T00:00:00Z"}, []string{"/expires_at"}},
		"ends at start":    {obj{"limit": 1, "starts_at": "2998-01-01T00:00:00Z", "expires_at": "2998-01-01T00:00:00Z"}, []string{"/expires_at"}},
		"long reason":      {obj{"limit": 1, "reason": strings.Repeat("x", 501)}, []string{"/reason"}},
		"NUL in reason":    {obj{"limit": 1, "reason": "\x00"}, []string{"/reason"}},
		"unlimited and":    {obj{"limit": 1, "unlimited": true}, []string{"/unlimited"}},
		"created_by":       {obj{"limit": 1, "created_by": "me"}, []string{"/created_by"}},
		"number as a text": {obj{"limit": "1"}, []string{"/limit"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.at, s.in(t).call(s.key, http.MethodPut, path, c.body).pointers(422, codeInvalidRequest))
		})
	}
	s.call(s.key, http.MethodPut, "/v1/subjects/user_42/overrides/none", obj{"limit": 1}).problem(404, codeNotFound)
	s.call(s.key, http.MethodDelete, path, nil).ok(204)
	require.Equal(t, obj{}, s.call(s.key, http.MethodGet, "/v1/subjects/user_42", nil).ok(200).json()["overrides"])

	s.call(s.key, http.MethodPut, path, obj{"limit": 1}).ok(201)
	s.call(s.key, http.MethodDelete, "/v1/rules/api", nil).ok(204)
	s.call(s.key, http.MethodDelete, path, nil).problem(404, codeNotFound)
	require.Equal(t, obj{}, s.call(s.key, http.MethodGet, "/v1/subjects/user_42", nil).ok(200).json()["overrides"], "a deleted rule takes its overrides along")
}

// One override is read without the others of its subject, of which there may be a thousand: one
// that cannot be decoded does not matter.
func TestOneOverrideIsRead(t *testing.T) {
	s := newAdminStack(t)
	for _, rule := range []string{"wanted", "other"} {
		s.call(s.key, http.MethodPost, "/v1/rules", obj{"slug": rule, "limit": 1, "window": "1m"}).ok(201)
		s.call(s.key, http.MethodPut, "/v1/subjects/ada/overrides/"+rule, obj{"limit": 7}).ok(201)
	}
	s.db.Exec("UPDATE overrides SET created_at = 'infinity' WHERE rule_id = (SELECT id FROM rules WHERE slug = 'other')")
	require.EqualValues(t, 7, s.call(s.readKey, http.MethodGet, "/v1/subjects/ada/overrides/wanted", nil).ok(200).json()["limit"])
	for _, path := range []string{"ada/overrides/unknown", "bob/overrides/wanted", "ada/overrides/%00", "%00/overrides/wanted"} {
		require.NotEqual(t, http.StatusOK, s.call(s.readKey, http.MethodGet, "/v1/subjects/"+path, nil).status, path)
	}
}

// A subject may have a thousand overrides, so it takes a turn like a list.
func TestSubjectTakesTurns(t *testing.T) {
	t.Parallel()
	doc := mountAdmin(chi.NewRouter(), Deps{Logger: slog.New(slog.DiscardHandler), Processors: places.NewProcessors(2)})
	for _, path := range []string{"/v1/subjects/{subject}", "/v1/subjects"} {
		op := doc.Paths[path].Get
		require.Equal(t, true, op.Metadata[metaInTurns], path)
		require.Equal(t, true, op.Metadata[metaLarge], path)
	}
}
