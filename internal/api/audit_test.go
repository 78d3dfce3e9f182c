package api

import (
	"encoding/csv"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

func (s *adminStack) audit(key, query string) answer {
	s.t.Helper()
	return s.call(key, http.MethodGet, "/v1/audit?"+query, nil)
}

// auditNames are the rows of a page, newest first, as "ACTION TARGET".
func auditNames(a answer) (names []string) {
	a.ok(http.StatusOK)
	for _, item := range items(a) {
		names = append(names, item["action"].(string)+" "+item["target"].(string))
	}
	return names
}

func init() { // the decoder that checks answers against the document has to be told what is only text
	openapi3filter.RegisterBodyDecoder(jsonLinesType, openapi3filter.PlainBodyDecoder)
	openapi3filter.RegisterBodyDecoder(streamType, openapi3filter.PlainBodyDecoder)
}

// Changes can be found by each of the filters, and only by the tenant itself.
func TestAudit(t *testing.T) {
	s := newAdminStack(t)
	agent := header{"User-Agent", "tests/1"}
	forwarded := header{"X-Forwarded-For", "198.51.100.1"}
	s.call(s.key, http.MethodPost, "/v1/rules", obj{"slug": "r", "limit": 5, "window": "1m"}, agent, forwarded).ok(201)
	change := s.call(s.key, http.MethodPatch, "/v1/rules/r", obj{"limit": 6}, agent).ok(200)
	s.call(s.key, http.MethodPatch, "/v1/rules/r", obj{"limit": 6}).ok(200)
	s.call(s.key, http.MethodPut, "/v1/subjects/=cmd/overrides/r", obj{"limit": 9, "reason": "+trial"}).ok(201)
	s.call(s.key, http.MethodPost, "/v1/subjects/=cmd/reset", obj{"reason": "our mistake"}).ok(200)
	s.call(s.key, http.MethodDelete, "/v1/rules/r", nil).ok(204)
	s.call(s.other, http.MethodPost, "/v1/rules", obj{"slug": "theirs", "limit": 5, "window": "1m"}).ok(201)

	mine := []string{"delete r", "reset =cmd", "create =cmd", "update r", "create r"}
	require.Equal(t, mine, auditNames(s.audit(s.readKey, "actor=first+key")))
	require.Equal(t, []string{"delete r", "update r", "create r"}, auditNames(s.audit(s.readKey, "kind=rule")))
	require.Equal(t, []string{"reset =cmd"}, auditNames(s.audit(s.readKey, "action=reset")))
	require.Equal(t, []string{"reset =cmd", "create =cmd"}, auditNames(s.audit(s.readKey, "target="+url.QueryEscape("=cmd"))))
	now := url.QueryEscape(time.Now().Add(time.Minute).Format(time.RFC3339))
	require.Empty(t, auditNames(s.audit(s.readKey, "from="+now)))
	require.Equal(t, mine, auditNames(s.audit(s.readKey, "to="+now+"&actor=first+key")))
	require.Equal(t, []string{"create theirs"}, auditNames(s.audit(s.other, "kind=rule")))

	row := items(s.audit(s.readKey, "action=update"))[0]
	require.Equal(t, obj{"limit": 5.0}, row["before"])
	require.Equal(t, obj{"limit": 6.0}, row["after"])
	require.Equal(t, "127.0.0.1", row["address"], "the connection's, whatever headers say")
	require.Equal(t, "tests/1", row["user_agent"])
	require.Equal(t, change.header.Get("X-Request-Id"), row["request_id"])
	actor := row["actor"].(obj)
	require.Equal(t, "key", actor["kind"])
	require.Equal(t, mine, auditNames(s.audit(s.readKey, "actor="+actor["id"].(string))))
	require.Equal(t, "our mistake", items(s.audit(s.readKey, "action=reset"))[0]["reason"])

	var paged []string
	for query := "actor=first+key&limit=2"; ; {
		page := s.audit(s.readKey, query)
		paged = append(paged, auditNames(page)...)
		cursor, more := page.json()["next_cursor"].(string)
		if !more {
			break
		}
		s.audit(s.readKey, "limit=2&cursor="+cursor).problem(400, codeInvalidCursor)
		query = "actor=first+key&limit=2&cursor=" + cursor
	}
	require.Equal(t, mine, paged)

	for query, pointer := range map[string]string{
		"from=yesterday": "query:from", "format=xml": "query:format", "action=forge": "query:action", "actor=%01": "query:actor", "format=csv&cursor=x": "query:cursor",
	} {
		require.Equal(t, []string{pointer}, s.audit(s.readKey, query).pointers(422, codeInvalidRequest), query)
	}
}

// Exports contain all rows of the list, and no cell that a spreadsheet would execute.
func TestAuditExport(t *testing.T) {
	s := newAdminStack(t)
	const subjects = 1010 // more than are read at once
	for i := range subjects {
		name := "s" + itoa(int64(i))
		if i == 0 {
			name = `=HYPERLINK("http://x")`
		}
		_, _, err := s.store.PutSubject(t.Context(), s.a, tenants.Subject{Subject: name}, tenants.Match{})
		require.NoError(t, err)
	}
	table := s.audit(s.readKey, "format=csv&kind=subject").ok(200)
	require.Equal(t, "text/csv; charset=utf-8", table.header.Get("Content-Type"))
	require.Equal(t, `attachment; filename="audit.csv"`, table.header.Get("Content-Disposition"))
	rows, err := csv.NewReader(strings.NewReader(string(table.body))).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, subjects+1)
	require.Equal(t, "target", rows[0][11])
	require.Equal(t, "s"+itoa(subjects-1), rows[1][11], "newest first")
	require.Equal(t, `'=HYPERLINK("http://x")`, rows[subjects][11])

	lines := s.audit(s.readKey, "format=jsonl").ok(200)
	require.Equal(t, "application/jsonl", lines.header.Get("Content-Type"))
	decoder := json.NewDecoder(strings.NewReader(string(lines.body)))
	var last struct {
		Sequence int64
		Target   string
	}
	n := 0
	for ; decoder.More(); n++ {
		require.NoError(t, decoder.Decode(&last))
	}
	require.Equal(t, subjects+1+1+3, n, "with the tenant and its keys")
	require.EqualValues(t, 1, last.Sequence)
	require.Equal(t, "tenant-a", last.Target)
}

// A trail that was changed in the database is reported, with the position.
func TestAuditVerify(t *testing.T) {
	s := newAdminStack(t)
	verify := func(query string) obj {
		t.Helper()
		return s.call(s.readKey, http.MethodGet, "/v1/audit/verify"+query, nil).ok(200).json()
	}
	verified := verify("")
	require.Equal(t, true, verified["valid"])
	require.EqualValues(t, 5, verified["rows"])
	require.Nil(t, verified["broken_at"])
	head, _ := verified["head"].(string)
	require.True(t, strings.HasPrefix(head, "5:"), head)
	s.call(s.key, http.MethodPost, "/v1/plans", obj{"slug": "p"}).ok(201)
	require.Equal(t, true, verify("?head=" + head)["valid"])

	// A long trail is verified in parts, and each answer says where the next one begins.
	part := verify("?limit=4")
	require.Nil(t, part["valid"], "nobody knows yet")
	require.Equal(t, false, part["complete"])
	require.EqualValues(t, 4, part["rows"])
	require.Nil(t, part["head"])
	rest := verify("?from=" + part["verified_to"].(string))
	require.Equal(t, true, rest["valid"])
	require.Equal(t, true, rest["complete"])
	require.EqualValues(t, 2, rest["rows"])
	require.Equal(t, part["verified_to"], rest["from"])
	require.Equal(t, rest["verified_to"], rest["head"])
	require.Equal(t, []string{"query:from", "query:head"},
		s.call(s.readKey, http.MethodGet, "/v1/audit/verify?from=4&head=x", nil).pointers(422, codeInvalidRequest))

	s.db.Exec("DELETE FROM audit WHERE tenant_id = $1 AND sequence > 4", s.a.TenantID())
	s.db.Exec("UPDATE audit_heads h SET sequence = 4, hash = a.hash FROM audit a WHERE h.tenant_id = $1 AND a.tenant_id = $1 AND a.sequence = 4", s.a.TenantID())
	require.Equal(t, true, verify("")["valid"], "valid in itself")
	cut := verify("?head=" + head)
	require.Equal(t, false, cut["valid"])
	require.EqualValues(t, 5, cut["broken_at"])
	s.db.Exec("UPDATE audit SET actor_name = 'somebody else' WHERE tenant_id = $1 AND sequence = 2", s.a.TenantID())
	forged := verify("")
	require.Equal(t, false, forged["valid"])
	require.EqualValues(t, 2, forged["broken_at"])
	require.EqualValues(t, 1, forged["rows"])
	require.NotEmpty(t, forged["problem"])
}

// If the audit row of a reset cannot be written, the reset is not executed.
func TestResetNeedsItsRow(t *testing.T) {
	s := newAdminStack(t)
	s.call(s.key, http.MethodPost, "/v1/rules", obj{"slug": "r", "limit": 1, "window": "1h"}).ok(201)
	remaining := func() any {
		rules := s.call(s.key, http.MethodGet, "/v1/subjects/a/limits", nil).ok(200).json()["rules"].([]any)
		return rules[0].(obj)["remaining"]
	}
	s.call(s.checkKey, http.MethodPost, "/v1/check", obj{"subject": "a"}).ok(200)
	require.EqualValues(t, 0, remaining())
	s.db.Exec("REVOKE INSERT ON audit_heads FROM weir_app")
	s.call(s.key, http.MethodPost, "/v1/subjects/a/reset", obj{"reason": "r"}).problem(500, codeInternal)
	require.EqualValues(t, 0, remaining())
	s.db.Exec("GRANT INSERT ON audit_heads TO weir_app")
	s.call(s.key, http.MethodPost, "/v1/subjects/a/reset", obj{"reason": "r"}).ok(200)
	require.EqualValues(t, 1, remaining())
}
