package api

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// A tenant that writes too often is refused by every writing operation, before anything is
// executed. It can still read, and other tenants can write.
func TestWriteRateOfEveryOperation(t *testing.T) {
	s := newAdminStack(t)
	var now atomic.Int64 // seconds
	now.Store(1_900_000_000)
	held := s.in(t)
	held.url = s.serve(s.db.Open(tenants.Config{WriteRates: tenants.WriteRates{Writes: 1, Resets: 1}, Now: func() time.Time { return time.Unix(now.Load(), 0) }}))
	for range 10 {
		held.call(s.key, http.MethodPatch, "/v1/tenant", obj{"name": "again"}).ok(200)
		held.call(s.operator, http.MethodPatch, "/v1/tenant", obj{"name": "again"}).ok(200)
	}
	unknown := []string{"/v1/keys/" + uuid.NewString(), "/v1/members/" + uuid.NewString(), "/v1/subjects/ada/portal-links/" + uuid.NewString()}
	for i := range 10 {
		held.call(s.key, http.MethodDelete, unknown[i%len(unknown)], nil).problem(404, codeNotFound) // ends of access have their own rate
	}
	writes := 0
	for id, op := range s.operations() {
		c := adminCases[id]
		if op.method == http.MethodGet || c.pure || c.asks {
			continue
		}
		writes++
		key, as := s.key, jsonType
		if strings.HasPrefix(op.path, "/v1/tenants") {
			key = s.operator
		}
		if c.as != "" {
			as = c.as
		}
		path := op.path
		for name := range strings.SplitSeq("rule plan subject id tenant", " ") {
			path = strings.ReplaceAll(path, "{"+name+"}", "any")
		}
		headers := []header{{"Content-Type", as}}
		if op.method == http.MethodPost {
			headers = append(headers, header{"Idempotency-Key", "used once more"})
		}
		got := held.call(key, op.method, path, c.body, headers...)
		got.problem(http.StatusTooManyRequests, codeWriteRateExceeded)
		require.Equal(t, "1", got.header.Get("Retry-After"), id)
	}
	require.GreaterOrEqual(t, writes, 20)
	held.call(s.key, http.MethodGet, "/v1/tenant", nil).ok(200)
	held.call(s.key, http.MethodPost, "/v1/simulate", adminCases["simulate"].body).ok(200)
	held.call(s.other, http.MethodPatch, "/v1/tenant", obj{"name": "theirs"}).ok(200)

	now.Add(1)
	held.call(s.key, http.MethodPost, "/v1/plans", obj{"slug": "p"}, header{"Idempotency-Key", "used once more"}).ok(201)
}

// Resets have a lower rate than other writes, and do not block those.
func TestResetRate(t *testing.T) {
	s := newAdminStack(t)
	var now atomic.Int64 // seconds
	now.Store(1_900_000_000)
	held := s.in(t)
	held.url = s.serve(s.db.Open(tenants.Config{WriteRates: tenants.WriteRates{Writes: 100, Resets: 1}, Now: func() time.Time { return time.Unix(now.Load(), 0) }}))
	reset := func() answer { return held.call(s.key, http.MethodPost, "/v1/subjects/a/reset", obj{"reason": "r"}) }
	for range 10 {
		reset().ok(200)
	}
	reset().problem(http.StatusTooManyRequests, codeWriteRateExceeded)
	held.call(s.key, http.MethodPatch, "/v1/tenant", obj{"name": "n"}).ok(200)
	now.Add(1)
	reset().ok(200)
}
